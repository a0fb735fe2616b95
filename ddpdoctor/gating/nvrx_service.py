"""NVRx's node health check service: its launcher asks on a unix socket before each rendezvous, and leaves a node out that fails."""

from __future__ import annotations

import os
import socket as sockets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import msgspec

from ddpdoctor.base.ownership import foothold_on
from ddpdoctor.gating.grpc_calls import encode, load_grpc, unix_target

SERVICE: Final = "nvhcd.HealthCheckService"
METHOD: Final = "RunHealthCheck"
FRESH_SECONDS: Final = 10.0
"""For which an answer is given again: the ranks of a node ask together, and anybody on it may ask as often as they like."""
MAX_REQUEST_BYTES: Final = 64 * 1024


class ServiceError(Exception):
    """Why it can't be served; the text says."""


class HealthCheck(msgspec.Struct, frozen=True):
    """One answer: the exit code of a check, and its JSON."""

    exit_code: int
    output: str


class NvrxService:
    """Answers all who ask by one look at a time.

    Args:
        look: gives the answer; it never raises, and takes less than NVRx's 60 seconds.
    """

    def __init__(self, look: Callable[[], HealthCheck]) -> None:
        self._look = look
        self._turn = threading.Lock()
        self._answer = b""
        self._fresh_until = 0.0

    def answer(self, request: bytes) -> bytes:
        """Write the message `HealthCheckResponse`.

        Args:
            request: what NVRx wants of a script of its own; whoever can reach the socket could write it, so it is of no effect.
        """
        with self._turn:
            if time.monotonic() >= self._fresh_until:
                check = self._look()
                self._answer = encode(((1, check.exit_code == 0), (2, check.exit_code), (3, check.output)))
                self._fresh_until = time.monotonic() + FRESH_SECONDS
            return self._answer


def serve(socket: str, service: NvrxService, ready: Callable[[], None] = lambda: None) -> None:
    """Answer on a unix socket until the process is ended.

    Args:
        socket: its path; whoever may reach it may ask.
        service: gives the answers.
        ready: called once it listens.
    Raises:
        ServiceError: grpcio isn't there, or the socket can't be made.
    """
    path = unix_target(socket).removeprefix("unix:")
    try:
        grpc = load_grpc()
        _make_room(path)
        server = grpc.server(
            ThreadPoolExecutor(max_workers=4),
            maximum_concurrent_rpcs=64,
            options=(("grpc.max_receive_message_length", MAX_REQUEST_BYTES),),
        )
        handler = grpc.unary_unary_rpc_method_handler(lambda request, _: service.answer(request))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        if not server.add_insecure_port(f"unix:{path}"):
            raise ServiceError(f"{path}: it can't be listened on")
        # A job asks as its user, and out of a container.
        os.chmod(path, 0o666)  # noqa: PTH101
    except OSError as error:
        raise ServiceError(f"{path} can't be listened on: {error.strerror or error}") from error
    except (ImportError, RuntimeError) as error:
        raise ServiceError(str(error)) from error
    server.start()
    ready()
    try:
        server.wait_for_termination()
    finally:
        server.stop(None)
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108


def _make_room(path: str) -> None:
    """Take away a socket on which nobody listens any more.

    Raises:
        ServiceError: somebody does, or somebody else could put another one there.
    """
    if foothold := foothold_on(os.path.dirname(os.path.abspath(path))):  # noqa: PTH100, PTH120
        raise ServiceError(f"{path} is not listened on: {foothold.words}")
    with sockets.socket(sockets.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            os.unlink(path)  # noqa: PTH108
            return
    raise ServiceError(f"{path}: somebody listens there already")
