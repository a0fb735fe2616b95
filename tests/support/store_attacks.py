"""What another user of this host sends to what a training listens on: pickles in the place of all that lies in torch's stores,
and to multiprocessing's server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.namespaces import Host
from tests.support.other_users import User, python_for_all

SCRIPT = r"""
import base64, json, os, pickle, socket, struct, sys, time
from multiprocessing import reduction

MARKER, STOP = sys.argv[1:3]

class Runs:
    def __reduce__(self):
        return os.system, ("id -un >> " + MARKER,)

PICKLED = pickle.dumps(Runs())
WRITTEN = (base64.b64encode(PICKLED), PICKLED)
VALIDATE, SET, GETNUMKEYS, LIST_KEYS = 0, 1, 7, 17
HELLO = struct.pack("<BI", VALIDATE, 0x3C85F7CE)

def text(data):
    return struct.pack("<Q", len(data)) + data

def listening():
    # State 0A; without those of this test's own user.
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in open(file).readlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[7] == "0":
                address, _, port = words[1].rpartition(":")
                yield file[-1] == "6", address, int(port, 16)

def exactly(line, count):
    data = b""
    while len(data) < count:
        piece = line.recv(count - len(data))
        if not piece:
            raise OSError("closed")
        data += piece
    return data

def number(line):
    return struct.unpack("<Q", exactly(line, 8))[0]

def is_store(line):
    line.sendall(HELLO + struct.pack("<B", GETNUMKEYS))
    return number(line) < 1 << 20

def keys(line):
    line.sendall(struct.pack("<B", LIST_KEYS))
    return [exactly(line, number(line)) for _ in range(min(number(line), 1000))]

def attack(port, seen):
    with socket.create_connection(("127.0.0.1", port), 0.5) as line:
        line.settimeout(0.5)
        if not is_store(line):
            return
        seen.setdefault("stores", set()).add(port)
        found = keys(line)
        seen.setdefault("keys", set()).update(key.decode("ascii", "replace") for key in found)
        # First as torch's c10d rendezvous has it, which ends at what it can't decode.
        since = seen.setdefault("since", {}).setdefault(port, time.monotonic())
        value = WRITTEN[time.monotonic() > since + 2]
        for key in {*found, b"/torch.rendezvous.ddpdoctor"}:
            line.sendall(struct.pack("<B", SET) + text(key) + text(value))

def attack_server(name):
    # It forks, and the child loads what it finds in the first of the files.
    reading, writing = os.pipe()
    os.write(writing, PICKLED)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect("\0" + name)
        reduction.sendfds(line, [reading, writing, writing, writing])

def servers():
    for line in open("/proc/net/unix").readlines()[1:]:
        name = line.split()[7:]
        if name and name[0].startswith("@listener-"):
            yield name[0][1:]

before = {port for _, _, port in listening()}
seen = {}
print("ready", flush=True)
while not os.path.exists(STOP):
    for v6, address, port in set(listening()):
        if port not in before:
            seen.setdefault("listening", set()).add(address)
            try:
                attack(port, seen)
            except OSError:
                pass
    for name in set(servers()) - seen.setdefault("servers", set()):
        seen["servers"].add(name)
        try:
            attack_server(name)
        except OSError:
            pass
    time.sleep(0.05)
seen.pop("since", None)
print(json.dumps({name: sorted(values) for name, values in seen.items()}))
"""

NOTES = r"""
import os, sys, traceback

def note(event, arguments):
    if event != "pickle.find_class":
        return
    callers = [frame.filename for frame in traceback.extract_stack()]
    # What multiprocessing is given by its parent, over a pipe.
    if not any(name.endswith("multiprocessing/spawn.py") for name in callers):
        with open(os.environ["UNPICKLED"], "a") as file:
            file.write("%s.%s: %s\n" % (*arguments, callers[-2]))

sys.addaudithook(note)
"""


def noting_what_is_unpickled(environ: Mapping[str, str], folder: Path) -> tuple[dict[str, str], Callable[[], str]]:
    """Settings with which every Python notes each class or function that a pickle names in it, and what was noted so far."""
    (folder / "sitecustomize.py").write_text(NOTES)
    noted = folder / "unpickled"
    path = os.pathsep.join(filter(None, (str(folder), environ.get("PYTHONPATH"))))
    settings = {**environ, "PYTHONPATH": path, "UNPICKLED": str(noted)}
    own = "import pickle, types; pickle.loads(pickle.dumps(types.SimpleNamespace))"
    subprocess.run([sys.executable, "-c", own], env=settings, check=True)
    assert noted.read_text().startswith("types.SimpleNamespace: ")
    noted.write_text("")
    return settings, noted.read_text


class Seen(NamedTuple):
    """What she found. listening: the addresses, in the kernel's own hexadecimal, on which root's processes newly listened.
    stores: ports at which a TCPStore answered her. keys: what lay there. servers: of multiprocessing, where all reach them. ran:
    what her pickles wrote."""

    listening: frozenset[str] = frozenset()
    stores: frozenset[int] = frozenset()
    keys: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    ran: str = ""


class Attack:
    """seen: once it is over."""

    seen = Seen()


@contextmanager
def attacked_by(eve: User, shared: Path, host: Host) -> Iterator[Attack]:
    """She attacks every store of root's that opens on that host meanwhile: not those of other tests. shared: a folder that she may
    write to."""
    python, settings = python_for_all()
    marker, stop = shared / "ran", shared / "stop"
    found = Attack()
    as_her = ["setpriv", f"--reuid={eve.uid}", f"--regid={eve.gid}", "--clear-groups"]
    process = subprocess.Popen(
        host.command(*as_her, python, "-c", SCRIPT, str(marker), str(stop)),
        cwd="/",
        env={"PATH": os.defpath, **settings},
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "ready\n"
        try:
            yield found
        finally:
            stop.touch()
        told = {name: frozenset(values) for name, values in json.loads(process.stdout.readline()).items()}
    found.seen = Seen(ran=marker.read_text() if marker.exists() else "", **told)
