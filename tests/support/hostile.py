"""Hostile company for netcheck, as programs: `python tests/support/hostile.py guest CASE HOST PORT RANK`, `... hub CASE HOST PORT`.

The guest belongs to the job and goes in like any node; the hub is what listens on the master's port. Both then do harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
import zlib
from collections.abc import Awaitable, Callable

import msgspec

from ddpdoctor.base.findings import FAIL, Finding, Fix
from ddpdoctor.base.version import __version__
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.network import Interface, Network, Resolution
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.protocol.messages import (
    PROTOCOL,
    CheckVerdict,
    Count,
    Counted,
    Dial,
    Dialled,
    DialOutcome,
    Greeting,
    Hello,
    HostFacts,
    ListenAddress,
    Measure,
    Measured,
    NodeVerdict,
    NoVerdict,
    Open,
    Opened,
    Peer,
    Ping,
    Welcome,
    encode,
)
from ddpdoctor.network_check.protocol.peer_handshake import MEASURE, PeerHandshakeError, dial_peer
from ddpdoctor.network_check.protocol.tokens import proof
from tests.support.hub_clients import Client

NASTY = "$(touch /tmp/pwned);`touch /tmp/pwned`\n\x1b[2J\u202e'\""


VICTIM = "203.0.113.9"
"""A public address."""


def facts(address: str, name: str = "n3", interface: str = "eth0", more: tuple[str, ...] = ()) -> bytes:
    """more: addresses that it claims to have besides."""
    network = Network(
        hostname=name,
        fqdn=name,
        own_name=Resolution(name=name, addresses=(address,)),
        interfaces=(Interface(name=interface, addresses=(f"{address}/24", *more)),),
        default_interface=interface,
        interface_to_master=interface,
    )
    return zlib.compress(msgspec.json.encode(Snapshot(host=name, tool_version=__version__, network=network)))


class Guest:
    """Plays along, but for one thing."""

    def __init__(self, case: str, client: Client, own: str) -> None:
        self.case = case
        self.client = client
        self.own = own
        self.run = ""
        self.rank = 0

    async def go(self, rank: int) -> None:
        self.client.hello(token="", node_rank=rank, host=NASTY if self.case == "nasty" else "n3")
        welcome = await self.client.until(Welcome)
        self.run, self.rank = welcome.run, rank
        self.manifest()
        while True:
            message = await self.client.hear()
            self.client.answer_ping(message)
            if isinstance(message, (NodeVerdict, NoVerdict)):
                return
            if isinstance(message, Open):
                self.open()
            elif isinstance(message, Dial):
                await self.dial(message)
            elif isinstance(message, Count):
                self.count()
            elif isinstance(message, Measure):
                self.client.say(Measured(link=None))

    def manifest(self) -> None:
        packed = {
            "bomb": zlib.compress(bytes(100 << 20)),
            "nasty": facts(self.own, f"n3{NASTY}", f"eth0{NASTY}"),
            "foreign": facts(self.own, more=("10.77.0.12/24",)),
            "victim": facts(self.own, more=(f"{VICTIM}/1",)),
            "nonsense": zlib.compress(b'{"ddpdoctor_snapshot": 1, "network": {"type": "network", "interfaces": 7}}'),
        }.get(self.case) or facts(self.own)
        if self.case == "huge":
            self.client.writer.write(b'{"type":"hostfacts","snapshot":"' + b"A" * (8 << 20))
        else:
            self.client.say(HostFacts(snapshot=packed))

    def open(self) -> None:
        own = ListenAddress("route", self.own, (40001,))
        places = {
            "many": (own,) * 3000,
            "foreign": (ListenAddress("route", "10.77.0.12", (40022,)),),
            "victim": (own, ListenAddress("nccl", VICTIM, (40080,))),
            "loopback": (ListenAddress("route", "127.0.0.1", (40022,)),),
        }
        self.client.say(Opened(places=places.get(self.case, (own,))))

    async def dial(self, order: Dial) -> None:
        if self.case == "wrong":
            self.client.say(Counted(undelivered=1, untransmitted=1))
        elif self.case == "spray":
            await self.spray(order)
        self.client.say(
            Dialled(
                met=tuple(
                    DialOutcome(node=peer.node, kind=place.kind, cells="." * len(place.ports))
                    for peer in order.peers
                    for place in peer.places
                )
            )
        )

    def count(self) -> None:
        huge = 10**30 if self.case == "count" else 1
        self.client.writer.write(
            json.dumps({"type": "counted", "undelivered": huge, "untransmitted": 1}).encode() + b"\n"
        )

    async def spray(self, order: Dial) -> None:
        """All that strangers say, at every listener of the others; and a slow-loris that stays."""
        held = []
        for peer in order.peers:
            for place in peer.places:
                for port in place.ports:
                    for said in SAID:
                        held.append(await _say(place.address, port, said))
                    held += [await _say(place.address, port, b"{") for _ in range(20)]
                    try:
                        # It belongs to the run, and comes before its time.
                        found = await dial_peer(place.address, port, self.run, self.rank, MEASURE, 1.0)
                        found.writer.write(b"g" + struct.pack("!Q", 1 << 60))
                    except (OSError, PeerHandshakeError):
                        pass
        self.held = held


SAID = (
    b"",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    bytes.fromhex("16030100c8010000c40303") + bytes(189),
    b"SSH-2.0-x\r\n",
    bytes(range(256)),
    b"x" * 100_000,
    b'{"node":1,"purpose":"measure","nonce":"00"}\n{"proof":"00"}\n',
    b'{"node":1e999,"purpose":"reach","nonce":"00"}\n',
    b"[" * 5000 + b"\n",
)


async def _say(address: str, port: int, what: bytes) -> socket.socket:
    own = socket.socket()
    own.setblocking(False)
    try:
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(own, (address, port)), 2)
        own.send(what)
    except OSError:
        pass
    return own


async def peer(case: str, host: str, port: int, rank: int) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=8 << 20)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        break
    one = Client(reader, writer)
    one.greeting = msgspec.json.decode(await reader.readline(), type=Greeting)
    with contextlib.suppress(EOFError, OSError):
        await Guest(case, one, writer.get_extra_info("sockname")[0]).go(rank)


# --- the hub ----------------------------------------------------------------------------------------------------------

NOWHERE = Peer(0, "n1", (ListenAddress("route", "10.77.0.99", (40009,)),))
"""It takes a while to find that out."""
FIX = Fix("Run this", ("sudo touch /tmp/pwned",), appliable=True)
ENDS: dict[str, tuple[bytes, ...]] = {
    "at_once": (b'{"type":"dial","peers":[],"seconds":3,"at_once":0}\n',),
    "forever": (b'{"type":"collect","backend":"gloo","master":"x","port":1,"rank":0,"world_size":2,"seconds":1e9}\n',),
    "random": (bytes(range(128, 256)) + b"\n",),
    "huge": (b'{"type":"waiting","phase":"' + b"x" * (8 << 20),),
    "nested": (b'{"type":"waiting","phase":' + b"[" * 1_000_000 + b"\n",),
    "orders": (encode(Dial(peers=(NOWHERE,), seconds=5.0)) * 100,),
    "nasty": (encode(NoVerdict(why=NASTY * 100)),),
    "code": (b'{"type":"nodeverdict","results":[],"verdict":"ok","exit_code":99,"lines":[]}\n',),
    "part": (
        encode(
            NodeVerdict(
                results=(
                    CheckVerdict("flux-capacitor", (Finding(summary="Empty\n", severity=FAIL, fixes=(FIX,)),), None),
                ),
                verdict=Verdict.FAIL,
                exit_code=1,
                lines=(f"n9 {NASTY}",),
            )
        ),
    ),
}


async def hub(case: str, host: str, port: int) -> None:
    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(Greeting(ddpdoctor=__version__, protocol=PROTOCOL, nonce="00")))
        try:
            hello = msgspec.json.decode(await reader.readline(), type=Hello)
            shown = proof("", "hub", "00", hello.nonce)
            writer.write(encode(Welcome(node_rank=1, nnodes=2, run="00", proof=shown, wait=1.0)))
            await reader.readline()
            for line in ENDS[case]:
                writer.write(line)
            while True:
                writer.write(encode(Ping(number=1, sent=0.0)))
                await writer.drain()
                await asyncio.sleep(1)
        except (OSError, msgspec.MsgspecError):
            writer.close()

    server = await asyncio.start_server(attend, host, port, limit=8 << 20)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    who: Callable[..., Awaitable[None]]
    if sys.argv[1] == "guest":
        asyncio.run(peer(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
    else:
        asyncio.run(hub(sys.argv[2], sys.argv[3], int(sys.argv[4])))
