"""What stands around a line, and tells whether it is said there or only shown: blocks of code, another program's hits, tests that passed."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_OPENING: Final = re.compile(rb"(?:\A|\n)(?:(?P<fence>[ \t>]*```\w*\r?\n)|Date:   [^\n]*\n\n)\Z")
"""What stands before a line that is only quoted."""
_FENCE: Final = re.compile(rb"^[ \t>]*```[^`\n]*$", re.MULTILINE)
_CLOSING: Final = re.compile(rb"\n[ \t>]*```[ \t]*\r?(?:\n|\Z)")
MAX_PAGE_BYTES: Final = 1 << 16
"""Bytes of a text that may be a page in Markdown: as many as an issue on GitHub has."""
_OF_A_RUN: Final = re.compile(
    rb"^(?![ \t]*>)(?:"
    rb"[^\n]{0,40}\d:\d\d:\d\d"
    rb"|[^\n]{0,40}\[rank\d"
    rb"|[ \t]*\[\d{1,5}\]:? (?!https?:)"
    rb"|[^\n]{0,60}\b(?:[Ss]tep|STEP|[Ee]poch|EPOCH|[Ii]ter(?:ation)?|[Bb]atch|[Uu]pdate)s?\b[^\w\n]{0,4}\d+(?![:.)] ?[A-Za-z`*])"
    rb"|[^\n]{0,200}\bloss\w*[\"']?[ :=]{1,3}\d"
    rb"|[^\n]{0,200}(?:\d%\||\dit/s|\ds/it|NCCL INFO )"
    rb")",
    re.MULTILINE,
)
"""A line of a program's log: a clock, a rank's label, a step, a progress bar."""
_LEAVES: Final = re.compile(
    rb"[^\n]*\n(?:(?:\[[^\]\n]{1,40}\]:? ?)?wandb:[^\n]*\n|[ \t\r]*\n){1,60}"
    rb"[^\n]{0,200}?\](?: \[\w+\])? (?:Sending process \d+ closing signal SIG|failed \(exitcode: )"
)
"""wandb sums a run up as its process ends."""
_DIFF: Final = re.compile(rb"[ \t>]*```(?:diff|patch)\b")
_MENDS: Final = re.compile(
    r"(?i)(?:(?P<headline>\#{1,6}) +|\W*)(?:bug[ -]?)?(?:fix(?:es|ed)?|resolve[sd]?|close[sd]?|address(?:es|ed)|changelog|changes)\b"
    r"[^.:]{0,40}(?(headline)|:)\W*$"
)

_HIT: Final = re.compile(
    r"(?:\./|/)?(?P<name>[\w./+@=-]+\.(?:log|txt|out|err|[oe]\d+))(?:[:-]\d+[:-]|:(?! )|-(?=Traceback \(|  File \"))"
)
"""What grep puts before a line of a log, if it has searched several."""
_HITS_LINE: Final = re.compile(rb"(?:\./|/)?(?P<stem>[\w./+@=-]+)\.(?:log|txt|out|err|[oe](?P<job>\d+))[:-]|--\r?$")
_SEARCHES: Final = re.compile(
    rb"(?:\([\w.-]+\) ?)?(?:\S*[$%#>]|[^\s@]{1,80}@\S.{0,300}[$#%]) *(?:sudo +)?(?:[ef]?grep|rg|ag|ack|zgrep) "
)
_OF_A_RANK: Final = re.compile(r"(?:^|/)(?:attempt_\d+/|(?:stdout|stderr)\.)|(?:rank|node|worker|host)[_-]?\d")
"""A launcher's file of one rank: its folder is of one run."""
MAX_NAME: Final = 256
MAX_HITS: Final = 200
"""Lines that are gone back to the command that found them."""

_CAPTURED: Final = re.compile(rb"^-{3,} Captured [a-z]+ [a-z]+ -{3,}\r?$", re.MULTILINE)
_SUMMARY: Final = re.compile(rb"^(?:=+ )?(?P<sums>[^\n=]*\b\d+ passed\b[^\n=]*) in [\d.]+s\b[^\n]*$", re.MULTILINE)


def is_only_shown(text: bytes, start: int, number: int, line: str) -> bool:
    """Whether what stands around the line that begins there, and says that, tells that it isn't said there."""
    if _opens_a_quotation(text, start, number) or is_of_others(text, start, line):
        return True
    return _is_of_a_diff(text, start, line) or (line.startswith(("- ", "* ")) and _is_mended(text, start))


