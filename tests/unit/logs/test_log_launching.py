"""Launchers that start no rank or lose a node, and lines of glog's: what speaks of an error, and what doesn't."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.launch_failures import programs_missing
from ddpdoctor.logs.render.headline import headline
from tests.support.logs_by_hand import read

BLOCK = "\n\n* why that may be\n  and more of it\n\n* or else\n  something else\n\nand what to do\nabout it\n"


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (
            "",
            "[proxy:0:0@node0] HYDU_create_process (utils/launch/launch.c:75): execvp error on file trian (No such file or directory)",
        ),
        ("", "ORTE has lost communication with a remote daemon." + BLOCK),
        ("----\n", "PRTE has lost communication with a remote daemon." + BLOCK),
        ("", "An ORTE daemon has unexpectedly failed after launch and before" + BLOCK),
        ("", "mpirun was unable to find the specified executable file, and therefore" + BLOCK),
        ("", "A sequential map was requested, but not enough node entries" + BLOCK),
        ("", "bash: orted: command not found\nORTE was unable to reliably start one or more daemons." + BLOCK),
        (
            "",
            "[node0:17] ORTE_ERROR_LOG: Not found in file a.c at line 2\n-----\nORTE was unable to reliably start one or more daemons."
            + BLOCK,
        ),
        (
            "",
            "slurmstepd: error: execve(): torchrun: No such file or directory\nsrun: error: n1: task 0: Exited with exit code 2",
        ),
        ("", "job.sh: 7: torchrun: not found"),
        ("", "nohup: failed to run command \u2018torchrun\u2019: No such file or directory"),
        ("", 'FATAL:   "torchrun": executable file not found in $PATH'),
        ("", "etcd.EtcdKeyNotFound: Key not found : /torch/elastic/store"),
        ("", "[E1122 02:13:07.123456789 ProcessGroupNCCL.cpp:1319] Failed to get a flag from the global store"),
        ("", "[E205 02:13:07.123456789 ProcessGroupNCCL.cpp:1870] the watchdog got stuck for 480 seconds"),
        ("", "[E ProcessGroupNCCL.cpp:1316] Heartbeat monitor timed out!"),
        ("", "[F1122 02:13:07.123456789 ProcessGroupNCCL.cpp:1553] the watchdog got stuck for 480 seconds"),
        (
            "",
            "E1122 02:13:07.123000 4711 site-packages/torch/distributed/elastic/agent/server/api.py:921] Agent gave up",
        ),
    ],
)
def test_it_is_the_first_error(before: str, text: str) -> None:
    found = verdict_of(read(before + text), catalogue())
    assert found.outcome is (RunOutcome.USER_ERROR if programs_missing(text) else RunOutcome.UNRECOGNISED)
    assert found.lead is not None
    assert found.lead.text == text.partition("\n")[0]


@pytest.mark.parametrize(
    "text",
    [
        "[W1122 02:13:07.123456789 ProcessGroupNCCL.cpp:1319] something is slow",
        "[I1122 02:13:07.123456789 ProcessGroupNCCL.cpp:1319] something is done",
        "E0000 00:00:1732241587.123456    4711 cuda_dnn.cc:8310] Unable to register cuDNN factory",
        "E1122 02:13:07.123456    4711 cuda_blas.cc:1418] Unable to register cuBLAS factory",
        "model E12 has F01 = 3 [E 4]",
        "[E1] step 3",
    ],
)
def test_no_error_is_spoken_of(text: str) -> None:
    assert not read(text).errors


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("bash: line 1: torchrun: command not found", ["torchrun"]),
        ("zsh: command not found: srun", ["srun"]),
        ("sh: 1: exec: deepspeed: not found", ["deepspeed"]),
        ("slurmstepd: error: execve(): ./run.py: No such file or directory", ["./run.py"]),
        ('exec: "torchrun": executable file not found in $PATH: unknown', ["torchrun"]),
        ("/usr/bin/env: 'python': No such file or directory", ["python"]),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'torchrun.json'", []),
        ("slurmstepd: error: execve(): torchrun: Permission denied", []),
        ("data: 7 files: not found", []),
    ],
)
def test_a_program_that_is_not_found_is_named(text: str, programs: list[str]) -> None:
    assert programs_missing(text) == programs


def test_an_option_that_begins_a_line_of_the_job_script_is_told_as_that() -> None:
    (opinion,) = judge_log(read("epoch 3 loss 2\njob.sh: line 49: --lr: command not found"), catalogue()).opinions
    assert opinion.finding.summary == "The job script runs --lr as a program, since the line before it doesn't go on"
    assert "backslash" in opinion.finding.fixes[0].text


def test_the_first_line_names_a_program_that_is_not_found() -> None:
    said = "slurmstepd: error: execve(): torchrun: No such file or directory\nsrun: error: n1: task 0: Exited with exit code 2"
    assert headline(judge_log(read(said), catalogue())).endswith(": PATH doesn't lead to torchrun")
    unknown = headline(judge_log(read("bash: line 3: module: command not found"), catalogue()))
    assert unknown.endswith(": `module` isn't found: it is a function of login shells")


@pytest.mark.parametrize("path", ["/home/ada/run.py", "./run.py"])
def test_a_file_that_is_not_found_is_not_sought_in_path(path: str) -> None:
    said = f"slurmstepd: error: execve(): {path}: No such file or directory\nsrun: error: n1: task 0: Exited with exit code 2"
    judgement = judge_log(read(said), catalogue())
    assert headline(judgement).endswith(
        f": there is no file {path} on that host, or its first line names an interpreter that isn't there"
    )
    (fix,) = judgement.opinions[0].finding.fixes
    assert "PATH" not in fix.text
    assert fix.commands == (f"ls -l {path}; head -1 {path}",)


@pytest.mark.parametrize(
    ("name", "behind", "slug", "sure"),
    [
        ("node2:8", "", "mpirun-slots", False),
        ("node2:8", "horovodrun ends\n", "mpirun-slots", True),
        ("node2:8", "mpirun ends\n", "mpirun-slots", True),
        ("node2:22", "mpirun ends\n", "ssh-login-failed", True),
        ("node2:2222", "mpirun ends\n", "ssh-login-failed", True),
        ("node2", "mpirun ends\n", "ssh-login-failed", True),
    ],
)
def test_a_number_behind_a_hosts_name_is_slots_or_a_port(name: str, behind: str, slug: str, sure: bool) -> None:
    found = verdict_of(
        read(f"ssh: Could not resolve hostname {name}: Name or service not known\n{behind}"), catalogue()
    )
    assert [(suspect.slug, suspect.sure) for suspect in found.suspects] == [(slug, sure)]


def test_what_is_to_be_typed_for_slots_harms_no_file_and_no_host() -> None:
    number, few = (
        "\n".join(
            command
            for opinion in judge_log(read(text), catalogue()).opinions
            for fix in opinion.finding.fixes
            for command in fix.commands
        )
        for text in (
            "mpirun: ssh: Could not resolve hostname node2:8: Name or service not known\n",
            "There are not enough slots available in the system to satisfy the 16\n",
        )
    )
    assert "echo 'node2 slots=8' >> mpi-hosts" in number
    assert "localhost" not in few
    assert "mpirun -np 16 --host HOST1:8,HOST2:8" in few
