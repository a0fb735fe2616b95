"""Reads fixtures/logs: logs of sick runs by illness, near-misses, and healthy runs; and says how well they are judged.

fixtures/logs/SLUG/sick-*.log        the top answer is to be SLUG
fixtures/logs/SLUG/near-miss-*.log   SLUG is not to be named at all
fixtures/logs/healthy/*.log          nothing is to be found

Each has its `LogCase` by name in SLUG/cases.toml. A log of several files is a folder NAME.log/, a compressed one NAME.log.gz.
user-code-error and stopped-from-outside are no illnesses but outcomes: of their sick logs the outcome is to be that.

python -m tests.log_corpus                        every log: right or wrong, the top answer, and why; then the rates
python -m tests.log_corpus shm-too-small FILE     only these: slugs, and paths of logs of the corpus or of any others
python -m tests.log_corpus --wrong                only those that are judged wrong, and the rates
python -m tests.log_corpus --markdown             the page's paragraph
python -m tests.log_corpus --rules                of each rule of the analysis how many answers change without it
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import msgspec

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.failures import EXPLANATIONS
from ddpdoctor.logs.analyze.false_positives import REFUTATIONS
from ddpdoctor.logs.analyze.order import WEIGHTS
from ddpdoctor.logs.analyze.rank_attribution import ATTRIBUTIONS
from ddpdoctor.logs.analyze.rules import IGNORED, LogRule
from ddpdoctor.logs.analyze.verdict import TOPICS, LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs
from tests.log_sign_files import use_files

LOGS = Path(__file__).parent.parent / "fixtures" / "logs"
HEALTHY = "healthy"
CASES = "cases.toml"
WIDTH = 128
"""Columns of the page."""

RULES = (*REFUTATIONS, *EXPLANATIONS, *WEIGHTS, *ATTRIBUTIONS)
"""Of the analysis, in the order in which they are asked."""
OUTCOMES = {catalogue().slug_for(topic): outcome for outcome, topic in TOPICS.items()}
"""Folders that are named after an outcome, and no illness."""


class LogCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a log was made, and what else is known of it. origin: "recorded" (it really happened; about: how, with the command) or
    "hand-made" (written from a library's sources; about: which). rank, host: of the one that failed first, where the log tells;
    left out where it doesn't."""

    origin: str
    about: str
    rank: int | None = None
    host: str = ""


class CorpusLog(msgspec.Struct, frozen=True):
    """One log of the corpus. slug: its folder's name, "healthy" for healthy runs."""

    slug: str
    path: Path
    case: LogCase

    @property
    def name(self) -> str:
        return f"{self.slug}/{self.path.name}"

    @property
    def sick(self) -> bool:
        return self.path.name.startswith("sick-")

    @property
    def near_miss(self) -> bool:
        return self.path.name.startswith("near-miss-")


class Judged(msgspec.Struct, frozen=True):
    """What became of one log."""

    of: CorpusLog
    verdict: LogVerdict

    @property
    def named(self) -> list[str]:
        """All slugs that the verdict names, the likeliest first."""
        return [one.slug for one in (*self.verdict.suspects, *self.verdict.also)]

    @property
    def right(self) -> bool:
        verdict, slug = self.verdict, self.of.slug
        if self.of.near_miss:
            return not self._says(slug)
        if self.of.sick:
            return self.named[:1] == [slug] if slug not in OUTCOMES else self._says(slug)
        return verdict.outcome is RunOutcome.NOTHING and not self.named

    @property
    def among_three(self) -> bool:
        return self.right or self.of.slug in self.named[:3]

    def _says(self, slug: str) -> bool:
        return self.verdict.outcome is OUTCOMES[slug] if slug in OUTCOMES else slug in self.named

    @property
    def knows_rank(self) -> bool:
        """Whether it is known which rank failed first."""
        return self.of.case.rank is not None

    @property
    def rank_right(self) -> bool:
        lead = self.verdict.lead
        return lead is not None and lead.rank == self.of.case.rank

    @property
    def host_right(self) -> bool:
        lead = self.verdict.lead
        return not self.of.case.host or (lead is not None and lead.host == self.of.case.host)

    @property
    def alarm(self) -> bool:
        """Something is found where nothing is: on a healthy log anything, on a near-miss the illness that it isn't."""
        return not self.of.sick and not self.right


@cache
def corpus(slug: str = "*") -> tuple[CorpusLog, ...]:
    """All logs, by folder and name; or those of one folder."""
    return tuple(log for path in sorted(LOGS.glob(f"{slug}/{CASES}")) for log in _logs_of(path))


