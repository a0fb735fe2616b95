"""What `diagnose-log` says at a terminal and as JSON, on logs written here."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.api.errors import NoVerdictError
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.log import LogLine, ProcessExit
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.logs.diagnosis import HostCheck, HostVerdict, LogJudgement, judge_log
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs
from ddpdoctor.logs.render.document import log_document
from ddpdoctor.logs.render.headline import headline, outcome
from ddpdoctor.logs.render.json_report import log_report
from ddpdoctor.logs.render.words import clock, how_it_ended, noise, quoted
from ddpdoctor.report.contract import to_json
from ddpdoctor.report.terminal import text_of
from tests.log_corpus import LOGS, log_of
from tests.support.fixture_hosts import host_case
from tests.support.logs_by_hand import log, read, seen
from tests.support.report_schema import check_against_schema

SHM = "RuntimeError: unable to open shared memory object </torch_17> in read-write mode: No space left on device (28)"
TRACEBACK = """\
{0}Traceback (most recent call last):
{0}  File "/home/ada/train.py", line 41, in main
{0}    for batch in loader:
{0}{1}
"""
OMP = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded"
LOST = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:2200"


def judged(tmp_path: Path, text: str, host: Snapshot | None = None) -> LogJudgement:
    path = tmp_path / "run.log"
    path.write_text(text)
    return judge_log(read_logs([str(path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())), catalogue(), host)


def shown(judgement: LogJudgement, width: int = 100, **how: bool) -> str:
    return text_of(log_document(judgement, **how), width)


def sick_run(message: str = SHM, stamp: str = "") -> str:
    """Of eight ranks; rank 3 fails, and the others lose it."""
    lines = [f"W1122 02:12:00.000000 77 torch/distributed/run.py:852] {OMP}"] * 2
    lines += TRACEBACK.format(f"{stamp}[rank3]: ", message).splitlines()
    lines += [line for rank in (0, 1, 2, 4, 5, 6, 7) for line in TRACEBACK.format(f"[rank{rank}]: ", LOST).splitlines()]
    return "\n".join(lines) + "\n"


def test_the_verdict_comes_first_then_why_then_lines_then_the_fix(tmp_path: Path) -> None:
    judgement = judged(tmp_path, sick_run(stamp="2026-11-22T02:13:07Z "))
    text = shown(judgement)
    assert text.startswith("FAIL  Rank 3 failed first, at 02:13:07: shared memory has too little room")
    parts = [
        "log   ",
        "[shm-too-small]",
        "why   ",
        "unable to open shared memory object </torch_17>",
        "run.log:6",
        "fix   ",
        "ddpdoctor check --select shm-too-small",
        "What only followed  (7 more ranks fell)",
        '"Connection closed by peer',
        "1 message that healthy runs print, too",
        "FAIL  The log names the cause.",
        "More on the first: ddpdoctor explain shm-too-small",
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places, [part for part, place in zip(parts, places, strict=True) if place < 0]
    assert places == sorted(places)


def test_q_is_one_line(tmp_path: Path) -> None:
    text = shown(judged(tmp_path, sick_run()), quiet=True)
    assert text.count("\n") == 1
    assert text.startswith("FAIL  shm-too-small: Rank 3 failed first: ")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_the_terminal_but_for_what_is_to_be_copied(tmp_path: Path, width: int) -> None:
    for line in shown(judged(tmp_path, sick_run()), width).splitlines():
        assert len(line) <= width or "ddpdoctor " in line


def test_v_tells_the_traceback_each_effect_and_why_noise_is_harmless(tmp_path: Path) -> None:
    judgement = judged(tmp_path, sick_run())
    brief, long = shown(judgement), shown(judgement, verbose=True)
    assert "/home/ada/train.py:41 in main: for batch in loader:" not in brief
    assert "/home/ada/train.py:41 in main: for batch in loader:" in long
    why = noise(judgement.log, catalogue())[0].why
    assert why
    assert " ".join(why.split()) not in " ".join(brief.split())
    assert " ".join(why.split()) in " ".join(long.split())


def test_an_ordinary_error_is_said_to_be_that_with_its_last_calls(tmp_path: Path) -> None:
    judgement = judged(tmp_path, sick_run("KeyError: 'lr'"))
    text = shown(judgement, 200)
    assert text.startswith("FAIL  Rank 3 failed first, of an ordinary error in the script: KeyError: 'lr'\n")
    assert "The last calls of its traceback  (run.log:3)" in text.replace(str(tmp_path) + "/", "")
    assert "  /home/ada/train.py:41 in main: for batch in loader:\n  KeyError: 'lr'\n" in text
    assert "An ordinary error of the script" in text
    assert judgement.word.exit_code(strict=True) == 1


def test_what_is_not_known_is_shown_all_the_same_and_what_to_do_next(tmp_path: Path) -> None:
    judgement = judged(tmp_path, sick_run("torch.AcceleratorError: CUDA error: the flux compensator is dry"))
    text = shown(judgement, 160)
    assert text.startswith(
        "UNKNOWN  Rank 3 failed first: torch.AcceleratorError: CUDA error: the flux compensator is dry;"
    )
    for step in ("\n    ddpdoctor check\n", "tell ddpdoctor's maintainers"):
        assert step in text
    assert judgement.word is Verdict.UNKNOWN


def test_of_mere_effects_nobody_is_blamed(tmp_path: Path) -> None:
    judgement = judged(tmp_path, "\n".join(f"[rank{rank}]: {LOST}" for rank in (0, 1)) + "\n")
    text = shown(judgement)
    assert text.startswith("UNKNOWN  ")
    assert "failed first" not in text.partition("\n")[0] or "not what failed first" in text.partition("\n")[0]
    assert "FAIL" not in text
    assert "\n    ddpdoctor diagnose-log FOLDER\n" in text
    assert judgement.word.exit_code(strict=True) == 2


def test_nothing_found_is_not_called_well(tmp_path: Path) -> None:
    judgement = judged(tmp_path, "step 1 loss 2.3\nstep 2 loss 2.2\n")
    text = shown(judgement)
    assert text.startswith("OK    Nothing in this log speaks of a failure\n")
    assert "A log says nothing of a job that hangs" in " ".join(text.split())
    assert judgement.word.exit_code(strict=True) == 0
    torn = msgspec.structs.replace(
        judgement,
        log=msgspec.structs.replace(
            judgement.log, files=(msgspec.structs.replace(judgement.log.files[0], problem="Input/output error"),)
        ),
    )
    assert torn.word is Verdict.UNKNOWN
    assert headline(torn) == "What could be read speaks of no failure"
    assert "run.log: Input/output error" in shown(torn, 300)


def test_the_suspicion_is_held_against_the_facts(tmp_path: Path) -> None:
    sick = host_case("shm-too-small/sick-docker-default").snapshot()
    judgement = judged(tmp_path, sick_run(), sick)
    held = judgement.opinions[0].held
    assert held
    text = " ".join(shown(judgement).split())
    assert f"confirmed {' '.join(held.words.split())}" in text
    reported = log_report(judgement).log
    assert isinstance(reported, msgspec.Struct)
    assert reported.suspects[0].held == "confirmed"
    assert reported.suspects[0].held_words == held.words


def test_the_headline_says_that_the_facts_contradict_it() -> None:
    alone = log(seen("shm-too-small", host="node0"))
    judgement = judge_log(alone, catalogue(), Snapshot(host="node0"))
    held = HostCheck(standing=HostVerdict.CONTRADICTED, words="node0 shows no sign of it")
    (opinion,) = judgement.opinions
    contradicted = msgspec.structs.replace(judgement, opinions=(msgspec.structs.replace(opinion, held=held),))
    assert headline(contradicted) == f"{headline(judge_log(alone, catalogue()))}; but the facts of node0 contradict it"
    assert "contradict each other" in outcome(contradicted)
    behind = msgspec.structs.replace(judgement, opinions=(opinion, *contradicted.opinions))
    assert "contradict" not in headline(behind)


def test_escape_sequences_and_secrets_never_get_through(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eKeyError\x1b[31m token=hf_abcdefghijklmnopqrstuvwxyz012345"
    judgement = judged(tmp_path, sick_run(f"torch.AcceleratorError: CUDA error: {evil}") + f"[rank9]: Error: {evil}\n")
    for text in (shown(judgement), shown(judgement, verbose=True), shown(judgement, quiet=True)):
        assert not [one for one in text if not one.isprintable() and one != "\n"]
        assert "hf_abc" not in text
    told = to_json(log_report(judgement, with_facts=True))
    assert told.isascii()
    assert "hf_abc" not in told


def test_the_name_of_a_file_can_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "run\x1b[2J\n.log"
    path.write_text(sick_run())
    text = shown(judge_log(read_logs([str(path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())), catalogue()))
    assert "\x1b" not in text


def test_json_holds_to_its_schema_and_says_the_same(tmp_path: Path) -> None:
    judgement = judged(tmp_path, sick_run(stamp="2026-11-22T02:13:07Z "))
    for with_facts in (False, True):
        told = json.loads(to_json(log_report(judgement, with_facts=with_facts)))
        check_against_schema(told)
        assert ("facts" in told) is with_facts
    assert (told["command"], told["verdict"], told["host"]) == ("diagnose-log", "fail", "")
    assert told["findings"][0]["slug"] == "shm-too-small"
    log = told["log"]
    assert (log["outcome"], log["rank"], log["lead"]["number"]) == ("illness", 3, 6)
    assert log["suspects"][0]["slug"] == "shm-too-small"
    assert [effect["ranks"] for effect in log["effects"]] == [[0, 1, 2, 4, 5, 6, 7]]
    assert log["noise"][0]["times"] == 2
    assert clock(log["time"]) == "02:13:07"
    assert log["headline"] == headline(judgement)


def test_json_of_what_can_not_be_read() -> None:
    told = json.loads(to_json(NoVerdictError("diagnose-log", ["run.log: No such file or directory"]).report()))
    check_against_schema(told)
    assert (told["verdict"], told["problems"]) == ("unknown", ["run.log: No such file or directory"])


def test_several_files_of_a_folder_are_told_by_their_names_within_it(tmp_path: Path) -> None:
    for rank in range(2):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(TRACEBACK.format("", SHM if rank else LOST))
    text = shown(
        judge_log(read_logs([str(tmp_path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())), catalogue()), 200
    )
    assert f"2 files in {tmp_path}/attempt_0/" in text
    assert "(1/stderr.log:4" in text


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "torchrun says that a process was killed by SIGKILL"),
        (137, "torchrun says that a process was killed by SIGKILL"),
        (3, "torchrun says that a process ended with exit code 3"),
        (None, "torchrun says that a process ended"),
    ],
)
def test_how_a_process_ended(code: int | None, words: str) -> None:
    line = LogLine(file=0, number=1, text="")
    assert how_it_ended(ProcessExit(line=line, said_by="torchrun", exit_code=code)) == words


def test_processes_that_one_line_tells_of_are_told_together() -> None:
    line = LogLine(file=0, number=1, text="")
    ends = [ProcessExit(line=line, said_by="srun", exit_code=-9, rank=rank) for rank in (0, 1, 3)]
    assert how_it_ended(*ends) == "srun says that ranks 0, 1 and 3 were killed by SIGKILL"


def test_a_rank_of_which_there_is_not_a_word_has_not_fallen_silent() -> None:
    judgement = judge_log(log_of(LOGS / "rdzv-missing-node/sick-one-never-came-srun.log"), catalogue())
    text = " ".join(shown(judgement).split())
    assert text.startswith("UNKNOWN Rank 3 never came, and the others waited for it in vain; 3 of 4 came: why ")
    assert "srun says that ranks 0-2 ended with exit code 1" in text
    assert "fell silent" not in text


def test_what_makes_a_sign_certain_is_shown_before_it() -> None:
    for name, words in (
        ("loopback-ifname/sick-deepspeed-hands-it-on", "NCCL_SOCKET_IFNAME=lo"),
        ("loopback-ifname/sick-nccl", "NCCL_SOCKET_IFNAME set by environment to lo"),
        ("checkpoint-save-timeout/sick-all-but-rank-0", "Saving model checkpoint to /data/out/checkpoint-500"),
    ):
        judgement = judge_log(log_of(LOGS / f"{name}.log"), catalogue())
        first = judgement.opinions[0].finding.evidence[0]
        assert words in first.text, name
        assert ".log:" in first.source


def test_a_frame_that_makes_a_sign_certain_is_left_to_the_traceback() -> None:
    judgement = judge_log(log_of(LOGS / "ckpt-truncated/sick-zip-cut-to-40-kib.log"), catalogue())
    texts = [one.text for one in judgement.opinions[0].finding.evidence]
    assert "OSError: [Errno 22] Invalid argument" in texts
    assert not any("PyTorchFileReader" in text for text in texts)


def test_who_did_not_wait_while_a_checkpoint_was_saved_is_named() -> None:
    finding = (
        judge_log(log_of(LOGS / "checkpoint-save-timeout/sick-all-but-rank-0.log"), catalogue()).opinions[0].finding
    )
    assert finding.cause.startswith("Ranks 1-7 waited in vain, and rank 0 says nothing of it")


def test_two_suspects_that_nothing_tells_apart_are_told_once() -> None:
    judgement = judge_log(log_of(LOGS / "nccl-watchdog-timeout/sick-all-ranks-the-same.log"), catalogue())
    assert [suspect.slug for suspect in judgement.verdict.suspects] == ["nccl-watchdog-timeout", "collective-stalled"]
    assert [opinion.check.slug for opinion in judgement.opinions] == ["nccl-watchdog-timeout"]


def test_much_noise_is_one_sentence(tmp_path: Path) -> None:
    judgement = judged(tmp_path, f"{OMP}\n" * 3)
    text = shown(judgement, 300)
    assert '1 message that healthy runs print, too: "Setting OMP_NUM' in text
    assert "(3x); -v says why" in text


def test_a_huge_line_is_shown_without_its_middle() -> None:
    text = quoted("a" * 5000 + "b")
    assert len(text) < 400
    assert text.endswith("b")


def test_the_first_line_of_a_suspicion_is_no_surer_than_the_headline() -> None:
    shm, disk = (seen(slug, role=SignRole.HINTS) for slug in ("shm-too-small", "disk-full"))
    assert "FAIL  Perhaps: " in shown(judge_log(log(shm), catalogue()))
    assert "FAIL  Most likely: " in shown(judge_log(log(shm, disk), catalogue()))
    assert "Perhaps" not in shown(judge_log(log(seen("shm-too-small")), catalogue()))
    sick = host_case("shm-too-small/sick-docker-default").snapshot()
    confirmed = judge_log(log(seen("shm-too-small", role=SignRole.HINTS)), catalogue(), sick)
    assert "erhaps" not in shown(confirmed)
    assert "the facts of the host do" in outcome(confirmed)


def test_warnings_alone_say_of_no_failure() -> None:
    text = "[W1122 23:07:19.9 socket.cpp:764] [c10d] The IPv4 network addresses of (node0, 29500) cannot be retrieved (gai error: -2 - x).\n"
    said = " ".join(shown(judge_log(read(text), catalogue())).split())
    assert "WARN Nothing says that the run failed; perhaps: the master's name" in said
    assert "WARN Perhaps: the master's name" in said
    assert "FAIL" not in said


def test_of_an_interrupted_run_each_ranks_place_is_shown(tmp_path: Path) -> None:
    """It may have been interrupted since it hung."""
    text = "W1122 23:47:52.034000 30459 torch/distributed/elastic/agent/server/api.py:753] Received 2 death signal, shutting down workers\n"
    for rank, call in ((1, "time.sleep(100000)"), (0, "loss.backward()")):
        text += f'[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "/home/ada/train.py", line {7 + rank}, in <module>\n'
        text += f"[rank{rank}]:     {call}\n[rank{rank}]: KeyboardInterrupt\n"
    said = " ".join(shown(judged(tmp_path, text), width=200).split())
    assert "/home/ada/train.py:8, in <module>: time.sleep(100000)" in said
    assert "/home/ada/train.py:7, in <module>: loss.backward()" in said
    assert "raised its own" not in said


@pytest.mark.parametrize("zone", ["-07:00", "Z", "+0530", " UTC", ""])
def test_times_are_those_of_the_logs_own_clock(tmp_path: Path, zone: str) -> None:
    assert "at 02:13:07" in headline(judged(tmp_path, sick_run(stamp=f"2026-11-22T02:13:07{zone} ")))


def test_of_several_zones_times_are_in_utc(tmp_path: Path) -> None:
    text = f"2026-11-22T00:00:00+02:00 hello\n{sick_run(stamp='2026-11-22T02:13:07-07:00 ')}"
    assert "at 09:13:07" in headline(judged(tmp_path, text))


def test_of_the_rank_it_says_for_how_much_each_word_counts() -> None:
    path = LOGS / "apex-undefined-symbol" / "sick-layer-norm-torchrun.log"
    judgement = judge_log(log_of(path), catalogue(), Snapshot())
    words = "the only end that nothing else explains, or the launcher's first 4"
    assert words in " ".join(text_of(log_document(judgement, verbose=True), 200).split())
    assert words not in " ".join(text_of(log_document(judgement), 200).split())
    reported = json.loads(to_json(log_report(judgement)))
    check_against_schema(reported)
    assert reported["log"]["rank_evidence"] == [{"words": words[:-2], "score": 4, "rank": 0}]
