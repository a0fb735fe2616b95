"""Takes secrets out of facts, when they are taken and not when they are shown.

Rather a word too many is taken out than a secret left in, but paths, versions and settings of torch and NCCL stay legible.
Every pattern here takes time in proportion to the text: each starts only where a word starts, or is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily

REDACTED = "[redacted]"

MAX_REMEMBERED_LENGTH = 300
"""What is redacted in a text up to that long is remembered: a job's ranks have hundreds of values in common."""

T = TypeVar("T")

# Names, after "apiKey" has become "api_key" and all is lower case with "_" between the words.
_TELLING = compile_lazily(
    r"secret|passw|passphrase|passcode|credential|bearer|cookie|signature|authori[sz]ation|connection_?str"
    r"|(?:api|access|private|account|encryption|signing|ssh|service)_?key"
    r"|(?:^|_)(?:pass|pwd|pw|pat|sig|sas|dsn|jwt|otp|auth)\d*$"
    r"|(?:^|_)(?:mysql|db|pg|ssh|smtp|ftp|root|user)pass$"
    r"|pwd\d*$"
    r"|(?:^|_)key(?:_?(?:\d+|id|data|pem|b64|base64))?$"
    r"|token\d*$|(?:^|_)tokens?(?:_|$)"
)
_HARMLESS = compile_lazily(
    r"^(?:old)?pwd$|^nccl_"
    # An exception's name, behind which its message stands.
    r"|_(?:error|exception)$"
    r"|(?:^|_)(?:forward|backward|first|second|single|one|two|full|low|high|all)_pass$"
    # What a tokenizer and a language model count and mark.
    r"|(?:^|_)(?:pad|eos|bos|unk|sep|cls|mask|image|video|audio|special|num|max|min|new|per|total|prompt|input|output|cached"
    r"|stop|start|end|next|last|by|of|n)_(?:\w+_)?tokens?(?:_|$)"
    r"|(?:^|_)tokens?_(?:count|ids?|types?|len|length|size|dim|drop|dropout|embed\w*|per|budget|limit|level|usage|mask)(?:_|$)"
    r"|(?:^|_)(?:sort|dict|cache|primary|foreign|state|barrier|full)_key$"
)

# A name and what sets it apart from its value: `name=`, `name: `, `"name": `. Not preceded by a part of a name.
_ASSIGNMENT = compile_lazily(r"(?<![\w.-])([\w.-]+)(['\"]?)\]?[ \t]*[=:][ \t]*")
_OPTION = compile_lazily(r"(?<![\w.-])(--?[\w.-]+)[ \t]+(?!--)")
# `aws configure set aws_secret_access_key ...`: no sign between them, so both must look the part.
_BARE = compile_lazily(r"(?<![\w.-])(\w{3,64})[ \t]+(?=[\w/+=.-]{0,64}\d)([\w/+=.-]{16,})")
# A word as a shell reads it: quoted and bare pieces without blanks between them.
_WORD = compile_lazily(r"""(?:"(?:[^"\\]|\\.)*(?:"|\Z|\\\Z)|'[^']*(?:'|\Z)|\\.|\\\Z|[^\s'"\\])+""", re.DOTALL)
_JSON_VALUE = compile_lazily(
    r"""(?:"(?:[^"\\]|\\.)*(?:"|\Z|\\\Z)|'(?:[^'\\]|\\.)*(?:'|\Z|\\\Z)|[^\s,}\]]+)""", re.DOTALL
)
# `wandb.login(key="0123abcd...")`; "key" alone names a parameter of a model, or sorts a list.
_KEY_LITERAL = compile_lazily(r"""["'](?=[^"'\s]{0,64}\d)[\w+/=-]{16,}["']""")
# `os.environ.setdefault("HF_TOKEN", "...")`, `add_argument("--api-key", default="...")`.
_QUOTED_NAME = compile_lazily(
    r"""(?<![\w.-])(["'])(-{0,2}[\w-]{3,64})\1[ \t]*,[ \t]*(?:(?=["'])|[^\n'"]{0,80}?\bdefault[ \t]*=[ \t]*(?=["']))"""
)
# `auth=("ada", "...")`
_TUPLE = compile_lazily(r"\([^()\n]{0,300}\)")
# Text as Python writes it, in one line; one that is open at its end has its end in another.
_LITERAL = compile_lazily(
    r"""(?:[ \t]*[rRbBuUfF]{0,2}(?:"{3}.*?(?:"{3}|\Z)|'{3}.*?(?:'{3}|\Z)|"(?:[^"\\]|\\.)*(?:"|\Z|\\\Z)|'(?:[^'\\]|\\.)*(?:'|\Z|\\\Z)))+""",
    re.DOTALL,
)
_QUOTE = compile_lazily("[\"']")
_ANNOTATION = compile_lazily(r"""[\w.\[\]|, ]{1,80}=[ \t]*(?=[rRbBuUfF]{0,2}["'])""")
_SWITCH = compile_lazily(r"""(?i)["']?(?:yes|no|true|false)["']?[,;)}\]]*""")
_SCHEME = compile_lazily(r"(?i)(?:bearer|basic|token|digest)[ \t]+")
_LINE = compile_lazily(r"[^\n]*")

