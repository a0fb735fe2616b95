"""`ddpdoctor smoke` with target Pythons that are broken, and with places and limits that are: each ends in plain words, in time, and
leaves nothing behind; what only looks broken trains."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from ddpdoctor import smoke_training as smoke_package
from tests.support.command import ROOT, command, plain_environ
from tests.support.pythons import bare_venv, fake_torch, real_pythons, stand_in

TRAINER = Path(smoke_package.__file__).parent / "trainer"

USER = (
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
)  # fmt: skip
"""A foreign user who may read all files, since the interpreter may lie in root's home."""

IN_TIME = 90.0
"""Seconds, also on a very busy machine; most take three."""
SHORT = ("--stages", "barrier,training,checkpoint")


class Ran(NamedTuple):
    """text: all that it printed, without spaces and new lines: a line may end anywhere in a path."""

    code: int
    text: str
    errors: str


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that another user may enter, and nothing of ours may be left in its folder tmp."""
    for one in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        one.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    (tmp_path / "here").mkdir()
    yield tmp_path
    assert list((tmp_path / "tmp").iterdir()) == []


def smoke(
    place: Path,
    *arguments: str,
    python: str = sys.executable,
    through: tuple[str, ...] = (),
    cwd: Path | None = None,
    **environ: str | None,
) -> Ran:
    """through: a command before it. environ: None takes a setting away."""
    mark = f"{os.getpid()}-{time.time()}"
    settings: dict[str, str | None] = {
        **plain_environ(),
        "TMPDIR": str(place / "tmp"),
        "DDPDOCTOR_TEST": mark,
        **environ,
    }
    # A foreign user may not go where the default one lies, as far as access(2) knows.
    named = ("--python", python) if python != sys.executable else ()
    began = time.monotonic()
    done = subprocess.run(
        [*through, *command("smoke", *SHORT, *named, *arguments)],
        env={name: value for name, value in settings.items() if value is not None},
        cwd=cwd or place / "here",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert time.monotonic() - began < IN_TIME
    assert left_running(mark) == []
    for said in (done.stdout, done.stderr):
        assert "Traceback" not in said
        assert "itself failed" not in said
    return Ran(done.returncode, squeezed(done.stdout), done.stderr)


def squeezed(text: str) -> str:
    return "".join(text.split())


def left_running(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"DDPDOCTOR_TEST={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_text())
    return found


def shell(script: str) -> tuple[str, ...]:
    """What the script does, and then the command that follows."""
    return ("bash", "-ec", f'{script}\nexec "$@"', "bash")


def mounts(script: str) -> tuple[str, ...]:
    """In a mount namespace: nobody else sees it. The folders in which everything of ours lies stay visible in there."""
    keep = dict.fromkeys(str(one) for one in (ROOT, Path(sys.prefix)))
    lines = "".join(f"keep '{one}'\n" for one in keep)
    # What lies below a folder that is mounted over would be hidden with it.
    helpers = (
        'kept=(); keep() { case "$1" in /tmp/*|/var/tmp/*) local at=/run/kept${#kept[@]}; mkdir -p $at; '
        'mount --bind "$1" $at; kept+=("$at:$1");; esac; }\n'
        'again() { local one; for one in "${kept[@]}"; do mkdir -p "${one#*:}"; mount --bind "${one%%:*}" "${one#*:}"; done; }\n'
        'full() { mount -t tmpfs -o "size=${2:-64k}" none "$1"; again; dd if=/dev/zero "of=$1/fill" bs=4k 2>/dev/null || true; }\n'
    )
    run = "mount -t tmpfs none /run\n"
    return ("unshare", "--mount", "--propagation", "private", *shell(helpers + run + lines + script))


# --- no usable torch --------------------------------------------------------------------------------------------------------


def assert_not_run(ran: Ran, *words: str) -> None:
    """That no rank could be started is no lack of a verdict."""
    assert (ran.code, ran.text[:4]) == (1, "FAIL"), ran
    for word in words:
        assert squeezed(word) in ran.text, ran


def test_an_environment_without_torch(place: Path) -> None:
    ran = smoke(place, python=bare_venv(place / "venv"))
    assert_not_run(ran, "No module named 'torch'", "[torch-missing]", f"{place}/venv/bin/python -m pip install torch")


@pytest.mark.thorough
def test_an_old_python_without_torch(place: Path) -> None:
    assert_not_run(smoke(place, python=real_pythons()["3.8"]), "No module named 'torch'", "[torch-missing]")


WITHOUT_DISTRIBUTED = """
from importlib.machinery import ExtensionFileLoader

