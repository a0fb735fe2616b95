"""`diagnose-log --good`: what a failed run looks like beside runs that ended well."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddpdoctor import diagnose_log
from ddpdoctor.api.errors import NoVerdictError, UsageError
from ddpdoctor.api.log_diagnosis import LogResult
from ddpdoctor.logs.analyze.good_runs import RunComparison

NOISE = "RuntimeError: unable to open shared memory object </torch_17> in read-write mode: No space left on device (28), so copies it"
"""The sign of an illness, as a script prints it that goes on."""
TRACEBACK = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 9, in <module>
    step()
"""
OTHER = f"{TRACEBACK}RuntimeError: CUDA error: an illegal memory access was encountered\n"


def steps(count: int, *, said: str = NOISE, figure: int = 1) -> str:
    lines = [f"starts run {figure} on node{figure}", said]
    lines += [
        f"2026-11-22 02:{step // 60:02}:{step % 60:02} step {step} loss {figure / (step + 1):.4f}"
        for step in range(count)
    ]
    return "\n".join(lines) + "\n"


DONE = "saved model.pt\nall 200 steps over\n"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.log"
    path.write_text(steps(200) + DONE)
    return path


def beside(tmp_path: Path, text: str, good: Sequence[Path | str]) -> LogResult:
    run = tmp_path / "run.log"
    run.write_text(text)
    return diagnose_log([run], good=good)


def compared(result: LogResult) -> RunComparison:
    assert result.judgement.comparison
    return result.judgement.comparison


def slugs(result: LogResult) -> list[str]:
    return [opinion.check.slug for opinion in result.judgement.opinions]


def test_a_sign_that_stands_in_a_good_run_as_well_is_noise(tmp_path: Path, good: Path) -> None:
    text = steps(77, figure=3)
    assert slugs(beside(tmp_path, text, [])) == ["shm-too-small"]
    result = beside(tmp_path, text, [good])
    assert slugs(result) == []
    noise = {noise.text: noise.why for noise in result.judgement.log.noise}
    assert "stand in runs that ended well, too" in noise[NOISE]
    assert "it is not why this one failed" in result.document(verbose=True).__repr__()


def test_of_two_causes_the_new_one_wins(tmp_path: Path, good: Path) -> None:
    text = steps(77) + OTHER
    result = beside(tmp_path, text, [good])
    assert slugs(result)[0] == "cuda-illegal-access"
    assert "shm-too-small" not in slugs(result)


def test_what_good_runs_print_once_is_no_noise_where_it_comes_again_and_again(tmp_path: Path, good: Path) -> None:
    result = beside(tmp_path, steps(20, said="\n".join([NOISE] * 30)), [good])
    assert slugs(result) == ["shm-too-small"]


def test_the_same_exception_ends_this_run_though_a_good_one_got_over_it(tmp_path: Path) -> None:
    caught = f"{TRACEBACK}ConnectionError: the tracker is away\n"
    good = tmp_path / "good.log"
    good.write_text(steps(50) + caught + steps(150) + DONE)
    result = beside(tmp_path, steps(50) + caught, [good])
    assert result.judgement.verdict.raised
    assert result.judgement.verdict.raised.exception == "ConnectionError"


def test_a_run_that_stops_without_a_word_is_not_fine(tmp_path: Path, good: Path) -> None:
    text = steps(77)
    assert beside(tmp_path, text.replace(NOISE, ""), []).exit_code() == 0
    result = beside(tmp_path, text, [good])
    found = compared(result)
    assert result.exit_code() == 2
    assert found.ends_early
    assert [line.text for line in found.missing] == ["saved model.pt", "all 200 steps over"]
    (stopped,) = found.stopped
    assert (stopped.times, stopped.good_times, stopped.line.number) == (77, 200, 79)
    assert "77 such lines, where good runs have 200; the last at 02:01:16" in " ".join(result.to_text().split())
    assert "but it stops before what good runs go on with" in " ".join(result.to_text().split())


def test_a_shorter_run_that_comes_to_its_end_is_fine(tmp_path: Path, good: Path) -> None:
    result = beside(tmp_path, steps(77) + DONE, [good])
    assert (result.exit_code(), compared(result).ends_early) == (0, False)