_SHAPE = compile_lazily(
    r"""(?x)
      \b(?:hf|npm)_[A-Za-z0-9]{20,}                             # Hugging Face, npm
    | \bgh[opsur]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,}
    | \b[spr]k_(?:live|test)_[A-Za-z0-9]{10,}                   # Stripe
    | (?<![\w-])(?:glpat-|dckr_pat_|pypi-|xox[abeprs]-|xapp-)[\w-]{10,}
    | (?<![\w-])sk-(?=[\w-]*[A-Z])(?=[\w-]*\d)[\w-]{20,}        # OpenAI, Anthropic
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b
    | (?<![\w-])AIza[\w-]{30,}
    | (?<![\w-])eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?            # JSON web token
    | (?<=wandb\ login\ )[0-9a-f]{40}\b | (?<=wandb\.login\(["'])[0-9a-f]{40}\b
    | (?<=hooks\.slack\.com/services/)\S+
    | -----BEGIN[^-]*PRIVATE\ KEY[^-]*-----[\s\S]*?(?:-----END[^-]*-----|\Z)
    """
)
_USER_INFO = compile_lazily(r"(://)(?:[^\s/?#]*|[^\s/@:]{0,64}:(?!\d{1,5}(?:/|\s))\S{0,128})@")
_PROXY_WITHOUT_SCHEME = compile_lazily(r"(?<![\w./@:%+-])[\w.%+-]+:[^\s@/'\":=]+@(?!sha256:)(?=[\w.-]+)")
_BEARER = compile_lazily(r"(?i)\b(bearer[ \t]+)[\w+/=.~-]{8,}")
_BASIC = compile_lazily(r"(?i)\b(basic[ \t]+)(?-i:(?=[a-z+/=]*[A-Z0-9]))[\w+/=]{8,}")

# Commands whose one-letter option is a password.
_CLIENT = compile_lazily(
    r"(?<![\w.-])(?:mysql\w*|mariadb[\w-]*|sshpass|redis-cli|mongosh?|curl|(?:docker|podman) login)\s"
)
_SHORT_OPTION = compile_lazily(r"(?<=\s)(?:-[pau][ \t]*|--user[ \t=]+)(?!-)")

_SURROGATE = compile_lazily("[\ud800-\udfff]")

Span = tuple[int, int]


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a variable, option, header or key of that name is likely to hold a secret."""
    flat = _flat(name)
    return bool(_TELLING.search(flat)) and not _HARMLESS.search(flat)


def _flat(name: str) -> str:
    """ "--clientSecret" as "client_secret". Of very long names the end, which tells what they are."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[-200:])
    return re.sub(r"[^0-9A-Za-z]+", "_", split).strip("_").lower()


def _tells_nothing(name: str, value: str) -> bool:
    """Whether it is a number of tokens, "tokens: 4096,", or switches something: "PasswordAuthentication=no" """
    return bool(
        _SWITCH.fullmatch(value)
        or (re.search(r"(?:^|_)tokens$", _flat(name)) and re.fullmatch(r"[\d_]+[,;)}\]]*", value))
    )


