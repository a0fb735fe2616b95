"""Asks NCCL's RAS, a thread in each rank that knows how far all ranks of the job have come, on all hosts.

Older NCCL could crash when it was asked (NVIDIA/nccl#1762), so it is asked only where every rank of the job on this host is known
to have at least `SAFE_VERSION`, and only where nobody but this job listens on that port: all who do share it (SO_REUSEPORT), and the
kernel chooses who answers. Since then it has crashed where a communicator was being set up just then (NVIDIA/nccl#2346, open for
2.29.7): by its sources while it wrote the text, so JSON alone is asked for; and it is asked only if the user wants it.

The protocol is lines of text (src/ras/client_support.cc): CLIENT PROTOCOL 2, TIMEOUT 5, SET FORMAT json, VERBOSE STATUS; the answer
to the last ends with the connection.
"""

from __future__ import annotations

import socket
import time

import psutil

from ddpdoctor.base.text import dotted, masked
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.hang import RasCount
from ddpdoctor.hang.ras.json_answer import Counts, NotUnderstood, join_answers, parse_json
from ddpdoctor.hang.ras.mapped_nccl import mapped_nccl
from ddpdoctor.hang.ras.text_answer import parse_text
from ddpdoctor.probes.proc import MAX_ENVIRON, Proc, variables
from ddpdoctor.processes.jobs import TrainingJob

SAFE_VERSION = (2, 29, 2)
DEFAULT_ADDRESS = "localhost:28028"
GREETING_SECONDS = 2.0
"""For a rank's RAS to say that it is there; one that was stopped accepts connections as well, and says nothing."""
ANSWER_SECONDS = 15.0
"""It waits up to five seconds for each rank that doesn't answer."""
LOOPBACK_OF_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
MAX_ANSWER_BYTES = 16 << 20
ATTEMPTS = 4
"""With another port of ours, the kernel may choose another rank."""


UNWANTED = "not asked; --ras does, but not while process groups are being set up: NCCL's RAS could crash then (NVIDIA/nccl#2346)"


class NotAsked(Exception):
    """Why RAS was not asked, or has not answered, in a sentence."""


class RasRefused(NotAsked):
    """It doesn't speak JSON."""


Address = tuple[str, int]
"""Where this job's RAS listens."""


def ask_twice(job: TrainingJob, between: float) -> tuple[tuple[RasCount, ...], str]:
    """Ask how far each rank has come, twice, `between` seconds apart; return that, or nothing and why."""
    try:
        first = ask(job)
        time.sleep(between)
        return join_answers(first, ask(job)), ""
    except NotAsked as error:
        return (), str(error)


def ask(job: TrainingJob) -> Counts:
    """Ask once; as text where its JSON can't be had or read. Raises NotAsked."""
    where = find_listener(job)
    try:
        return parse_json(_whole_answer(where, in_json=True))
    except RasRefused as error:
        why: NotAsked = error
    except NotUnderstood as error:
        why = NotAsked(f"NCCL's RAS has answered, but {error}")
    try:
        return parse_text(_whole_answer(where, in_json=False))
    except (NotUnderstood, NotAsked):
        raise why from None


def find_listener(job: TrainingJob) -> Address:
    """Find where it can be asked without harm.

    Raises:
        NotAsked: nowhere.
    """
    proc = Proc()
    if not job.ranks:
        raise NotAsked("there is no rank on this host whose RAS could be asked")
    for process in job.ranks:
        _check(process.pid, process.place.rank if process.place else process.pid, proc)
    port = _port(job.ranks[0].pid, proc)
    return _listening_address(port, {rank.pid for rank in (*job.ranks, *job.others)}), port


def _check(pid: int, rank: int, proc: Proc) -> None:
    version = mapped_nccl(pid, proc)
    if isinstance(version, Unknown):
        raise NotAsked(f"NCCL's RAS was not asked, since it isn't known which NCCL rank {rank} has: {version.reason}")
    if version < SAFE_VERSION:
        has = f"rank {rank} has NCCL {dotted(version)}"
        raise NotAsked(f"NCCL's RAS was not asked: {has}, and before {dotted(SAFE_VERSION)} asking could crash it")
    if proc.link(f"{pid}/ns/net") != proc.link("self/ns/net"):
        where = f"rank {rank} is in another network namespace"
        raise NotAsked(f"NCCL's RAS was not asked: {where}; run ddpdoctor in its container")


