"""The health event of NVSentinel: what a preflight check tells the platform connector beside its exit code."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Final

from ddpdoctor.base.regular_files import read_start
from ddpdoctor.gating.grpc_calls import encode, load_grpc, unix_target
from ddpdoctor.gating.outcome import GateOutcome

SOCKET: Final = "PLATFORM_CONNECTOR_SOCKET"
TOKEN_FILE: Final = "PLATFORM_CONNECTOR_TOKEN_PATH"
METHOD: Final = "/datamodels.PlatformConnector/HealthEventOccurredV1"
MOUNT: Final = (
    "does the container mount the volume nvsentinel-socket at /var/run, as deploy/nvsentinel/values.yaml has it?"
)
SEND_SECONDS: Final = 10.0
MAX_TOKEN_BYTES: Final = 64 * 1024
AGENT: Final = "ddpdoctor"
NO_ACTION, CONTACT_SUPPORT, RESTART_HOST = 0, 5, 24
"""Of NVSentinel's recommended actions."""
STRATEGIES: Final = {"": 0, "EXECUTE_REMEDIATION": 1, "STORE_ONLY": 2}


def send_event(outcome: GateOutcome, environ: Mapping[str, str], until: float) -> tuple[str, ...]:
    """Tell NVSentinel what a gate has come to; without a verdict nothing is sent: nobody would know what to make of it.

    Args:
        outcome: the gate's.
        environ: names the socket, the node, and what NVSentinel is to do.
        until: by the monotonic clock.
    Returns:
        What was done, or left undone and why, in words; nothing where NVSentinel has given no socket.
    """
    socket = environ.get(SOCKET, "")
    if not socket or outcome.verdict == "unknown":
        return ()
    strategy = environ.get("PROCESSING_STRATEGY", "")
    if not (node := environ.get("NODE_NAME", "")) or strategy not in STRATEGIES:
        wrong = f"PROCESSING_STRATEGY is {strategy!r}" if node else "NODE_NAME isn't set"
        return (f"no health event was sent to NVSentinel: {wrong}",)
    try:
        _send(
            socket, encode_event(outcome, node, STRATEGIES[strategy], time.time()), environ.get(TOKEN_FILE, ""), until
        )
    except (ImportError, OSError, ValueError) as error:
        return (f"no health event was sent to NVSentinel: {error}",)
    return ("NVSentinel was sent a health event",)


def encode_event(outcome: GateOutcome, node: str, strategy: int, now: float) -> bytes:
    """Write the message `HealthEvents` with one event: fatal where the gate is closed, healthy where nothing was found.

    Args:
        outcome: the gate's.
        node: its name in Kubernetes.
        strategy: the number of NVSentinel's processing strategy.
        now: seconds since 1970.
    """
    is_closed = outcome.verdict == "fail"
    restarts = any(re.search(r"\breboot\b", command) for concern in outcome.failures for command in concern.commands)
    action = NO_ACTION if not is_closed else RESTART_HOST if restarts else CONTACT_SUPPORT
    seconds = int(now)
    event = encode(
        (
            (1, 1),
            (2, AGENT),
            (3, "Node"),
            (4, AGENT),
            (5, is_closed),
            (6, outcome.verdict == "ok"),
            (7, outcome.line),
            (8, action),
            (9, outcome.slugs or tuple(dict.fromkeys(concern.slug for concern in outcome.warnings))),
            (12, encode(((1, seconds), (2, int((now - seconds) * 1e9))))),
            (13, node),
            (16, strategy),
        )
    )
    return encode(((1, 1), (2, event)))


def _send(socket: str, message: bytes, token_file: str, until: float) -> None:
    """Call the platform connector.

    Raises:
        ImportError: there is no grpcio.
        OSError: the token can't be read, or the call failed.
        ValueError: the token is empty.
    """
    grpc = load_grpc()
    metadata: tuple[tuple[str, str], ...] = ()
    if token_file:
        token = read_start(token_file, MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
        if not token:
            raise ValueError(f"the token file {token_file} is empty")
        metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(unix_target(socket)) as channel:
        call = channel.unary_unary(METHOD)
        limit = min(SEND_SECONDS, max(0.1, until - time.monotonic()))
        try:
            call(message, timeout=limit, metadata=metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            if not os.path.exists(unix_target(socket).removeprefix("unix:")):  # noqa: PTH110
                raise OSError(f"{socket}: there is no such socket here; {MOUNT}") from error
            raise OSError(f"{socket}: {error.code().name}: {error.details()}") from error