def redact_text(text: str) -> str:
    """Take out of the text passwords in URLs, tokens of known shape, and values given to secret-looking names."""
    return _redact_short(text) if len(text) <= MAX_REMEMBERED_LENGTH else _redact(text)


def redact_source(line: str) -> str:
    """Take the same out of a line of Python, where only what is quoted, or stands in a comment, can be a secret: `tokens = batch.cuda()` stays."""
    redact = _redact_short if len(line) <= MAX_REMEMBERED_LENGTH else _redact
    return redact(line, is_source=True)


@lru_cache(maxsize=8192)
def _redact_short(text: str, *, is_source: bool = False) -> str:
    return _redact(text, is_source=is_source)


def _redact(text: str, *, is_source: bool = False) -> str:
    text = _SHAPE.sub(REDACTED, text)
    text = _USER_INFO.sub(rf"\1{REDACTED}@", text)
    text = _PROXY_WITHOUT_SCHEME.sub(f"{REDACTED}@", text)
    text = _without(text, _assigned_in_source(text) if is_source else _assigned(text))
    text = _without(text, _named_before(text))
    text = _without(text, _given_to_options(text))
    text = _without(text, _given_to_clients(text))
    text = _without(
        text, [found.span(2) for found in _BARE.finditer(text) if "_" in found[1] and is_secret_name(found[1])]
    )
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    return _BASIC.sub(rf"\1{REDACTED}", text)


def _without(text: str, spans: list[Span]) -> str:
    """Take each span out of the text; spans are in order, and one that starts within another is left to that."""
    if not spans:
        return text
    pieces = []
    done = 0
    for start, end in spans:
        if start < done:
            continue
        pieces += [text[done:start], REDACTED]
        done = end
    return "".join([*pieces, text[done:]])


def _named_before(text: str) -> list[Span]:
    """Find literals of Python that follow a quoted name as an argument; in lists of words "token" is one like others."""
    spans: list[Span] = []
    for found in _QUOTED_NAME.finditer(text):
        if spans and found.start() < spans[-1][1]:
            continue
        name = found[2]
        is_word = "token" in name.lower() and not name.startswith("-") and not name.isupper()
        value = None if is_word or not is_secret_name(name) else _LITERAL.match(text, found.end())
        if value and not _tells_nothing(name, value[0]):
            spans.append(value.span())
    return spans


def _assigned(text: str) -> list[Span]:
    spans: list[Span] = []
    for found in _ASSIGNMENT.finditer(text):
        name = found[1]
        if not is_secret_name(name) or (spans and found.end() < spans[-1][1]):
            continue
        before = text[found.start() - 1 : found.start()]
        start = found.end()
        if _is_parameter(name, before, text, start):
            continue
        quote = before if before in ("'", '"') and before != found[2] else ""
        end = _json_end(text, start) if found[2] else _value_end(text, start, name, quote)
        if end > start and not _tells_nothing(name, text[start:end]):
            spans.append((start, end))
    return spans


def _is_parameter(name: str, before: str, text: str, start: int) -> bool:
    """Whether "key: layer1.weight" is torch's way to name a parameter."""
    return name.lower() == "key" and name != "KEY" and before not in ("?", "&") and not _KEY_LITERAL.match(text, start)