def is_of_others(text: bytes, start: int, line: str) -> bool:
    """Whether it is of another run, or of a test that passed."""
    return _is_of_another_run(text, start, line) or _is_of_a_passed_test(text, start)


def _opens_a_quotation(text: bytes, start: int, number: int) -> bool:
    """Whether it stands behind the first line of a block of code in Markdown, as of a README that was printed, or is the title of one of
    git log's commits. A block that is most of the text, or that nothing closes, is a log that was pasted with its fences."""
    found = _OPENING.search(text, max(start - 200, 0), start)
    if not found or not found["fence"]:
        return found is not None
    return number > 2 and _CLOSING.search(text, start) is not None and not _is_pasted(text)


@lru_cache(1)
def _is_pasted(text: bytes) -> bool:
    """Whether most of it stands in blocks of code."""
    return sum(end - begin for begin, end in _blocks(text)) * 2 >= len(text)


def _blocks(text: bytes) -> list[tuple[int, int]]:
    fences = [fence.start() for fence in _FENCE.finditer(text)]
    return list(zip(fences[::2], fences[1::2], strict=False))


def _is_of_a_diff(text: bytes, start: int, line: str) -> bool:
    """Whether it stands in a block that is marked as a diff."""
    if line[:1] not in ("+", "-") or len(text) > MAX_PAGE_BYTES:
        return False
    block = next((begin for begin, end in _blocks(text) if begin < start < end), None)
    return block is not None and _DIFF.match(text, block) is not None


def _is_mended(text: bytes, start: int) -> bool:
    """Whether it is an item of a list of what was mended."""
    if len(text) > MAX_PAGE_BYTES:
        return False
    above = text[max(start - 2000, 0) : start].decode("utf-8", "replace").splitlines()
    headline = next((line for line in reversed(above) if line.strip() and not line.lstrip().startswith(("-", "*"))), "")
    return bool(_MENDS.match(headline))


def ends_its_process(text: bytes, start: int) -> bool:
    """Whether below a line stands only what wandb says as its process ends, and then a launcher's word that one did."""
    return _LEAVES.match(text, start) is not None


def _is_of_another_run(text: bytes, start: int, line: str) -> bool:
    """Whether it is a hit of grep in the logs of several runs, and the command stands above: whose it is nobody knows."""
    # What stands before all of a file's lines may have been taken off.
    found = _HIT.match(line) or _HIT.match(text[start : start + MAX_NAME].decode("utf-8", "replace"))
    if not found or _OF_A_RANK.search(found["name"]):
        return False
    end = start - 1
    for _ in range(MAX_HITS):
        if end <= 0:
            return False
        begin = text.rfind(b"\n", 0, end) + 1
        if _SEARCHES.match(text, begin, end):
            return not _is_of_one_run(text, begin, end)
        if not _HITS_LINE.match(text, begin, end):
            return False
        end = begin - 1
    return False


@lru_cache(8)
def _is_of_one_run(text: bytes, begin: int, end: int) -> bool:
    """Whether all that the command there has found is of one job, which may write two files; and it names those, or nothing but its hits
    stands there, for then no other run is at hand."""
    stems: set[tuple[bytes, bytes]] = set()
    at = end + 1
    for _ in range(MAX_HITS):
        below = text.find(b"\n", at) + 1 or len(text) + 1
        found = _HITS_LINE.match(text, at, below - 1)
        if not found:
            break
        if found["stem"]:
            stems.add((found["stem"], found["job"] or b""))
        at = below
    if len(stems) != 1:
        return False
    named = next(iter(stems))[0] in text[begin:end]
    return named or not (_OF_A_RUN.search(text, 0, begin) or _OF_A_RUN.search(text, at))


def _is_of_a_passed_test(text: bytes, start: int) -> bool:
    """Whether pytest shows it as what a test has written, and no test failed."""
    return any(begin < start < end for begin, end in _captured(text))


@lru_cache(1)
def _captured(text: bytes) -> tuple[tuple[int, int], ...]:
    """From where pytest shows what tests have written to the line in which it sums up that all passed."""
    if b" Captured " not in text:
        return ()
    found = []
    first = _CAPTURED.search(text)
    while first:
        summary = _SUMMARY.search(text, first.end())
        if not summary:
            break
        if not re.search(rb"\b(?:failed|errors?)\b", summary["sums"]):
            found.append((first.start(), summary.start()))
        first = _CAPTURED.search(text, summary.end())
    return tuple(found)
