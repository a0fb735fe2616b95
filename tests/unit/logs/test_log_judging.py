"""What is told of a log: findings from pages and lines, the commands that decide, and suspicions held against a host's facts."""

from __future__ import annotations

from datetime import datetime, timezone

import msgspec
import pytest

from ddpdoctor.base.findings import FAIL, INFO, WARN, Finding
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.cgroup import Cgroup
from ddpdoctor.facts.disks import Disks
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.kernel_log import KernelLine, KernelLog
from ddpdoctor.facts.log import Log, LogFile, LogFrame, LoggedException, LogLine, SignMatch
from ddpdoctor.facts.network import Listener, Network, Resolution
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.logs.analyze.deciding_commands import deciding, endpoint
from ddpdoctor.logs.analyze.kernel_kills import of_this_log
from ddpdoctor.logs.analyze.settings import MEETING, settings_of
from ddpdoctor.logs.analyze.verdict import verdict_of
from ddpdoctor.logs.diagnosis import HostVerdict, judge_log, other_than_named
from ddpdoctor.logs.parse.timestamps import NO_YEAR
from tests.log_corpus import LOGS
from tests.support.fixture_hosts import healthy_facts, to_snapshot
from tests.support.logs_by_hand import exited, line, log, read, seen

MIB = 1 << 20
SHM = (
    "RuntimeError: unable to open shared memory object </torch_4242_1> in read-write mode: No space left on device (28)"
)


def shm_log(host: str = "", *others: str) -> Log:
    """One rank says that it lacks shared memory; others: more hosts that the log names."""
    said = seen("shm-too-small", text=SHM, rank=3, host=host)
    return log(said, hosts=tuple(filter(None, (host, *others))))


def with_shm(size: int, host: str = "node7") -> Snapshot:
    """A host with that much shared memory, and eight ranks to be."""
    shared = SharedMemory(size=size, free=size)
    return Snapshot(host=host, shared_memory=shared, disks=Disks(folders=()))


def test_a_finding_is_made_of_the_page_and_the_lines() -> None:
    (opinion,) = judge_log(shm_log("node7"), catalogue()).opinions
    page = catalogue().get("shm-too-small")
    assert page is not None
    assert page.title.rstrip(".") in opinion.finding.summary
    assert "says rank 3 on node7" in opinion.finding.summary
    assert opinion.finding.rank == 3
    assert [one.text for one in opinion.finding.evidence] == [SHM]
    assert opinion.finding.evidence[0].source == "run.log:1, rank 3, node7"
    assert opinion.finding.fixes[-1].commands == ("ddpdoctor check --select shm-too-small",)
    assert "on node7" in opinion.finding.fixes[-1].text


def test_severities_and_the_word_of_the_whole() -> None:
    judged = judge_log(
        log(seen("shm-too-small", number=50), seen("disk-full", number=9000), seen("omp-threads", number=1)),
        catalogue(),
    )
    severities = {check.slug: severity for check, severity, _ in judged.examination.findings}
    assert judged.word is Verdict.FAIL
    assert severities["shm-too-small"] is FAIL
    assert severities["omp-threads"] is INFO
    hints = judge_log(
        log(seen("disk-full", role=SignRole.HINTS), seen("shm-too-small", role=SignRole.HINTS)), catalogue()
    )
    assert [severity for _, severity, _ in hints.examination.findings] == [FAIL, WARN]
    assert judge_log(Log(), catalogue()).word is Verdict.OK


def test_secrets_do_not_get_through() -> None:
    said = seen("shm-too-small", text=f"{SHM} HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123")
    (opinion,) = judge_log(log(said), catalogue()).opinions
    assert "hf_abc" not in str(opinion)


