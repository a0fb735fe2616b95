"""What all logs are searched for: the signs of every check, the texts of healthy runs, and what launchers and Python say."""

from __future__ import annotations

from functools import cache

from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.logs.match import stated_facts as facts_said
from ddpdoctor.logs.match.vocabulary import Vocabulary, Wanted
from ddpdoctor.logs.parse import exit_tables, exits, stacks, translations
from ddpdoctor.logs.parse.error_words import ERROR_WORDS
from ddpdoctor.logs.parse.tracebacks import FRAME, HEADER


@cache
def vocabulary(catalogue: Catalogue) -> Vocabulary:
    """Collect what the signs and the engine itself search for, once for a catalogue: it takes a tenth of a second."""
    signs = [(check.slug, sign) for check in catalogue.checks for sign in catalogue.signs_of(check)]
    others = [
        (HEADER, Wanted.TRACEBACK),
        (FRAME, Wanted.FRAME),
        *((text, Wanted.STACK) for text in stacks.LITERALS),
        *((text, Wanted.ERROR) for text in ERROR_WORDS),
        *((text, Wanted.EXIT) for text in (*exits.LITERALS, *exit_tables.BEGINNINGS)),
        *((text, Wanted.FOREIGN) for text in translations.LITERALS),
        *((text, Wanted.FACT) for text in facts_said.LITERALS),
    ]
    return Vocabulary(signs, catalogue.harmless_signs, others)
