"""Tells a line that says something from one that only mentions it: code, comments, documentation, the names of tests."""

from __future__ import annotations

import re
from typing import Final

_FRAME: Final = re.compile(r'[ |+-]*File "[^"]+", line \d+')
_CODE_OF_A_FRAME: Final = re.compile(r"(?:\s*\|)?\s{2,}\S")
_RUNS: Final = re.compile(
    r"""
      \s*(?:\#(?!\#\#\#\#\#\#|error\b)|//|/\*|<!--|\*\s|"{3}|'{3})      # comments, headings
    | \s*>(?!>)\s?(?=\S)                                                 # a quotation in Markdown
    | >\ {3,}\S|E\ {3,}(?:AssertionError|assert)\b                         # pytest's excerpt of the source, and what it asserts
    | \s*\|\s.*\|\s*$                                                    # a table's row
    | (?:\S[^\s@]*@\S+[$\#%]|[$%])\s+\S                                    # a shell's prompt
    | (?:>>>|\.\.\.|In\ \[\d+\]:)\s                                      # Python's
    | \++\ \w                                                            # set -x
    | [+-]?\s*(?:[-*]|\d+\.)\s+["'`“]                                       # an item of a list that begins with a quotation
    | [+-]\s*(?:raise|return|def|class|if|elif|assert|print|except|with|import|from|log\w*\.|\#|//|["'])  # a diff
    | @@\ -\d
    | \ *\d{1,6}\t                                                       # a listing by cat -n
    | \s*-{1,2}[A-Za-z][\w-]*(?:[ =,]|$)                                 # the help of a command
    | \s*(?:[-*]\ \[[ x]\]|\d+\.\ |[-*]\ |FAILED\ |ERROR\ )?\[?[^\s:]*\.py::              # a test's name
    | (?:[*|]\ )*commit\ [0-9a-f]{7,40}\ (?!\[)(?:\(.*\)\ )?[A-Z]          # a commit's title
    | \s*(?:async\ )?(?:def|class)\ \w+
    | \s*except\ [\w.,\ ()*]+(?:\ as\ \w+)?:\s*$
    | \s*(?:raise\ \w|assert\ \S|print\(|return\ ["'(]|throw\ |log(?:ger|ging)?\.\w+\(|warnings?\.warn)
    """,
    re.VERBOSE,
)
_COMMIT: Final = re.compile(
    r"""(?:[*|]\ )*(?P<hash>[0-9a-f]{7,10}|[0-9a-f]{40})\ (?!\[)(?:\(.*\)\ )?
    (?: [A-Z]
    | (?:feat|fix|docs|style|refactor|perf|tests?|build|ci|chore|revert)(?:\([^)]*\))?!?:
    | [a-z](?=\w*[A-Z])\w+:                                  # a name in a library
    | [a-z][\w-]*[\s(!/]
    )
    """,
    re.VERBOSE,
)
"""The title of a commit as git log lists it; the id of a container is longer."""
_GREP: Final = re.compile(
    r"(?:\./)?[\w./+-]+\.(?:py|pyi|md|rst|cc|cpp|cu|cuh|c|h|hpp|sh|ya?ml|toml|json|ipynb)[:-]\d+[:-](?!\d+:)"
    r"(?!\s*(?:\w*(?:Warning|Error|Exception)|warning|error|fatal error|note)\b|[^:]*: block: \[\d)"
)
_BEFORE: Final = re.compile(
    r"""
      \bif\ (?:you|one|it|this|training|a\ rank)\ (?:see|get|gets|encounter|hit|run\ into|fails?\ with|dies?\ with|have)\b
    | \b(?:you|users)\ (?:may|might|will|can|could|would)\ (?:see|get|encounter|hit|run\ into)\b
    | \b(?:in\ case\ of|instead\ of|such\ as|for\ example|e\.g\.|known\ as|so-called|known\ issue|(?:to|can|helps?)\ (?:avoid|fix|prevent|work\ around))\b
    | \b(?:tip|hint|example|docs?|documentation|changelog|todo|fixme|faq|see\ also|troubleshooting)\b\ ?:
    | \b(?:how\ to|what\ is|why\ does|test(?:s|ing|ed)?\ (?:that|for|whether))\b
    | \b(?:fix(?:es|ed)?|handles?|retr(?:y|ies)\ (?:on|after)|ignores?|catch(?:es)?|detects?|checks?\ for|search(?:es|ing)?\ for|grep(?:ping)?(?:\ for)?)\b[^:]*$
    | \b(?:ends|stops|dies)\ with\ ["'“][^"]*$
    | \(\ ?[rfb]?["'][^"']*$
    """,
    re.VERBOSE | re.IGNORECASE,
)
_QUOTATION: Final = re.compile(
    r"""(?:\s+[rfb]{0,2}(?:"(?P<code>[^"]*)"|'(?P<code1>[^']*)')(?!\s*:)|"(?P<prose>[^"]*)"[,;]?\ \w[^"]*$)""",
    re.VERBOSE,
)
"""A string in a program, indented, or a sentence that begins with a quotation; not the field of a structured log."""
_SETTING: Final = re.compile(
    r"\s*(?:- )?(?!\w*(?:message|msg|err|errors?|reason|log|exc|exception|text|detail|output|stdout|stderr|stack|status|event|fatal|what|line)s?:)"
    r"(?P<key>[a-z][a-z0-9_-]*): (?P<quote>[\"'])(?P<value>.*)(?P=quote)\s*(?:#.*)?$"
)
"""A line in YAML: of a configuration, or of what some system keeps on a job."""
_OF_A_RULE: Final = re.compile(
    r"(?:^|[_-])(?:retr(?:y|ies)|on|when|if|match(?:es)?|patterns?|regexp?|grep|search|contains|ignored?|skip|exclude|include|allow|filter|expect(?:ed|s)?"
    r"|expr|alert|rule|polic(?:y|ies)|triggers?|catch|handle|name|title|test|example|raises)(?:$|[_-])"
)
"""The key of what is to be looked for, or done about it."""
_DESCRIBES: Final = re.compile(r"\s.*?(?:description|summary|annotations?|hint|notes?|help|comment|info|docs?)\b")
"""The key of what is said on a rule among others."""
_BEGINS: Final = re.compile(
    r"\W*(?:\[?rank\d+\]?: )?(?:Traceback |(?:\w+ )?(?:\w[\w.]*)?(?:[Ee]rror|Exception|Interrupt|FATAL|ERROR|WARN)\b)"
)
"""As a program's words on a failure begin."""
_COMMENT: Final = re.compile(
    r"\S {2,}# |(?:(?<![a-z0-9_-])[0-9_-]*[a-z][a-z0-9_-]*: |(?<![A-Z0-9_])[0-9_]*[A-Z][A-Z0-9_]+=)\S.{0,300} # "
)
"""Before a comment behind some code or a setting."""
_ROW: Final = re.compile(r"\s*\w[\w.-]*(?: {2,}\w[\w./%-]*){2,} {2,}# ")
"""A table's row, whose last column has its mark as its head has."""
_CODE: Final = re.compile(r"""(?:\b(?:match|help|pattern|expected) ?=|\bin|[=!]=) ?[rfb]?["'][^"']*$""")
_AFTER: Final = re.compile(
    r"""["'`]?\ ?(?:error\ |message\ )?(?:means\b|happens\ (?:when|if)|occurs\ (?:when|if)|["'`]\ +in\ )"""
)
MAX_BEFORE: Final = 400
"""Characters before some words in which they are announced: a sentence or two."""
_SPEAKS: Final = re.compile(
    r"(?:^|\s)(?:(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)|NCCL WARN|ERROR|FATAL)\b[\]:]?|[\w/]+\.(?:cc|cpp|cu):\d+\]\s)"
)
"""An exception, a log's level, or the place in a library's source that its logger puts before all it says."""


