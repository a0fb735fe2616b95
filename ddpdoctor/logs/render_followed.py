"""The words of `diagnose-log` for what is no cause: what only followed, and what healthy runs print, too."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import clip, listed, one_line, plural, ranks_named
from ddpdoctor.engine.registry import Catalogue, Check
from ddpdoctor.facts.log import Log, LoggedException, LogLine, Noise, SignMatch
from ddpdoctor.logs.analyze.exceptions import is_cut, is_of_launcher, is_of_peers, short_name
from ddpdoctor.logs.analyze.false_positives import good_news
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome
from ddpdoctor.logs.render_words import quoted

MAX_NAME: Final = 40
"""Characters."""
MAX_ERROR: Final = 90
"""Characters."""
MAX_NOISE_NAMES: Final = 3
_DIGITS: Final = re.compile(r"\d+")


def followed(log: Log, verdict: LogVerdict) -> list[tuple[str, LogLine]]:
    """Word what ranks say that fell with another, and what their launcher says of them; each kind once, with its first line."""
    kinds: dict[str, list[SignMatch]] = {}
    for effect in verdict.effects:
        kinds.setdefault(effect.sign, []).append(effect)
    found = [
        (
            f'"{quoted(sign)}" {_said_by([match.line for match in matches], sum(match.times for match in matches))}',
            matches[0].line,
        )
        for sign, matches in kinds.items()
    ]
    raised: dict[str, list[LoggedException]] = {}
    for error in _lost(log, verdict):
        raised.setdefault(f"{error.exception}: {_DIGITS.sub('', error.message)[:MAX_NAME]}", []).append(error)
    found += [
        (
            f'"{clip(quoted(f"{short_name(errors[0].exception)}: {errors[0].message}"), MAX_ERROR)}" '
            + _said_by([error.line for error in errors], sum(error.times for error in errors)),
            errors[0].line,
        )
        for errors in raised.values()
    ]
    ended = [process_exit for process_exit in log.exited if process_exit.told_to]
    if ended:
        ranks = sorted({process_exit.rank for process_exit in ended if process_exit.rank is not None})
        whose = ranks_named(ranks) if ranks else plural(len(ended), "process", "processes")
        found.append((f"{one_line(ended[0].said_by)} ended {whose}", ended[0].line))
    return found


def _lost(log: Log, verdict: LogVerdict) -> list[LoggedException]:
    """Exceptions of ranks that only lost another one, or of the launcher for them, as far as no sign tells of them."""
    told = {(effect.line.file, effect.line.number) for effect in verdict.effects}
    return [
        raised
        for raised in log.raised
        if raised != verdict.raised
        and not is_cut(raised)
        and (is_of_peers(raised) or is_of_launcher(raised))
        and (raised.line.file, raised.line.number) not in told
    ]


def fell_with_it(log: Log, verdict: LogVerdict) -> int:
    """Count the ranks that fell with the first; 0 where nothing tells which that was."""
    if verdict.outcome is RunOutcome.EFFECTS_ONLY:
        return 0
    first = verdict.lead.rank if verdict.lead else None
    ranks = {effect.line.rank for effect in verdict.effects} | {raised.line.rank for raised in _lost(log, verdict)}
    ranks |= {process_exit.rank for process_exit in log.exited if process_exit.told_to}
    return len(ranks - {None, first})


def _said_by(lines: Iterable[LogLine], times: int) -> str:
    ranks = {line.rank for line in lines if line.rank is not None}
    if ranks:
        return f"({ranks_named(ranks)})" if len(ranks) <= 2 else f"({len(ranks)} ranks)"
    return f"({times}x)"


def noise(log: Log, catalogue: Catalogue) -> list[Noise]:
    """Messages that healthy runs print, too, the most frequent first: the engine's own, and those signs of illnesses that mean
    nothing by themselves."""
    kinds: dict[tuple[str, str], list[SignMatch]] = {}
    for sighting in log.sightings:
        if sighting.role is SignRole.NOISE and not sighting.quoted and sighting.sign not in good_news(catalogue):
            kinds.setdefault((sighting.slug, sighting.sign), []).append(sighting)
    signs = [
        Noise(text, _why(catalogue.get(slug), text), sum(match.times for match in seen), seen[0].line)
        for (slug, text), seen in kinds.items()
    ]
    return sorted([*log.noise, *signs], key=lambda message: -message.times)


def _why(known: Check | None, text: str) -> str:
    return (
        next(
            (log_sign.why for log_sign in known.log_signs if log_sign.text == text and log_sign.role is SignRole.NOISE),
            "",
        )
        if known
        else ""
    )


def harmless(log: Log, catalogue: Catalogue) -> str:
    """All of it in one line; "" where there is none."""
    found = noise(log, catalogue)
    names = [f'"{clip(quoted(message.text), MAX_NAME)}" ({message.times}x)' for message in found]
    many = plural(len(found), "message")
    return f"{many} that healthy runs print, too: {listed(names, MAX_NOISE_NAMES)}" if found else ""
