"""What all logs are searched for: the signs of every check, the texts of healthy runs, and what launchers and Python say."""

from __future__ import annotations

from functools import cache

from ddpdoctor.knowledge.log_noise import HARMLESS
from ddpdoctor.logs import exit_tables, exits, facts_said, stacks
from ddpdoctor.logs.error_words import ERROR_WORDS
from ddpdoctor.logs.tracebacks import FRAME, HEADER
from ddpdoctor.logs.vocabulary import Vocabulary, Wanted
from ddpdoctor.registry import all_checks


@cache
def vocabulary() -> Vocabulary:
    """Made once: it takes a tenth of a second."""
    signs = [(one.slug, sign) for one in all_checks() for sign in one.log_signs]
    others = [
        (HEADER, Wanted.TRACEBACK),
        (FRAME, Wanted.FRAME),
        *((text, Wanted.STACK) for text in stacks.LITERALS),
        *((text, Wanted.ERROR) for text in ERROR_WORDS),
        *((text, Wanted.EXIT) for text in (*exits.LITERALS, *exit_tables.BEGINNINGS)),
        *((text, Wanted.FACT) for text in facts_said.LITERALS),
    ]
    return Vocabulary(signs, HARMLESS, others)