def _logs_of(cases: Path) -> list[CorpusLog]:
    slug = cases.parent.name
    written = msgspec.toml.decode(cases.read_bytes(), type=dict[str, LogCase])
    return [CorpusLog(slug, _log_called(name, cases.parent), case) for name, case in sorted(written.items())]


def _log_called(name: str, folder: Path) -> Path:
    compressed = folder / f"{name}.log.gz"
    return compressed if compressed.exists() else folder / f"{name}.log"


def text_of(path: Path) -> str:
    """All that stands in it; of a folder all its files, one behind the other."""
    if path.is_dir():
        return "".join(text_of(one) for one in sorted(path.rglob("*")) if one.is_file())
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return content.decode(errors="replace")


@cache
def log_of(path: Path) -> Log:
    """What is read of it, as if the command were given from within its folder: reports name a file as it was given."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        return read_logs([path.name], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue()))
    finally:
        os.chdir(before)


def judged(one: CorpusLog) -> Judged:
    """The log read, and judged."""
    return Judged(one, verdict_of(log_of(one.path), catalogue()))


class Rates(msgspec.Struct, frozen=True):
    """How well the whole is judged; each pair is (right ones, all)."""

    illnesses: int
    sick: tuple[int, int]
    three: tuple[int, int]
    ranks: tuple[int, int]
    near_misses: tuple[int, int]
    healthy: tuple[int, int]
    others: tuple[int, int]
    recorded: int
    hand_made: int


def rates(all_judged: Iterable[Judged]) -> Rates:
    """illnesses: with a sick log. others: logs of an outcome that is no illness. ranks: of the sick logs whose first rank is known."""
    every = list(all_judged)
    sick = [one for one in every if one.of.sick and one.of.slug not in OUTCOMES]
    ranked = [one for one in every if one.of.sick and one.knows_rank]
    near = [one for one in every if one.of.near_miss]
    healthy = [one for one in every if one.of.slug == HEALTHY]
    return Rates(
        illnesses=len({one.of.slug for one in sick}),
        sick=(sum(one.right for one in sick), len(sick)),
        three=(sum(one.among_three for one in sick), len(sick)),
        ranks=(sum(one.rank_right for one in ranked), len(ranked)),
        near_misses=(sum(one.right for one in near), len(near)),
        healthy=(sum(one.right for one in healthy), len(healthy)),
        others=_pair(one for one in every if one.of.sick and one.of.slug in OUTCOMES),
        recorded=sum(one.of.case.origin == "recorded" for one in every),
        hand_made=sum(one.of.case.origin == "hand-made" for one in every),
    )


def _pair(some: Iterable[Judged]) -> tuple[int, int]:
    them = list(some)
    return sum(one.right for one in them), len(them)


def told(one: Judged) -> list[str]:
    """A line on it, and where there is more to say, indented ones."""
    verdict = one.verdict
    right = one.right and (not (one.of.sick and one.knows_rank) or one.rank_right) and one.host_right
    mark = "ok   " if right else "part " if one.right else "WRONG"
    answers = [f"{suspect.slug}{'' if suspect.sure else '?'}" for suspect in verdict.suspects]
    answers += [f"({each.slug})" for each in verdict.also]
    found = [f"{mark} {one.of.name}: {verdict.outcome.name} {' > '.join(answers)}".rstrip()]
    lead = verdict.lead
    if lead is not None:
        where = f"rank {lead.rank}" + (f" on {lead.host}" if lead.host else "")
        wanted = "" if one.rank_right or not one.knows_rank else f" (is: rank {one.of.case.rank})"
        wanted += "" if one.host_right else f" (is: on {one.of.case.host})"
        found.append(f"      lead line {lead.number}, {where}{wanted}: {lead.text[:120]}")
    found += [f"      {suspect.slug}: {suspect.why}; by {_signs(suspect.sightings)}" for suspect in verdict.suspects]
    return found


def _signs(sightings: Sequence[SignMatch]) -> str:
    return ", ".join(sorted({f"{sighting.sign!r} ({sighting.role.value})" for sighting in sightings})[:3])


def summed_up(sums: Rates) -> list[str]:
    """The rates, a line each."""
    return [
        f"illnesses with a sick log    {sums.illnesses}",
        f"sick logs, top answer right  {_share(sums.sick)}",
        f"sick logs, among the three   {_share(sums.three)}",
        f"first rank right             {_share(sums.ranks)}",
        f"ordinary errors, stops       {_share(sums.others)}",
        f"near-misses not mistaken     {_share(sums.near_misses)}",
        f"healthy logs without alarm   {_share(sums.healthy)}",
        f"recorded {sums.recorded}, hand-made {sums.hand_made}",
    ]


def _share(pair: tuple[int, int]) -> str:
    right, of = pair
    return f"{right} of {of}" + (f" ({100 * right / of:.1f} %)" if of else "")


def markdown(sums: Rates) -> str:
    """The page's paragraph and table."""
    rows = [
        ("illnesses that have sick logs", str(sums.illnesses)),
        ("sick logs whose illness is the top answer", _share(sums.sick)),
        ("... is among the first three answers", _share(sums.three)),
        ("sick logs in which it is known who failed first: rank right", _share(sums.ranks)),
        ("ordinary errors, and runs that were stopped from outside: told as that", _share(sums.others)),
        ("near-misses: the illness that they look like is not named", _share(sums.near_misses)),
        ("healthy logs, with noise and mentions of illnesses: nothing is found", _share(sums.healthy)),
    ]
    every = sums.recorded + sums.hand_made
    paragraph = (
        f"Counted by `python -m tests.log_corpus` on the project's own {every} logs (`fixtures/logs`): {sums.recorded} recorded from"
        f" runs that really went so, {sums.hand_made} written by hand from the libraries' sources. The signs were written with these"
        " logs in sight: of logs from elsewhere expect less."
    )
    table = ["| | |", "|---|---|", *(f"| {label} | {figure} |" for label, figure in rows)]
    return "\n".join([*textwrap.wrap(paragraph, WIDTH, break_on_hyphens=False), "", *table])