def exec_module(self, module, usual=ExtensionFileLoader.exec_module):
    usual(self, module)
    if module.__name__ == "torch._C":
        # What USE_DISTRIBUTED=0 leaves out.
        for name in ("_c10d_init", "_distributed_c10d", "_rpc_init", "_distributed_rpc", "_dist_autograd_init"):
            if hasattr(module, name):
                delattr(module, name)

ExtensionFileLoader.exec_module = exec_module
"""


def test_a_torch_that_was_built_without_distributed(place: Path) -> None:
    """The real one, less what such a build lacks."""
    (place / "sitecustomize.py").write_text(WITHOUT_DISTRIBUTED)
    ran = smoke(place, PYTHONPATH=f"{place}:{ROOT}")
    assert_not_run(ran, "torch.distributed", "[torch-distributed-missing]")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import ctypes; ctypes.string_at(0)", ("ended by SIGSEGV", "[torch-import-broken]")),
        ("import os; os._exit(3)", ("ended with exit code 3", "[torch-import-broken]")),
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", ("libcudart.so.13", "[cuda-lib-not")),
        pytest.param(
            "import time; time.sleep(600)",
            ("no rank had begun after 30 s", "[torch-import-broken]"),
            marks=pytest.mark.thorough,
        ),
        ("", ("No module named 'torch.distributed'", "[torch-shadowed]")),
    ],
    ids=["crashes", "exits", "misses a library", "hangs", "is empty"],
)
def test_a_torch_that_can_not_be_imported(place: Path, code: str, words: tuple[str, ...]) -> None:
    fake_torch(place / "fake", code)
    timeout = ("--timeout", "2") if "sleep" in code else ()
    assert_not_run(smoke(place, *timeout, PYTHONPATH=f"{place}/fake:{ROOT}"), *words)


# --- the working folder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("torch", "x = 1", ("[torch-shadowed]", "`torch-shadowed` was found", "mv ")),
        ("random", "x = 1", ("hides Python's own module of that name", "mv ")),
        ("random", "raise RuntimeError('mine')", ("hides Python's own module of that name", "mv ")),
        ("typing_extensions", "x = 1", ("hides the installed module of that name", "mv ")),
        ("json", "x = 1", ("json.py hides Python's own module json", "failed in import")),
    ],
)
def test_a_file_that_hides_a_module(place: Path, name: str, code: str, words: tuple[str, ...]) -> None:
    """A training script in that folder would meet it."""
    (place / "here" / f"{name}.py").write_text(f"{code}\n")
    ran = smoke(place)
    assert_not_run(ran, f"here/{name}.py", *words)
    assert "--force-reinstall" not in ran.text
    assert "(--python)" not in ran.text
    first = ran.text.find("fix")
    assert name == "json" or 0 < ran.text.find("mv/", first) < ran.text.find("ddpdoctorcheck`finds", first), ran


@pytest.mark.parametrize(
    ("name", "code"),
    [("random", "x = 1"), ("socket", "import sys; sys.exit(3)")],
)
def test_a_file_on_pythonpath_that_hides_a_module(place: Path, name: str, code: str) -> None:
    (place / f"{name}.py").write_text(f"{code}\n")
    ran = smoke(place, PYTHONPATH=f"{place}:{ROOT}")
    assert_not_run(ran, f"{place}/{name}.py hides Python's own module", "mv ")


@pytest.mark.thorough
def test_a_file_that_would_hide_a_module_where_python_does_not_look(place: Path) -> None:
    (place / "here" / "json.py").write_text("raise ImportError('not to be imported')\n")
    assert smoke(place, python=stand_in(place, f'exec "{sys.executable}" -I "$@"')).code == 0


@pytest.mark.thorough
def test_a_working_folder_that_was_removed(place: Path) -> None:
    gone = place / "gone"
    gone.mkdir()
    assert_not_run(smoke(place, through=shell(f'cd "{gone}"; rmdir "{gone}"')), "[working-folder-gone]")


@pytest.mark.root
def test_a_working_folder_that_may_not_be_looked_into(place: Path) -> None:
    """torchrun trains there. The capability of USER would let it in: instead, root's home holds nothing that is private."""
    (place / "here").chmod(0o700)
    ours = " ".join(f"'{one}'" for one in (sys.base_prefix, sys.prefix, ROOT))
    readable = (
        f"for one in {ours}; do mkdir /run/$((++n)); mount --bind $one /run/$n; done\n"
        f"mount -t tmpfs -o mode=755 none '{Path.home()}'; n=0\n"
        f"for one in {ours}; do mkdir -p $one; mount --bind /run/$((++n)) $one; done"
    )
    through = (*mounts(readable), "setpriv", "--reuid=65534", "--clear-groups")
    ran = smoke(place, through=through, HOME="/proc/1", VIRTUAL_ENV=None)
    assert (ran.code, ran.text[:2]) == (0, "OK"), ran


