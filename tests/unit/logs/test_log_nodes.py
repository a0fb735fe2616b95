"""Two nodes, each with a launcher and a log of its own: who failed first doesn't hang on the files' names or their order."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs

OWN = ["    if rank == {rank}: data[i]", "                   ~~~~^^^", "KeyError: 3"]
LOST = [
    "    loss.backward()",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:50122",
]
LOCAL = (2, 5)
"""The local ranks, of two nodes of eight."""
TABLE = """============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_23:51:{second}
  host      : {host}
  rank      : {rank} (local_rank: {local})
  exitcode  : 1 (pid: {pid})
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def node(place: int, *, guilty: bool, host: str, pid: int, table: bool) -> str:
    """What the terminal of one node shows, where one rank of its eight has something to say."""
    local = LOCAL[place]
    number = 8 * place + local
    second = "06" if guilty else "08"
    said = [
        "Traceback (most recent call last):",
        '  File "/home/ada/train.py", line 6, in <module>',
        *(OWN if guilty else LOST),
    ]
    told = (
        f"E1122 23:51:{second}.464000 3192 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) "
        f"local_rank: {local} (pid: {pid}) of binary: /opt/conda/bin/python"
    )
    own = "".join(f"[rank{number}]: {one.format(rank=number)}\n" for one in said)
    rest = TABLE.format(second=second, host=host, rank=number, local=local, pid=pid) if table else ""
    return f"step 1 loss 2.1\n{own}{told}\n{rest}"


@pytest.mark.parametrize("table", [True, False], ids=["table", "cut-off-before-it"])
@pytest.mark.parametrize("host", ["localhost", "gpu-a{rank}.example"])
@pytest.mark.parametrize("pids", [(31966, 31967), (56, 56)], ids=["pids", "same-pid-in-containers"])
@pytest.mark.parametrize("names", [("node0.log", "node1.log"), ("host1.log", "host2.log"), ("a.log", "b.log")])
@pytest.mark.parametrize("guilty", [0, 1])
def test_the_node_with_the_traceback_leads(
    tmp_path: Path, guilty: int, names: tuple[str, str], pids: tuple[int, int], host: str, table: bool
) -> None:
    for place, (name, pid) in enumerate(zip(names, pids, strict=True)):
        text = node(place, guilty=place == guilty, host=host.format(rank=place), pid=pid, table=table)
        (tmp_path / name).write_text(text)
    paths = [str(tmp_path / name) for name in names]
    for some in (paths, paths[::-1], [str(tmp_path)]):
        found = verdict_of(read_logs(some, stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())), catalogue())
        assert found.lead is not None
        assert (found.outcome, found.lead.rank, found.lead.text) == (
            RunOutcome.USER_ERROR,
            8 * guilty + LOCAL[guilty],
            "KeyError: 3",
        ), some
