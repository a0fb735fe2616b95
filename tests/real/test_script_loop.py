"""The closed loop of `lint`: a mistake is made on two ranks of torch, seen, named, mended as the finding says, and gone."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor import diagnose_log, lint
from ddpdoctor.api.script_fixing import propose_script_fixes
from ddpdoctor.base.findings import INFO
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.report.contract import ReportedFinding
from tests.support.script_mistakes import MISTAKES, NO_PORT, NOT_MADE, STAND_INS, Mistake
from tests.support.script_ranks import Ran, Ranks, started_ranks

SCRIPT = Path("train.py")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with started_ranks() as process:
        yield process


@pytest.fixture
def port() -> Iterator[str]:
    """One at which nobody listens, as long as it is bound."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield str(bound.getsockname()[1])


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    folder = tmp_path / "stand-ins"
    for name, text in STAND_INS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def findings(slug: str) -> list[ReportedFinding]:
    return [finding for finding in lint([SCRIPT]).findings if finding.slug == slug and finding.severity is not INFO]


def mend(mistake: Mistake, finding: ReportedFinding, port: str) -> None:
    """Change the script as the finding says."""
    if not mistake.mended:
        (file,) = propose_script_fixes(lint([SCRIPT]), [str(SCRIPT)], (), ()).files
        assert file.write() == ""
        return
    fix, text = finding.fixes[0], SCRIPT.read_text()
    assert fix.text.startswith(mistake.advice)
    uses_code = False
    for old, new in mistake.mended:
        old = old.replace(NO_PORT, port)
        assert text.count(old) == 1, f"{old!r} in {text}"
        uses_code |= bool(re.search(r"\{\w+\}", new))
        text = text.replace(old, with_code(new, fix.commands))
    assert uses_code or mistake.advice, "nothing of the fix was used"
    SCRIPT.write_text(text)


def with_code(text: str, lines: tuple[str, ...]) -> str:
    """The lines of a fix where the text wants them, as deep as it stands there."""
    indent = text[: len(text) - len(text.lstrip())]
    return text.format(*(line.partition("  #")[0] for line in lines), fix=f"\n{indent}".join(lines))


def mistake_id(mistake: Mistake) -> str:
    return "-".join(filter(None, (mistake.slug, mistake.name.replace(" ", "-"))))


@pytest.mark.parametrize("mistake", MISTAKES, ids=mistake_id)
def test_made_seen_and_mended(
    mistake: Mistake, ranks: Ranks, port: str, stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(environ: dict[str, str]) -> Ran:
        environ = {**environ, "STAND_INS": str(stand_ins)}
        return ranks.run(SCRIPT.resolve(), mistake.arguments, environ=environ, gpus=mistake.gpus)

    SCRIPT.write_text(mistake.head + mistake.script.replace(NO_PORT, port))
    found = findings(mistake.slug)
    assert len(found) == 1
    sick = run(dict(mistake.environ))
    assert mistake.shows(sick), sick
    Path("run.log").write_text("".join(sick.words))
    told = [finding for finding in diagnose_log(["run.log"]).findings if finding.explains] if mistake.is_told else []
    assert [(finding.slug, finding.line) for finding in told] == ([(mistake.slug, found[0].line)] * mistake.is_told)
    mend(mistake, found[0], port)
    assert findings(mistake.slug) == []
    healed = run(dict(mistake.environ_later))
    assert healed.codes == [0, 0], healed
    assert not mistake.shows(healed)


def test_every_mistake_is_made() -> None:
    made = {mistake.slug for mistake in MISTAKES}
    assert not made & NOT_MADE.keys()
    assert made | NOT_MADE.keys() == {
        check.slug for check in all_checks() if check.groups == {"script"} and check.severity is not INFO
    }
