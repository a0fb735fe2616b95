"""Takes secrets out of facts, when they are taken and not when they are shown."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from ddpdoctor.facts.environment import Setting

REDACTED = "[redacted]"

_SECRET_WORD = r"(?:token|secret|passw(?:or)?d|passwd|passphrase|pwd|credential|api[-_]?key|access[-_]?key|private[-_]?key|auth(?:orization)?|bearer|cookie|signature|sas|dsn)"
_SECRET_NAME = re.compile(rf"(?i)(?:^|[-_.]){_SECRET_WORD}s?(?:$|[-_.\d])|(?:^|_)(?:key|pat|pw)$")

_SECRET_VALUE = re.compile(
    r"""(?x)
      \b(?:hf|ghp|gho|ghu|ghs|ghr|glpat|sk|pk|rk|xox[abprs]|npm|pypi|dckr_pat|wandb)[-_][A-Za-z0-9_\-]{8,}  # vendor tokens
    | \bgithub_pat_\w{20,}
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b
    | \bAIza[\w-]{30,}
    | \beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?                      # JSON web token
    | -----BEGIN[^-]*PRIVATE\ KEY-----[\s\S]*?(?:-----END[^-]*-----|\Z)
    """
)
_URL_PASSWORD = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@]+@")
_ASSIGNED = re.compile(
    rf"(?i)((?:^|[\s'\"?&;,{{(]|--?)[\w.-]*{_SECRET_WORD}s?[\w.-]*['\"]?\s*[=:]\s*)(['\"]?)(?:(?:bearer|basic)\s+)?[^\s'\"&;,}})]+\2?"
)
_OPTION_THEN_VALUE = re.compile(rf"(?i)(--?[\w.-]*{_SECRET_WORD}s?[\w.-]*\s+)(?!-)('[^']*'|\"[^\"]*\"|\S+)")
_HEADER = re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{8,}")

T = TypeVar("T")


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of that name is likely to hold a secret."""
    return bool(_SECRET_NAME.search(name))


def redact_text(text: str) -> str:
    """The text without passwords in URLs, tokens of known shape, and values assigned to secret-looking names."""
    text = _SECRET_VALUE.sub(REDACTED, text)
    text = _URL_PASSWORD.sub(rf"\1{REDACTED}@", text)
    text = _ASSIGNED.sub(rf"\1{REDACTED}", text)
    text = _OPTION_THEN_VALUE.sub(rf"\1{REDACTED}", text)
    return _HEADER.sub(rf"\1{REDACTED}", text)


def redact_setting(setting: Setting) -> Setting:
    """The setting with its value taken out if the name speaks of a secret, else with the value's secrets taken out."""
    if is_secret_name(setting.name) and setting.value:
        return Setting(setting.name, REDACTED, setting.origin)
    return Setting(setting.name, redact_text(setting.value), setting.origin)


def redact_facts(value: T) -> T:
    """A copy of any struct, tuple or string in which every string has been through `redact_text`."""
    result: Any = value
    if isinstance(value, Setting):
        result = redact_setting(value)
    elif isinstance(value, str):
        result = redact_text(value)
    elif isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        changed = {name: new for name, old in fields.items() if (new := redact_facts(old)) is not old}
        result = msgspec.structs.replace(value, **changed) if changed else value
    elif isinstance(value, tuple):
        items = tuple(redact_facts(item) for item in value)
        result = items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return result  # type: ignore[no-any-return]