def test_what_the_log_names_is_told() -> None:
    """A page alone knows no port."""
    (opinion,) = judge_log(read((LOGS / "port-in-use" / "sick-mpirun.log").read_text()), catalogue()).opinions
    assert "What the log names: port 29500" in [one.text for one in opinion.finding.evidence]
    some = [
        msgspec.structs.replace(
            seen("port-in-use", rank=rank), words={"port": str(29500 + rank), "host": f"node{rank}"}
        )
        for rank in range(2)
    ]
    (opinion,) = judge_log(log(*some), catalogue()).opinions
    assert opinion.finding.evidence[-1].text == "What the log names: port 29500 and 29501, host node0 and node1"
    said = msgspec.structs.replace(some[0], words={"host": "https://ada:hf_abcdefghijklmnopqrstuvwxyz0123@node0"})
    assert "hf_abc" not in str(judge_log(log(said), catalogue()))


def test_the_checkpoint_is_the_one_that_the_script_loads() -> None:
    log_of_it = (LOGS / "ckpt-truncated" / "sick-central-directory-4-ranks.log").read_text()
    (opinion, *_) = judge_log(read(log_of_it), catalogue()).opinions
    command = "ddpdoctor check --checkpoint {} --select ckpt-truncated"
    assert opinion.finding.fixes[-1].commands == (command.format("checkpoints/last.pt"),)
    unnamed = judge_log(read(log_of_it.replace('"checkpoints/last.pt"', "path")), catalogue()).opinions[0]
    assert unnamed.finding.fixes[-1].commands == (command.format("FILE"),)


def test_a_small_shm_confirms() -> None:
    judged = judge_log(shm_log("node7"), catalogue(), with_shm(64 * MIB))
    (opinion,) = judged.opinions
    assert opinion.held is not None
    assert opinion.held.standing is HostVerdict.CONFIRMED
    assert "64 MiB" in opinion.held.words
    assert "and so does node7" in opinion.held.words
    assert "64 MiB" in opinion.finding.summary
    assert opinion.finding.evidence[0].text == SHM


def test_enough_shm_now_leaves_it_open() -> None:
    (there,) = judge_log(shm_log("node7.cluster"), catalogue(), with_shm(1 << 40)).opinions
    assert there.held is not None
    assert there.held.standing is HostVerdict.NOT_CONFIRMED
    assert "node7 shows no sign of it now" in there.held.words
    (elsewhere,) = judge_log(shm_log("node2"), catalogue(), with_shm(1 << 40)).opinions
    assert elsewhere.held is not None
    assert elsewhere.held.standing is HostVerdict.NOT_TESTED
    assert "node2" in elsewhere.held.words
    (one_of_them,) = judge_log(shm_log("", "node7", "node8"), catalogue(), with_shm(1 << 40)).opinions
    assert one_of_them.held is not None
    assert one_of_them.held.standing is HostVerdict.NOT_TESTED


@pytest.mark.parametrize(
    ("folder", "standing"),
    [
        ("/opt/conda/envs/train/lib/python3.11/site-packages", HostVerdict.CONTRADICTED),
        ("/home/ada/other/lib/python3.11/site-packages", HostVerdict.NOT_CONFIRMED),
    ],
)
def test_only_what_is_installed_where_the_log_comes_from_contradicts(folder: str, standing: HostVerdict) -> None:
    text = (
        f'Traceback (most recent call last):\n  File "{folder}/torchvision/_meta_registrations.py", line 163, in <module>\n'
        "    x = 1\nRuntimeError: operator torchvision::nms does not exist\n"
    )
    (opinion,) = judge_log(read(text), catalogue(), to_snapshot(healthy_facts("h100x8-bare-metal"))).opinions
    assert opinion.suspect.slug == "torch-torchvision-mismatch"
    assert opinion.held is not None
    assert opinion.held.standing is standing


def test_what_the_facts_contradict_comes_last() -> None:
    unfit = seen("torch-torchvision-mismatch", role=SignRole.HINTS, sign="a sign that is longer than that of the other")
    frame = LogFrame(
        path="/opt/conda/envs/train/lib/python3.11/site-packages/torchvision/__init__.py", line=1, function="<module>"
    )
    through = LoggedException(exception="RuntimeError", message="", line=unfit.line, began=unfit.line, frames=(frame,))
    both = log(unfit, seen("shm-too-small", role=SignRole.HINTS), through)
    before = [opinion.suspect.slug for opinion in judge_log(both, catalogue()).opinions]
    after = [
        opinion.suspect.slug
        for opinion in judge_log(both, catalogue(), to_snapshot(healthy_facts("h100x8-bare-metal"))).opinions
    ]
    assert before == ["torch-torchvision-mismatch", "shm-too-small"]
    assert after == before[::-1]


