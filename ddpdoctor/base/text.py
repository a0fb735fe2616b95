"""The words of reports: others' text made fit to be shown (what a terminal obeys, or doesn't show, is named or masked), long text
cut, and counts, sizes, lists, ranks and signals in words. No other module cleans or cuts text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

from ddpdoctor.base.lazy_patterns import compile_lazily

UNSEEN: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff"
)
"""For a pattern's brackets: controls but tab and line feed (the second set of them, too, which a terminal may obey as it does an
escape), what turns the direction of writing round or breaks lines, tags, what has no width, what means something to one program
alone, and bytes that are no text."""

MIB: Final = 1024**2
GIB: Final = 1024**3

MAX_PID_DIGITS: Final = 10
LONGEST_QUOTE: Final = 160
"""Characters of a line that is quoted."""

_ANY: Final = compile_lazily(f"[{UNSEEN}]")
_NEITHER_OURS: Final = compile_lazily(
    rf"(?!\r|\x1b\[[0-9;?]*[A-Za-z]|\x1b\]8;[^\x00-\x1f\x7f-\x9f]*\x1b\\|(?<=\S)\x1b\\)[{UNSEEN}]"
)
"""All of them but for what our own reports are made of: colours, the cursor's moves, and links with their end."""


SIGNALS: Final = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 16: "SIGSTKFLT",
    18: "SIGCONT", 19: "SIGSTOP", 20: "SIGTSTP", 21: "SIGTTIN", 22: "SIGTTOU", 24: "SIGXCPU", 25: "SIGXFSZ",
    26: "SIGVTALRM", 27: "SIGPROF", 29: "SIGIO", 30: "SIGPWR", 31: "SIGSYS",
}  # fmt: skip
"""Linux' numbers, on whatever system they are read."""


def has_unseen(text: str) -> bool:
    return _ANY.search(text) is not None


def visible(text: str) -> str:
    r"""The text with what isn't seen written out: \x1b, \u202e. Tabs and line feeds stay."""
    return text if text.isprintable() else _ANY.sub(_named, text)


def masked(text: str) -> str:
    """The text with a question mark for each character that isn't seen. Tabs and line feeds stay."""
    return text if text.isprintable() else _ANY.sub("?", text)


def one_line(text: str) -> str:
    """`visible`, and on one line."""
    return " ".join(visible(text).split())


def clip(text: str, most: int = LONGEST_QUOTE) -> str:
    """One line of at most so many characters; dots for an end that is left out."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3].rstrip()}..."


def clip_middle(text: str, most: int) -> str:
    """At most so many characters; dots for a middle that is left out. Of a name, such as a path, as much of the end is kept as of the
    beginning; of a sentence the beginning says more."""
    if len(text) <= most:
        return text
    dots, share = (" ... ", 3) if " " in text else ("...", 2)
    end = (most - len(dots)) // share
    return f"{text[: most - len(dots) - end]}{dots}{text[-end:]}"


def quoted(value: str) -> str:
    """A value in a summary: in quotes, and short."""
    return repr(clip_middle(value, 30))


def escaped_json(text: str) -> str:
    """The same JSON, with what isn't seen as escapes of JSON's own; it reads back as it was."""
    return _ANY.sub(_in_json, text)


def guard(stream: TextIO) -> None:
    """Let nothing through to a terminal that isn't seen, whoever forgot to make a text fit before."""
    write = stream.write

    def guarded(text: str) -> int:
        write(text if text.replace("\n", "").isprintable() else _NEITHER_OURS.sub(_named, text))
        return len(text)

    stream.write = guarded  # type: ignore[method-assign]


def pid_named(text: str) -> int:
    """Read the pid that somebody names; 0 where it is none: no plain number, or more digits than any pid has."""
    word = text.strip()
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= MAX_PID_DIGITS else 0


def human(size: float) -> str:
    """Bytes as a person reads them: 67108864 is "64 MiB"."""
    units = ["TiB", "GiB", "MiB", "KiB", "B"]
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        units.pop()
    return f"{size:.1f}".removesuffix(".0") + f" {units[-1]}"


def capital(text: str) -> str:
    """The text with a capital at its beginning, and the rest as it is."""
    return f"{text[:1].upper()}{text[1:]}"


def without_capital(text: str) -> str:
    """The text with a small letter at its beginning, and the rest as it is: for within a sentence."""
    return f"{text[:1].lower()}{text[1:]}"


def listed(items: Iterable[object], most: int = 5) -> str:
    """ "a, b and c"; past `most` items "a, b, c and 9 more"."""
    words = [str(item) for item in items]
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def spans(numbers: Iterable[int]) -> list[str]:
    """Three and more in a row as one: [0, 1, 2, 5] is ["0-2", "5"], and [0, 1] is ["0", "1"]."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [
        text for run in runs for text in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(number) for number in run])
    ]


def ranks_named(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0 and 2", "ranks 0-6 and 9"."""
    numbers = sorted(set(ranks))
    return f"rank{'' if len(numbers) == 1 else 's'} {listed(spans(numbers))}"


def signal_name(number: int) -> str:
    """9, or as an exit code -9, is "SIGKILL" (Linux' numbers); one without a name "signal 34"."""
    return SIGNALS.get(abs(number), f"signal {abs(number)}")


def plural(count: int, noun: str, many: str = "") -> str:
    """ "1 GPU", "8 GPUs"."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"


def ago(seconds: float) -> str:
    """7200.0 is " 2 hours ago", with a blank before it, 3.0 " just now"; "" where it isn't known (below 0)."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f" {plural(int(seconds // length), unit)} ago"
    return " just now" if seconds >= 0 else ""


def dotted(version: Sequence[int]) -> str:
    """(12, 8) as "12.8"."""
    return ".".join(str(part) for part in version)


def milliseconds(seconds: float) -> str:
    """0.000123 is "0.12 ms", 0.0345 is "35 ms"."""
    amount = seconds * 1000
    return f"{amount:.{0 if amount >= 10 else 1 if amount >= 1 else 2}f} ms"


def bandwidth(rate: float) -> str:
    """Mbit/s as a person reads them: 9412.0 is "9.4 Gbit/s", 2.04 is "2 Mbit/s"."""
    unit = "Mbit/s"
    if rate >= 1000:
        rate, unit = rate / 1000, "Gbit/s"
    return (f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}".removesuffix(".0")) + f" {unit}"


def _named(found: re.Match[str]) -> str:
    character = found[0]
    if "\udc80" <= character <= "\udcff":
        # A byte of a file's name that is no character of this locale's encoding.
        return f"\\x{ord(character) - 0xDC00:02x}"
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"


def _in_json(found: re.Match[str]) -> str:
    pair = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{pair[place : place + 4]}" for place in range(0, len(pair), 4))
