"""Stacks that a log holds, of the fault handler and of py-spy, and what a framework's loop was at."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.hang import Frame
from ddpdoctor.facts.log import Log, LogFrame
from ddpdoctor.knowledge.frameworks import phase_of
from ddpdoctor.knowledge.torch_frames import PlaceKind, StackPlace, where
from ddpdoctor.logs.analyze.sightings import stack_lines
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs
from ddpdoctor.logs.render.document import log_document
from ddpdoctor.report.terminal import text_of
from tests.log_corpus import LOGS
from tests.support.logs_by_hand import read

STACKS = LOGS.parent / "stacks"
ABORTED = LOGS / "process-crashed" / "sick-lightning-validation.log"
HOME, PACKAGES = "/home/ada", "/opt/venv/lib/python3.11/site-packages"


def log_of(path: Path) -> Log:
    return read_logs([str(path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue()))


def told(log: Log) -> str:
    return text_of(log_document(judge_log(log, catalogue())), 400)


@pytest.mark.parametrize(
    ("name", "stands"),
    [
        (
            "trainer-validation.log",
            [
                f"{HOME}/hf.py:10, in forward <- {HOME}/hf.py:20, in <module>; in the validation of transformers' Trainer",
                f"{HOME}/hf.py:20, in <module> (within it {PACKAGES}/torch/autograd/graph.py:979, in _engine_run_backward);"
                " in the backward pass of transformers' Trainer",
            ],
        ),
        (
            "trainer-saving.log",
            [
                f"{HOME}/hf.py:17, in _save <- {HOME}/hf.py:20, in <module>;"
                " in the saving of a checkpoint of transformers' Trainer",
            ],
        ),
        (
            "accelerate-metrics.log",
            [
                f"{HOME}/acc.py:12, in evaluate <- {HOME}/acc.py:18, in <module> (within it"
                f" {PACKAGES}/torch/distributed/distributed_c10d.py:4287, in all_gather); in the reduce of metrics of accelerate",
                f"{HOME}/acc.py:11, in evaluate <- {HOME}/acc.py:18, in <module>",
            ],
        ),
        (
            "lightning-saving.log",
            [
                f"{HOME}/light.py:31, in stall <- {HOME}/light.py:26, in on_save_checkpoint <- {HOME}/light.py:38, in <module>;"
                " in the saving of a checkpoint of Lightning",
            ],
        ),
    ],
)
def test_where_each_process_stood_is_told_by_the_scripts_lines_and_the_loops_phase(
    name: str, stands: list[str]
) -> None:
    log = log_of(STACKS / name)
    found = list(dict.fromkeys(one.text for stack in log.stacks for one in stack_lines(log, stack)))
    assert found == stands
    assert all(stack.reason.startswith("Timeout (0:00:") for stack in log.stacks)
    report = told(log)
    assert all(stand in report for stand in stands), report


def test_a_crash_is_shown_with_the_scripts_line() -> None:
    log = log_of(ABORTED)
    (stack,) = log.stacks
    assert stack.reason == "Fatal Python error: Aborted"
    assert stack.own == LogFrame(f"{HOME}/light.py", 30, "stall")
    (opinion,) = judge_log(log, catalogue()).opinions
    assert opinion.finding.evidence[0].text == (
        f"{HOME}/light.py:30, in stall <- {HOME}/light.py:19, in validation_step <- {HOME}/light.py:38, in <module>;"
        " in the validation of Lightning"
    )
    assert told(log).count("validation_step <-") == 1, "what the finding shows isn't told again"


def test_the_loops_phase_stands_in_place_of_the_frameworks_calls() -> None:
    report = told(log_of(STACKS / "lightning-metrics.log"))
    assert "... the reduce of metrics of Lightning" in report
    calls = report[report.index("The last calls of its traceback") :].partition("\n\n")[0]
    assert f"{HOME}/light.py:38 in <module>: trainer.fit(Model(), data, data)" in calls
    assert "/lightning/" not in calls


GLOO = """\
[rank1]: terminate called after throwing an instance of 'gloo::EnforceNotMet'
[rank1]:   what():  [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8192 vs 12
[rank1]: Fatal Python error: Aborted
[rank1]: 
[rank1]: Thread 0x00007f0000000002 (most recent call first):
[rank1]:   File "/usr/lib/python3.11/threading.py", line 327 in wait
[rank1]: 
[rank1]: Current thread 0x00007f0000000003 (most recent call first):
[rank1]:   <no Python frame>
[rank1]: 
[rank1]: Thread 0x00007f0000000001 (most recent call first):
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
[rank1]:   File "/home/ada/train.py", line 12 in reduce_loss
[rank1]:   File "/home/ada/train.py", line 40 in <module>
[rank1]: 
[rank1]: Extension modules: numpy.core._multiarray_umath (total: 1)
[rank0]: RuntimeError: Connection closed by peer [10.0.0.7]:2200
"""


def test_an_abort_of_gloo_is_shown_with_the_line_that_called_it() -> None:
    log = read(GLOO)
    (stack,) = log.stacks
    assert (stack.line.rank, stack.reason) == (1, "Fatal Python error: Aborted")
    assert stack.own == LogFrame(f"{HOME}/train.py", 12, "reduce_loss")
    assert f"{HOME}/train.py:12, in reduce_loss <- {HOME}/train.py:40, in <module> (within it" in told(log)


PY_SPY = """\
Process 4242: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4242 (idle): "MainThread"
    wait (threading.py:327)
    step (/home/ada/train.py:7)
    <module> (/home/ada/train.py:40)
Thread 4250 (idle): "Thread-1"
    wait (threading.py:327)
"""


def test_a_dump_of_py_spy_is_read_as_well() -> None:
    (stack,) = read(PY_SPY).stacks
    assert stack.reason == "Process 4242: python train.py"
    assert [frame.function for frame in stack.frames] == ["<module>", "step", "wait"]
    assert stack.own == LogFrame(f"{HOME}/train.py", 7, "step")


@pytest.mark.parametrize("last", range(1, GLOO.count("\n") + 1))
def test_a_log_that_breaks_off_within_a_stack_is_read(last: int) -> None:
    log = read("\n".join(GLOO.splitlines()[:last]))
    assert len(log.stacks) == (last > 5)
    told(log)


@pytest.mark.parametrize(
    ("path", "function", "phase"),
    [
        (
            "lightning/pytorch/trainer/connectors/logger_connector/result.py",
            "compute",
            "the reduce of metrics of Lightning",
        ),
        ("pytorch_lightning/loops/evaluation_loop.py", "run", "the validation of Lightning"),
        ("accelerate/accelerator.py", "Accelerator.save_state", "the saving of a checkpoint of accelerate"),
        ("deepspeed/runtime/engine.py", "allreduce_gradients", "the reduce of gradients of DeepSpeed"),
        ("torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", "unshard", "the gathering of parameters of FSDP"),
        ("accelerate/accelerator.py", "print", ""),
        ("other/accelerator.py", "backward", ""),
    ],
)
def test_the_phase_of_a_frameworks_call(path: str, function: str, phase: str) -> None:
    assert phase_of([("/home/ada/train.py", "step"), (f"{PACKAGES}/{path}", function)]) == phase


def test_running_ranks_are_told_by_the_loops_phase_too() -> None:
    fit = Frame(path=f"{HOME}/light.py", line=38, function="<module>")
    result = f"{PACKAGES}/lightning/pytorch/trainer/connectors/logger_connector/result.py"
    place = StackPlace(PlaceKind.COLLECTIVE, "all_reduce", fit, (Frame(path=result, line=248, function="compute"), fit))
    assert where(place) == "all_reduce in the reduce of metrics of Lightning (light.py:38)"
