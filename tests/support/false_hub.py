"""What listens on the master's port before node 0 does: `python tests/support/false_hub.py HOST PORT < ORDERS`, a JSON line each.

It lets in whoever comes, as a node of any job without a token, has it carry out the orders, prints each answer as a line, and
ends with a verdict of its own.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from ddpdoctor.base.version import __version__
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.network_check.protocol.messages import PROTOCOL, Greeting, Hello, NodeVerdict, Ping, Welcome, encode
from ddpdoctor.network_check.protocol.tokens import proof

RUN = "00" * 16
UNASKED = ("pong", "hostfacts")


async def command(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, orders: list[bytes]) -> None:
    writer.write(encode(Greeting(ddpdoctor=__version__, protocol=PROTOCOL, nonce="00")))
    hello = msgspec.json.decode(await reader.readline(), type=Hello)
    shown = proof("", "hub", "00", hello.nonce)
    writer.write(
        encode(Welcome(node_rank=hello.node_rank or 1, nnodes=hello.nnodes or 2, run=RUN, proof=shown, wait=1.0))
    )
    print((await reader.readline())[:40], flush=True)  # The facts of its host.
    pinging = asyncio.ensure_future(ping(writer))
    for order in orders:
        writer.write(order + b"\n")
        while (answer := await reader.readline()) and msgspec.json.decode(answer)["type"] in UNASKED:
            pass
        print(answer.decode().strip(), flush=True)
    writer.write(encode(NodeVerdict(results=(), verdict=Verdict.OK, exit_code=0, lines=())))
    pinging.cancel()
    writer.write_eof()


async def ping(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(encode(Ping(number=1, sent=0.0)))
        await asyncio.sleep(1)


async def main(host: str, port: int) -> None:
    orders = sys.stdin.buffer.read().splitlines()
    over = asyncio.Event()
    orders_given: list[bool] = []

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if orders_given:
            writer.close()  # A rank of torch's, which looks for its store.
            return
        orders_given.append(True)
        try:
            await command(reader, writer, orders)
        finally:
            over.set()

    async with await asyncio.start_server(attend, host, port, limit=8 << 20):
        print("listening", flush=True)
        await over.wait()
        await asyncio.sleep(2)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
