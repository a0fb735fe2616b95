"""The nodes' software side by side: torch, Python and NCCL."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner, Severity
from ddpdoctor.base.unknown import Maybe, Unknown, known, known_or
from ddpdoctor.engine.registry import Subject, check, judged_apart, required, requires
from ddpdoctor.facts.fleet import Fleet, Node
from ddpdoctor.facts.snapshot import Meeting, Packages, TargetPython
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.netcheck_command import netcheck_command
from ddpdoctor.knowledge.node_words import NO_FLEET, ONE_THERE, called, names, own_node, there
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.knowledge.python_commands import in_target_python, pip_install
from ddpdoctor.knowledge.version_agreement import (
    platform,
    stores_meet,
    to_agree_on,
    torch_build,
    torch_release,
)
from ddpdoctor.knowledge.wheels import DRIVER_FLOOR, numbers, older
from ddpdoctor.network_check.analysis.install_same_torch import same_torch

LOST = "this node is lost"


def own_of_several(fleet: Fleet, meeting: Meeting) -> Node:
    """This node, where there is another to compare it with."""
    requires(fleet.nodes, NO_FLEET)
    own = required(own_node(fleet, meeting), LOST)
    requires(len(there(fleet)) > 1, ONE_THERE)
    return own


@check("torch-version-mismatch", severity=WARN, owner=Owner.USER, judges=(Subject.JOB_FROM_WITHIN,))
def torch_version_mismatch(
    fleet: Fleet, meeting: Meeting, target_python: Maybe[TargetPython], packages: Maybe[Packages]
) -> Iterator[Finding]:
    """The nodes have different versions of torch, or of Python.

    ## What breaks
    Between torch 2.1 and 2.2, and with a master before 2.5 and other nodes from 2.5 on, the ranks never meet: torch's store
    doesn't understand them, and says nothing about versions. Other differences may show as mismatched parameters, pickled
    objects that don't load, or slightly different results. So may other minor versions of Python: their pickles and the
    packages that they can have differ. NVIDIA drivers may differ, since torch brings its own CUDA runtime: that is told for
    your information, as NCCL picks some features by the driver, and is a warning where one is too old for its node's torch.

    ## Why
    Each node has an environment of its own, and one was updated, or another one is active there. A newer master hides what
    fails as soon as an older node becomes the master.

    ## Fix
    Install the same version, of the same build (`+cu130`, `+cpu`), on all nodes, or use one container image or shared
    environment: `python -m pip install torch==VERSION`.
    """
    own = own_of_several(fleet, meeting)
    looks = (
        _other_driver(own, fleet),
        _other_or_no_torch(own, fleet, meeting, target_python, packages),
        _other_python(own, fleet, meeting, target_python),
    )
    yield from judged_apart(looks)


def _other_or_no_torch(
    own: Node, fleet: Fleet, meeting: Meeting, target_python: Maybe[TargetPython], packages: Maybe[Packages]
) -> Iterator[Finding]:
    nodes = there(fleet)
    versions = [known_or(node.torch, None) for node in nodes]
    if any(versions):
        known(own.torch)
        pattern = _pattern(nodes)
        if own.torch is None:
            yield _without_torch(own, pattern, fleet, meeting, target_python)
        elif pattern.rank != own.rank:
            yield from _other_torch(own, pattern, fleet, meeting, target_python, packages)
    for node in nodes:
        known(node.torch)
    requires(any(versions), "torch is not installed")


def _pattern(nodes: tuple[Node, ...]) -> Node:
    """A node whose torch is the one that all should have."""
    kinds = {node.rank: (torch_release(node.torch), torch_build(node)) for node in nodes if isinstance(node.torch, str)}
    wanted = to_agree_on(kinds)
    return next(node for node in nodes if kinds.get(node.rank) == wanted)


def _wanted(own: Node, nodes: tuple[Node, ...], values: Mapping[int, str]) -> tuple[str, list[Node]]:
    """The value, of those by rank, that all should have, and the nodes that have it; none where this one does, or has no value."""
    if own.rank not in values or values[own.rank] == (wanted := to_agree_on(values)):
        return "", []
    return wanted, [node for node in nodes if values.get(node.rank) == wanted]


def _torches(nodes: tuple[Node, ...]) -> Evidence:
    """The nodes by their torch."""
    versions = {
        node.rank: node.torch if isinstance(node.torch, str) else "not installed" if node.torch is None else "unknown"
        for node in nodes
    }
    return Evidence(f"torch: {_each(versions, nodes)}", "torch/version.py on each node")


def _each(values: Mapping[int, str], nodes: tuple[Node, ...]) -> str:
    """The nodes by their value, given by rank: "2.13.0 on n1 and n2; 2.3.1 on n3"."""
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        if node.rank in values:
            groups.setdefault(values[node.rank], []).append(node)
    return "; ".join(f"{value} on {names(members)}" for value, members in groups.items())


def _without_torch(
    own: Node, pattern: Node, fleet: Fleet, meeting: Meeting, target_python: Maybe[TargetPython]
) -> Finding:
    return Finding.of(
        f"{called(own)} has no torch in the Python that was looked at; {called(pattern)} has {pattern.torch}",
        _torches(there(fleet)),
        _interpreter(target_python),
        same_torch(pattern, own, meeting, target_python, Packages(installed=())),
        Fix(
            "If training uses another environment, run netcheck with that one's Python in place of `python`",
            (netcheck_command(meeting, fleet.expected, own.rank, ("--python python",)),),
        ),
        cause="Training can't run there; or another environment than training's was active when netcheck ran.",
        severity=FAIL,
    )


def _interpreter(target_python: Maybe[TargetPython]) -> tuple[Evidence, ...]:
    if isinstance(target_python, Unknown):
        return ()
    return (
        told(target_python, "python", f"Python that was looked at: {target_python.python} ({target_python.chosen_by})"),
    )


def _other_torch(
    own: Node,
    pattern: Node,
    fleet: Fleet,
    meeting: Meeting,
    target_python: Maybe[TargetPython],
    packages: Maybe[Packages],
) -> Iterator[Finding]:
    nodes = there(fleet)
    assert isinstance(own.torch, str)
    assert isinstance(pattern.torch, str)
    build, wanted = torch_build(own), torch_build(pattern)
    same_release = torch_release(own.torch) == torch_release(pattern.torch)
    # A build that doesn't tell what it is for is taken for the same.
    if same_release and (build == wanted or not (build and wanted)):
        return
    severity, cause = _verdict(own, pattern, nodes)
    others = [node for node in nodes if node.torch == pattern.torch]
    here, elsewhere = (_with_cuda(node) if same_release else node.torch for node in (own, pattern))
    yield Finding.of(
        f"{called(own)} has torch {here}, {names(others, most=3)} {elsewhere}",
        _torches(nodes),
        _interpreter(target_python),
        same_torch(pattern, own, meeting, target_python, packages),
        cause=cause,
        severity=severity,
    )


def _with_cuda(node: Node) -> str:
    """Its torch with what tells builds of one release apart: "2.13.0+cu130", "2.13.0 (CUDA 12.8)"."""
    assert isinstance(node.torch, str)
    told = "+" in node.torch or not isinstance(node.cuda, str)
    return node.torch if told else f"{node.torch} (CUDA {node.cuda})"


def _verdict(own: Node, pattern: Node, nodes: tuple[Node, ...]) -> tuple[Severity, str]:
    """The severity of the difference, and the reason for it."""
    assert isinstance(own.torch, str)
    server = next((node for node in nodes if node.rank == 0), pattern)
    for node in nodes if own.rank == server.rank else (own,):
        if isinstance(server.torch, str) and isinstance(node.torch, str) and not stores_meet(server.torch, node.torch):
            return FAIL, (
                f"The ranks never meet: the store of torch {server.torch} on {called(server)} doesn't understand "
                f"torch {node.torch} on {called(node)}."
            )
    mine, theirs = platform(torch_build(own)), platform(torch_build(pattern))
    if mine and theirs and mine != theirs:
        # A CPU build among GPU ones is fatal where there are GPUs for it to use: then NCCL is wanted.
        serious = "cpu" not in (mine, theirs) or (mine == "cpu" and isinstance(own.driver, str))
        return FAIL if serious else WARN, (
            f"One is built for {mine}, the other for {theirs}: a group with the backend nccl can't be made of both. "
            "gloo can."
        )
    if torch_release(own.torch) == torch_release(pattern.torch or ""):  # type: ignore[arg-type]
        return WARN, (
            "The same release of torch in different builds: they meet, but bring other versions of NCCL and cuDNN, and may "
            "differ in their last digits."
        )
    return WARN, (
        "These versions meet as things are (with an older master they might not), but are not tested together: objects "
        "pickled on one may not load on the other."
    )


def _other_python(own: Node, fleet: Fleet, meeting: Meeting, target_python: Maybe[TargetPython]) -> Iterator[Finding]:
    """Another minor version of Python than the others'."""
    nodes = there(fleet)
    pythons = {node.rank: node.python for node in nodes if isinstance(node.python, str)}
    minors = {rank: ".".join(version.split(".")[:2]) for rank, version in pythons.items()}
    wanted, others = _wanted(own, nodes, minors)
    if not others:
        for node in nodes:
            known(node.python)
        return
    yield Finding.of(
        f"{called(own)} trains with Python {own.python}, {names(others, most=3)} with {others[0].python}",
        Evidence(f"Python: {_each(pythons, nodes)}", "sys.version_info on each node"),
        _interpreter(target_python),
        Fix(
            f"Make an environment with Python {wanted} on {called(own)}, install the same there, and check it",
            (
                f"{shlex.quote(f'python{wanted}')} -m venv ddp-env",
                netcheck_command(meeting, fleet.expected, own.rank, ("--python ddp-env/bin/python",)),
            ),
        ),
        cause="Mostly that works, but packages may differ in version, and functions or objects that are pickled on one may "
        "not load on the other.",
        severity=WARN,
    )


