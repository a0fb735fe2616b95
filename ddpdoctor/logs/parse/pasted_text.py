"""What stands around a line, and tells whether it is said there or only shown: blocks of code, another program's hits, tests that passed."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_OPENING: Final = re.compile(rb"(?:\A|\n)(?:(?P<fence>[ \t>]*```\w*\r?\n)|Date:   [^\n]*\n\n)\Z")
"""What stands before a line that is only quoted."""
_FENCE: Final = re.compile(rb"^[ \t>]*```[^`\n]*$", re.MULTILINE)
_CLOSING: Final = re.compile(rb"\n[ \t>]*```[ \t]*\r?(?:\n|\Z)")
MOST_OF_A_REPORT: Final = 1 << 16
"""Bytes of a text that may be somebody's report of a failure: as many as an issue on GitHub has."""
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
_OF_MORE: Final = re.compile(
    rb"Traceback \(most recent|File \"|torch[./]distributed[./]|srun: |exit ?code", re.IGNORECASE
)
_LEAVES: Final = re.compile(
    rb"[^\n]*\n(?:(?:\[[^\]\n]{1,40}\]:? ?)?wandb:[^\n]*\n|[ \t\r]*\n){1,60}"
    rb"[^\n]{0,200}?\](?: \[\w+\])? (?:Sending process \d+ closing signal SIG|failed \(exitcode: )"
)
"""wandb sums a run up as its process ends."""
_PAGE: Final = re.compile(
    rb"(?i)^#+ [^\n]{0,60}\b(?:faq|troubleshooting|known issues|change ?log|release notes)\b", re.MULTILINE
)
_A_PERSON: Final = re.compile(
    rb"\bI\b(?! *[/:=])|\b(?:[Mm]y|[Mm]e|[Ww]e|[Aa]ny(?:one|body)|[Tt]hanks|Thx|Hi|Hello)\b(?! *[/:=])", re.MULTILINE
)
"""Words that no program says of itself."""
_AS_OUTPUT: Final = re.compile(
    r"""\s*(?:
      (?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt)[:：]
    | Traceback\ \(most\ recent
    | \[rank\d | \[default\d | \[?[IWEF]\d{4}\ \d\d: | \[[EF]\b
    | [\w.-]+:\d+:\d+\ \[\d+\]\ | NCCL\ (?:WARN|version)
    | terminate\ called | Fatal\ Python\ error
    | (?:srun|slurmstepd|docker|ninja|make(?:\[\d+\])?|ssh|ld|collect2|nvidia-container-cli)(?::\ (?:error|Error|fatal|\*\*\*)|:\ )
    | nvcc\ (?:fatal|error)
    | \S*\.so[\w.]*:\ \w
    | \S+\.(?:py|cpp|cu|cc|h|cuh):\d+
    )""",
    re.VERBOSE,
)
"""As a program, and no sentence, begins: an exception, a traceback, words of a launcher or of NCCL."""
_TELLS: Final = re.compile(
    r"(?i)\b(?:gets?|got|getting|gives?|gave|fail(?:s|ed|ing)?|throw[sn]?|threw|rais(?:es|ed|ing)|r[au]n(?:ning)? into"
    r"|hits?|encounter(?:s|ed|ing)?|report(?:s|ed)|crash(?:es|ed)|dies|died|errors?|issue|problem|exception)\b[^`]{0,80}`"
)
"""What a report says before words that it quotes."""
_SAYS: Final = re.compile(
    r"(?i)\b(?:see(?:ing|s)?|saw|shows?|showed|prints?|printed|says?|said|writes?|wrote|stop(?:s|ped)|end(?:s|ed)|exit(?:s|ed)|abort(?:s|ed)|breaks?|broke"
    r"|leads? to|led to|results? in|resulted in|receive[sd]?|meets?|met|face[sd]?|facing|following|because of|due to|caused by|solve)\b[^`]{0,80}$"
)
"""The same before words that begin as a program's."""
_COMES: Final = re.compile(
    r"\W{0,3}(?:(?:error|exception|message)\W)?(?:occurs?|happens|appears|pops up|comes up|shows up)\b"
)
"""Behind them."""
_IN_GENERAL: Final = re.compile(
    r"(?i)\b(?:(?:if|when(?:ever)?|in case) (?:you|one|users?|it|this) (?:sees?|gets?|encounters?|hits?|runs? into|fails? with|dies? with)\b"
    r"|(?:you|users|one|it) (?:may|might|will|can|could|would)\b|troubleshoot|known issues?\b|faq\b)"
)
"""Documentation, which tells what may happen."""
_BACKTICKED: Final = re.compile(r"\s*(?:`{3}(?!`)(?P<three>[^`]{8,})`{3}|`(?!`)(?P<one>[^`]{8,})`)[\s.,:;]*$")
_IS_WISHED: Final = re.compile(
    r"(?i)\b(?:(?:could|can|would|will) (?:you|we|it|this)\b.{0,60}\b(?:cover|add|support|raise|throw|catch|test|check|document)\b"
    r"|(?:how (?:do|can|could|should|would|to)|(?:want|wish|like) to)\b.{0,40}\b(?:catch|skip|ignore|detect|test|simulate|provoke)\b"
    r"|should (?:raise|throw|say|be)\b|the case (?:in which|where|when|that)\b)"
)
"""Before the words of a failure: who asks for a change of a program, or how to write one."""
_NO_LONGER: Final = (
    r"no longer (?:sees?|gets?|ha(?:ve|s)|occurs?|happens?|appears?|raise[sd]?|throws?|thrown|shows?|shown)\b"
)
_WAS: Final = re.compile(
    rf"(?i)\b(?:{_NO_LONGER}|(?:not|n['’]t) (?:see|get|have)\b.*\bany ?more\b|solved (?:it|my|the|this)\b)(?!.*\b(?:but|still|however|yet)\b)"
)
"""Before the words of a failure of which somebody is rid."""
_IS_OVER: Final = re.compile(
    rf"(?i).*?\b(?:(?:is|are|was|were|has been|got)\s(?:now |finally |all )?(?:gone|solved|fixed|resolved)\b|went away\b|(?:was|were) last seen\b"
    rf"|{_NO_LONGER}|(?:not|n['’]t) (?:occur|happen|appear)\b.*\bany ?more\b|(?<=> )(?:fixed|solved|done)\b)(?!.*\b(?:but|still|however|yet)\b)"
)
"""The same behind them."""
_AN_ERROR: Final = re.compile(r"(?<![\w.])(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)[:：]")
_SENTENCE: Final = re.compile(r"[.!?](?:\s+|$)")
_DIFF: Final = re.compile(rb"[ \t>]*```(?:diff|patch)\b")
_MENDING: Final = re.compile(
    r"(?i)\b(?:(?:fix|avoid|prevent|handl|catch|resolv|address|mend|ignor|retr[iy])(?:e?[sd]|es|ing|e|y)?|retry|workaround|instead of|such as|e\.g\.)\b"
    r"(?!.{0,400}\b(?:but|still|however|now|yet)\b)[^`]{0,400}`$"
)
"""What is said before the name of an error by who is rid of it."""
_MENDS: Final = re.compile(
    r"(?i)(?:(?P<headline>\#{1,6}) +|\W*)(?:bug[ -]?)?(?:fix(?:es|ed)?|resolve[sd]?|close[sd]?|address(?:es|ed)|changelog|changes)\b"
    r"[^.:]{0,40}(?(headline)|:)\W*$"
)
_IN_A_SENTENCE: Final = re.compile(
    r"[^`\"]{0,400}?\b(?i:errors?|exceptions?|messages?|following|gets?|got|says|with|reads)(?: is)?\s?[:：-]?\W{1,3}"
    r"(?=(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)[:：] ?\S)"
)
"""Of somebody who tells what he has got."""
_MARKED: Final = re.compile(
    r"\s*(?:\#{1,6} (?:\W*(?:bug|error|issue|problem|question|help)s?\W+)?|(?:[-*]|\d+[.)]) (?=[`\"]))"
    r"(?P<words>[`\"]?(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)[:：] ?\S.*)$",
    re.IGNORECASE,
)
"""A headline, or an item of a list, that is an error and nothing else."""
_HEADLINE: Final = re.compile(rb"^[^\S\n]*\S[^\n]*\n\s*\Z", re.MULTILINE)

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
    if _opens_a_quotation(text, start, number, line) or is_of_others(text, start, line):
        return True
    if _is_told_to_be_over(text, start):
        return True
    return _is_of_a_diff(text, start, line) or (line.startswith(("- ", "* ")) and _is_mended(text, start))


