"""netcheck on hosts that differ: versions, settings, clocks, ranks; and nodes that never come, or die."""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
import subprocess
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.namespaces import Host, network
from tests.support.netcheck_hosts import MASTER, NAMED_WITHIN, Ran, carry_out, netcheck, start
from tests.support.pythons import bare_venv
from tests.support.waiting import slowdown

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare", "gcc")]

DEADLINE = 40
PAIR = ("--nnodes", "2")


@pytest.fixture(scope="module")
def trio() -> Iterator[list[Host]]:
    with network("n1", "n2", "n3") as hosts:
        yield hosts


def end_all(*runs: tuple[Host, Sequence[str]], quick: Sequence[str] = ("--json", "--quick")) -> list[Ran]:
    """netcheck with those arguments on each of those hosts, all at once."""
    running = [start(host, *quick, *arguments) for host, arguments in runs]
    return [one.end(DEADLINE) for one in running]


def at_master(*more: str) -> tuple[str, ...]:
    return ("--master-addr", MASTER, *more)


def as_printed(command: str) -> list[str]:
    """The arguments of a printed `ddpdoctor netcheck` command."""
    words = shlex.split(command)
    assert words[:2] == ["ddpdoctor", "netcheck"]
    return words[2:]


def named(ran: Ran, slug: str, *nodes: str) -> None:
    """Node 0 has found that and nothing else, on these nodes, in time."""
    assert (ran.slugs, sorted(ran.nodes(slug))) == ({slug}, list(nodes)), ran.stdout
    assert ran.report["seconds"] < NAMED_WITHIN


def passed(*all_ran: Ran) -> None:
    assert [(run.code, run.slugs) for run in all_ran] == [(0, set())] * len(all_ran), [run.stdout for run in all_ran]


# --- versions -----------------------------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> None:
    """A wheel that pip installs."""
    info = f"{name}-{version}.dist-info"
    texts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, text in texts.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text.encode())}")
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        for path, text in texts.items():
            made.writestr(path, text)
        made.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]) + "\n")


def torch_wheel(folder: Path, version: str) -> None:
    text = f"__version__ = {version!r}\ncuda = None\nhip = None\n"
    wheel(folder, "torch", version, {"torch/__init__.py": "", "torch/version.py": text})


class Environments:
    """One environment a node, each with pip, and a folder of wheels that pip finds in place of any index."""

    def __init__(self, folder: Path) -> None:
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.environ = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        self._folder = folder

    def make(self, name: str, *packages: str) -> str:
        """An environment with those packages; gives its Python."""
        folder = self._folder / name
        python = bare_venv(folder)
        site = next((folder / "lib").glob("python*/site-packages"))
        # Not `import pip`: it turns off setuptools' distutils for the rest of the process, and with it the import of torch's.
        for found in Path(sysconfig.get_paths()["purelib"]).glob("pip*"):
            (site / found.name).symlink_to(found)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", *packages],
            env=os.environ | self.environ,
            check=True,
            timeout=DEADLINE,
        )
        return python


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    made = Environments(tmp_path_factory.mktemp("environments"))
    for version in ("2.13.0+cpu", "2.1.2+cpu"):
        torch_wheel(made.wheels, version)
    for version in ("2.28.9", "2.27.7"):
        wheel(made.wheels, "nvidia_nccl_cu13", version, {"nvidia/nccl/note.txt": version})
    return made


def with_pythons(hosts: Sequence[Host], pythons: Sequence[str]) -> list[Ran]:
    runs = [
        (host, at_master(*PAIR, "--node-rank", str(rank), "--python", python))
        for rank, (host, python) in enumerate(zip(hosts, pythons, strict=True))
    ]
    return end_all(*runs)


def mend(ran: Ran, slug: str, host: Host, environments: Environments) -> None:
    """Carries out the first fix, word for word."""
    commands = ran.findings(slug)[0]["fixes"][0]["commands"]
    for command in commands:
        host.run("sh", "-c", command, environ=os.environ | environments.environ, seconds=DEADLINE)


