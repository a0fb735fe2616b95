"""What is said of an ordinary error: where it is, what is missing, and for which Python."""

from __future__ import annotations

import pytest

from ddpdoctor.base.findings import Finding
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.diagnosis import judge_log
from tests.support.logs_by_hand import read

TOLD = "E1122 23:44:19.924000 29126 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) local_rank: 0 (pid: 29161) of binary: {python}\n"
LAUNCHER = TOLD + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"


def found_in(text: str, *, code: int = 1, python: str = "/opt/env/bin/python3.11") -> Finding:
    judgement = judge_log(read(text + LAUNCHER.format(code=code, python=python)), catalogue())
    (opinion,) = judgement.opinions
    assert opinion.check.slug == "user-code-error"
    return opinion.finding


def missing(module: str) -> str:
    return (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/home/ada/train.py", line 3, in <module>\n'
        f"[rank0]:     import {module}\n"
        f"[rank0]: ModuleNotFoundError: No module named '{module}'\n"
    )


@pytest.mark.parametrize(("module", "package"), [("yaml", "PyYAML"), ("cv2", "opencv-python"), ("einops", "einops")])
def test_a_missing_package_is_installed_for_the_python_that_ran(module: str, package: str) -> None:
    install, own = found_in(missing(module)).fixes
    assert install.commands == (f"/opt/env/bin/python3.11 -m pip install {package}",)
    assert "the wrong one may be active" in install.text
    assert "PYTHONPATH" in own.commands[0]


@pytest.mark.parametrize("module", ["utils", "config", "models", "nonexistent"])
def test_what_is_no_known_package_is_rather_the_users_own_file(module: str) -> None:
    own, package = found_in(missing(module)).fixes
    assert "PYTHONPATH" in own.commands[0]
    assert not package.commands
    assert "its name on PyPI may be another" in package.text


def test_nvidias_apex_is_not_installed_from_pypi() -> None:
    commands = [command for fix in found_in(missing("apex")).fixes for command in fix.commands]
    assert "ddpdoctor explain apex" in commands
    assert not any("pip install" in command for command in commands)


def test_the_python_of_a_hostile_log_is_quoted() -> None:
    install = found_in(missing("yaml"), python="/tmp/$(reboot)/python").fixes[0]
    assert install.commands == ("'/tmp/$(reboot)/python' -m pip install PyYAML",)


def test_what_is_missing_within_a_package_is_not_installed() -> None:
    (fix,) = found_in(missing("utils.data")).fixes
    assert fix.commands == ("/opt/env/bin/python3.11 -c 'import utils; print(utils)'",)


def test_a_syntax_error_says_where_it_is() -> None:
    text = 'a warning of another line\n  File "/home/ada/train.py", line 3\n    if r==0 print("x")\n            ^^^^^\nSyntaxError: invalid syntax\n'
    found = found_in(text)
    assert found.evidence[0].text == 'File "/home/ada/train.py", line 3'
    assert found.fixes[0].text == 'Look at /home/ada/train.py, line 3, which says: if r==0 print("x")'


def test_of_the_lines_before_argparses_words_only_its_usage_is_shown() -> None:
    error = "train.py: error: the following arguments are required: --epochs"
    usage = "usage: train.py [-h] --epochs EPOCHS"
    found = found_in(f"  cpu = _conversion(device)\n{usage}\n{error}\n", code=2)
    assert [one.text for one in found.evidence] == [usage, error]
    assert "traceback" not in found.cause
    assert [one.text for one in found_in(f"  cpu = _conversion(device)\n{error}\n", code=2).evidence] == [error]


@pytest.mark.parametrize(
    "words", ["unrecognized arguments: --nproc-pernode=2", "the following arguments are required: training_script"]
)
def test_torchruns_own_arguments_are_an_ordinary_error(words: str) -> None:
    (opinion,) = judge_log(
        read(f"                training_script ...\ntorchrun: error: {words}\n"), catalogue()
    ).opinions
    assert opinion.check.slug == "user-code-error"
    assert opinion.finding.summary == f"The command line of torchrun is refused: {words}"


def test_an_illness_says_by_which_line_of_the_script_it_was_met() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/ada/train.py", line 3, in main\n    state = torch.load("e.pt")\n'
        '  File "/opt/env/lib/python3.11/site-packages/torch/serialization.py", line 1400, in load\n    with _open(f)\n'
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n"
    )
    first = judge_log(read(text), catalogue()).opinions[0]
    assert first.check.slug == "ckpt-truncated"
    assert first.finding.evidence[0].text == '/home/ada/train.py:3, in main: state = torch.load("e.pt")'