def is_of_others(text: bytes, start: int, line: str) -> bool:
    """Whether it is of another run, or of a test that passed."""
    return _is_of_another_run(text, start, line) or _is_of_a_passed_test(text, start)


def _opens_a_quotation(text: bytes, start: int, number: int, line: str) -> bool:
    """Whether it stands behind the first line of a block of code in Markdown, as of a README that was printed, or is the title of one of
    git log's commits. A block that is most of the text, or that nothing closes, is a log that was pasted with its fences; so is one of a
    report, if it begins as a program's words do."""
    found = _OPENING.search(text, max(start - 200, 0), start)
    if not found or not found["fence"]:
        return found is not None
    if number <= 2 or not _CLOSING.search(text, start) or _is_pasted(text):
        return False
    return not (is_report(text) and _AS_OUTPUT.match(line) and not _is_documented(text, found.start()))


def _is_documented(text: bytes, fence: int) -> bool:
    """Whether the line before that block speaks of what may happen."""
    found = _HEADLINE.search(text[max(fence - 400, 0) : fence + 1])
    return found is not None and bool(_IN_GENERAL.search(found.group().decode("utf-8", "replace")))


@lru_cache(1)
def _is_pasted(text: bytes) -> bool:
    """Whether most of it stands in blocks of code."""
    return sum(end - begin for begin, end in _blocks(text)) * 2 >= len(text)


