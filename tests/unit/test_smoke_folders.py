"""Where the ranks' temporary files go, and what is said of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

from ddpdoctor.smoke.folders import Folder, own_folder


def test_the_first_place_is_not_worth_a_word() -> None:
    with TemporaryDirectory(dir="/tmp") as short:
        found = own_folder({"TMPDIR": short})
        assert Path(found.path).parent == Path(short)
        assert found.told == ""


def test_a_place_that_cant_be_used_is_told() -> None:
    found = own_folder({"TMPDIR": "/proc/self/nowhere"})
    assert found.told == f"in {Path(found.path).parent}, since others can't be used ({found.passed_over})"
    assert found.passed_over.startswith("/proc/self/nowhere: ")
    rmtree(found.path)
    assert Folder("/dev/shm/ddpdoctor-smoke-x", "/tmp: No space left on device").told == (
        "in /dev/shm, since others can't be used (/tmp: No space left on device)"
    )


def test_a_limit_of_the_size_of_files_is_named_once() -> None:
    program = """
import resource
from ddpdoctor.smoke.folders import NoFolderError, own_folder
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    own_folder({})
except NoFolderError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert ran.stdout == "no file may be larger than 4 KiB here (ulimit -f), and 1 MiB is needed\n"