def answer(verdict: LogVerdict) -> tuple[object, ...]:
    """What a verdict comes to: the outcome, what is named, and who failed first."""
    lead = verdict.lead
    who = lead and (lead.number, lead.rank, lead.host)
    return (
        verdict.outcome,
        [(suspect.slug, suspect.sure) for suspect in verdict.suspects],
        [one.slug for one in verdict.also],
        who,
    )


def changed_without(rule: LogRule, every: Sequence[Judged]) -> list[Judged]:
    """The logs whose answer is another one where that rule is left out."""
    IGNORED.add(rule.name)
    try:
        return [one for one in every if answer(judged(one.of).verdict) != answer(one.verdict)]
    finally:
        IGNORED.discard(rule.name)


def ruled(every: Sequence[Judged]) -> list[str]:
    """A line on each rule: how many answers change without it, and the log that taught it."""
    found = []
    for rule in RULES:
        found.append(f"{len(changed_without(rule, every)):4}  {rule.name:24} {rule.taught_by}")
    return found


def figures() -> str:
    """The page's paragraph and table on the corpus as it is."""
    return markdown(rates(judged(one) for one in corpus()))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.log_corpus", description="How well the corpus of logs is judged."
    )
    parser.add_argument("only", nargs="*", metavar="SLUG|FILE", help="only these")
    parser.add_argument("--wrong", action="store_true", help="only those that are judged wrong, and the rates")
    parser.add_argument(
        "--rules", action="store_true", help="how many answers change without each rule of the analysis"
    )
    parser.add_argument("--markdown", action="store_true", help="the page's paragraph")
    wishes = parser.parse_args()
    use_files()
    every = [judged(one) for one in _chosen(wishes.only)]
    if wishes.markdown:
        print(markdown(rates(every)))
        return 0
    if wishes.rules:
        print("\n".join(ruled(every)))
        return 0
    for one in every:
        lines = told(one)
        if not wishes.wrong or not lines[0].startswith("ok"):
            print("\n".join(lines))
    print("\n".join(["", *summed_up(rates(every))]))
    return 0 if all(one.right for one in every) else 1


def _chosen(names: Sequence[str]) -> Sequence[CorpusLog]:
    every = corpus()
    if not names:
        return every
    found: list[CorpusLog] = []
    for name in names:
        path = Path(name).resolve()
        fitting = [one for one in every if name in (one.slug, one.name) or path in (one.path, one.path.parent)]
        if not fitting and not path.exists():
            sys.exit(f"{name}: neither a slug with logs nor a file")
        found += fitting or [CorpusLog("(no case)", path, LogCase("", ""))]
    return found


if __name__ == "__main__":
    sys.exit(main())