def test_another_torch_on_one_node(trio: list[Host], environments: Environments) -> None:
    pair = trio[:2]
    pythons = [environments.make("a1", "torch==2.13.0"), environments.make("a2", "torch==2.1.2")]
    first, second = with_pythons(pair, pythons)
    assert (first.code, second.code) == (1, 1)
    named(first, "torch-version-mismatch", "n2")
    assert second.slugs == {"torch-version-mismatch"}
    assert first.findings("torch-version-mismatch")[0]["summary"] == "n2 has torch 2.1.2+cpu, n1 2.13.0+cpu"
    mend(second, "torch-version-mismatch", pair[1], environments)
    passed(*with_pythons(pair, pythons))


def test_another_nccl_on_one_node(trio: list[Host], environments: Environments) -> None:
    pair = trio[:2]
    pythons = [environments.make("b1", "nvidia-nccl-cu13==2.28.9"), environments.make("b2", "nvidia-nccl-cu13==2.27.7")]
    first, second = with_pythons(pair, pythons)
    assert (first.code, second.code) == (1, 1)
    named(first, "nccl-version-mismatch", "n2")
    assert "2.27.7" in first.findings("nccl-version-mismatch")[0]["summary"]
    mend(second, "nccl-version-mismatch", pair[1], environments)
    passed(*with_pythons(pair, pythons))


# --- settings ------------------------------------------------------------------------------------------------------------


def after(commands: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of a shell that had those, once it has carried out the commands."""
    script = "\n".join([*commands, "env -0"])
    done = subprocess.run(["sh", "-ec", script], env=dict(environ), capture_output=True, check=True)
    return dict(
        part.split("=", 1) for part in done.stdout.decode().split("\0") if "=" in part and not part.startswith("PWD=")
    )


def test_each_node_is_told_in_which_settings_it_differs(trio: list[Host], tmp_path: Path) -> None:
    """One has a file of NCCL's, one lacks what two have, one has what no other has. On CPU nodes nothing reads NCCL's."""
    file = tmp_path / "nccl.conf"
    file.write_text("# ours\nNCCL_PROTO=LL\nNCCL_DEBUG=WARN\n")
    having = {"NCCL_ALGO": "Ring", "NCCL_NET": "IB"}
    each = {
        "n1": having | {"NCCL_CONF_FILE": str(file)},
        "n2": {},
        "n3": having | {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    }
    all_ran = netcheck(trio, each=each)
    assert {run.code for run in all_ran} == {1}
    assert [run.slugs for run in all_ran] == [{"env-not-propagated"}] * 3
    named(all_ran[0], "env-not-propagated", "n1", "n2", "n3")
    assert [len(run.findings("env-not-propagated")) for run in all_ran] == [3, 1, 1]
    own = {finding["node"]: finding for finding in all_ran[0].findings("env-not-propagated")}
    assert {name: one["severity"] for name, one in own.items()} == {"n1": "warn", "n2": "warn", "n3": "fail"}
    first, second, third = (own[host.hostname]["fixes"][0]["commands"] for host in trio)
    assert second == ["export NCCL_ALGO=Ring", "export NCCL_NET=IB"]
    assert third == ["unset TORCH_DISTRIBUTED_DEBUG"]
    carry_out(trio[0], first, tmp_path)
    assert file.read_text() == "# ours\nNCCL_DEBUG=WARN\n"
    passed(*netcheck(trio, each=each | {"n2": after(second, {}), "n3": after(third, each["n3"])}))


# --- clocks --------------------------------------------------------------------------------------------------------------

CLOCK = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long ahead(void) { const char *text = getenv("TEST_CLOCK_AHEAD"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (status == 0 && clock == CLOCK_REALTIME) now->tv_sec += ahead();
    return status;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where) *where = exact.tv_sec;
    return exact.tv_sec;
}
"""


@pytest.fixture(scope="module")
def other_clock(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that puts a process's wall clock TEST_CLOCK_AHEAD seconds ahead; its monotonic one stays."""
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "clock.so", folder / "clock.c"], check=True)
    return str(folder / "clock.so")


@pytest.mark.parametrize(
    ("ahead", "summary", "job", "code"),
    [
        ("4", "n2's clock is 4.0 s ahead of that of the other nodes", {}, 0),
        ("-40", "n2's clock is 40.0 s behind that of the other nodes", {"PET_RDZV_BACKEND": "c10d"}, 1),
    ],
)
def test_a_clock_that_is_off(
    trio: list[Host], other_clock: str, ahead: str, summary: str, job: dict[str, str], code: int
) -> None:
    each = {"n2": {"LD_PRELOAD": other_clock, "TEST_CLOCK_AHEAD": ahead}}
    all_ran = netcheck(trio, environ=job, each=each)
    assert [run.code for run in all_ran] == [code] * 3, all_ran[0].stdout
    named(all_ran[0], "clock-skew", "n2")
    assert all_ran[1].nodes("clock-skew") == ["n2"]
    assert all_ran[0].findings("clock-skew")[0]["summary"] == summary
    if code:
        passed(*netcheck(trio, environ=job))


