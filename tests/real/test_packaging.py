"""What is built is what is in the tree: sdist to wheel, installed elsewhere, its checks counted."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import all_checks
from tests.support.command import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built out of an unpacked sdist, as an index's users get it."""
    source = tmp_path_factory.mktemp("source") / "tree"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    archive = tmp_path_factory.mktemp("archive") / "tree.tar"
    with tarfile.open(archive, "w") as tar:
        for name in filter(None, listed.decode().split("\0")):
            if (ROOT / name).exists() or (ROOT / name).is_symlink():
                tar.add(ROOT / name, name, recursive=False)
    with tarfile.open(archive) as tar:
        tar.extractall(source, filter="fully_trusted")
    built = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", built, source]
    subprocess.run(command, capture_output=True, check=True)
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        packed = {name.partition("/")[2] for name in tar.getnames()}
    assert {name for name in listed.decode().split("\0") if name.startswith("deploy/")} <= packed
    return next(built.glob("*.whl"))


def test_installed_elsewhere_it_has_every_check(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment)
    python = environment / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "-q", wheel], capture_output=True, check=True
    )
    count = (
        "from ddpdoctor.checks.catalogue import all_checks; import ddpdoctor; checks = all_checks(); "
        "print(len(checks), sum(len(check.log_signs) for check in checks), ddpdoctor.__file__)"
    )
    ended = subprocess.run([python, "-c", count], cwd=tmp_path, capture_output=True, text=True, check=True)
    number, signs, place = ended.stdout.strip().split(" ", 2)
    assert int(number) == len(all_checks())
    assert int(signs) == sum(len(check.log_signs) for check in all_checks())
    assert place.startswith(str(environment))
    checked = subprocess.run(
        [environment / "bin" / "ddpdoctor", "check", "--json", "--select", "host"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert json.loads(checked.stdout)["verdict"] in ("ok", "warn", "fail"), checked.stderr
    launcher = environment / "bin" / "ddpdoctor-gate"
    assert launcher.read_text() == (ROOT / "deploy" / "ddpdoctor-gate").read_text()
    gated = subprocess.run([launcher, "--for", "npd", "--select", "host"], env={}, capture_output=True, text=True)
    assert gated.returncode in (0, 1, 2), gated.stderr
    assert "broken" not in gated.stdout


def test_wheel_holds_data_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "ddpdoctor/report/report.schema.json" in names
    assert "ddpdoctor/py.typed" in names
    assert {"ddpdoctor/checks/index.json", "ddpdoctor/checks/log_signs.json"} <= set(names)
    assert "ddpdoctor/probes/target_python/inquiry.py" in names
    assert not any(name.startswith(("tests/", "checks/", "fixtures/")) for name in names)
    written = {f"ddpdoctor/{path.relative_to(ROOT)}" for path in (ROOT / "checks").rglob("*.toml")}
    assert len(written) > 40
    assert written <= set(names)
    package = ROOT / "ddpdoctor"
    on_disk = {
        f"ddpdoctor/{path.relative_to(package)}" for kind in ("py", "json") for path in package.rglob(f"*.{kind}")
    }
    assert on_disk <= set(names), "a module or a table is missing in pyproject's lists"


def test_checks_refuse_to_be_imported_by_another_name() -> None:
    ended = subprocess.run([sys.executable, "-c", "import checks"], cwd=ROOT, capture_output=True, text=True)
    assert "import this package as ddpdoctor.checks" in ended.stderr