def _other_driver(own: Node, fleet: Fleet) -> Iterator[Finding]:
    """Another driver than the others'."""
    nodes = there(fleet)
    drivers = {node.rank: node.driver for node in nodes if isinstance(node.driver, str)}
    wanted, others = _wanted(own, nodes, drivers)
    if not others:
        for node in nodes:
            known(node.driver)
        return
    here = drivers[own.rank]
    floor = DRIVER_FLOOR.get(numbers(own.cuda)[0]) if isinstance(own.cuda, str) and numbers(own.cuda) else None
    too_old = floor is not None and older(here, floor)
    yield Finding.of(
        f"{called(own)} has NVIDIA driver {here}, {names(others, most=3)} {wanted}"
        + (f"; CUDA {own.cuda} of its torch wants {floor}" if too_old else ""),
        _drivers(nodes),
        by_root(
            f"{'Update' if too_old else 'To make them alike, install'} the driver on {called(own)}, with its system's own "
            "package manager or the one that NVIDIA's instructions name; this shows what is loaded",
            ("cat /proc/driver/nvidia/version",),
        ),
        cause="Without NVIDIA's package for forward compatibility torch finds no GPU there."
        if too_old
        else "They may differ, since torch brings its own CUDA runtime.",
        severity=WARN if too_old else INFO,
    )
    known(own.cuda)