def _port(pid: int, proc: Proc) -> int:
    environ = proc.read(f"{pid}/environ", MAX_ENVIRON)
    if isinstance(environ, Unknown):
        raise NotAsked(f"NCCL's RAS was not asked: where it listens can't be learned ({environ.reason})")
    settings = variables(environ)
    if settings.get("NCCL_RAS_ENABLE", "").strip() == "0":
        raise NotAsked("NCCL's RAS is off: the job has NCCL_RAS_ENABLE=0")
    address = settings.get("NCCL_RAS_ADDR") or DEFAULT_ADDRESS
    port = address.rpartition(":")[2]
    if not port.isascii() or not port.isdecimal() or not 0 < int(port[:6]) < 1 << 16:
        raise NotAsked(f'NCCL\'s RAS was not asked: NCCL_RAS_ADDR is "{masked(address)[:100]}", no host:port')
    return int(port)


def _listening_address(port: int, own: set[int]) -> str:
    """Find where one of these processes listens on the port, if nobody else does: another job's RAS may be older.

    Raises:
        NotAsked: none does, or somebody else does, or it can't be seen.
    """
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError) as error:
        raise NotAsked(f"NCCL's RAS was not asked: who listens on its port can't be seen ({error})") from None
    listeners = [
        connection
        for connection in connections
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
    ]
    if not listeners:
        raise NotAsked(f"NCCL's RAS doesn't listen on port {port}: no communicator is set up yet, or it could not")
    foreign = next((listener for listener in listeners if listener.pid not in own), None)
    if foreign:
        who = f"process {foreign.pid}" if foreign.pid else "a process that this user can't look into"
        raise NotAsked(f"NCCL's RAS was not asked: {who}, which is none of this job's, listens on port {port}")
    address, *_ = map(str, listeners[0].laddr)
    return LOOPBACK_OF_ANY.get(address, address)


def _whole_answer(where: Address, *, in_json: bool) -> bytes:
    """Return all that it says to VERBOSE STATUS.

    Raises:
        NotAsked: it can't be reached, or doesn't even greet.
    """
    for _ in range(ATTEMPTS):
        try:
            with socket.create_connection(where, GREETING_SECONDS) as connection:
                return _Conversation(connection, "{}:{}".format(*where)).status(in_json=in_json)
        except TimeoutError:
            continue
        except OSError as error:
            raise NotAsked(
                "NCCL's RAS at {}:{} can't be asked: ".format(*where) + (error.strerror or str(error))
            ) from None
    raise NotAsked("NCCL's RAS at {}:{} accepts connections and says nothing".format(*where))


class _Conversation:
    def __init__(self, connection: socket.socket, where: str) -> None:
        self.socket = connection
        self.where = where
        self.buffer = bytearray()
        self.deadline = time.monotonic() + GREETING_SECONDS

    def status(self, *, in_json: bool) -> bytes:
        """Hold the conversation, and return the answer; without a greeting it raises TimeoutError.

        Raises:
            RasRefused: it doesn't know JSON.
            NotAsked: it does anything else that RAS doesn't do.
        """
        greeting = self._say("CLIENT PROTOCOL 2")
        if not greeting.startswith("SERVER PROTOCOL "):
            raise NotAsked(f'what listens at {self.where} is no RAS: it said "{greeting[:80]}"')
        self.deadline = time.monotonic() + ANSWER_SECONDS
        try:
            for line in ("TIMEOUT 5", *(("SET FORMAT json",) if in_json else ())):
                if (reply := self._say(line)) != "OK":
                    refused = RasRefused if line.endswith("json") else NotAsked
                    raise refused(f'NCCL\'s RAS at {self.where} said "{reply[:80]}" to {line}')
            self.socket.sendall(b"VERBOSE STATUS\n")
            while self._receive():
                pass
        except TimeoutError:
            raise NotAsked(f"NCCL's RAS at {self.where} has not told all within {ANSWER_SECONDS:.0f} s") from None
        return bytes(self.buffer)

    def _say(self, line: str) -> str:
        """Send a line; return the line that it answers, without its end."""
        self.socket.sendall(line.encode() + b"\n")
        while b"\n" not in self.buffer and self._receive():
            pass
        reply, _, self.buffer = self.buffer.partition(b"\n")
        return masked(reply.rstrip(b"\r").decode("utf-8", "replace"))

    def _receive(self) -> bool:
        """Wait for more; return whether it came, and not the end.

        Raises:
            TimeoutError: nothing came in time.
            NotAsked: it never ends.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)
        piece = self.socket.recv(1 << 16)
        self.buffer += piece
        if len(self.buffer) > MAX_ANSWER_BYTES:
            raise NotAsked(f"what listens at {self.where} doesn't stop talking")
        return bool(piece)