def mentioned(text: str, literal: str, previous: str = "") -> bool:
    """Whether the line only mentions it. previous: the line before it of the same stream."""
    if _is_code_of(previous, text):
        return True
    if _RUNS.match(text) or _GREP.match(text) or _is_title(previous, text):
        return True
    quotation = _QUOTATION.match(text)
    if quotation and any(literal in group for group in quotation.groups() if group):
        return True
    setting = _SETTING.match(text)
    if setting and literal in setting["value"]:
        says = setting["value"].startswith(literal) or _BEGINS.match(setting["value"])
        if not says or _OF_A_RULE.search(setting["key"]) or _DESCRIBES.match(text, 0, setting.end("key")):
            return True
    at = text.find(literal)
    before, after = text[: max(at, 0)], text[max(at, 0) + len(literal) :]
    if before.count("`") % 2 and "`" in after:
        return True
    if _AFTER.match(after) or _CODE.search(before):
        return True
    if _COMMENT.search(before) and not _ROW.match(before):
        return True
    found = _BEFORE.search(before, max(len(before) - MAX_BEFORE, 0))
    return bool(found) and not _SPEAKS.search(before, 0, found.start() if found else 0)


def _is_title(previous: str, text: str) -> bool:
    """Whether it is a commit's in git's log, in which no two lines begin with the same hash."""
    found = _COMMIT.match(text)
    return found is not None and not previous.startswith(found["hash"])


def _is_code_of(frame: str, text: str) -> bool:
    """Whether it is the source line of a traceback's frame. The exception of a traceback that another program shows, as pip does, is
    indented, too, but less than the frame."""
    if not _FRAME.match(frame) or not _CODE_OF_A_FRAME.match(text) or _FRAME.match(text):
        return False
    return len(text) - len(text.lstrip(" |")) > frame.index("File")
