"""Small helpers for the words of findings: sizes, lists, ranks, signals, one short line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

LONGEST: Final = 160
"""Characters of a line that is quoted."""

SIGNALS: Final = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 16: "SIGSTKFLT",
    18: "SIGCONT", 19: "SIGSTOP", 20: "SIGTSTP", 21: "SIGTTIN", 22: "SIGTTOU", 24: "SIGXCPU", 25: "SIGXFSZ",
    26: "SIGVTALRM", 27: "SIGPROF", 29: "SIGIO", 30: "SIGPWR", 31: "SIGSYS",
}  # fmt: skip
"""Linux' numbers, on whatever system they are read."""


def human(size: float) -> str:
    """Bytes as a person reads them: 67108864 is "64 MiB"."""
    units = ["TiB", "GiB", "MiB", "KiB", "B"]
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        units.pop()
    return f"{size:.1f}".removesuffix(".0") + f" {units[-1]}"


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


def short(summary: str, most: int = LONGEST) -> str:
    """One line of at most so many characters."""
    text = " ".join(summary.split())
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."
