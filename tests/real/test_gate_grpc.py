"""NVRx asks the gate on its socket, and NVSentinel is told by its own: over real gRPC, in protobuf's own messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.gating.nvrx_service import NvrxService
from ddpdoctor.gating.nvsentinel_event import send_event
from ddpdoctor.gating.outcome import GateOutcome
from tests.support.command import ROOT, command, ddpdoctor, plain_environ
from tests.support.optional_modules import imported

grpc: Any = imported("grpc")
grpc_messages: Any = imported("tests.support.grpc_messages")
MESSAGES = grpc_messages.message_classes()
# grpcio may lie beside the tests alone.
ENVIRON = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(grpc.__file__).parent.parent)])}
ASK = ("gate", "--for", "nvrx", "--quick", "--select", "host")


@contextmanager
def served(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command(*words), env=plain_environ() | ENVIRON, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "answering on" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def ask(socket: Path, *args: str) -> Any:
    request = MESSAGES["HealthCheckRequest"](args=args).SerializeToString()
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        answer = channel.unary_unary("/nvhcd.HealthCheckService/RunHealthCheck")(request, timeout=60)
    return MESSAGES["HealthCheckResponse"].FromString(answer)


def test_nvrx_gets_its_answer_and_its_words_are_none_of_ours(tmp_path: Path) -> None:
    socket = tmp_path / "nvhcd.sock"
    with served(*ASK, "--serve", socket):
        answer = ask(socket, "--no-slurm", "--group", "prolog", "--killswitch", "/etc/passwd")
        told = json.loads(answer.output)
        assert (answer.success, answer.exit_code) == (told["fail_count"] == 0, int(told["fail_count"] > 0))
        assert (told["verdict"], sorted(told)) != ("unknown", [])
        assert sorted(told) == ["fail_count", "failed_checks", "message", "verdict"]
        assert ask(socket) == answer
        second = ddpdoctor(*ASK, "--serve", socket, environ=ENVIRON)
        assert (second.returncode, second.stderr) == (2, f"{socket}: somebody listens there already\n")
    # What a killed one has left behind is in nobody's way.
    assert socket.exists()
    with served(*ASK, "--serve", socket) as process:
        assert ask(socket).output
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert not socket.exists()


def test_where_others_could_put_a_socket_none_is_listened_on(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    refused = ddpdoctor(*ASK, "--serve", tmp_path / "x.sock", environ=ENVIRON)
    assert refused.returncode == 2
    assert "is not listened on" in refused.stderr


def test_a_look_that_breaks_is_no_verdict_and_many_who_ask_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpdoctor.api import gate_service

    looks: list[float] = []

    def look() -> Any:
        looks.append(time.monotonic())
        return gate_service._look(("--quick",))

    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    service = NvrxService(look)
    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(service.answer, [b""] * 8))
    (answer,) = map(MESSAGES["HealthCheckResponse"].FromString, answers)
    assert len(looks) == 1
    assert (answer.success, json.loads(answer.output)["fail_count"]) == (True, 0)
    assert "no verdict: ddpdoctor gave no answer: " in json.loads(answer.output)["message"]


class Connector:
    """NVSentinel's platform connector, which keeps what it is told."""

    def __init__(self, folder: Path, code: Any = None) -> None:
        self.events: list[Any] = []
        self.tokens: list[str] = []
        self.socket = folder / "nvsentinel.sock"
        self._code = code
        self._server = grpc.server(ThreadPoolExecutor(2))
        method = grpc.unary_unary_rpc_method_handler(self._take)
        handler = grpc.method_handlers_generic_handler(
            "datamodels.PlatformConnector", {"HealthEventOccurredV1": method}
        )
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def _take(self, request: bytes, context: Any) -> bytes:
        if self._code is not None:
            context.abort(self._code, "not this node's")
        told = MESSAGES["HealthEvents"].FromString(request)
        assert told.version == 1
        self.events += told.events
        self.tokens += [value for name, value in context.invocation_metadata() if name == "authorization"]
        return b""

    def environ(self, **more: str) -> dict[str, str]:
        return ENVIRON | {"PLATFORM_CONNECTOR_SOCKET": f"unix://{self.socket}", "NODE_NAME": "gpu-7"} | more

    def stop(self) -> None:
        self._server.stop(None).wait()


def gate(environ: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return ddpdoctor("gate", "--for", "nvsentinel", "--quick", *options, environ=environ)


def test_nvsentinel_is_sent_an_event_with_its_token(tmp_path: Path) -> None:
    connector = Connector(tmp_path)
    (tmp_path / "token").write_text("a.b.c\n")
    environ = connector.environ(PROCESSING_STRATEGY="STORE_ONLY", PLATFORM_CONNECTOR_TOKEN_PATH=str(tmp_path / "token"))
    ended = gate(environ, "--select", "host")
    connector.stop()
    assert "NVSentinel was sent a health event" in ended.stderr
    (event,) = connector.events
    assert (event.agent, event.checkName, event.componentClass, event.nodeName) == (
        "ddpdoctor",
        "ddpdoctor",
        "Node",
        "gpu-7",
    )
    assert event.isFatal == (ended.returncode == 1)
    assert event.message == ended.stdout.splitlines()[0].removeprefix("ddpdoctor: ")
    assert event.processingStrategy == 2
    assert abs(event.generatedTimestamp.seconds - time.time()) < 100
    assert connector.tokens == ["Bearer a.b.c"]


def test_what_cannot_be_sent_changes_no_verdict(tmp_path: Path) -> None:
    healthy = gate(ENVIRON, "--select", "host").returncode
    refusing = Connector(tmp_path, grpc.StatusCode.PERMISSION_DENIED)
    cases = {
        "PERMISSION_DENIED: not this node's": refusing.environ(),
        "NODE_NAME isn't set": refusing.environ(NODE_NAME=""),
        "PROCESSING_STRATEGY is 'SOON'": refusing.environ(PROCESSING_STRATEGY="SOON"),
        "No such file": refusing.environ(PLATFORM_CONNECTOR_TOKEN_PATH=str(tmp_path / "none")),
        "grpcio can't be loaded": refusing.environ(PYTHONPATH=f"{tmp_path}/no:{ROOT}"),
    }
    (tmp_path / "no").mkdir()
    (tmp_path / "no" / "grpc.py").write_text("raise ImportError('gone')\n")
    for words, environ in cases.items():
        ended = gate(environ, "--select", "host")
        assert ended.returncode == healthy, ended.stderr
        assert "no health event was sent to NVSentinel: " in ended.stderr
        assert words in ended.stderr
    refusing.stop()


def test_a_socket_that_is_not_mounted_is_named(tmp_path: Path) -> None:
    environ = {"PLATFORM_CONNECTOR_SOCKET": f"unix://{tmp_path}/none.sock", "NODE_NAME": "gpu-7"}
    (said,) = send_event(GateOutcome(verdict="ok"), environ, time.monotonic() + 0.2)
    assert "there is no such socket here; does the container mount the volume nvsentinel-socket" in said


def test_a_pass_without_a_verdict_sends_nothing(tmp_path: Path) -> None:
    connector = Connector(tmp_path)
    ended = gate(connector.environ(), "--select", "links")
    connector.stop()
    assert (ended.returncode, connector.events) == (2, [])
