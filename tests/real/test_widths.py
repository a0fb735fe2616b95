"""How wide a report is drawn that goes into a file: the same for each command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.command import command, plain_environ

WORDS = "RuntimeError: Address already in use"


def report(line: list[str], folder: Path, environ: dict[str, str]) -> str:
    """What stands in a file afterwards, standard error with it; no terminal is anywhere."""
    file = folder / "report"
    with file.open("wb") as out:
        subprocess.run(
            line,
            env={name: value for name, value in plain_environ().items() if name != "COLUMNS"} | environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            check=False,
        )
    return file.read_text()


@pytest.mark.parametrize(
    ("columns", "wide"), [(None, 80), ("200", 200), ("40", 40), ("0", 80), ("\u00b2", 80)], ids=str
)
def test_a_report_in_a_file_is_as_wide_as_columns_says(tmp_path: Path, columns: str | None, wide: int) -> None:
    (tmp_path / "log").write_text(f"{WORDS}\n")
    environ = {} if columns is None else {"COLUMNS": columns}
    for arguments in (
        ("run", "--", "sh", "-c", f"echo {WORDS}; exit 1"),
        ("diagnose-log", "log"),
        ("check", "--help"),
    ):
        said = report(command(*arguments), tmp_path, environ)
        # A command to be copied isn't broken, so it may be longer.
        longest = max(
            (len(line) for line in said.splitlines() if "ddpdoctor" not in line and "/" not in line), default=0
        )
        assert 0.75 * wide < longest <= wide, (arguments, said)
