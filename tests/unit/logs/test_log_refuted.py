"""Words elsewhere in a log by which a sign is about something else, or got over."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.false_positives import good_news
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.render.words import noise
from tests.support.logs_by_hand import read

FAILED = (
    "ERROR: Command errored out with exit status 1: python -u -c 'import sys' --cpp_ext --cuda_ext install --record r.txt"
    " Check the logs for full command output.\n"
)
INSTALLED = "Successfully installed apex-0.1\n"
CLOSED = "{host}:9:9 [0] net_ib.cc:228 NCCL WARN NET/IB : Unable to open device mlx5_4\n"
USED = "{host}:9:9 [0] NCCL INFO Using network IB\n"
BUILT = "nvidia/535.129.03, {kernel}, x86_64: installed\n"
MISSED = "modprobe: FATAL: Module nvidia not found in directory /lib/modules/5.15.0-91-generic\n"
OVERFLOW = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {scale}\n"


def named(verdict: LogVerdict) -> list[tuple[str, bool]]:
    return [(suspect.slug, suspect.sure) for suspect in verdict.suspects]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (FAILED + INSTALLED, []),
        (INSTALLED + FAILED, [("apex-build-failed", True)]),
        (FAILED + "Successfully installed ninja-1.11\n", [("apex-build-failed", True)]),
    ],
)
def test_only_a_later_try_gets_over_a_build(text: str, names: list[tuple[str, bool]]) -> None:
    assert named(verdict_of(read(text), catalogue())) == names


def test_what_another_host_uses_says_nothing() -> None:
    closed = CLOSED.format(host="node1")
    assert verdict_of(read(closed + USED.format(host="node1")), catalogue()).outcome is RunOutcome.NOTHING
    assert named(verdict_of(read(closed + USED.format(host="node2")), catalogue())) == [
        ("ib-device-missing-in-container", True)
    ]


@pytest.mark.parametrize(("kernel", "sure"), [("5.15.0-89-generic", True), ("5.15.0-91-generic", False)])
def test_a_module_for_this_very_kernel_is_not_for_another_one(kernel: str, sure: bool) -> None:
    found = named(verdict_of(read(BUILT.format(kernel=kernel) + MISSED), catalogue()))
    assert (("nvidia-module-not-loaded", True) in found) is sure


@pytest.mark.parametrize("last", ["step 9 loss nan\nstep 10 loss nan\nstep 11 loss nan\nstep 12 loss nan\n", ""])
def test_a_loss_scale_below_one_counts_unless_the_loss_stays_a_number(last: str) -> None:
    fell = OVERFLOW.format(scale="1.0") + OVERFLOW.format(scale="0.5")
    assert named(verdict_of(read(fell + last), catalogue())) == [("nan-loss", True)]
    goes_on = "".join(f"step {number} loss 3.{9 - number}1\n" for number in range(6))
    assert verdict_of(read(fell + goes_on), catalogue()).outcome is RunOutcome.NOTHING


def test_good_news_needs_no_word_that_it_is_harmless() -> None:
    log = read(
        CLOSED.format(host="node1") + USED.format(host="node1") + "node1:9:9 [0] NCCL INFO NET/IB : No device found.\n"
    )
    assert not [one for one in noise(log, catalogue()) if one.text in good_news(catalogue())]


def test_why_it_is_harmless_is_said_of_the_harmless_sign() -> None:
    log = read("UserWarning: mamba_ssm was requested, but nvcc was not found.  Are you sure\n")
    assert [one.why for one in noise(log, catalogue()) if "only warns" in one.why]