def test_lines_of_two_ranks_that_were_put_into_one_are_no_difference(tmp_path: Path, good: Path) -> None:
    glued = "2026-11-22 02:00:10 step 10 loss 0.0909step 10 loss 0.0909\n"
    good.write_text(steps(100) + glued + steps(98, said="") + DONE)
    found = compared(beside(tmp_path, steps(196) + DONE, [good]))
    assert (found.missing, found.stopped) == ((), ())


def test_of_an_unknown_illness_the_new_line_is_told(tmp_path: Path, good: Path) -> None:
    new = "storage gateway lost its quorum on shelf 7, giving up"
    result = beside(tmp_path, steps(70) + f"{new}\nanother plain line\n" + steps(5, said=""), [good])
    found = compared(result)
    assert [line.text for line in found.new_errors] == [new]
    assert found.new_kinds == 2
    assert f"new in this run: {new}" in " ".join(result.to_text().split())
    assert found.alike_until
    assert found.alike_until.number == 81


def test_what_is_in_one_good_run_alone_is_not_missing(tmp_path: Path, good: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text(steps(210, figure=2) + "all 210 steps over\n")
    found = compared(beside(tmp_path, steps(77), [good, other]))
    assert [line.text for line in found.missing] == ["all 200 steps over"]
    assert found.good == (str(good), str(other))


@pytest.mark.parametrize(
    "end",
    [
        OTHER,
        "[rank0]: " + OTHER.replace("\n", "\n[rank0]: "),
        "E1122 14:02:52.577000 4711 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 17) of binary: python\n",
        "slurmstepd: error: *** JOB 17 ON node1 CANCELLED AT 2026-11-22T02:00:00 DUE TO TIME LIMIT ***\n",
    ],
)
def test_a_good_run_that_failed_itself_is_refused(end: str, tmp_path: Path, good: Path) -> None:
    bad = tmp_path / "bad.log"
    bad.write_text(steps(200) + end)
    result = beside(tmp_path, steps(77), [bad, good])
    found = compared(result)
    assert found.good == (str(good),)
    assert [name for name, _ in found.refused] == [str(bad)]
    alone = beside(tmp_path, steps(77), [bad])
    assert slugs(alone) == ["shm-too-small"]
    assert "bad.log is not taken for a good run" in " ".join(alone.to_text().split())


def test_a_folder_and_compressed_files_are_read_as_one_good_run(tmp_path: Path) -> None:
    folder = tmp_path / "last"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"train-rank{rank}.log.gz").write_bytes(gzip.compress((steps(100) + DONE).encode()))
    found = compared(beside(tmp_path, steps(77), [folder]))
    assert found.stopped[0].good_times == 200
    assert found.ends_early


def test_hostile_good_logs(tmp_path: Path) -> None:
    """Lines without an end, what is no text, and nothing at all."""
    endless = tmp_path / "endless.log"
    endless.write_text(steps(10) + "x y" * 1_500_000 + "\n" + steps(200) + DONE)
    assert compared(beside(tmp_path, steps(77), [endless])).good == (str(endless),)
    binary = tmp_path / "binary.log"
    binary.write_bytes(bytes(range(256)) * 4096)
    ((name, why),) = compared(beside(tmp_path, steps(77), [binary])).refused
    assert (name, "this is no text" in why) == (str(binary), True)
    (tmp_path / "empty.log").touch()
    for missing in ("empty.log", "none.log"):
        with pytest.raises(NoVerdictError, match="--good"):
            beside(tmp_path, steps(77), [tmp_path / missing])
    with pytest.raises(UsageError, match="is named as the log of this run"):
        beside(tmp_path, steps(77), [tmp_path / "run.log"])


def test_no_secret_of_a_good_run_is_told(tmp_path: Path) -> None:
    good = tmp_path / "good.log"
    good.write_text(steps(200) + "uploads with token=hf_abcdefghijklmnopqrstuvwxyz0123 now\n" + DONE)
    result = beside(tmp_path, steps(77) + "api_key=hf_zyxwvutsrqponmlkjihgfedcba3210 was refused\n", [good])
    text = json.dumps(json.loads(result.to_json()))
    assert "uploads with token=" in text
    assert "was refused" in text
    assert "hf_" not in text
    assert "hf_" not in result.to_text()
