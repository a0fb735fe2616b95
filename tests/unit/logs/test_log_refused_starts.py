"""What never started: command lines that are refused, scripts that a shell can't run, steps and pods that find no place."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import RunOutcome
from ddpdoctor.logs.diagnosis import judge_log
from tests.support.logs_by_hand import read


def first_suspect(text: str) -> str:
    suspects = judge_log(read(text), catalogue()).verdict.suspects
    return suspects[0].slug if suspects else ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "usage: fit.py [-h] [-c CONFIG]\nerror: Parser key \"trainer.precision\":\n  Expected a <class 'int'>",
            "Expected a",
        ),
        (
            "FATAL Flags parsing error:\n  Unknown command line flag 'epoch'. Did you mean: epochs ?\n"
            "Pass --helpshort or --helpfull to see help on flags.",
            "'epoch'",
        ),
        ("Usage: fit.py [OPTIONS]\nTry 'fit.py --help' for help.\n\nError: No such option: --lrs", "--lrs"),
        ("Usage: fit.py [OPTIONS]\nTry 'fit.py --help' for help.\n\nError: Missing option '--data'.", "--data"),
        (
            "Error executing job with overrides: ['net=small']\nError in call to target 'nets.Small':\n"
            "TypeError(\"Small.__init__() got an unexpected keyword argument 'depth'\")\nfull_key: net",
            "'depth'",
        ),
        ("fit.sh: line 3: $'\\r': command not found", "Windows"),
        ("/usr/bin/env: 'bash\\r': No such file or directory", "Windows"),
        (
            "bash: ./fit.sh: Permission denied\nsrun: error: node4: task 0: Exited with exit code 126",
            "./fit.sh may not be run",
        ),
    ],
)
def test_a_refused_command_line_or_script_is_told_as_a_mistake(text: str, says: str) -> None:
    judgement = judge_log(read(text), catalogue())
    assert judgement.verdict.outcome is RunOutcome.USER_ERROR
    assert says in judgement.opinions[0].finding.summary


@pytest.mark.parametrize(
    "text",
    [
        "FATAL Flags parsing error:\n  Unknown command line flag 'local-rank'. Did you mean: rank ?",
        "Usage: fit.py [OPTIONS]\nTry 'fit.py --help' for help.\n\nError: No such option: --local-rank",
    ],
)
def test_what_the_launcher_adds_has_an_illness_of_its_own(text: str) -> None:
    assert first_suspect(text) == "local-rank-arg-mismatch"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("srun: error: Unable to create step for job 7: More processors requested than permitted", "than the job has"),
        (
            "srun: error: Unable to confirm allocation for job 7: Invalid job id specified\n"
            "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 7",
            "a job that is over",
        ),
        ('srun: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory', "munge"),
        (
            "srun: error: Task launch for StepId=7.0 failed on node n2: Unable to satisfy cpu bind request\n"
            "srun: error: Application launch failed: Unable to satisfy cpu bind request",
            "cores",
        ),
        ('Unable to run job: job rejected: the requested project "vision" does not exist.\nExiting.', "project"),
        ("Queue does not accept interactive jobs. Job not submitted.", "interactive"),
        (
            "  Warning  FailedScheduling  2m  default-scheduler  0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
            "free GPUs",
        ),
        (
            'Error from server (Forbidden): error when creating "fit.yaml": pods "fit-0" is forbidden: exceeded quota: gpus, '
            "requested: requests.nvidia.com/gpu=8",
            "quota",
        ),
        (
            "(autoscaler +1m2s) Error: No available node types can fulfill resource request {'GPU': 16.0}. Add suitable node "
            "types to this cluster to resolve this issue.",
            "Ray's cluster",
        ),
        (
            "(OperationNotAllowed) Operation could not be completed as it results in exceeding approved Total Regional Cores quota.",
            "quota",
        ),
    ],
)  # fmt: skip
def test_what_finds_no_place_is_told_with_the_reason(text: str, says: str) -> None:
    assert first_suspect(text) == "job-refused"
    assert says in judge_log(read(text), catalogue()).opinions[0].finding.summary


@pytest.mark.parametrize(
    "text",
    [
        "srun: error: Unable to create step for job 7: Requested nodes are busy, retrying\n",
        "Unable to run job: warning: fit's job is not allowed to run in any queue\nYour job 7 has been submitted\nExiting.\n",
        "  Warning  FailedScheduling  2m  default-scheduler  0/4 nodes are available: 4 Insufficient nvidia.com/gpu.\n"
        "  Normal   Scheduled         1m  default-scheduler  Successfully assigned default/fit-0 to gpu-3\n",
        "fit.sh: line 3: $'\\r': command not found\n",
        "bash: /var/log/fit.log: Permission denied\n",
    ],
)
def test_a_run_that_started_after_all_is_not_ill(text: str) -> None:
    trained = "".join(f"step {step} loss {2 - step / 100:.2f}\n" for step in range(1, 80))
    assert judge_log(read(text + trained), catalogue()).verdict.outcome is RunOutcome.NOTHING


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("slurmstepd: error: pyxis: failed to create container filesystem\n", "container-not-started"),
        (
            "docker: Error response from daemon: pull access denied for lab/fit, repository does not exist or may require "
            "'docker login': denied: requested access to the resource is denied.\n",
            "container-not-started",
        ),
        (
            "FATAL:   container creation failed: mount hook function failure: while mounting image /proc/self/fd/3: failed to find "
            "loop device: could not attach image file to loop device: no loop devices available\n",
            "container-not-started",
        ),
        ("CondaError: Run 'conda init' before 'conda activate'\n", "environment-not-loaded"),
        ("EnvironmentNameNotFound: Could not find conda environment: fit\n", "environment-not-loaded"),
        ("ERROR: Unable to locate a modulefile for 'cuda/12.9'\n", "environment-not-loaded"),
        (
            'The application appears to have been direct launched using "srun",\n'
            "but OMPI was not built with SLURM's PMI support and therefore cannot\nexecute.\n",
            "slurm-launch-mismatch",
        ),
        (
            "Jun 12 10:11:12 node4 systemd-oomd[812]: Killed /user.slice/user-7.slice/fit.scope due to memory pressure for "
            "/user.slice being 78.21% > 50.00% for > 20s with reclaim activity\n",
            "host-oom-killed",
        ),
        (
            "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.9.16\n",
            "package-version-mismatch",
        ),
        (
            "AssertionError: libcuda.so cannot found!\nPossible files are located at ['/lib/libcuda.so.1'].Please create a symlink\n",
            "cuda-lib-not-found",
        ),
        (
            "W stall_inspector.cc:105] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks "
            "and are waiting for remainder of ranks for more than 60 seconds.\nMissing ranks:\n0: [allreduce.fc.weight]\n",
            "rank-fell-behind",
        ),
        ('{"action": "terminate", "time": "2023-05-05T10:12:00Z"}\nReceived SIGTERM: terminating\n', "stopped-from-outside"),
    ],
)  # fmt: skip
def test_what_ends_it_before_or_around_the_training_is_named(text: str, slug: str) -> None:
    assert first_suspect(text) == slug


@pytest.mark.parametrize(
    "text",
    [
        "CondaError: Run 'conda init' before 'conda activate'\n",
        "ERROR: Unable to locate a modulefile for 'cuda/12.9'\n",
        "W stall_inspector.cc:105] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks "
        "and are waiting for remainder of ranks for more than 60 seconds.\nMissing ranks:\n0: [allreduce.fc.weight]\n",
    ],
)
def test_what_the_run_did_without_is_no_illness(text: str) -> None:
    trained = "".join(f"step {step} loss {2 - step / 100:.2f}\n" for step in range(1, 80))
    assert judge_log(read(text + trained), catalogue()).verdict.outcome is RunOutcome.NOTHING