def _blocks(text: bytes) -> list[tuple[int, int]]:
    fences = [fence.start() for fence in _FENCE.finditer(text)]
    return list(zip(fences[::2], fences[1::2], strict=False))


def _is_in_a_block(text: bytes, start: int) -> bool:
    return any(begin < start < end for begin, end in _blocks(text))


def is_report(text: bytes) -> bool:
    """Whether it is what somebody writes about a failure, and no log: beyond its blocks of code nothing is a program's. Nor is it a page on
    what may fail."""
    return len(text) <= MOST_OF_A_REPORT and _has_no_run(text)


@lru_cache(1)
def _has_no_run(text: bytes) -> bool:
    at = 0
    if _PAGE.search(text):
        return False
    for begin, end in [*_blocks(text), (len(text), len(text))]:
        if _OF_A_RUN.search(text[at:begin]):
            return False
        at = text.find(b"\n", end) + 1 or len(text)
    return True


def _is_of_a_diff(text: bytes, start: int, line: str) -> bool:
    """Whether it stands in a block that is marked as a diff."""
    if line[:1] not in ("+", "-") or len(text) > MOST_OF_A_REPORT:
        return False
    block = next((begin for begin, end in _blocks(text) if begin < start < end), None)
    return block is not None and _DIFF.match(text, block) is not None


def _is_mended(text: bytes, start: int) -> bool:
    """Whether it is an item of a list of what was mended."""
    if len(text) > MOST_OF_A_REPORT:
        return False
    above = text[max(start - 2000, 0) : start].decode("utf-8", "replace").splitlines()
    headline = next((line for line in reversed(above) if line.strip() and not line.lstrip().startswith(("-", "*"))), "")
    return bool(_MENDS.match(headline))


def ends_its_process(text: bytes, start: int) -> bool:
    """Whether below a line stands only what wandb says as its process ends, and then a launcher's word that one did."""
    return _LEAVES.match(text, start) is not None


def is_all_of_it(text: bytes, start: int) -> bool:
    """Whether a report, by its looks, has neither a traceback nor a launcher's words: the exception in the line that begins there is what
    it tells of. Somebody speaks in it, or that stands between backticks."""
    return is_report(text) and not _has_more(text) and (_has_person(text) or _is_code(text, start))


