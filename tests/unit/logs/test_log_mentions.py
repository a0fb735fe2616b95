"""Lines that say something, and lines that only mention it."""

from __future__ import annotations

import pytest

from ddpdoctor.logs.parse.mentions import mentioned

SIGN = "unable to open shared memory object"


@pytest.mark.parametrize(
    "line",
    [
        f"# {SIGN} means that /dev/shm is full",
        f"// {SIGN}",
        f"> {SIGN}",
        f"| {SIGN} | raise --shm-size |",
        f"## Fixing {SIGN}",
        f"If you see {SIGN}, make /dev/shm larger",
        f"You may see `{SIGN}` in the log",
        f"With more workers you may run into {SIGN}",
        f"in case of {SIGN} file_system is used",
        f'    raise RuntimeError("{SIGN}")',
        f'logger.warning("{SIGN}")',
        f'>       assert x == 3, "{SIGN}"',
        f"E       AssertionError: {SIGN}",
        f"FAILED tests/test_a.py::test_b - AssertionError: {SIGN}",
        f"+    raise RuntimeError('{SIGN}')",
        f"$ grep '{SIGN}' run.log",
        f"+ grep '{SIGN}' run.log",
        f">>> print('{SIGN}')",
        f"tests/test_shm.py::test_says[{SIGN}] PASSED",
        f"  --retry-on TEXT   retry on {SIGN}",
        f"a1b2c3d Fix: {SIGN} when there are many workers",
        f"a1b2c3d fix(loader)!: {SIGN} when there are many workers",
        f"* | a1b2c3d (HEAD -> main) shmError: {SIGN}",
        f"a1b2c3d chore: {SIGN} is told",
        f"a1b2c3d say when it is {SIGN}",
        f"{'a1b2c3d4' * 5} RuntimeError: {SIGN}",
        f"timeout: 1800  # {SIGN}",
        f"retry: 3 # on {SIGN}",
        f"NCCL_DEBUG=WARN # {SIGN}",
        f"workers   = 8    # {SIGN}",
        f"shm_size  8g  # {SIGN}",
        f"     8\t    {SIGN}",
        f'- "RuntimeError: {SIGN}"',
        f'+- "RuntimeError: {SIGN}"',
        f'  1. "RuntimeError: {SIGN}" on one rank',
        f'        "{SIGN} of "',
        f"        f'{SIGN}',",
        f"INFO workaround: to avoid {SIGN}, file_system is used",
    ],
)
def test_a_mention_is_one(line: str) -> None:
    assert mentioned(line, SIGN)


@pytest.mark.parametrize(
    "line",
    [
        f"RuntimeError: {SIGN} </torch_4711_1> in read-write mode: No space left on device (28)",
        f"{SIGN} </torch_4711_1>",
        f"ERROR: {SIGN}",
        f"ERROR:root:training failed: {SIGN}",
        f'{{"level": "error", "message": "RuntimeError: {SIGN}"}}',
        f'    "message": "RuntimeError: {SIGN}"',
        f'"RuntimeError: {SIGN}"',
        f"message: '{SIGN}'",
        f"last_error: '{SIGN}'",
        f'cause: "{SIGN}"',
        f'description: "{SIGN}"',
        f'failure: "RuntimeError: {SIGN}"',
        f'rank3: "torch.OutOfMemoryError: {SIGN}"',
        f"a1b2c3d4e5f6 python: {SIGN}",
        f"a1b2c3d4e5f6 RuntimeError: {SIGN}",
        f"a1b2c3d train: RuntimeError: {SIGN}",
        f"RuntimeError: '{SIGN}'",
        f"4711000 torch.OutOfMemoryError: {SIGN}",
        f'"2026-11-07T02:11:03Z","node0","RuntimeError: {SIGN}"',
        f"[rank3]: RuntimeError: {SIGN}",
        f"  what():  {SIGN}",
        f"terminate called after throwing an instance of 'c10::Error': {SIGN}",
        f"/opt/conda/lib/python3.11/site-packages/torch/nn/parallel/distributed.py:12: UserWarning: {SIGN}",
        f"ops.cu:12: error: {SIGN}",
        f"train.py:12: RuntimeError: {SIGN}",
        f"node0:4711:4800 [0] misc/shmutils.cc:72 NCCL WARN {SIGN}",
        f"WARNING - caught an exception: RuntimeError: {SIGN}",
        f"  | RuntimeError: {SIGN}",
        f"[1/2] {SIGN}",
        f"F lib/statusor.cc:34] Attempting to fetch value instead of handling error Internal: {SIGN}",
        f"- {SIGN}",
    ],
)
def test_what_is_really_said_is_none(line: str) -> None:
    assert not mentioned(line, SIGN)


def test_no_two_commits_have_the_same_hash() -> None:
    line = f"a1b2c3d RuntimeError: {SIGN}"
    assert mentioned(line, SIGN, previous="99b2c3d Start")
    assert not mentioned(line, SIGN, previous="a1b2c3d epoch 0")


def test_what_stands_between_backticks_is_only_mentioned() -> None:
    assert mentioned(f"I get `{SIGN}` again", SIGN)


def test_the_code_of_a_tracebacks_frame_only_mentions_it() -> None:
    frame = '  File "/home/ada/train.py", line 12, in main'
    code = f'    check(x, "{SIGN}")'
    assert mentioned(code, SIGN, previous=frame)
    assert not mentioned(f"RuntimeError: {SIGN}", SIGN, previous=frame)
