"""Whose line an error is that a library raised: the script's is in another part of the chain, or in what rich draws. And errors that are no
mistake of the script's."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.render.headline import headline
from tests.support.logs_by_hand import read

LIB = "/opt/env/lib/python3.11"
FETCHES = f"""Traceback (most recent call last):
  File "{LIB}/urllib/request.py", line 1348, in do_open
    h.request(req.get_method(), req.selector, req.data, headers)
  File "{LIB}/socket.py", line 836, in create_connection
    sock.connect(sa)
{{error}}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/ada/train.py", line 7, in <module>
    weights = urlopen("http://models/model.bin")
  File "{LIB}/urllib/request.py", line 1351, in do_open
    raise URLError(err)
urllib.error.URLError: <urlopen error>
"""
BOX = """╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /home/ada/train.py:9 in <module>                                             │
│                                                                              │
│   8 def step(batch): return batch["labels"]                                  │
│ ❱ 9 step({"input_ids": 1})                                                   │
│                                                                              │
│ /home/ada/train.py:8 in step                                                 │
│                                                                              │
│ ❱ 8 def step(batch): return batch["labels"]                                  │
│   9 step({"input_ids": 1})                                                   │
╰──────────────────────────────────────────────────────────────────────────────╯
KeyError: 'labels'
"""
WORKER = f"""Traceback (most recent call last):
  File "/home/ada/train.py", line 12, in <module>
    for batch in loader:
  File "{LIB}/site-packages/torch/_utils.py", line 794, in reraise
    raise exception
RuntimeError: Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "{LIB}/site-packages/torch/utils/data/_utils/collate.py", line 275, in collate_tensor_fn
    return torch.stack(batch, 0, out=out)
RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0 and [4] at entry 1

"""
GONE = f"""Traceback (most recent call last):
  File "/home/ada/train.py", line 12, in <module>
    for batch in loader:
  File "{LIB}/site-packages/torch/multiprocessing/reductions.py", line 538, in rebuild_storage_fd
    fd = df.detach()
  File "{LIB}/multiprocessing/connection.py", line 395, in _recv
    chunk = read(handle, remaining)
{{error}}
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [(FETCHES.format(error="KeyError: 'x'"), 7), (BOX, 8), (WORKER, 12)],
)
def test_the_line_of_the_script_is_that_of_the_chain(text: str, line: int) -> None:
    found = verdict_of(read(text), catalogue())
    assert found.outcome is RunOutcome.USER_ERROR
    assert found.raised is not None
    assert found.raised.own is not None
    assert (found.raised.own.path, found.raised.own.line) == ("/home/ada/train.py", line)
    assert found.raised.own.code


@pytest.mark.parametrize(
    "error",
    [
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "OSError: [Errno 101] Network is unreachable",
    ],
)
def test_a_server_that_does_not_answer_is_no_mistake_of_the_script(error: str) -> None:
    judgement = judge_log(read(FETCHES.format(error=error)), catalogue())
    assert "at a server that can't be reached" in headline(judgement)
    (opinion,) = judgement.opinions
    assert "mistake" not in opinion.finding.cause
    assert "proxy" in opinion.finding.fixes[0].text


def test_a_refused_connection_of_the_scripts_own_is_an_ordinary_error() -> None:
    text = FETCHES.replace("urllib/request.py", "socket.py").format(
        error="ConnectionRefusedError: [Errno 111] Connection refused"
    )
    assert "ordinary error" in headline(judge_log(read(text), catalogue()))


@pytest.mark.parametrize("error", ["ConnectionResetError: [Errno 104] Connection reset by peer", "EOFError"])
def test_a_worker_that_is_gone_as_its_batch_is_fetched_is_a_guess(error: str) -> None:
    found = verdict_of(read(GONE.format(error=error)), catalogue())
    assert found.outcome is RunOutcome.ILLNESS
    assert [(suspect.slug, suspect.sure) for suspect in found.suspects] == [("dataloader-worker-killed", False)]
