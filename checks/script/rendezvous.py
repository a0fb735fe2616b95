"""Where the ranks of a script meet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ddpdoctor.base.findings import INFO, WARN, Finding, Fix, Owner, SourcePlace
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.checks.script.fix_code import FixCode, fix_with, statement_of
from ddpdoctor.checks.script.script_facts import at, may_start_ranks, reached, require_distributed, set_argument
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import Condition, LibraryCall, OriginKind, Ranks, Role, Script, Value

_SETTINGS: Final = ("MASTER_PORT", "MASTER_ADDR")
_OF_LAUNCHER: Final = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"})
"""A script that reads one of them is started by a launcher, which says where the ranks meet."""
_OTHER_LAUNCHERS: Final = ("SLURM_", "OMPI_", "PMI_", "MPI_", "PMIX_")
"""Those that say which rank a process is, and leave it to the script where the ranks meet."""
_USUAL_PORT: Final = "29500"
"""At which torchrun itself lets the ranks meet, unless it is told otherwise: on one host it works all the same."""
_LITERAL_URL: Final = compile_lazily(r"'tcp://[\w.-]+:\d+'")


class _Meeting(NamedTuple):
    """A place where the ranks shall meet, written into the script. setting: which says so; group: the call whose argument does, else."""

    setting: str
    value: Value
    place: SourcePlace
    group: LibraryCall | None = None


@check(
    "rendezvous-overwritten",
    severity=WARN,
    owner=Owner.USER,
    explains=(
        "rdzv-connect-failed",
        "rdzv-missing-node",
        "rendezvous-waiting",
        "port-in-use",
        "master-addr-unreachable",
    ),
)
def rendezvous_overwritten(script: Script) -> Iterator[Finding]:
    """MASTER_ADDR or MASTER_PORT is set to a constant, although a launcher sets it.

    ## What breaks
    Under torchrun, a port of one's own is one at which nobody listens: all ranks wait until the time-out, and the job ends with "client
    socket has timed out". With other launchers, an address such as `localhost` keeps a second node from joining, and two jobs on one host
    with the same port don't start.

    ## Why
    The launcher opens the port at which the ranks meet, and tells them by the environment. What the script writes there hides it.

    ## Fix
    Delete the line. If the script is also to run without a launcher, `os.environ.setdefault("MASTER_PORT", "29500")` leaves alone what the
    launcher has set.
    """
    require_distributed(script)
    requires(not _launches_itself(script), "the script starts its processes itself, and so has to say where they meet")
    for meeting in (*_written(script), *_urls(script)):
        if _is_literal(meeting.value):
            yield _hidden(script, meeting)
            return


def _launches_itself(script: Script) -> bool:
    """Whether no launcher tells the ranks where they meet: the script starts them, tells them who they are, or finds the first host."""
    written = {setting.name for setting in script.settings}
    addresses = [setting.value for setting in script.settings if setting.name == "MASTER_ADDR"]
    return (
        may_start_ranks(script)
        or not _OF_LAUNCHER.isdisjoint(written)
        or any(name.startswith(_OTHER_LAUNCHERS) for name in script.read_settings)
        or not all(map(_is_literal, addresses))
    )


def _written(script: Script) -> Iterator[_Meeting]:
    for setting in _SETTINGS:
        for written in script.settings:
            if written.name != setting or written.is_default or setting in script.read_settings:
                continue
            if written.is_reached and _is_always(written.conditions):
                yield _Meeting(setting, written.value, written.place)


def _urls(script: Script) -> Iterator[_Meeting]:
    for call in reached(script, Role.PROCESS_GROUP):
        url = call.argument("init_method", 1)
        if url and _is_always(call.conditions) and all(_LITERAL_URL.fullmatch(origin.text) for origin in url.origins):
            yield _Meeting("", url, call.place, call)


def _is_always(conditions: Iterable[Condition]) -> bool:
    """Whether it is so in each distributed run: not for one launcher, debugging or a host alone."""
    return all(condition.ranks is Ranks.DISTRIBUTED for condition in conditions)


def _is_told_rank(script: Script) -> bool:
    """Whether it is the environment that tells the group each process's rank."""
    for group in reached(script, Role.PROCESS_GROUP):
        rank = group.argument("rank", 4)
        if rank is None or any(origin.text in _OF_LAUNCHER for origin in rank.origins):
            return True
    return False


def _is_literal(value: Value) -> bool:
    return bool(value.origins) and all(
        origin.kind is OriginKind.CONSTANT and origin.text != "None" for origin in value.origins
    )


def _hidden(script: Script, meeting: _Meeting) -> Finding:
    read = sorted(_OF_LAUNCHER.intersection(script.read_settings)) if _is_told_rank(script) else []
    value = meeting.value.origins[0].text.strip("'")
    name = meeting.setting or "init_method"
    told = f", and hides the launcher's, whose {read[0]} the script reads" if read else ": one for every job and node"
    return Finding.of(
        f"{name} is the constant {value}{told}",
        at(meeting.place, "written"),
        _fix(script, meeting, value),
        severity=WARN if read and meeting.setting != "MASTER_ADDR" and not value.endswith(_USUAL_PORT) else INFO,
        place=meeting.place,
    )


def _fix(script: Script, meeting: _Meeting, value: str) -> Fix:
    group = meeting.group
    if group is not None:
        edit = set_argument(group, "init_method", '"env://"', 1)
        return fix_with("Let the launcher say where the ranks meet", statement_of(group, edit), group.place)
    code = FixCode(script, meeting.place)
    line = f'{code.name("os.environ")}.setdefault("{meeting.setting}", "{value}")'
    return Fix("Delete the line; or set it only where no launcher did", code.lines(line))
