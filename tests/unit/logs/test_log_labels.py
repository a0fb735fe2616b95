"""Labels of launchers and collectors, alone and stacked."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from ddpdoctor.logs.parse.labels import Labelled, Style, StyleFinder, unended_before, unlabelled, without


@pytest.mark.parametrize(
    ("line", "rank", "local_rank", "host", "text"),
    [
        ("[rank3]: ValueError: x", 3, None, "", "ValueError: x"),
        ("[rank3]:   File", 3, None, "", "  File"),
        ("        | [rank3]: ValueError: x", 3, None, "", "ValueError: x"),
        ("        | E0312 00:49:05.096000 1 api.py:869] x", None, None, "", "E0312 00:49:05.096000 1 api.py:869] x"),
        ("stderr: Traceback", None, None, "", "Traceback"),
        ("  | ValueError: of a group", None, None, "", "  | ValueError: of a group"),
        ("[default3]:step 1", None, 3, "", "step 1"),
        ("[trainer0]:step 1", None, 0, "", "step 1"),
        ("[default1]:[rank9]: KeyError: 'x'", 9, 1, "", "KeyError: 'x'"),
        ("[1,3]<stderr>:Traceback", 3, None, "", "Traceback"),
        ("[prterun-node0-4711@1,2]<stdout>:hello", 2, None, "", "hello"),
        ("[pod/job-worker-3/pytorch] RuntimeError", None, None, "job-worker-3", "RuntimeError"),
        ("2026-11-22T02:13:07.123456789Z [rank1]: boom", 1, None, "", "boom"),
        ("[2026-11-22 02:13:07,123] [INFO] [launch.py:1] x", None, None, "", "[INFO] [launch.py:1] x"),
        ("Nov 22 02:13:07 node7 train[4711]: boom", None, None, "node7", "boom"),
        ("Nov 22 02:13:07 node7 kernel: boom", None, None, "node7", "kernel: boom"),
        ("[1,mpirank:2,algo-1]<stderr>:boom", 2, None, "algo-1", "boom"),
        ("[node4:rank37] boom", 37, None, "node4", "boom"),
        ("2026-11-22T10:00:00.1234Z stderr F [rank3]: boom", 3, None, "", "boom"),
        ("(RayTrainWorker pid=17, ip=10.0.0.3) boom", None, None, "RayTrainWorker pid=17, ip=10.0.0.3", "boom"),
        ("(TrainTrainable pid=17) boom", None, None, "TrainTrainable pid=17", "boom"),
        ("(VllmWorker rank=1 pid=17) boom", 1, None, "", "boom"),
        ("(Worker_TP3 pid=17) boom", 3, None, "", "boom"),
        ("(Worker_TP3_EP3 pid=17, ip=10.0.0.3) boom", 3, None, "10.0.0.3", "boom"),
        ("(Worker pid=17) (Worker_TP3 pid=17) boom", 3, None, "", "boom"),
        ("(Worker_DP1_TP0 pid=17) boom", None, None, "Worker_DP1_TP0 pid=17", "boom"),
        ("(EngineCore_DP0 pid=17) boom", None, None, "EngineCore_DP0 pid=17", "boom"),
        ("(WorkerDict pid=17, ip=10.0.0.3) boom", None, None, "WorkerDict pid=17, ip=10.0.0.3", "boom"),
        ("(Trainer(index=2) pid=17) boom", None, None, "Trainer(index=2) pid=17", "boom"),
        (
            "2026-11-29 10:00:00,102 [ERROR] [gpu02] [workload:5(1) infra:1(0)] wrap.py:582 boom",
            5,
            None,
            "gpu02",
            "[ERROR] [gpu02] [workload:5(1) infra:1(0)] wrap.py:582 boom",
        ),
        ("[ERROR] [gpu02] [workload:?(?) infra:1(0)] launcher.py:636 boom", None, None, "gpu02", None),
        ("RuntimeError: [Rank:3] FATAL ERROR :: MODULE:PT_BRIDGE", 3, None, "", None),
        ("(see the pid=17) boom", None, None, "", None),
        ("[3] boom", None, None, "", None),
        ("(pid=17) boom", None, None, "pid=17", "boom"),
        ("train-worker-3 boom", None, None, "", None),
        ("RANK 3 | boom", 3, None, "", "boom"),
        ("[Rank 3] Watchdog caught", 3, None, "", "Watchdog caught"),
        ("[E1122 02:13:07.123456 ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog", 5, None, "", None),
        (
            "[rank1]:[E1122 02:13:07.123456789 ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0 Rank 1] x",
            1,
            None,
            "",
            "[E1122 02:13:07.123456789 ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0 Rank 1] x",
        ),
        ("node7:4711:4800 [3] NCCL WARN Call to ibv_reg_mr failed", None, None, "node7", None),
        ("3: this is no label where nothing says so", None, None, "", None),
        ("worker-1  | neither is this", None, None, "", None),
        ("[rank 3] boom", 3, None, "", "boom"),
        ("10.0.0.3: [rank5]: KeyError: 'x'", 5, None, "10.0.0.3", "KeyError: 'x'"),
        ("10.0.0.3: connection refused", None, None, "", None),
        ("[2026-11-22T02:13:07.1Z] 0a1b2c3d || Failures:", None, None, "0a1b2c3d", "Failures:"),
        ("[2026-11-22T02:13:07.1Z] 0a1b2c3d [rank=3] ||   File", 3, None, "0a1b2c3d", "  File"),
        ("0a1b2c3d || this is no label without a clock", None, None, "", None),
        ("rank 3 has no colon", None, None, "", None),
        ("[1, 3] a list", None, None, "", None),
        ("[INFO]: x", None, None, "", None),
        ("", None, None, "", None),
    ],
)
def test_a_line_is_told_from_its_labels(
    line: str, rank: int | None, local_rank: int | None, host: str, text: str | None
) -> None:
    found = unlabelled(line)
    assert (found.rank, found.local_rank, found.host) == (rank, local_rank, host)
    assert found.text == (line if text is None else text)


def style_of(lines: list[str]) -> Style:
    finder = StyleFinder()
    for line in lines:
        finder.add(line)
    return finder.style()


def test_numbers_are_labels_only_where_many_lines_have_them() -> None:
    style = style_of([f"{rank}: step {step} loss 0.5" for step in range(5) for rank in range(4)])
    assert style.numbers
    assert unlabelled("3: boom", style) == Labelled("boom", rank=3, said_by="srun")
    assert unlabelled("03: boom", style).rank == 3
    assert unlabelled(" 3:   File", style).text == "  File"
    assert not style_of(["loading", "1: cats", "2: dogs", "epoch 1", "epoch 2", "epoch 3", "epoch 4", "done"]).numbers
    assert not style_of([f"{number}: word" for number in range(100)]).numbers, "a numbered list is no log of 100 ranks"
    assert style_of([*(f" 0: step {step}" for step in range(30)), "57: RuntimeError: boom"]).numbers
    assert style_of([f"{rank}: step {step}" for rank in (5, 59, 1, 33) for step in range(50)]).numbers
    assert style_of([f"{rank}: step {step}" for step in range(50) for rank in (8, 59)]).numbers
    assert not style_of([f"{step}: loss 0.5" for step in range(0, 5000, 100) for _ in range(8)]).numbers, "steps"
    assert not style_of(["17000: a", "18000: b", "17000: c", "18000: d"]).numbers


def test_services_and_nodes_are_labels_only_where_many_lines_have_them() -> None:
    services = style_of([f"worker-{rank}  | step {step}" for step in range(4) for rank in range(2)])
    assert unlabelled("worker-1  | boom", services).host == "worker-1"
    nodes = style_of([f"node{rank}: step {step}" for step in range(5) for rank in range(2)])
    assert unlabelled("node1: boom", nodes).host == "node1"
    assert not style_of([f"2026-11-22 02:13:0{at}.1 | INFO     | main:1 - x" for at in range(9)]).services, "loguru"
    assert not style_of(["Error: a", "Warning: b"] * 2 + ["step 1"] * 20).nodes


@pytest.mark.parametrize(
    "sure",
    [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "[rank22]: KeyError: 'x'",
        "[2026-11-22 02:13:07,123] [INFO] [launch.py:145:main] nnodes=4",
    ],
)
def test_one_node_alone_is_a_label_where_only_a_label_can_stand(sure: str) -> None:
    lines = [f"worker-5: {sure}", "worker-5:     main()", "worker-5: boom", "worker-5: boom"]
    assert unlabelled(lines[2], style_of(lines)) == Labelled("boom", host="worker-5")
    assert not style_of([*lines[1:], "worker-5: boom"]).nodes
    assert not style_of([line.replace("worker-5", "ERROR") for line in lines]).nodes
    assert not style_of([*lines, *["step 1"] * 4]).nodes


def test_nodes_may_be_known_by_their_addresses() -> None:
    lines = ["10.0.0.3: [rank5]: Traceback (most recent call last):", *["10.0.0.3: step 1"] * 4]
    assert unlabelled("10.0.0.3: KeyError: 'x'", style_of(lines)) == Labelled("KeyError: 'x'", host="10.0.0.3")
    assert not style_of(["10.0.0.3: connection refused"] * 9).nodes
    assert not style_of([f"10.0.0.{at}: reachable" for at in range(9)]).nodes


HEADER = "Traceback (most recent call last):"


@pytest.mark.parametrize(
    "logger",
    [
        "[INFO] [Driver] ",
        "INFO worker: ",
        "worker - ERROR - ",
        "INFO:root:",
        "ERROR | stderr | ",
        "[worker-1] INFO ",
        "ERROR 11-22 10:00:00 worker.py:45] ",
        "ERROR 11-22 10:00:00 [core.py:718] ",
        "11/22/2026 10:00:00 - INFO - __main__ - ",
        "ERROR    | __main__:main:12 - ",
        "[__main__][ERROR] - ",
    ],
)
def test_what_a_logger_puts_before_a_program_s_output_is_a_label_there(logger: str) -> None:
    for text in (HEADER, '  File "train.py", line 3, in main', "Root Cause (first observed failure):"):
        assert unlabelled(logger + text) == Labelled(text, logger=logger)
        assert unlabelled(f"{logger}[rank3]: {text}") == Labelled(text, rank=3, logger=logger)
    for text in ("KeyError: 'x'", f"the old log ended with {HEADER}", "    return x"):
        assert unlabelled(logger + text) == Labelled(logger + text)
    tagged = f"{logger}[rank3]: Missing key(s) in state_dict"
    assert unlabelled(tagged) == Labelled(tagged, rank=3), "its level tells how it is meant"
    same = without(logger.replace("11-22 10:00:00", "11-22 10:00:59"))
    assert (same.sub("", f"{logger}    return x"), same.sub("", logger.rstrip())) == ("    return x", "")
    assert not same.match(f"DEBUG {logger}")


def test_a_warning_is_no_label() -> None:
    assert not unlabelled(f"WARNING worker: {HEADER}").logger
    assert not unlabelled(f"[2026-11-22 10:00:00] WARNING: {HEADER}").logger


def test_what_a_line_that_was_not_ended_has_put_before_a_traceback_is_none_of_it() -> None:
    assert unlabelled(f"  0%|   | 1/935 [00:01<20:34,  1.32s/it]{HEADER}") == Labelled(HEADER)
    assert unlabelled(f"error: run as root[rank5]: {HEADER}") == Labelled(HEADER, rank=5)
    for quoted in (f">{HEADER}", f'"{HEADER}', f"`{HEADER}", f"it said {HEADER}"):
        assert unlabelled(quoted).text == quoted


@pytest.mark.parametrize(
    ("line", "before"),
    [
        (f"RuntimeError: Address already in use{HEADER}", "RuntimeError: Address already in use"),
        (f"[rank3]: run as root[rank5]: {HEADER}", "[rank3]: run as root"),
        (HEADER, ""),
        (f"it said {HEADER}", ""),
        ("step 1", ""),
    ],
)
def test_the_line_that_was_not_ended_is_told_too(line: str, before: str) -> None:
    assert unended_before(line) == before


def test_what_stands_before_a_rank_s_label_is_one() -> None:
    assert unlabelled("worker-5: [rank22]: KeyError: 'x'") == Labelled("KeyError: 'x'", rank=22, host="worker-5")
    assert unlabelled("ERROR: [rank22]: x").text == "ERROR: [rank22]: x"


def test_numbers_in_brackets_are_labels_only_where_they_recur_in_no_order() -> None:
    style = style_of([f"[{rank}] step {step}" for step in range(5) for rank in range(4)])
    assert unlabelled("[37]   File", style) == Labelled("  File", rank=37, said_by="mpirun")
    assert not style_of([f"[{epoch}] {what}" for epoch in range(9) for what in ("train", "val")]).brackets, "epochs"


def test_a_rank_in_round_brackets_is_a_label_only_where_several_have_one_or_most_lines() -> None:
    lines = [f"(rank {rank}) step {step}" for step in range(3) for rank in range(2)]
    style = style_of([*lines, *["loading"] * 40])
    assert unlabelled("(rank 1): boom", style) == Labelled("boom", rank=1)
    assert style_of(["(rank 3) boom"] * 5).rounds
    assert not style_of(["(rank 128) approximates layer 3", "world size 2", "step 1"]).rounds
    assert not style_of([f"(rank {rank}) layer {layer}" for layer in range(9) for rank in (64, 8)] + ["x"] * 40).rounds
    assert unlabelled("(rank 128) approximates layer 3").rank is None


def test_a_host_and_a_rank_in_brackets_are_a_label_only_where_a_traceback_has_it_on_each_line() -> None:
    frames = ["Traceback (most recent call last):", '  File "fit.py", line 4, in <module>', "    main()"]
    style = style_of(["[gpu4:3]:step 1", *(f"[gpu4:3]:{frame}" for frame in frames)])
    assert unlabelled("[gpu4:3]:boom", style) == Labelled("boom", rank=3, host="gpu4")
    assert not style_of([f"[fit:41]:step {step}" for step in range(20)]).places, "a module and its line"


def test_pods_are_labels_only_where_many_lines_begin_with_few_of_them() -> None:
    lines = [f"train-worker-{pod} step {step}" for step in range(5) for pod in range(3)]
    loki = style_of([f"2026-11-22T10:00:00Z {line}" for line in lines])
    found = unlabelled("2026-11-22T10:00:00Z train-worker-7   File", loki)
    assert (found.host, found.text) == ("train-worker-7", "  File")
    assert unlabelled("train-worker-7 step 3", loki).text == "step 3", "no container"
    stern = style_of([line.replace(" step", " pytorch step") for line in lines])
    found = unlabelled("train-worker-7 pytorch KeyError: 'x'", stern)
    assert (found.host, found.text) == ("train-worker-7", "KeyError: 'x'")
    assert not style_of([f"epoch-{epoch} loss" for epoch in range(5) for _ in range(9)]).pods
    assert not style_of([f"well-known-{at} text" for at in range(50)]).pods


def test_srun_and_a_node_behind_its_number() -> None:
    style = style_of([f"{rank}: node{rank // 2}: step {step}" for step in range(5) for rank in range(4)])
    assert unlabelled("3: node1: boom", style) == Labelled("boom", rank=3, host="node1", said_by="srun")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2026-11-22T02:13:07.5Z x", datetime(2026, 11, 22, 2, 13, 7, 500_000, timezone.utc)),
        ("2026-11-22T02:13:07+0100 x", datetime(2026, 11, 22, 1, 13, 7, tzinfo=timezone.utc)),
        ("2026-11-22 02:13:07,250 x", datetime(2026, 11, 22, 2, 13, 7, 250_000, timezone.utc)),
        ("[2026/11/22 02:13:07] x", datetime(2026, 11, 22, 2, 13, 7, tzinfo=timezone.utc)),
        ("2026-11-22 02:13:07.123 | INFO | x", datetime(2026, 11, 22, 2, 13, 7, 123_000, timezone.utc)),
        ("[rank0]:[W1122 02:13:07.000000001 a.cpp:1] x", datetime(1972, 11, 22, 2, 13, 7, tzinfo=timezone.utc)),
        (
            "W1122 02:13:07.5 4711 torch/distributed/run.py:1] x",
            datetime(1972, 11, 22, 2, 13, 7, 500_000, timezone.utc),
        ),
        ("2026-13-45 99:99:99 x", None),
        ("no time", None),
    ],
)
def test_a_line_has_the_time_of_its_timestamp(line: str, expected: datetime | None) -> None:
    time = unlabelled(line).time
    assert time == (pytest.approx(expected.timestamp(), abs=1e-3) if expected else None)


def test_a_quotation_s_mark_is_a_label_only_where_nearly_all_lines_have_it() -> None:
    frame = '>   File "train.py", line 3, in <module>'
    lines = ["> Traceback (most recent call last):", frame, ">     main()", "> KeyError: 'lr'"]
    assert unlabelled(lines[3], style_of(lines)).text == "KeyError: 'lr'"
    assert not style_of([*lines[1:], ">"]).quoted
    assert not style_of([*lines, "step 1", "step 2"]).quoted
    assert not style_of([">>> main()"] * 9).quoted
    assert unlabelled("> node1: boom", style_of([f"> node{at % 2}: step {at}" for at in range(9)])).host == "node1"


@pytest.mark.parametrize(
    "words", ["misc/shmutils.cc:103 NCCL WARN boom", "NCCL INFO boom", "graph/a.cc:7 (topology) NCCL WARN boom"]
)
def test_the_number_of_a_gpu_before_nccl_s_words_is_no_rank(words: str) -> None:
    style = Style(brackets=True)
    assert unlabelled(f"[1] {words}", style).rank is None
    assert unlabelled(f"[1] node0:17:42 [0] {words}", style).rank == 1
    assert not style_of([f"[{n % 3}] {words}" for n in range(30)]).brackets
