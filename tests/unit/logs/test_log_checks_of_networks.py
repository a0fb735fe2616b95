"""What the checks say that know an illness of the rendezvous or of the network from its log alone."""

from __future__ import annotations

import io

import pytest

from ddpdoctor.base.findings import Finding
from ddpdoctor.checks.catalogue import all_checks, catalogue
from ddpdoctor.engine.registry import NotApplicable
from ddpdoctor.facts.log import Log, LogFile
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs
from tests.log_corpus import LOGS, log_of

SAID = (
    ("rdzv-connect-failed/sick-nobody-hosts", "its rendezvous at 10.77.0.11:29400", "--master-port 29400"),
    ("rdzv-connect-failed/sick-no-host", "its rendezvous at 10.77.0.99:29400", "rdzv-hostname-not-self"),
    ("rdzv-store-host-exited/sick-three-ranks", "The process that hosts the store", "diagnose-log"),
    ("rdzv-store-host-exited/sick-nccl-id", "The process that hosts the store", "diagnose-log"),
    ("rdzv-own-name-unreachable/sick-wrong-address", "under the name node0", "--local-addr 127.0.0.1"),
    ("container-network-isolated/sick-docker", "A rank dials 172.17.0.2", "--network=host"),
    ("container-network-isolated/sick-nccl", "A rank dials 172.17.0.2", "--network=host"),
    ("ib-device-missing-in-container/sick-modify-qp", "can't use the InfiniBand", "--device=/dev/infiniband"),
    ("ib-device-missing-in-container/sick-net-ib", "can't use the InfiniBand", "NCCL_IB_DISABLE=1"),
    ("gdr-disabled/sick-no-peermem", "off for mlx5_0", "modprobe nvidia-peermem"),
    ("efa-plugin-misconfigured/sick-tcp", "no EFA device and takes tcp", "fi_info -p efa"),
    ("efa-plugin-misconfigured/sick-only-efa", "no EFA device", "NCCL_NET=Socket"),
)


def findings(slug: str, log: Log) -> list[Finding]:
    check = next(check for check in all_checks() if check.slug == slug)
    return list(check.predicate(log))


@pytest.mark.parametrize(("name", "words", "command"), SAID, ids=lambda one: one if "/" in str(one)[:40] else "")
def test_the_finding_has_the_logs_own_words_and_a_command(name: str, words: str, command: str) -> None:
    path = next(one for one in (LOGS / f"{name}.log", LOGS / name) if one.exists())
    (found,) = findings(name.partition("/")[0], log_of(path))
    assert words in found.summary
    assert len(found.summary) <= 160
    assert found.evidence
    assert any(command in each for fix in found.fixes for each in fix.commands)


@pytest.mark.parametrize("slug", sorted({name.partition("/")[0] for name, _, _ in SAID}))
def test_nothing_is_said_of_a_log_without_the_signs(slug: str) -> None:
    assert findings(slug, Log(files=(LogFile(name="run.log", lines=1),))) == []
    with pytest.raises(NotApplicable):
        findings(slug, Log())


@pytest.mark.parametrize(
    "name",
    [
        "gdr-disabled/near-miss-too-far",
        "ib-device-missing-in-container/near-miss-no-infiniband",
        "healthy/healthy-c10d",
    ],
)
@pytest.mark.parametrize("slug", ["gdr-disabled", "ib-device-missing-in-container", "rdzv-store-host-exited"])
def test_what_healthy_runs_say_is_no_finding(name: str, slug: str) -> None:
    assert findings(slug, log_of(LOGS / f"{name}.log")) == []


@pytest.mark.parametrize(
    ("line", "slug"),
    [
        (
            "[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect to (10.1.1.1, 29500).",
            "master-addr-unreachable",
        ),
        ("node3:97:97 [0] bootstrap.cc:115 NCCL WARN Bootstrap : no socket interface found", "nccl-ifname-not-found"),
        (
            "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
            "rdzv-store-host-exited",
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.0.1]:4236: Connection refused",
            "hostname-resolves-loopback",
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
            "rdzv-missing-node",
        ),
    ],
)
def test_a_single_line_that_was_pasted_is_not_called_fine(line: str, slug: str) -> None:
    found = verdict_of(
        read_logs(["-"], stdin=io.BytesIO(f"{line}\n".encode()), vocabulary=vocabulary(catalogue())), catalogue()
    )
    assert found.outcome is not RunOutcome.NOTHING
    assert found.suspects[0].slug == slug
    assert not found.suspects[0].sure


@pytest.mark.parametrize(("name", "address"), [("6841231", "0.104.99.143"), ("0017", "0.0.0.15"), ("08", "0.0.0.8")])
def test_a_name_that_is_a_number_is_shown_as_the_address_that_it_is_read_as(name: str, address: str) -> None:
    text = f"[E socket.cpp:753] [c10d] The client socket has failed to connect to any network address of ({name}, 47389).\n"
    (found,) = findings(
        "rdzv-own-name-unreachable",
        read_logs(["-"], stdin=io.BytesIO(text.encode()), vocabulary=vocabulary(catalogue())),
    )
    assert f"the number {name}, which is read as the address {address}" in found.summary
