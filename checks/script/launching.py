"""How a script learns which rank it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import WARN, EditKind, Finding, Owner, SourceEdit
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.checks.script.fix_code import FixCode, fix_with, statement_of
from ddpdoctor.checks.script.script_facts import at, is_handed_to, remove_argument, require_distributed, set_argument
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import LibraryCall, Origin, OriginKind, Role, Script

_SPELLINGS: Final = ("'--local_rank'", "'--local-rank'")
_BOTH_SPELLINGS: Final = '"--local-rank", "--local_rank"'
_ENVIRON: Final = "os.environ"
_READERS: Final = compile_lazily(
    r"dist|launch|(?<!amp\.)init(?!\w*(?:weight|seed|log|model|optim|data|param|writer|wandb))"
    r"|setup(?!\w*(?:seed|log|model|optim|data|param|writer|wandb))",
    re.IGNORECASE,
)
"""Names of functions that may read the environment, and correct the options that they are handed."""
_LOCAL_RANK: Final = "LOCAL_RANK"
_ATTRIBUTE: Final = ".local_rank"
"""The option's value among the parsed options."""
_ASKED: Final = compile_lazily(r"\blocal_rank\s*(?:[!=]=|>=?)\s*-?\d")
"""A condition that asks whether a launcher gave a local rank."""
_NUMBER: Final = compile_lazily(r"-?\d{1,4}")


@check(
    "local-rank-argument-only",
    severity=WARN,
    owner=Owner.USER,
    explains=("local-rank-arg-mismatch", "duplicate-gpu", "missing-set-device"),
)
def local_rank_argument_only(script: Script) -> Iterator[Finding]:
    """The local rank is taken from --local_rank alone, which torchrun doesn't pass.

    ## What breaks
    Under torchrun the option keeps its default in every process: all of them use GPU 0, or each trains for itself without a word.
    Under `torch.distributed.launch` of torch 2.0 and later, which passes `--local-rank`, the script ends with "unrecognized arguments:
    --local-rank=0".

    ## Why
    The launchers of today tell a process its rank by the environment: LOCAL_RANK, RANK, WORLD_SIZE. The option is that of a launcher that
    torch calls deprecated since 1.9.

    ## Fix
    Read the environment: `local_rank = int(os.environ["LOCAL_RANK"])`. To keep the option for old launchers, let it be its default:
    `default=int(os.environ.get("LOCAL_RANK", 0))`, and name both spellings, `"--local-rank", "--local_rank"`.
    """
    require_distributed(script)
    requires(not script.does("local-rank-option"), "a launcher or parser of the framework that the script uses sets it")
    if _LOCAL_RANK in script.read_settings:
        return
    parsed = list(script.with_role(Role.OPTIONS))
    if any(is_handed_to(options, _READERS) or _is_told_otherwise(options) for options in parsed):
        return
    for option in script.with_role(Role.OPTION):
        spellings = [
            argument.value
            for argument in option.arguments
            if argument.name.isdecimal() and argument.value.is_constant(*_SPELLINGS)
        ]
        use = _use_of_local_rank(script) if spellings and option.is_reached else None
        if use is not None:
            yield _read_nowhere(script, option, use)
            return


def _is_told_otherwise(options: LibraryCall) -> bool:
    """Whether the script sets the option itself, to what isn't a constant: it starts its processes, or asks somebody else."""
    return any(
        setting.name == _ATTRIBUTE and any(map(_is_of_somebody_else, setting.value.origins))
        for setting in options.set_attributes
    )


def _is_of_somebody_else(origin: Origin) -> bool:
    is_same = origin.kind is OriginKind.LOCAL_RANK and origin.text == "option"
    return origin.kind is not OriginKind.CONSTANT and not is_same


def _use_of_local_rank(script: Script) -> LibraryCall | None:
    """The first call that depends on the option."""
    for call in script.with_role(Role.SET_DEVICE, Role.DEVICE, Role.MOVE, Role.WRAP, Role.PROCESS_GROUP):
        if any(_ASKED.search(condition.place.text) for condition in call.conditions):
            return call
        values = [argument.value for argument in call.arguments]
        for value in values:
            if any(origin.kind is OriginKind.LOCAL_RANK and origin.text == "option" for origin in value.flattened()):
                return call
    return None


def _read_nowhere(script: Script, option: LibraryCall, use: LibraryCall) -> Finding:
    edits = _default_from_environment(option)
    code = FixCode(script, option.place)
    code.name(_ENVIRON)
    return Finding.of(
        "The local rank comes from --local_rank alone, and torchrun passes no such option: each process takes the default",
        at(option.place, "the option"),
        at(use.place, "it is used"),
        fix_with(
            "Let the environment be the option's default, which suits every launcher",
            code.lines_if(statement_of(option, *edits)),
            option.place,
        ),
        place=option.place,
        edits=() if option.argument("required") else (_import_os(option), *edits),
    )


def _import_os(option: LibraryCall) -> SourceEdit:
    return SourceEdit(kind=EditKind.IMPORT, place=option.place, name="os")


def _default_from_environment(option: LibraryCall) -> tuple[SourceEdit, ...]:
    """The edits by which the option's default comes from the environment, its own is what stands there without a launcher, and any launcher
    may pass it."""
    default = option.argument("default")
    if default and not _NUMBER.fullmatch(default.text):
        return ()
    without = default.text if default else "0"
    spelled = [argument for argument in option.arguments if argument.value.is_constant(*_SPELLINGS)]
    return (
        *(set_argument(option, argument.name, _BOTH_SPELLINGS) for argument in spelled[:1] if len(spelled) == 1),
        *((remove_argument(option, "required"),) if option.argument("required") else ()),
        set_argument(option, "default", f'int({_ENVIRON}.get("{_LOCAL_RANK}", {without}))'),
    )