@check("nccl-version-mismatch", severity=FAIL, owner=Owner.USER, judges=(Subject.JOB_FROM_WITHIN,))
def nccl_version_mismatch(
    fleet: Fleet, meeting: Meeting, target_python: Maybe[TargetPython], packages: Maybe[Packages]
) -> Iterator[Finding]:
    """The nodes have different versions of NCCL.

    ## What breaks
    NCCL doesn't start between them. Since 2.23.4 it says "Mismatched NCCL version detected"; before that, expect
    "Message truncated", "wrong type" or a hang.

    ## Why
    NCCL's nodes must have the very same version, for what they send each other changes with every release. It comes with
    torch (as the package nvidia-nccl-cuXX), so that other versions of torch bring others; or another libnccl is found first.

    ## Fix
    Install the same torch on all nodes, or the same package: `python -m pip install nvidia-nccl-cu13==VERSION`.
    """
    own = own_of_several(fleet, meeting)
    nodes = there(fleet)
    versions = {node.rank: node.nccl for node in nodes if isinstance(node.nccl, str)}
    requires(known(own.nccl) or not versions, "this node has no NCCL")
    wanted, others = _wanted(own, nodes, versions)
    if not others:
        for node in nodes:
            known(node.nccl)
        requires(versions, "no node has NCCL")
        requires(len(versions) > 1, "only one node has NCCL")
        return
    yield Finding.of(
        f"{called(own)} has NCCL {own.nccl}, {names(others, most=3)} {wanted}",
        Evidence(f"NCCL: {_each(versions, nodes)}", "ncclGetVersion, or its package, on each node"),
        _torches(nodes),
        _drivers(nodes),
        _same_nccl(own, others[0], wanted, meeting, target_python, packages),
        cause=_words_of_nccl(versions),
    )


def _words_of_nccl(versions: dict[int, str]) -> str:
    if all(not older(version, "2.23.4") for version in versions.values()):
        return 'NCCL itself says "Mismatched NCCL version detected" when it starts, and fails.'
    return (
        'Not all are as new as 2.23.4, the first that says "Mismatched NCCL version detected": expect "Message truncated", '
        '"wrong type", or a hang.'
    )


def _drivers(nodes: tuple[Node, ...]) -> tuple[Evidence, ...]:
    """Drivers may differ; where they do, it is good to know."""
    drivers = {node.rank: node.driver for node in nodes if isinstance(node.driver, str)}
    if len(set(drivers.values())) < 2:
        return ()
    return (Evidence(f"driver: {_each(drivers, nodes)} (that may differ)", "/proc/driver/nvidia/version on each node"),)


def _same_nccl(
    own: Node, node: Node, wanted: str, meeting: Meeting, target_python: Maybe[TargetPython], packages: Maybe[Packages]
) -> tuple[Fix, ...]:
    if isinstance(target_python, Unknown):
        return ()
    if own.torch != node.torch and isinstance(node.torch, str):
        return same_torch(node, own, meeting, target_python, packages)
    installed = () if isinstance(packages, Unknown) else packages.installed
    names_here = [package.name for package in installed if package.name.startswith("nvidia-nccl-cu")]
    if names_here and not target_python.externally_managed:
        return (
            Fix(
                f"Install on {called(own)} what {called(node)} has",
                (pip_install(target_python, "--force-reinstall", "--no-deps", f"{names_here[0]}=={wanted}"),),
            ),
        )
    text = f"torch is the same, so another libnccl is found first on {called(own)}: this shows which"
    version = in_target_python(target_python, "-c", "import torch; print(torch.cuda.nccl.version())")
    return (Fix(text, ("echo $LD_LIBRARY_PATH; ldconfig -p | grep libnccl", version)),)
