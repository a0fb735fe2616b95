"""As whom root runs what the environment names, tried with programs of two other users."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ddpdoctor.probes import run_as
from ddpdoctor.probes.run_as import NotRunError, clean_environ, code_of, environ_for, identity_for, identity_of
from ddpdoctor.probes.subprocesses import run
from tests.support.other_users import User

pytestmark = pytest.mark.root

WHO = "#!/bin/sh\nid -u; id -G; pwd; env\n"


def made(user: User, path: Path, text: str = WHO) -> Path:
    """A program of that user's."""
    user.does(f"mkdir -p {path.parent}; cat > {path} <<'END'\n{text}\nEND\nchmod +x {path}")
    return path


def test_another_users_program_runs_as_that_user_without_roots_secrets(shared: Path, eve: User) -> None:
    program = made(eve, shared / "hers" / "python")
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/root", "API_TOKEN": "xyzzy-1", "DSN": "postgres://root:xyzzy-2@db/x"}
    ended = run([str(program)], 10, environ=environ | {"SSH_AUTH_SOCK": "/tmp/agent", "NCCL_DEBUG": "INFO"})
    text = ended.stdout.decode()
    assert text.splitlines()[:2] == [str(eve.uid), str(eve.gid)]
    assert f"HOME={eve.home}" in text
    assert "NCCL_DEBUG=INFO" in text
    assert "xyzzy" not in text
    assert "SSH_AUTH_SOCK" not in text


def test_she_gets_no_terminal_to_type_into(shared: Path, eve: User) -> None:
    """By the terminal of who called root, a program could type commands for root's shell."""
    program = made(eve, shared / "hers" / "python", "#!/bin/sh\n(: </dev/tty) 2>&1 && echo reached\n")
    assert b"reached" not in run([str(program)], 10).stdout


def test_what_several_could_replace_is_not_run(shared: Path, ada: User, eve: User) -> None:
    made(ada, shared / "adas" / "python")
    eve.does(f"mkdir {shared}/hers; ln -s {shared}/adas/python {shared}/hers/python")
    ended = run([f"{shared}/hers/python"], 10)
    assert "root does not run" in ended.failed_to_start
    assert "ddpdoctor-eve" in ended.failed_to_start
    assert "ddpdoctor-ada" in ended.failed_to_start


def test_what_everybody_may_write_is_not_run(shared: Path) -> None:
    program = shared / "python"
    program.write_text(WHO)
    program.chmod(0o777)
    assert "may be written by everybody" in run([str(program)], 10).failed_to_start


@pytest.mark.parametrize("name", ["dev.pth", "sitecustomize.py"])
def test_a_link_to_what_another_user_has_yet_to_make_counts_as_hers(shared: Path, eve: User, name: str) -> None:
    """An interpreter of root's, which runs it at its start from the moment when she has made it."""
    eve.does(f"mkdir {shared}/hers")
    site_packages = shared / "roots/lib/python3.12/site-packages"
    site_packages.mkdir(parents=True)
    (site_packages / name).symlink_to(shared / "hers" / name)
    assert identity_for(code_of(f"{shared}/roots/bin/python")) == identity_of(eve.uid)


def test_only_the_option_runs_it_as_root(shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch) -> None:
    program = made(eve, shared / "hers" / "python")
    monkeypatch.setattr(run_as._Trust, "everybody", True)
    assert run([str(program)], 10).stdout.startswith(b"0\n")


def test_roots_own_programs_get_no_settings_that_lead_to_others(shared: Path, eve: User) -> None:
    eve.does(f"mkdir {shared}/hers")
    hers = f"{shared}/hers"
    environ = {
        "PATH": f"/usr/bin:{hers}::.:relative/bin:/bin",
        "LD_LIBRARY_PATH": f"/usr/lib:{hers}",
        "LD_PRELOAD": f"libm.so.6 {hers}/x.so",
        "PYTHONPATH": hers,
        "HOME": str(eve.home),
        "OPENSSL_CONF": f"{hers}/openssl.cnf",
        "NVCC_PREPEND_FLAGS": f"-ccbin={hers}/g++",
        "NOT_YET": "/tmp/ddpdoctor-nobody-has-made-this",
        "URL": "https://example.org/x",
        "LD_BIND_NOW": "1",
    }
    kept, left_out = clean_environ(environ)
    assert kept == {
        "PATH": "/usr/bin:/bin",
        "LD_LIBRARY_PATH": "/usr/lib",
        "LD_PRELOAD": "libm.so.6",
        "HOME": "/root",
        "URL": "https://example.org/x",
        "LD_BIND_NOW": "1",
    }
    assert "PYTHONPATH" in {one.setting for one in left_out}
    assert all(one.words for one in left_out)


def test_a_folder_of_hers_is_no_place_to_start_from(shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch) -> None:
    eve.does(f"mkdir {shared}/hers; echo 'raise SystemExit(\"hers\")' > {shared}/hers/json.py")
    monkeypatch.chdir(shared / "hers")
    ended = run([sys.executable, "-c", "import json, os; print(os.getcwd())"], 10)
    assert ended.stdout == b"/\n"
    with_relative = {"LD_LIBRARY_PATH": "lib:/usr/lib", "LD_AUDIT": "./audit.so"}
    assert clean_environ(with_relative)[0] == {"LD_LIBRARY_PATH": "/usr/lib"}


def test_a_sticky_folder_is_no_place_to_look_for_code_in(
    shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody may put new names there."""
    eve.does(f"echo 'raise SystemExit(\"hers\")' > {shared}/json.py")
    monkeypatch.chdir(shared)
    assert run([sys.executable, "-c", "import json, os; print(os.getcwd())"], 10).stdout == b"/\n"
    environ = {
        "LD_LIBRARY_PATH": f"/usr/lib:{shared}",
        "PYTHONPATH": str(shared),
        "PYTHONUSERBASE": str(shared),
        "HOME": str(shared),
        "TMPDIR": str(shared),
    }
    assert clean_environ(environ)[0] == {"LD_LIBRARY_PATH": "/usr/lib", "HOME": "/root", "TMPDIR": str(shared)}


def test_nothing_changes_for_what_is_roots() -> None:
    environ = dict(os.environ)
    assert identity_for([sys.executable, "/usr/bin/env"]) is None
    assert environ_for(None, {"HOME": "/root", "PATH": "/usr/bin:/bin"}) == {"HOME": "/root", "PATH": "/usr/bin:/bin"}
    assert environ["PATH"]


def test_an_ordinary_user_runs_whatever_it_names(eve: User) -> None:
    code = (
        "from ddpdoctor.probes.run_as import *\n"
        "print(identity_for(['/tmp/x']), environ_for(None, {'PATH': '.:/bin'}), working_folder_for(None))"
    )
    from tests.support.other_users import python_for_all

    python, environ = python_for_all()
    done = eve.run([python, "-c", code], environ=environ)
    assert done.stdout.strip() == "None {'PATH': '.:/bin'} None", done.stderr


def test_a_refusal_names_what_to_do() -> None:
    with pytest.raises(NotRunError, match=r"sudo -u USER.*ddpdoctor --as-root COMMAND"):
        identity_for(["/tmp/ddpdoctor-nobody-has-made-this"])
