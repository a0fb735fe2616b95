"""What a check that judges a log asks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Final

import msgspec

from ddpdoctor.base.findings import Evidence, Finding
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.engine.registry import Predicate, SignRole, requires
from ddpdoctor.facts.log import Log, LogFile, LogFrame, LoggedException, LoggedStack, LogLine, SignMatch
from ddpdoctor.knowledge.frameworks import is_of_framework, phase_of
from ddpdoctor.logs.exceptions import is_of_library, with_slashes

FindingOfSigns = Callable[[Log, Sequence[SignMatch]], Finding]
"""What a check makes of those of its signs that a log has."""

NO_LOG: Final = "no log was read"
MAX_VALUES: Final = 4
MAX_LINES_BESIDE: Final = 2
MAX_CALLS: Final = 3
MAX_CHARACTERS: Final = 300
"""Characters of a line, as many as are shown of it."""
HEAD_CHARACTERS: Final = 80
CONTEXT_CHARACTERS: Final = 60
_WHOSE_MEMORY: Final = compile_lazily(
    r"(?:(?!out of memory).)*out of memory\. Tried to allocate .* memory in use\.(?= )"
)
"""The part of torch's message that tells how much of the GPU is whose; behind it stands advice."""
_SLURM_JOB: Final = compile_lazily(r"\bStepId=(\d+)|\*\*\* (?:STEP|JOB) (\d+)|\bin step (\d+)\.")
_OF_A_TRACEBACK: Final = compile_lazily(r"\s|File \"|Traceback ")


def sightings(log: Log, slug: str) -> tuple[SignMatch, ...]:
    """List where the signs of that illness really were said, in the order in which they were read.

    Where no log was read, the check that asks doesn't apply.
    """
    requires(log.files, NO_LOG)
    return tuple(_real(log, slug))


def _real(log: Log, slug: str) -> Iterator[SignMatch]:
    return (sighting for sighting in log.sightings if sighting.slug == slug and not sighting.quoted)


def said(log: Maybe[Log], slug: str) -> bool:
    """Whether a log, if one was read, has a sign of that illness."""
    return not isinstance(log, Unknown) and any(_real(log, slug))


def word(seen: Iterable[SignMatch], name: str) -> str:
    """Return the first of these words that any of the sightings has; "" if none has it."""
    return next((match.words[name] for match in seen if match.words.get(name)), "")


def job_of_slurm(seen: Iterable[SignMatch], log: Log) -> str:
    """The job's id in Slurm's own words; "" where they don't name it."""
    ends, last = (end.line for end in log.exited), (words.line for words in log.last)
    said = (*(match.line for match in seen), *ends, *log.errors, *last)
    return next((found[found.lastindex or 0] for line in said if (found := _SLURM_JOB.search(line.text))), "")


def host_named(label: str) -> str:
    """Return the host that a label tells: Ray's only names a worker there."""
    return f"the host of {label}" if "pid=" in label else label


def shown_by(raised: LoggedException, slug: str, role: SignRole, words: dict[str, str] | None = None) -> SignMatch:
    """Make a sighting of what an exception shows by its kind and place, where no words alone would."""
    sign = raised.message or raised.exception
    return SignMatch(slug=slug, sign=sign, role=role, line=raised.line, words=words or {}, times=raised.times)


def said_by(seen: Iterable[SignMatch]) -> int | None:
    """Return the rank that said it first, where the log tells."""
    return next((match.line.rank for match in seen if match.line.rank is not None), None)


def lines(log: Log, seen: Iterable[SignMatch], most: int = 4) -> tuple[Evidence, ...]:
    """Show the lines that sightings rest on, with file and number; one with several signs once. What another line
    alone makes certain stands behind that one: settings that are printed long before, what the rank was doing."""
    different: dict[tuple[int, int], SignMatch] = {}
    beside: dict[str, LogLine] = {}
    for match in seen:
        different.setdefault((match.line.file, match.line.number), match)
        if match.beside and not _OF_A_TRACEBACK.match(match.beside.text):
            beside.setdefault(match.beside.text, match.beside)
    said = [Evidence(_around(match), where(log, match.line)) for match in list(different.values())[:most]]
    others = [line for line in beside.values() if (line.file, line.number) not in different]
    return (*(Evidence(line.text[:MAX_CHARACTERS], where(log, line)) for line in others[:MAX_LINES_BESIDE]), *said)