@pytest.mark.parametrize(
    ("slug", "text"),
    [
        ("torch-cpu-only", "AssertionError: Torch not compiled with CUDA enabled"),
        ("nccl-not-built", "RuntimeError: Distributed package doesn't have NCCL built in"),
    ],
)
def test_a_script_that_asked_for_gpus_in_vain_confirms_a_build_for_the_cpu(slug: str, text: str) -> None:
    """Where no GPU is, that build alone is no illness."""
    host = to_snapshot(healthy_facts("cloud-cpu"))
    said = read(f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n{text}\n')
    (opinion,) = judge_log(said, catalogue(), host).opinions
    assert opinion.suspect.slug == slug
    assert opinion.held is not None
    assert opinion.held.standing is HostVerdict.CONFIRMED
    assert "install --force-reinstall torch" in str([fix.commands for fix in opinion.finding.fixes])
    assert not any("/whl/cpu" in command for fix in opinion.finding.fixes for command in fix.commands)


PORT_TAKEN = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29655, useIpv6: false, code: -98, name: EADDRINUSE"


NO_OTHER = dict.fromkeys(MEETING, "")
"""A log that names a meeting place names all of it."""


def looked_at_with(found: Log, environ: dict[str, str]) -> dict[str, str]:
    return settings_of(verdict_of(found, catalogue()).suspects, environ, catalogue())


def test_the_port_that_the_log_names_is_looked_at_and_not_the_shells() -> None:
    taken = read(f"{PORT_TAKEN}, message: address already in use\n")
    assert looked_at_with(taken, {}) == NO_OTHER | {"MASTER_PORT": "29655"}
    assert looked_at_with(taken, {"MASTER_ADDR": "10.9.8.7", "MASTER_PORT": "1234"}) == looked_at_with(taken, {})
    assert looked_at_with(taken, {"PET_RDZV_ENDPOINT": "node0:29400"}) == looked_at_with(taken, {})
    assert looked_at_with(taken, {"MASTER_ADDR": "node0", "MASTER_PORT": "29655"}) == {}, (
        "the shell says the same, and more"
    )
    assert looked_at_with(taken, {"PET_RDZV_ENDPOINT": "node0:29655"}) == {}
    assert looked_at_with(shm_log(), {}) == {}
    (opinion,) = judge_log(taken, catalogue()).opinions
    assert opinion.finding.fixes[0].commands == ("MASTER_PORT=29655 ddpdoctor check --select port-in-use",)
    met = "[c10d] The client socket has timed out after 6000ms while trying to connect to (node0, 29783)."
    assert looked_at_with(read(f"{met}\n"), {"MASTER_PORT": "29783"}) == NO_OTHER | {
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29783",
    }
    older = "The server socket has failed to bind to [::]:29655 (errno: 98 - Address already in use)."
    assert looked_at_with(read(f"RuntimeError: {older}\n"), {}) == NO_OTHER | {"MASTER_PORT": "29655"}
    gloo = "RuntimeError: [enforce fail at /gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: eth7"
    assert looked_at_with(read(f"{gloo}\n"), {"GLOO_SOCKET_IFNAME": "eth0"}) == {"GLOO_SOCKET_IFNAME": "eth7"}


def host_with_port(port: int, *, taken: bool, environ: dict[str, str]) -> Snapshot:
    """A host of whose ports the shell's was looked at."""
    facts = healthy_facts("h100x8-bare-metal")
    host = to_snapshot(facts)
    assert isinstance(host.network, Network)
    network = msgspec.structs.replace(
        host.network,
        wanted_ports=(29400, 29500, port),
        taken_ports=(port,) if taken else (),
        listeners=(Listener(address="0.0.0.0", port=port, pid=7, process="python", user="ada"),) if taken else (),
    )
    settings = tuple(Setting(name, value) for name, value in environ.items())
    return msgspec.structs.replace(host, network=network, environment=Environment(settings=settings))


@pytest.mark.parametrize(
    ("port", "taken", "standing", "words"),
    [
        (
            1234,
            True,
            HostVerdict.NOT_TESTED,
            "port 29655, which the log names, wasn't looked at; only 29400, 29500 and 1234",
        ),
        (1234, False, HostVerdict.NOT_TESTED, "wasn't looked at"),
        (29655, True, HostVerdict.CONFIRMED, "Port 29655"),
        (29655, False, HostVerdict.NOT_CONFIRMED, "port 29655 is free there now"),
    ],
)
def test_only_a_look_at_the_port_that_the_log_names_confirms(
    port: int, taken: bool, standing: HostVerdict, words: str
) -> None:
    host = host_with_port(port, taken=taken, environ={"MASTER_ADDR": "10.9.8.7", "MASTER_PORT": "1234"})
    (opinion,) = judge_log(read(f"{PORT_TAKEN}, message: address already in use\n"), catalogue(), host).opinions
    assert opinion.held is not None
    assert opinion.held.standing is standing, opinion.held.words
    assert words in opinion.held.words


def test_what_another_master_leads_to_says_nothing_of_the_logs() -> None:
    host = host_with_port(1234, taken=False, environ={"MASTER_ADDR": "nowhere", "MASTER_PORT": "1234"})
    assert isinstance(host.network, Network)
    network = msgspec.structs.replace(host.network, master=Resolution(name="nowhere", error="Name not known"))
    said = read(
        "[W socket.cpp:1] [c10d] The IPv4 network addresses of (node0, 29655) cannot be retrieved (gai error: -2 - Name).\n"
        "RuntimeError: The client socket has timed out after 6000ms while trying to connect to (node0, 29655).\n"
    )
    opinions = judge_log(said, catalogue(), msgspec.structs.replace(host, network=network)).opinions
    held = {opinion.suspect.slug: opinion.held for opinion in opinions}["master-addr-unresolvable"]
    assert held is not None
    assert held.standing is HostVerdict.NOT_TESTED
    assert "node0, which the log names, wasn't looked at" in held.words


@pytest.mark.parametrize(
    ("slug", "named", "shown", "other"),
    [
        ("xid-error", {"gpu": "PCI:0000:3b:00"}, "Xid 79 of GPU 3 (00000000:5E:00.0)", "PCI:0000:3b:00"),
        ("xid-error", {"gpu": "PCI:0000:3b:00"}, "Xid 79 of GPU 1 (00000000:3B:00.0)", ""),
        ("xid-error", {"gpu": "PCI:0000:3b:00"}, "Xid 79 of GPU 1", ""),
        ("gpu-arch-unsupported", {"arch": "sm_120"}, "GPU 0 is sm_61, torch has sm_75 to sm_90", "sm_120"),
        ("gpu-arch-unsupported", {"arch": "sm_61"}, "GPU 0 is sm_61, torch has sm_75 to sm_90", ""),
        ("ib-link-error", {"device": "mlx5_0"}, "mlx5_3, port 1 lost its link 12 times", "mlx5_0"),
        ("setting-invalid", {"name": "NCCL_DEBUG"}, "TORCH_DISTRIBUTED_DEBUG=LOUD isn't one", "NCCL_DEBUG"),
        ("glibcxx-too-old", {"wanted": "GLIBCXX_3.4.32"}, "lacks GLIBCXX_3.4.30", "GLIBCXX_3.4.32"),
    ],
)
def test_a_finding_of_another_object_of_that_kind_is_known(
    slug: str, named: dict[str, str], shown: str, other: str
) -> None:
    assert other_than_named(Finding(summary=shown), [msgspec.structs.replace(seen(slug), words=named)]) == other


def test_a_setting_of_the_shell_confirms_no_other_one() -> None:
    host = msgspec.structs.replace(
        to_snapshot(healthy_facts("cloud-cpu")),
        environment=Environment(settings=(Setting("TORCH_DISTRIBUTED_DEBUG", "LOUD"),)),
    )
    (opinion,) = judge_log(
        read("RuntimeError: Invalid value for environment variable: TORCH_NCCL_ENABLE_MONITORING\n"), catalogue(), host
    ).opinions
    assert opinion.held is not None
    assert opinion.held.standing is HostVerdict.NOT_TESTED
    assert "the log speaks of TORCH_NCCL_ENABLE_MONITORING" in opinion.held.words


def test_found_on_another_host_is_not_confirmed() -> None:
    (opinion,) = judge_log(shm_log("node2"), catalogue(), with_shm(64 * MIB)).opinions
    assert opinion.held is not None
    assert opinion.held.standing is HostVerdict.NOT_TESTED
    assert "node7 has it too" in opinion.held.words


NOON = 1_780_000_000.0


@pytest.mark.parametrize(
    ("pid", "time", "age", "standing"),
    [
        (12003, None, 2880.0, HostVerdict.CONFIRMED),
        (4711, None, 15.0, HostVerdict.NOT_TESTED),
        (0, NOON - 10, 15.0, HostVerdict.CONFIRMED),
        (0, NOON - 10, 2880.0, HostVerdict.NOT_TESTED),
        (0, None, 15.0, HostVerdict.NOT_TESTED),
        (0, NOON - 10, -1.0, HostVerdict.NOT_TESTED),
    ],
)
def test_a_kill_confirms_only_the_same_process_or_one_of_that_time(
    pid: int, time: float | None, age: float, standing: HostVerdict
) -> None:
    text = "Out of memory: Killed process 12003 (python) total-vm:1334636kB"
    taken = datetime.fromtimestamp(NOON, timezone.utc).isoformat(timespec="seconds")
    host = Snapshot(
        host="node7",
        taken_at=taken,
        kernel_log=KernelLog(lines=(KernelLine(text=text, age=age),)),
        cgroup=Cgroup(version=2, memory_limit=1 << 34, oom_kills=1),
    )
    ended = log(
        seen("host-oom-killed", role=SignRole.HINTS, number=900, time=time),
        exited(3, -9, number=900, first=True, pid=pid),
    )
    (opinion,) = judge_log(ended, catalogue(), host).opinions
    assert opinion.held is not None
    assert opinion.held.standing is standing
    assert "The kernel killed " in opinion.held.words
    (during_the_run,) = judge_log(ended, catalogue(), host, watched=True).opinions
    assert during_the_run.held is not None
    assert during_the_run.held.standing is HostVerdict.CONFIRMED, "the container's own counter tells as much"


@pytest.mark.parametrize(
    ("words", "confirmed"),
    [
        ("run.sh: line 3: 12003 Killed                  python train.py", True),
        ("run.sh: line 3: 12004 Killed                  python train.py", False),
    ],
)
def test_the_process_is_the_one_that_the_words_name(words: str, confirmed: bool) -> None:
    text = "Out of memory: Killed process 12003 (python) total-vm:1334636kB"
    host = Snapshot(host="", kernel_log=KernelLog(lines=(KernelLine(text=text, age=2.0),)), cgroup=Cgroup(version=2))
    opinions = {
        opinion.suspect.slug: opinion
        for opinion in judge_log(read(f"step 1\n{words}\n"), catalogue(), host, watched=True).opinions
    }
    held = opinions["host-oom-killed"].held
    assert held is not None
    assert (held.standing is HostVerdict.CONFIRMED) is confirmed


@pytest.mark.parametrize(
    ("said", "ahead", "fits"),
    [
        (datetime(2026, 5, 28, 20, 26, 30), 0.0, True),
        (datetime(2026, 5, 28, 22, 26, 30), 7200.0, True),
        (datetime(2026, 5, 28, 22, 26, 30), 0.0, False),
        (datetime(NO_YEAR, 5, 28, 20, 26, 30), 0.0, True),
        (datetime(NO_YEAR, 5, 27, 20, 26, 30), 0.0, False),
    ],
)
def test_a_log_that_says_neither_zone_nor_year_is_of_the_hosts(said: datetime, ahead: float, fits: bool) -> None:
    killed = KernelLine(text="Out of memory: Killed process 12003 (python)", age=15.0)
    host = Snapshot(host="", taken_at="2026-05-28T20:26:40+00:00", kernel_log=KernelLog(lines=(killed,)))
    words = seen("host-oom-killed", time=said.replace(tzinfo=timezone.utc).timestamp())
    found = of_this_log(host, log(words), [words], ahead=ahead).kernel_log
    assert isinstance(found, KernelLog)
    assert bool(found.lines) is fits


def test_facts_that_are_not_known_decide_nothing() -> None:
    (opinion,) = judge_log(shm_log(), catalogue(), Snapshot(host="node7")).opinions
    assert opinion.held is not None
    assert opinion.held.standing is HostVerdict.NOT_TESTED


def test_a_confirmed_hypothesis_comes_first_and_another_is_not_dropped() -> None:
    both = log(
        seen("disk-full", role=SignRole.HINTS, sign="long words of a hint, longer than the other"),
        seen("shm-too-small", role=SignRole.HINTS),
    )
    before = [opinion.suspect.slug for opinion in judge_log(both, catalogue()).opinions]
    assert before == ["disk-full", "shm-too-small"]
    after = judge_log(both, catalogue(), with_shm(64 * MIB))
    assert [opinion.suspect.slug for opinion in after.opinions] == ["shm-too-small", "disk-full"]
    neither = judge_log(both, catalogue(), with_shm(1 << 40))
    assert [opinion.suspect.slug for opinion in neither.opinions] == before, "what isn't confirmed keeps its place"


@pytest.mark.parametrize(
    ("slug", "text", "command"),
    [
        (
            "master-addr-unreachable",
            "[c10d] The client socket has timed out after 60000ms while trying to connect to (node0, 29511).",
            "ddpdoctor netcheck --master-addr node0 --master-port 29511 --nnodes N",
        ),
        ("nccl-watchdog-timeout", "Watchdog caught collective operation timeout", "ddpdoctor jobs --hang"),
        (
            "ckpt-truncated",
            "failed finding central directory",
            "ddpdoctor check --checkpoint FILE --select ckpt-truncated",
        ),
        (
            "port-in-use",
            "The server socket has failed to listen on (node0, 29511)",
            "ddpdoctor check --select port-in-use",
        ),
    ],
)
def test_the_command_that_decides_follows_from_the_facts_that_a_check_needs(slug: str, text: str, command: str) -> None:
    check = catalogue().get(slug)
    assert check is not None
    fix = deciding(check, [seen(slug, text=text)], Log())
    assert fix is not None
    assert fix.commands == (command,)


def test_what_only_a_log_shows_has_no_deciding_command() -> None:
    check = catalogue().get("user-code-error")
    assert check is not None
    assert deciding(check, [], Log()) is None


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("[c10d] The client socket has failed to connect to [gpu-head]:29400 (errno: 111)", "gpu-head", 29400),
        ("failed to connect to any network address of (10.77.0.11, 29500). client socket", "10.77.0.11", 29500),
        ("[I socket.cpp:442] client socket: connecting to localhost:29500", "", 29500),
        ("[TCPStore.cpp:138] recvValue failed", "", 0),
        ("gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:50122", "", 0),
        ("rdzv_endpoint=gpu01.cluster:29401", "gpu01.cluster", 29401),
        ("[c10d] failed to connect to [2001:db8:cd51::1540]:29501 (errno: 111)", "2001:db8:cd51::1540", 29501),
        (
            "[c10d] no network address of ([2001:db8:0:4900:73e8:12cb:cfe2:1540], 29501)",
            "2001:db8:0:4900:73e8:12cb:cfe2:1540",
            29501,
        ),
        (
            "(Worker pid=7, ip=[2001:db8::530e]) [c10d] no network address of (2001:db8::1540, 29501)",
            "2001:db8::1540",
            29501,
        ),
        ("[c10d] failed to connect to [::1]:29501", "", 29501),
        ("[c10d] client socket has failed to connect to [::ffff:198.18.0.1]:3254", "198.18.0.1", 3254),
        ("[c10d] client socket has failed to connect to [::ffff:127.0.0.1]:3254", "", 3254),
        ("TCPStore at 2001:db8::cfe2:1540 is gone", "", 0),
        ("TCPStore [02:13:07]:100 is gone", "", 0),
    ],
)
def test_the_masters_address(text: str, host: str, port: int) -> None:
    assert endpoint([text]) == (host, port)