def _assigned_in_source(text: str) -> list[Span]:
    """Find what is given to secret names as text: as a literal, within one, or in a comment. An expression tells nothing."""
    comment_at = text.find("#") if "#" in text else len(text)
    spans: list[Span] = []
    quotes = {'"': 0, "'": 0}
    counted = 0
    for found in _ASSIGNMENT.finditer(text):
        for quote in quotes:
            quotes[quote] += text.count(quote, counted, found.start())
        counted = found.start()
        name, start = found[1], found.end()
        if not is_secret_name(name) or (spans and start < spans[-1][1]):
            continue
        before = text[found.start() - 1 : found.start()]
        if ":" in text[found.end(1) : start] and (annotation := _ANNOTATION.match(text, start)):
            start = annotation.end()
        if _is_parameter(name, before, text, start):
            continue
        opened = [quote for quote, count in quotes.items() if count % 2] if not found[2] else []
        if not opened and (value := _LITERAL.match(text, start)):
            end = value.end()
        elif (in_brackets := _TUPLE.match(text, start)) and _QUOTE.search(in_brackets[0]):
            end = in_brackets.end()
        elif (opened or start > comment_at) and text[start : start + 1] not in ("{", "%"):
            # Behind the end of the text in which it is written the code goes on.
            closings = [place for quote in opened if (place := text.find(quote, start)) >= 0]
            end = min([_value_end(text, start, name, before if before in quotes else ""), *closings])
        else:
            continue
        if end > start and not _tells_nothing(name, text[start:end]):
            spans.append((start, end))
    return spans


def _value_end(text: str, start: int, name: str, quote: str) -> int:
    """Find the end of the value: at the quote that was opened before the name, at the line's end for headers, else as a word."""
    if quote:
        end = text.find(quote, start)
        return len(text) if end < 0 else end
    if re.search(r"(?i)cookie|authorization", name):
        line = _LINE.match(text, start)
        return line.end() if line else start
    scheme = _SCHEME.match(text, start)
    word = _WORD.match(text, scheme.end() if scheme else start)
    if word:
        return word.end()
    return scheme.end() if scheme else start


def _json_end(text: str, start: int) -> int:
    """Find the end of a quoted name's value: {"token": "a b", "n": 1}."""
    value = _JSON_VALUE.match(text, start)
    return value.end() if value else start


def _given_to_options(text: str) -> list[Span]:
    """Find what follows `--token` as a word of its own."""
    spans = []
    for found in _OPTION.finditer(text):
        word = _WORD.match(text, found.end()) if is_secret_name(found[1]) else None
        if word and not _tells_nothing(found[1], word[0]):
            spans.append(word.span())
    return spans


def _given_to_clients(text: str) -> list[Span]:
    client = _CLIENT.search(text)
    if client is None:
        return []
    options = _SHORT_OPTION.finditer(text, client.end() - 1)
    return [word.span() for found in options if (word := _WORD.match(text, found.end()))]


def legible(text: str) -> str:
    """Put U+FFFD in the place of the lone surrogates by which Python writes bytes that aren't UTF-8: they can't be encoded."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _redact_named(name: str, value: str) -> str:
    if value and is_secret_name(name) and not _tells_nothing(name, value):
        return REDACTED
    return redact_text(value)


def redact_facts(value: T, redact: Callable[[str], str] = redact_text) -> T:
    """Copy any struct, tuple, dict or string without its secrets: each string by `redact`, the `value` of a struct that
    has a `name` wholly where that speaks of a secret, and in a tuple of arguments what follows a secret's option. All strings `legible`."""
    result: Any = value
    if isinstance(value, str):
        result = redact(legible(value))
    elif isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        changed = {name: new for name, old in fields.items() if (new := redact_facts(old, redact)) != old}
        name, setting = fields.get("name"), fields.get("value")
        if isinstance(name, str) and isinstance(setting, str):
            changed["value"] = _redact_named(name, legible(setting))
        result = msgspec.structs.replace(value, **changed) if changed else value
    elif isinstance(value, tuple):
        items = tuple(_item(before, item, redact) for before, item in zip((None, *value), value, strict=False))
        result = value if items == value else items
    elif isinstance(value, dict):
        result = {name: redact_facts(item, redact) for name, item in value.items()}
    return result  # type: ignore[no-any-return]


def _item(before: object, item: object, redact: Callable[[str], str]) -> object:
    """Redact one of a tuple; as an argument after `--token` it is a secret whatever it looks like."""
    follows_option = isinstance(before, str) and before.startswith("-") and "=" not in before and is_secret_name(before)
    if follows_option and isinstance(item, str) and not item.startswith("--"):
        return REDACTED
    return redact_facts(item, redact)