def _around(seen: SignMatch) -> str:
    """Show the line; of a long one its beginning, and what is around the sign."""
    text = seen.line.text
    if len(text) > MAX_CHARACTERS and (whose := _WHOSE_MEMORY.match(text)):
        text = whose[0]
    at = text.find(seen.sign)
    if len(text) <= MAX_CHARACTERS or at + len(seen.sign) < MAX_CHARACTERS // 2 or at < 0:
        return text
    begin = max(at - CONTEXT_CHARACTERS, HEAD_CHARACTERS)
    return f"{text[:HEAD_CHARACTERS]} ... {text[begin : begin + MAX_CHARACTERS - HEAD_CHARACTERS - 20]}"


def own_line(log: Log, raised: LoggedException) -> tuple[Evidence, ...]:
    """The innermost line of the user's own code in a traceback, if one is in it: "train.py:7, in step: loss.backward()", and what the
    framework was at that it called."""
    own = raised.own
    if own is None:
        return ()
    phase = phase_within(raised.frames)
    at = f"; within it {phase}" if phase else ""
    return (Evidence(f"{_call(own)}{at}", where(log, raised.began)),)


def stack_lines(log: Log, stack: LoggedStack) -> tuple[Evidence, ...]:
    """The script's calls on a stack, the innermost first, and what the framework was at; of a stack without one its innermost call."""
    own = [frame for frame in reversed(stack.frames) if not is_of_library(frame.path)] or list(stack.frames[-1:])
    calls = " <- ".join(map(_call, own[:MAX_CALLS]))
    phase = phase_within(stack.frames)
    inner = stack.frames[-1] if stack.frames and stack.frames[-1] not in own else None
    within = f" (within it {_call(inner)})" if inner and not is_of_framework(inner.path) else ""
    return (Evidence(f"{calls}{within}{f'; in {phase}' if phase else ''}", where(log, stack.line)),)


def phase_within(frames: Sequence[LogFrame]) -> str:
    """Tell what the framework is at whose calls are among them, the innermost last."""
    return phase_of((with_slashes(frame.path), frame.function) for frame in reversed(frames))


def _call(frame: LogFrame) -> str:
    code = f": {frame.code}" if frame.code else ""
    within = f", in {frame.function}" if frame.function else ""
    return f"{frame.path}:{frame.line}{within}{code}"


def named(log: Log, seen: Iterable[SignMatch]) -> tuple[Evidence, ...]:
    """Show what the words of sightings are, which a summary made of a page leaves out: "What the log names: address
    10.0.0.7, port 29500"."""
    found: dict[str, dict[str, None]] = {}
    first = None
    for match in seen:
        for name, value in match.words.items():
            found.setdefault(name.replace("_", " "), {})[value.strip()] = None
            first = first or match.line
    told = ", ".join(f"{name} {listed(values, MAX_VALUES)}" for name, values in found.items())
    return (Evidence(f"What the log names: {told}", where(log, first)),) if first else ()


def where(log: Log, line: LogLine) -> str:
    """Name a line's place: "run.log:412, rank 3, node7"; with several files of one folder their names within that."""
    name = log.files[line.file].name if line.file < len(log.files) else "the log"
    rank = f"rank {line.rank}" if line.rank is not None else ""
    short = name.removeprefix(common_folder(log.files))
    return ", ".join(part for part in (f"{short}:{line.number}", rank, line.host) if part)


@lru_cache(maxsize=4)
def common_folder(files: tuple[LogFile, ...]) -> str:
    """The folder that several files have in common, with a slash at its end; "" for a single file, or where there is none
    but the root. Of the launcher's own output and the ranks' files it is that of the ranks'."""
    names = [file.name for file in files]
    return _common(names) or _common(names[1:])


def _common(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    folders = zip(*(name.split("/")[:-1] for name in names), strict=False)
    common = [folder[0] for folder in takewhile(lambda names_of_folder: len(set(names_of_folder)) == 1, folders)]
    return "/".join([*common, ""]) if any(common) else ""


def judging_signs(slug: str, finding_of: FindingOfSigns, *, of_rank: bool) -> Predicate:
    """Make what `log_check` registers of a function that is given the sightings of its illness."""

    def predicate(log: Log) -> Iterator[Finding]:
        seen = [match for match in sightings(log, slug) if match.role is not SignRole.NOISE]
        if seen:
            finding = finding_of(log, seen)
            rank = said_by(seen) if of_rank and finding.rank is None else finding.rank
            yield msgspec.structs.replace(finding, evidence=finding.evidence or lines(log, seen), rank=rank)

    return predicate