def _is_code(text: bytes, start: int) -> bool:
    """Whether the line that begins there stands in a block of code, or begins with backticks."""
    return text.count(b"`", 0, start) % 2 == 1 or text.startswith(b"`", start)


@lru_cache(1)
def _has_more(text: bytes) -> bool:
    return _OF_MORE.search(text) is not None


def _is_a_persons(text: bytes) -> bool:
    """Whether it is a report, and somebody speaks in it."""
    return is_report(text) and _has_person(text)


@lru_cache(1)
def _has_person(text: bytes) -> bool:
    at = 0
    for begin, end in [*_blocks(text), (len(text), len(text))]:
        if _A_PERSON.search(text[at:begin]):
            return True
        at = text.find(b"\n", end) + 1 or len(text)
    return False


def unquoted(text: bytes, start: int, piece: bytes) -> bytes:
    """A line of that text, which begins there; of a report as the program has written it that it quotes: without the mark of a quotation, of
    a headline or an item of a list, backticks around all of it, and the sentence that it ends."""
    begins = piece.lstrip()[:1]
    if not (begins in (b">", b"`") or b"Error" in piece or b"Exception" in piece) or not is_report(text):
        return piece
    line = piece.decode("utf-8", "replace")
    while line.startswith(">") and not line.startswith(">>>"):
        line = line[1:].removeprefix(" ")
    a_persons = _is_a_persons(text)
    if a_persons and (found := _MARKED.match(line)) and not _is_in_a_block(text, start):
        line = found["words"]
    if found := _BACKTICKED.match(line):
        line = (found["three"] or found["one"]).strip()
    elif a_persons and (found := _IN_A_SENTENCE.match(line)) and not _IN_GENERAL.search(line, 0, found.end()):
        line = line[found.end() :]
    return line.encode()


def tells_of(text: bytes, line: str, literal: str) -> bool:
    """Whether that text is somebody's report, and the line tells that it has met those words, which stand in it between backticks."""
    if "`" not in line or not _is_a_persons(text):
        return False
    at = line.find(literal)
    begin = line.rfind("`", 0, at) + 1
    if at < 0 or not begin or _IN_GENERAL.search(line, 0, begin) or _MENDING.search(line, 0, begin):
        return False
    end = line.find("`", at)
    if _is_past_or_wished(line[:begin], line[end + 1 :] if end >= 0 else ""):
        return False
    if _TELLS.search(line, 0, begin):
        return True
    before = _SENTENCE.split(line[: begin - 1])[-1].rstrip()
    told = not before or before.endswith((":", "：", ">")) or _SAYS.search(before) or _COMES.match(line[end + 1 :])
    return bool(_AS_OUTPUT.match(line[begin:]) and told)


def _is_told_to_be_over(text: bytes, start: int) -> bool:
    """Whether the line that begins there names an error in a sentence of a report by which nobody has it now."""
    if not is_report(text):
        return False
    end = text.find(b"\n", start)
    line = text[start : end if end >= 0 else len(text)].decode("utf-8", "replace")
    found = _AN_ERROR.search(line)
    # What begins with it is a program's own line.
    if not found or not line[: found.start()].strip() or not _has_person(text) or _is_in_a_block(text, start):
        return False
    before, after = line[: found.start()], line[found.end() :]
    if before.endswith("`"):
        after = after.partition("`")[2]
    if before.strip() == "`":  # The sentence has begun above.
        before = text[max(start - 400, 0) : start].decode("utf-8", "replace").rpartition("\n\n")[2].replace("\n", " ")
    return _is_past_or_wished(before, after)


def _is_past_or_wished(before: str, after: str) -> bool:
    """Whether the sentence around the words of a failure tells that it is over, or wishes for something."""
    before = _SENTENCE.split(before)[-1]
    behind = [sentence for sentence in _SENTENCE.split(after) if sentence.strip()]
    ends = {*behind[:1], *behind[-1:]}
    return bool(_IS_WISHED.search(before) or _WAS.search(before) or any(map(_IS_OVER.match, ends)))


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
