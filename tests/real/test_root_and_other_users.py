"""Root looks at a host where another user has laid out her Python, modules and libraries for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import ddpdoctor
from tests.support.other_users import User

pytestmark = pytest.mark.root


@pytest.fixture
def hers(shared: Path, eve: User) -> Path:
    """A virtual environment of eve's, which notes in the folder above it as whom its Python is started."""
    folder = shared / "hers"
    mark = f"import os; open('{shared}/ran-as-%d' % os.geteuid(), 'a').close()"
    eve.does(
        f"/usr/bin/python3 -m venv --without-pip {folder}\n"
        f'echo "{mark}" > {folder}/lib/python3.{sys.version_info[1]}/site-packages/mark.pth'
    )
    return folder


def ran_as(shared: Path) -> set[int]:
    return {int(path.name.removeprefix("ran-as-")) for path in shared.glob("ran-as-*")}


def facts_of(*arguments: str, cwd: Path | None = None, **environ: str) -> tuple[dict[str, Any], str]:
    done = ddpdoctor(*arguments, environ=environ, cwd=cwd)
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("setting", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_her_environment_is_asked_as_her(hers: Path, shared: Path, eve: User, setting: str) -> None:
    snapshot, said = facts_of(
        "snapshot", **{setting: str(hers), "VIRTUAL_ENV": "" if setting != "VIRTUAL_ENV" else str(hers)}
    )
    assert ran_as(shared) == {eve.uid}
    assert snapshot["patient"]["asked_as"] == eve.name
    assert snapshot["patient"]["prefix"] == str(hers)
    assert f"{setting} led to {hers}/bin/python, which belongs to {eve.name}" in said


def test_only_the_option_runs_it_as_root(hers: Path, shared: Path) -> None:
    facts_of("--as-root", "snapshot", "--python", str(hers))
    assert ran_as(shared) == {0}


def test_roots_settings_that_are_secret_dont_reach_her(hers: Path, shared: Path, eve: User) -> None:
    site = hers / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    eve.does(f"""echo "import os; open('{shared}/env', 'w').write(repr(dict(os.environ)))" > {site}/env.pth""")
    facts_of("snapshot", "--python", str(hers), MY_TOKEN="xyzzy", NCCL_DEBUG="INFO")
    text = (shared / "env").read_text()
    assert "NCCL_DEBUG" in text
    assert "xyzzy" not in text


@pytest.mark.parametrize("command", [["smoke", "--nproc", "2"], ["netcheck", "--master-addr", "127.0.0.1"]])
def test_commands_that_train_are_left_to_her(hers: Path, shared: Path, eve: User, command: list[str]) -> None:
    done = ddpdoctor(*command, environ={"VIRTUAL_ENV": str(hers)})
    assert done.returncode == 2
    assert f"sudo -H -u {eve.name} ddpdoctor {' '.join(command)} --python {hers}/bin/python\n" in done.stderr
    assert f"  ddpdoctor --as-root {' '.join(command)}\n" in done.stderr
    assert ran_as(shared) == set()


def test_an_environment_that_everybody_may_write_is_not_run(hers: Path, shared: Path) -> None:
    shutil.copytree(hers, shared / "roots", symlinks=True)
    for path in (shared / "roots").rglob("*"):
        os.chown(path, 0, 0, follow_symlinks=False)
    (shared / "roots" / "bin").chmod(0o777)
    snapshot, said = facts_of("snapshot", "--python", str(shared / "roots"))
    assert ran_as(shared) == set()
    assert "may be written by everybody" in str(snapshot["patient"])
    assert "--as-root" in said


@pytest.mark.parametrize("sticky", [0, 0o1000])
def test_roots_environment_into_which_everybody_may_put_packages_is_not_run(
    shared: Path, eve: User, sticky: int
) -> None:
    """Her .pth is run when the interpreter starts; all else is root's."""
    folder = shared / "roots"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", folder], check=True)
    site = folder / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    site.chmod(0o777 | sticky)
    mark = f"import os; open('{shared}/ran-as-%d' % os.geteuid(), 'a').close()"
    eve.does(f'echo "{mark}" > {site}/mark.pth')
    snapshot, said = facts_of("snapshot", "--python", str(folder))
    assert ran_as(shared) == set()
    assert f"{site} may be written by everybody" in said
    assert "may be written by everybody" in str(snapshot["patient"])
    assert ddpdoctor("smoke", "--python", str(folder)).returncode == 2
    assert ran_as(shared) == set()
    # What is hers there alone is run as her.
    site.chmod(0o755)
    snapshot, said = facts_of("snapshot", "--python", str(folder))
    assert ran_as(shared) == {eve.uid}
    assert f"which loads what belongs to {eve.name}" in said


def test_a_torch_in_her_folder_is_told_and_not_run(shared: Path, eve: User) -> None:
    folder = shared / "hers"
    mark = f"import os; open('{shared}/ran-as-%d' % os.geteuid(), 'a').close()"
    eve.does(f'mkdir {folder}; for name in torch numpy random json; do echo "{mark}" > {folder}/$name.py; done')
    report, said = facts_of("check", "--json", "--python", sys.executable, cwd=folder)
    assert ran_as(shared) == set()
    assert "torch-shadowed" in {finding["slug"] for finding in report["findings"]}
    assert "nothing is imported from this folder" in said


def test_a_package_of_torchs_name_in_her_folder_is_not_run_either(shared: Path, eve: User) -> None:
    folder = shared / "hers"
    mark = f"import os; open('{shared}/ran-as-%d' % os.geteuid(), 'a').close()"
    eve.does(f'mkdir -p {folder}/torch; echo "{mark}" > {folder}/torch/__init__.py; mkfifo {folder}/torch/version.py')
    report, _ = facts_of("check", "--json", "--python", sys.executable, cwd=folder)
    assert ran_as(shared) == set()
    assert "torch-shadowed" in {finding["slug"] for finding in report["findings"]}


@pytest.mark.parametrize("in_package", [False, True])
def test_modules_in_a_sticky_folder_are_run_by_nobody(shared: Path, ada: User, eve: User, in_package: bool) -> None:
    """As in /tmp, where everybody may put new names, and in a folder of hers that ada looks at."""
    hers = shared / "hers"
    mark = f"import os; open('{shared}/ran-as-%d' % os.geteuid(), 'a').close()"
    names = "torch/__init__" if in_package else "numpy sympy typing_extensions"
    eve.does(
        f"mkdir {hers}; chmod 755 {hers}\n"
        f"for folder in {shared} {hers}; do for name in {names}; do\n"
        f'  mkdir -p $(dirname $folder/$name); echo "{mark}" > $folder/$name.py\n'
        "done; done"
    )
    for folder in (shared, hers):
        _, said = facts_of("check", "--json", "--python", sys.executable, cwd=folder)
        assert "nothing is imported from this folder" in said
        done = ada.ddpdoctor("check", "--json", cwd=folder)
        assert "nothing is imported from this folder, since others could have put modules here.\n" in done.stderr
        assert ran_as(shared) == set()
        assert ("torch-shadowed" in {finding["slug"] for finding in json.loads(done.stdout)["findings"]}) == in_package


def test_an_ordinary_users_own_folders_and_her_groups_are_imported_from(shared: Path, ada: User) -> None:
    for mode in ("700", "755", "775"):
        mark = f"open('{shared}/ran-as-%d' % __import__('os').geteuid(), 'a').close()"
        ada.does(f'mkdir -p {shared}/adas; chmod {mode} {shared}/adas; echo "{mark}" > {shared}/adas/numpy.py')
        done = ada.ddpdoctor("check", "--json", cwd=shared / "adas")
        assert done.stderr == ""
        assert ran_as(shared) == {ada.uid}
        (shared / f"ran-as-{ada.uid}").unlink()


def test_her_home_and_pythonpath_are_left_out(shared: Path, eve: User) -> None:
    """As sudo keeps HOME on some systems, and with -E all of it."""
    mark = f"import os; open('{shared}/ran-as-%d' % os.geteuid(), 'a').close()"
    version = f"python3.{sys.version_info[1]}"
    eve.does(
        f"mkdir -p {shared}/hers/.local/lib/{version}/site-packages {shared}/hers/modules\n"
        f'echo "{mark}" > {shared}/hers/.local/lib/{version}/site-packages/mark.pth\n'
        f'echo "{mark}" > {shared}/hers/modules/sitecustomize.py'
    )
    python = shutil.which("python3", path="/usr/bin")
    assert python is not None
    _, said = facts_of("snapshot", "--python", python, HOME=f"{shared}/hers")
    assert "HOME" in said
    assert ran_as(shared) == set()
    # Our own process is given no PYTHONPATH here: what it was started with, it has loaded before it can look.
    from ddpdoctor.probes.context import Context
    from ddpdoctor.probes.target_python.asking import ask

    ask(Context(python, environ={"PYTHONPATH": f"{shared}/hers/modules", "PATH": "/usr/bin"}), "interpreter")
    assert ran_as(shared) == set()


def test_her_libraries_are_not_loaded(shared: Path, eve: User) -> None:
    """A library that only notes that it was loaded, by all the names that are asked for."""
    source = f'__attribute__((constructor)) static void f(void) {{ if (!fork()) execl("/bin/sh", "sh", "-c", "touch {shared}/ran-as-$(id -u)", (char*)0); }}'
    folder = shared / "hers"
    eve.does(
        f"mkdir {folder}; cd {folder}; echo '#include <unistd.h>' > x.c; echo '{source}' >> x.c; gcc -shared -fPIC -o x.so x.c\n"
        "for name in libnccl.so.2 libcuda.so.1 libnvidia-ml.so.1; do cp x.so $name; done"
    )
    from ddpdoctor.probes import nccl
    from ddpdoctor.probes.context import Context
    from ddpdoctor.probes.nvidia_libraries import libcuda, nvml

    context = Context(sys.executable, environ={"LD_LIBRARY_PATH": str(folder), "PATH": "/usr/bin:/bin"})
    nccl._ask(folder / "libnccl.so.2", context).wait(10)
    libcuda.ask(context)
    nvml.ask(context)
    assert ran_as(shared) <= {eve.uid}


@pytest.mark.parametrize(("before", "trains"), [((), False), (("--as-root",), True)])
def test_the_proof_of_fix_runs_as_its_first_look(
    hers: Path, shared: Path, eve: User, tmp_path: Path, before: tuple[str, ...], trains: bool
) -> None:
    """It has a ddpdoctor of its own, and then smoke."""
    words = (*before, "check", "--fix", "--yes", "--quick", "--python", hers)
    done = ddpdoctor(*words, environ={"NCCL_DEBG": "INFO"}, cwd=tmp_path, timeout=180)
    assert "NOT CONFIRMED  setting-misspelt" in done.stdout
    assert ("smoke ended with exit code 2" in " ".join(done.stdout.split())) is not trains
    assert ran_as(shared) == ({0} if trains else {eve.uid})
