"""NCCL's own comparison of the ranks, told from the report that it writes into a log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import listed, ranks_named
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import lines, where

_VALUE: Final = compile_lazily(
    r".{0,300}?NCCL environment: (?P<value>\w{1,99}=.{0,300}?) on rank\(s\) (?P<ranks>\{.{0,300})"
)


@log_check("nccl-ranks-differ", severity=WARN, owner=Owner.NODE)
def nccl_ranks_differ(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """NCCL compared the ranks, and they are not alike.

    ## What breaks
    Nothing by itself: NCCL reports it and goes on. Ranks with another NCCL_ALGO or NCCL_PROTO may hang in the first collective; another
    driver, fewer NVLinks or another network card make one node slow, or let it fail alone.

    ## Why
    One node was set up otherwise than the rest, a wrapper sets variables on some nodes only, or a GPU or card is missing. The ranks are
    those of the communicator that NCCL names; where it has all ranks, they are the job's.

    ## Fix
    Set variables once, where the launcher is started. Compare the nodes (`ddpdoctor fleet`), and leave the odd one out of the job until it
    is like the others.
    """
    settings = [match.words["setting"] for match in seen if "setting" in match.words]
    return Finding.of(
        _summary(seen),
        (*lines(log, seen), *(value for match in seen for value in _values(match, log))),
        Fix(f"Set {listed(settings)} to the same for all ranks, before the launcher is started") if settings else None,
        Fix(
            "Write down what each node of the job is like, and see which is odd",
            ("srun ddpdoctor snapshot > nodes.jsonl", "ddpdoctor fleet nodes.jsonl"),
        ),
    )


def _summary(seen: Sequence[SignMatch]) -> str:
    what = [_what(match) for match in seen]
    if len(seen) > 1 or "setting" in seen[0].words:
        return f"NCCL says that ranks differ in {listed(what, 4)}"
    words = seen[0].words
    return f"NCCL says that {_named(words['ranks'])} and rank {words['usual']} ({words['value']}) differ in {what[0]}"


def _what(match: SignMatch) -> str:
    return match.words.get("setting") or match.words["what"].replace(":", "")


def _named(ranks: str) -> str:
    """Name the ranks of such a set as NCCL writes it: "{4,5,...} (N=12)"."""
    found, _, more = ranks.partition("...")
    numbers = [int(number) for number in re.findall(r"\d+", found)]
    return ranks_named(numbers) + (" and more" if more else "")


def _values(match: SignMatch, log: Log) -> tuple[Evidence, ...]:
    """Show the values of a variable that differs, which stand in the lines below."""
    if "setting" not in match.words:
        return ()
    found = [(line, value) for line in match.after if (value := _VALUE.match(line.text))]
    return tuple(Evidence(f"{value['value']} on {_named(value['ranks'])}", where(log, line)) for line, value in found)
