"""What NVSentinel tells of the pods that start together, as settings of a job."""

from __future__ import annotations

import threading
from pathlib import Path

from ddpdoctor.probes.gang import gang_of, wait_for_gang


def told(folder: Path, count: int, peers: str) -> dict[str, str]:
    """A mounted ConfigMap."""
    for name, text in (("expected_count", str(count)), ("master_addr", "10.0.1.5"), ("master_port", "29500\n")):
        (folder / name).write_text(text)
    (folder / "peers").write_text(peers)
    return {"GANG_ID": "g", "GANG_CONFIG_DIR": str(folder), "POD_NAME": "pod-1", "GANG_TIMEOUT_SECONDS": "60"}


BOTH = "pod-0;10.0.1.5;0;nccl\n\nnonsense\npod-1;10.0.1.6;1\n"


def test_a_gang_is_a_job(tmp_path: Path) -> None:
    environ = told(tmp_path, 2, BOTH)
    gang = gang_of(environ)
    assert gang is not None
    assert gang.is_complete
    settings = {"MASTER_ADDR": "10.0.1.5", "MASTER_PORT": "29500", "PET_NNODES": "2", "PET_NODE_RANK": "1"}
    assert gang.settings(environ) == settings
    # What the container was given goes first.
    assert gang.settings(environ | {"MASTER_ADDR": "n1"})["PET_NNODES"] == "2"
    assert "MASTER_ADDR" not in gang.settings(environ | {"MASTER_ADDR": "n1"})
    assert "PET_NODE_RANK" not in gang.settings(environ | {"POD_NAME": "another"})


def test_without_a_folder_or_files_there_is_none_or_nobody(tmp_path: Path) -> None:
    assert gang_of({}) is None
    empty = gang_of({"GANG_CONFIG_DIR": str(tmp_path)})
    assert empty is not None
    assert not empty.is_complete
    assert empty.settings({}) == {}


def test_it_waits_for_the_last_pod(tmp_path: Path) -> None:
    environ = told(tmp_path, 2, "pod-0;10.0.1.5;0\n")
    said: list[str] = []

    def come(text: str) -> None:
        said.append(text)
        threading.Timer(0.1, lambda: (tmp_path / "peers").write_text(BOTH)).start()

    gang = wait_for_gang(environ, come)
    assert gang is not None
    assert gang.is_complete
    assert said == ["waiting for the gang: 1 of 2 pods have come"]


def test_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    gang = wait_for_gang(told(tmp_path, 2, "pod-0;10.0.1.5;0\n") | {"GANG_TIMEOUT_SECONDS": "0"}, lambda _: None)
    assert gang is not None
    assert not gang.is_complete