# --- places -----------------------------------------------------------------------------------------------------------------


@pytest.mark.root
def test_no_room_for_temporary_files_anywhere(place: Path) -> None:
    full = "full /tmp; full /var/tmp 128k; full /dev/shm; cd /proc"
    ran = smoke(place, through=mounts(full), TMPDIR=None, HOME="/proc")
    assert_not_run(ran, "no place for temporary files: /tmp: No space left on device; /var/tmp: No space left")
    assert "[disk-full]" in ran.text


@pytest.mark.root
@pytest.mark.thorough
def test_no_room_in_shared_memory(place: Path) -> None:
    ran = smoke(place, through=mounts("full /dev/shm"))
    assert_not_run(ran, "/dev/shm is full, where the semaphores of multiprocessing lie", "[shm-too-small]")


@pytest.mark.root
def test_a_user_without_rights_or_home_where_tmp_may_not_be_written(place: Path) -> None:
    read_only = f"mkdir -p '{place}/tmp'; mount -t tmpfs -o ro none '{place}/tmp'"
    ran = smoke(place, through=(*mounts(read_only), *USER), HOME="/proc/1")
    assert ran.code == 0, ran
    assert ran.text.startswith("OK")


# --- limits -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "code", "words"),
    [
        ("ulimit -n 20", 1, "[nofile-limit]"),
        ("ulimit -v 400000", 2, "ulimit -v"),
    ],
)
@pytest.mark.thorough
def test_a_tight_limit(place: Path, limit: str, code: int, words: str) -> None:
    ran = smoke(place, through=shell(limit))
    assert (ran.code, squeezed(words) in ran.text + squeezed(ran.errors)) == (code, True), ran


@pytest.mark.root
@pytest.mark.thorough
def test_no_more_processes(place: Path) -> None:
    """The limit counts the threads of a user; root has none."""
    ran = smoke(place, through=(*USER, *shell("ulimit -u 3")), HOME="/proc/1")
    assert (ran.code, squeezed("ulimit -u") in ran.text + squeezed(ran.errors)) == (2, True), ran


# --- what only looks broken -------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_patient_in_an_odd_place_and_settings_that_mean_nothing(place: Path) -> None:
    odd = place / "mein Gerät 'ü' $x"
    odd.mkdir()
    (odd / "venv").symlink_to(sys.prefix)
    python = str(odd / "venv" / "bin" / "python")
    ran = smoke(
        place, python=python, cwd=odd, HOME=None, LD_PRELOAD="/nonexistent.so", PYTHONSAFEPATH="1", PYTHONHASHSEED="7"
    )
    assert ran.code == 0, ran
    assert ran.text.startswith("OK")


@pytest.mark.thorough
def test_closed_output(place: Path) -> None:
    ran = smoke(place, through=shell("exec >&- 2>&- <&-"))
    assert ran == (0, "", "")


def test_the_patients_side_compiles_on_the_oldest_python() -> None:
    code = "import ast, sys\nfor one in sys.argv[1:]: ast.parse(open(one, encoding='utf-8').read(), one)"
    files = [str(path) for path in TRAINER.rglob("*.py")]
    assert len(files) > 10
    subprocess.run([real_pythons()["3.8"], "-c", code, *files], check=True)
