"""The subprocess that asks libnccl, with small libraries built by gcc: well-behaved, hanging, crashing, foreign."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.network import Interface, Network, Resolution
from ddpdoctor.probes import nccl
from ddpdoctor.probes.context import Context

FACTS = Network(
    hostname="n1",
    fqdn="n1",
    own_name=Resolution(name="n1", addresses=("127.0.1.1",)),
    interfaces=(
        Interface(name="lo", addresses=("127.0.0.1/8",), loopback=True),
        Interface(name="eth0", addresses=("10.0.0.1/24", "fd00::1/64")),
    ),
)

GOOD = r"""
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int ncclGetVersion(int *version) { *version = 22809; return 0; }
int ncclGetUniqueId(char *id) {
    memset(id, 0, 128);
    memcpy(id, "12345678", 8);
    struct sockaddr_in *address = (struct sockaddr_in *)(id + 8);
    address->sin_family = AF_INET;
    inet_pton(AF_INET, "10.0.0.1", &address->sin_addr);
    if (getenv("NCCL_DEBUG") && !getenv("NCCL_DEBUG_FILE")) printf("n1:7:7 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n");
    return 0;
}
"""
HANGS = "#include <unistd.h>\nint ncclGetVersion(int *v) { return 0; }\nint ncclGetUniqueId(char *id) { sleep(60); return 0; }\n"
CRASHES = "#include <stdlib.h>\nint ncclGetVersion(int *v) { return 0; }\nint ncclGetUniqueId(char *id) { abort(); }\n"
FOREIGN = "int something_else(void) { return 0; }\n"
REFUSES = "int ncclGetVersion(int *v) { *v = 22105; return 0; }\nint ncclGetUniqueId(char *id) { return 3; }\n"


def look(folder: Path, source: str, **environ: str) -> Nccl:
    """What the probe makes of a libnccl of that source."""
    (folder / "nccl.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libnccl.so.2", folder / "nccl.c"], check=True)
    return probed(LD_LIBRARY_PATH=str(folder), **environ)


def probed(**environ: str) -> Nccl:
    context = Context("python", environ=environ, root=Path("/nowhere"))
    context.answered_by(lambda group: FACTS if group == "network" else Unknown("not asked"))
    found = nccl.probe(context)
    assert isinstance(found, Nccl)
    return found


@pytest.mark.tool("gcc")
def test_a_library_that_answers(tmp_path: Path) -> None:
    found = look(tmp_path, GOOD, NCCL_DEBUG_FILE=str(tmp_path / "log"), PYTHONHOME="/nonsense")
    assert found.library == str(tmp_path / "libnccl.so.2")
    assert (found.version, found.answer_status) == ("2.28.9", 0)
    assert (found.answer_interface, found.answer_address) == ("eth0", "10.0.0.1")
    assert found.answer_log == "NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>"
    assert (found.predicted_interface, found.gloo_interface) == ("eth0", "lo")


@pytest.mark.tool("gcc")
def test_its_silence_is_made_up_for_by_the_address(tmp_path: Path) -> None:
    found = look(tmp_path, GOOD.replace("printf", "if (0) printf"))
    assert (found.answer_interface, found.answer_address, found.answer_log) == ("eth0", "10.0.0.1", "")


@pytest.mark.tool("gcc")
def test_a_library_that_refuses(tmp_path: Path) -> None:
    found = look(tmp_path, REFUSES)
    assert (found.version, found.answer_status, found.answer_interface) == ("2.21.5", 3, None)


@pytest.mark.parametrize(
    ("source", "reason"),
    [(HANGS, "no answer within"), (CRASHES, "died of SIGABRT"), (FOREIGN, "undefined symbol: ncclGetVersion")],
)
@pytest.mark.tool("gcc")
def test_a_sick_library_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str) -> None:
    monkeypatch.setattr(nccl, "SECONDS", 1.0)
    started = time.monotonic()
    found = look(tmp_path, source)
    assert time.monotonic() - started < 10
    assert isinstance(found.answer_status, Unknown)
    assert reason in found.answer_status.reason
    assert found.predicted_interface == "eth0"


def test_no_library_is_not_asked() -> None:
    found = probed()
    assert (found.library, found.version, found.answer_status) == (None, None, None)
    assert found.predicted_interface == "eth0"


@pytest.mark.parametrize(("number", "version"), [(22809, (2, 28, 9)), (21000, (2, 10, 0)), (2708, (2, 7, 8))])
def test_versions(number: int, version: tuple[int, ...]) -> None:
    assert nccl.version_tuple(number) == version


def test_an_ipv6_address_in_the_id() -> None:
    # Magic, then sockaddr_in6: family 10, port, flow label, address, scope.
    unique = bytes(8) + bytes.fromhex("0a00a1d600000000fd00000600000000000000000000000100000000") + bytes(92)
    assert nccl.address_in(unique) == "fd00:6::1"