def test_an_ordinary_error_is_told_with_its_line() -> None:
    judged = judge_log(
        read(
            "[rank2]: Traceback (most recent call last):\n"
            '[rank2]:   File "/home/ada/train/train.py", line 88, in <module>\n'
            "[rank2]:     loss = losses[step]\n"
            "[rank2]: KeyError: 4711\n"
        ),
        catalogue(),
    )
    (opinion,) = judged.opinions
    assert opinion.finding.summary == "Rank 2 raised KeyError: 4711 (train.py:88)"
    assert opinion.finding.evidence[0].text == "/home/ada/train/train.py:88, in <module>: loss = losses[step]"
    assert opinion.finding.rank == 2


def test_an_illness_that_this_version_does_not_know_is_left_out() -> None:
    unknown = SignMatch(slug="no-such-illness", sign="x", role=SignRole.NAMES, line=line(1))
    judged = judge_log(Log(files=(LogFile(name="run.log"),), sightings=(unknown,)), catalogue())
    assert judged.opinions == ()
    assert msgspec.structs.asdict(judged.verdict)["suspects"]


def test_a_line_of_the_log_is_where_the_reader_finds_it() -> None:
    both = LogLine(file=0, number=412, text="x", rank=3, host="node7")
    (opinion,) = judge_log(
        log(SignMatch(slug="shm-too-small", sign="s", role=SignRole.NAMES, line=both)), catalogue()
    ).opinions
    assert opinion.finding.evidence[0].source == "run.log:412, rank 3, node7"


