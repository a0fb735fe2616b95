"""What a shell would do with a command in which others' words stand."""

from __future__ import annotations

import subprocess
from typing import Final

SHELL: Final = "x;pwn #$(pwn)`pwn`|pwn&'pwn'\"pwn\""
"""To be carried out if it stands in a command unquoted, or in quotes that it ends."""


def is_bare(command: str) -> bool:
    """Whether a shell would obey a part of SHELL in it."""
    seen, quote, escaped = [], "", False
    for letter in command:
        if escaped:
            escaped = False
        elif letter == "\\" and quote != "'":
            escaped = True
        elif quote:
            # Within double quotes a shell goes on to carry out $(...).
            seen.append(letter if quote == '"' else " ")
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            seen.append(letter)
    return bool(quote) or "pwn" in "".join(seen)


def carried_out(every: list[str]) -> list[str]:
    """Those in which bash itself carries out what is called pwn. It finds no program, and may not write."""
    script = """
    enable -n kill exec
    pwn() { echo PWNED; }
    command_not_found_handle() { :; }
    while IFS= read -r -d '' command; do
        case "$( (set -r; eval "$command") </dev/null 2>/dev/null )" in *PWNED*) printf '%s\\0' "$command";; esac
    done
    """
    ended = subprocess.run(
        ["/bin/bash", "--noprofile", "--norc", "-c", script],
        input="".join(f"{command}\0" for command in every),
        env={"PATH": "/nonexistent", "HOME": "/nonexistent"},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [command for command in ended.stdout.split("\0") if command]