# --- who comes -------------------------------------------------------------------------------------------------------------


def again(first: Ran, slug: str, n1: Host, other: Host) -> None:
    """Node 0 once more, and on the other host what node 0 printed for it, word for word."""
    printed = first.findings(slug)[0]["fixes"][0]["commands"][0]
    passed(*end_all((n1, at_master(*PAIR, "--node-rank", "0")), (other, as_printed(printed))))


def came_as(trio: Sequence[Host], *arguments: str) -> tuple[Ran, Ran]:
    """n1 as node 0 of two, and n2 with those arguments."""
    wait = ("--wait", f"{4 * slowdown():.0f}")
    first, second = end_all(
        (trio[0], at_master(*PAIR, "--node-rank", "0", *wait)), (trio[1], at_master(*arguments, *wait))
    )
    return first, second


@pytest.mark.parametrize(
    ("arguments", "slug", "summary"),
    [
        ((*PAIR, "--node-rank", "0"), "duplicate-rank", "n2 (10.77.0.12) says node rank 0, which n1 has already"),
        (
            ("--nnodes", "3", "--node-rank", "1"),
            "rdzv-missing-node",
            "n2 (10.77.0.12) was told that the job has 3 nodes, node 0 that it has 2",
        ),
    ],
    ids=["both-rank-0", "other-nnodes"],
)
def test_a_node_that_says_what_cannot_be(trio: list[Host], arguments: tuple[str, ...], slug: str, summary: str) -> None:
    first, second = came_as(trio, *arguments)
    assert (first.code, second.code) == (1, 1), (first.stdout, second.stdout)
    named(first, slug, "n1")
    assert second.slugs == {slug}
    assert first.findings(slug)[0]["summary"] == summary
    assert "doesn't let this node in" in second.findings(slug)[0]["summary"]
    again(first, slug, trio[0], trio[1])


def test_a_rank_out_of_range(trio: list[Host]) -> None:
    """Node 0 waits for it, so it is node 0 that says why it can't be the one, and all end alike."""
    slug = "duplicate-rank"
    first, second = came_as(trio, *PAIR, "--node-rank", "2")
    assert (first.code, second.code) == (1, 1)
    named(first, slug, "n1")
    assert "says node rank 2, and 2 nodes have ranks 0 to 1" in first.findings(slug)[0]["summary"]
    assert "node rank 2 is out of range" in second.findings(slug)[0]["summary"]
    again(first, slug, trio[0], trio[1])


def test_a_node_that_never_arrives(trio: list[Host]) -> None:
    (first,) = end_all((trio[0], at_master(*PAIR, "--node-rank", "0", "--wait", "2")))
    assert first.code == 1
    named(first, "rdzv-missing-node", "n1")
    assert first.findings("rdzv-missing-node")[0]["summary"] == "node 1 didn't come: 1 of 2 nodes are here"
    again(first, "rdzv-missing-node", trio[0], trio[1])


def test_a_node_that_dies_after_it_joined(trio: list[Host]) -> None:
    """n2 is killed while n3 is waited for, which then comes: the others go on, and n2 is named."""
    arguments = at_master("--nnodes", "3")
    first = start(trio[0], "--json", "--quick", *arguments, "--node-rank", "0", "--wait", "12")
    second = start(trio[1], "--json", "--quick", *arguments, "--node-rank", "1")
    second.wait_for_line("Joined")
    second.process.kill()
    second.process.communicate()
    third = start(trio[2], "--json", "--quick", *arguments, "--node-rank", "2")
    ran, other = first.end(DEADLINE), third.end(DEADLINE)
    assert (ran.code, other.code) == (1, 1), ran.stdout
    named(ran, "rdzv-missing-node", "n1")
    assert other.slugs == set()
    summary = ran.findings("rdzv-missing-node")[0]["summary"]
    assert summary.startswith("n2 was lost during join"), summary
    assert "join" in summary