@pytest.mark.parametrize(
    ("name", "summary", "command"),
    [
        ("stopped-from-outside/sick-ctrl-c.log", "The run was ended from outside, by Ctrl-C (SIGINT)", ""),
        ("stopped-from-outside/sick-sigterm.log", "The run was ended from outside, by SIGTERM", "sacct"),
        ("stopped-from-outside/sick-slurm-time-limit.log", "Slurm ended the job: its time was up", "sbatch --time"),
        (
            "stopped-from-outside/sick-slurm-preempted.log",
            "Slurm took the nodes for a job of higher priority",
            "sbatch --requeue",
        ),
        (
            "process-crashed/sick-segfault-tee.log",
            "Rank 1 crashed in compiled code (SIGSEGV), without a Python exception",
            "export PYTHONFAULTHANDLER=1",
        ),
        (
            "user-code-error/sick-exit-code-one-rank.log",
            "Rank 1 ended itself with exit code 3, without a traceback",
            "",
        ),
    ],
)
def test_what_is_no_illness_is_told_by_what_ended_the_run(name: str, summary: str, command: str) -> None:
    first = judge_log(read((LOGS / name).read_text()), catalogue()).opinions[0].finding
    commands = [one for fix in first.fixes for one in fix.commands]
    assert first.summary == summary
    assert first.fixes
    assert any(one.startswith(command) for one in commands) if command else "sacct" not in str(commands)
    assert all(one.text for one in first.evidence)


@pytest.mark.parametrize(("how", "sure"), [("", True), ("-floating-point", True), ("-abort", False)])
def test_of_a_crash_the_first_lines_of_the_fault_handlers_stack_are_shown(how: str, sure: bool) -> None:
    """The words of the fault handler themselves leave no doubt that it was a crash; a library may abort for another reason."""
    text = (LOGS / "process-crashed" / f"sick-fault-handler{how}.log").read_text()
    (opinion,) = judge_log(read(text), catalogue()).opinions
    assert opinion.suspect.sure is sure
    said = [one.text for one in opinion.finding.evidence]
    assert any(one.startswith("Current thread 0x") for one in said)
    assert any(one.startswith('File "') for one in said)
    assert "stack" in opinion.finding.fixes[0].text
