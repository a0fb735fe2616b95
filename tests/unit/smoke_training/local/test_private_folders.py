"""Where the ranks' temporary files go, and what is said of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

from ddpdoctor.base.private_folders import Folder, private_folder
from ddpdoctor.smoke_training.local.rank_runner import FOLDER


def test_the_first_place_is_not_worth_a_word() -> None:
    with TemporaryDirectory(dir="/tmp") as short:
        found = private_folder({"TMPDIR": short}, FOLDER)
        assert Path(found.path).parent == Path(short)
        assert found.told == ""


def test_a_place_that_cant_be_used_is_told() -> None:
    found = private_folder({"TMPDIR": "/proc/self/nowhere"}, FOLDER)
    assert found.told == f"in {Path(found.path).parent}, since others can't be used ({found.passed_over})"
    assert found.passed_over.startswith("/proc/self/nowhere: ")
    rmtree(found.path)
    assert Folder("/dev/shm/ddpdoctor-smoke-x", "/tmp: No space left on device").told == (
        "in /dev/shm, since others can't be used (/tmp: No space left on device)"
    )


def test_a_limit_of_the_size_of_files_is_named_once() -> None:
    program = """
import resource
from ddpdoctor.base.private_folders import NoFolderError, private_folder
from ddpdoctor.smoke_training.local.rank_runner import FOLDER
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    private_folder({}, FOLDER)
except NoFolderError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert ran.stdout == "no file may be larger than 4 KiB here (ulimit -f), and 1 MiB is needed\n"
