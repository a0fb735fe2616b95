"""accelerate's configuration file, judged against this host."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import dotted, listed, plural, quoted
from ddpdoctor.base.unknown import Maybe, Unknown, if_known, known
from ddpdoctor.checks.settings.invalid import evidence_of, plain
from ddpdoctor.engine.registry import check, judged_apart, required, requires
from ddpdoctor.facts.accelerate import Accelerate, ConfigFile, Value
from ddpdoctor.facts.network import Network
from ddpdoctor.facts.processes import Processes, ProcessRole
from ddpdoctor.facts.snapshot import Environment, Gpus, Packages
from ddpdoctor.facts.visible import selector, visible_gpus
from ddpdoctor.knowledge.accelerate import (
    DISTRIBUTED_TYPES,
    ON_CUDA_GPUS,
    ONE_PROCESS,
    PRECISIONS,
    is_of_this_host,
    kind,
    on_each_machine,
    strange_keys,
)
from ddpdoctor.knowledge.cuda_visible_devices import what_cuda_shows
from ddpdoctor.knowledge.job_intent import is_here, means_each_node_itself, own_address
from ddpdoctor.knowledge.network_fixes import resolved

LAUNCH = "accelerate launch"
ASK_AGAIN = Fix("Or have accelerate ask for everything again, and write the file itself", ("accelerate config",))
WHICH_MACHINE = "Give the number of this machine on the command line"
MEETING_PLACE = "All machines meet at a port of machine 0. The file was probably copied with its machine_rank."


def _file(accelerate: Accelerate, packages: Packages) -> ConfigFile:
    """The file that a launch in the target Python takes; leaves the check untested where there is none, or it can't be read."""
    requires(packages.version("accelerate"), "accelerate isn't installed in the target Python")
    file = required(known(accelerate.file), "accelerate has no configuration file")
    requires(is_of_this_host(file), "accelerate's configuration file starts nothing on this host")
    return file


def _seen(file: ConfigFile, *names: str) -> tuple[Evidence, ...]:
    """The lines of the file with these keys."""
    entries = [entry for name in names if (entry := file.entry(name))]
    return tuple(
        Evidence(f"{entry.name}: {_written(entry.value)}", f"{file.path}, line {entry.line}") for entry in entries
    ) or (Evidence(f"{listed(names)}: not set", file.path),)


def _written(value: Value) -> str:
    """Write a value as YAML has it; a text that YAML would take for something else is quoted."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return quoted(value) if isinstance(value, str) else str(value)


def _edit(file: ConfigFile, name: str, value: str, why: str = "") -> Fix:
    """Change that line; in JSON by hand, since another key may follow."""
    entry = file.entry(name)
    text = f"Write `{name}: {value}` into the file{why}"
    if file.path.endswith(".json"):
        return Fix(f"{text}, as JSON spells it")
    path, escaped = shlex.quote(file.path), re.sub(r"[\\/&]", r"\\\g<0>", value)
    line = shlex.quote(f"{entry.line}s/.*/{name}: {escaped}/") if entry else ""
    return Fix(text, (f"sed -i {line} {path}" if entry else f"echo {shlex.quote(f'{name}: {value}')} >> {path}",))


def _launch(
    option: str, value: object = "", text: str = "Or give it on the command line, which overrides the file"
) -> Fix:
    options = f"{option} {shlex.quote(str(value))}" if value != "" else option
    return Fix(text, (f"{LAUNCH} {options} train.py",))


@check("accelerate-config-refused", severity=FAIL, owner=Owner.USER)
def accelerate_config_refused(accelerate: Accelerate, packages: Packages) -> Iterator[Finding]:
    """accelerate can't take its configuration file.

    ## What breaks
    `accelerate launch` ends with a ValueError or an AttributeError before it starts anything.

    ## Why
    The file was written by hand, or for another release. In YAML `no` is false and `0` is a number: accelerate, which itself writes
    `'no'` and `'0'`, expects texts.

    ## Fix
    Correct the line, or have accelerate ask for everything again: `accelerate config`.
    """
    file = _file(accelerate, packages)
    for names, why, fix in find_refusals(file):
        yield Finding.of(
            f"accelerate can't take its configuration file: {why}",
            _seen(file, *names),
            fix,
            ASK_AGAIN,
            cause="It ends while it reads the file, before it starts anything.",
        )


def find_refusals(file: ConfigFile) -> Iterator[tuple[tuple[str, ...], str, Fix]]:
    """Find what accelerate refuses: the keys, why, and what mends it."""
    said = file.value("distributed_type")
    if "distributed_type" not in file:
        yield ("distributed_type",), "it has no distributed_type", _edit(file, "distributed_type", "MULTI_GPU")
    elif isinstance(said, str) and said not in DISTRIBUTED_TYPES:
        why = f"distributed_type is {quoted(said)}, which it doesn't know"
        yield ("distributed_type",), why, _edit(file, "distributed_type", _nearest(said))
    precision = file.value("mixed_precision")
    if precision is False:
        why = "YAML reads mixed_precision: no as false; it needs quotes"
        yield ("mixed_precision",), why, _edit(file, "mixed_precision", '"no"')
    elif isinstance(precision, str) and precision.lower() not in PRECISIONS:
        why = f"mixed_precision is {quoted(precision)}; it knows {listed(PRECISIONS)}"
        yield ("mixed_precision",), why, _edit(file, "mixed_precision", '"no"', ", or the precision that you mean")
    yield from _refused_gpus(file)
    for entry, meant in strange_keys(file):
        why = f"it has the unknown key {quoted(entry.name)}; {meant} is probably meant"
        script = shlex.quote(f"{entry.line}s/^{entry.name} *:/{meant}:/")
        command = () if file.path.endswith(".json") else (f"sed -i {script} {shlex.quote(file.path)}",)
        yield (entry.name,), why, Fix(f"Rename it to {meant}", command)


def _refused_gpus(file: ConfigFile) -> Iterator[tuple[tuple[str, ...], str, Fix]]:
    gpus = file.value("gpu_ids")
    if isinstance(gpus, int) and not isinstance(gpus, bool):
        why = f"gpu_ids is the number {gpus}; it needs quotes"
        yield ("gpu_ids",), why, _edit(file, "gpu_ids", f'"{gpus}"')
    elif kind(file) == "MULTI_GPU" and isinstance(gpus, str) and gpus != "all" and "," not in gpus:
        why = f"gpu_ids names one GPU, {quoted(gpus)}, and distributed_type is {kind(file)}"
        if file.number("num_machines", 1) == 1:
            yield ("gpu_ids", "distributed_type"), why, _edit(file, "gpu_ids", "all", ", or name at least two GPUs")


def _nearest(said: str) -> str:
    near = difflib.get_close_matches(said.upper().replace("-", "_"), DISTRIBUTED_TYPES, n=1)
    return near[0] if near else "MULTI_GPU"


@check("accelerate-config-processes", severity=WARN, owner=Owner.USER)
def accelerate_config_processes(
    accelerate: Accelerate, packages: Packages, gpus: Maybe[Gpus], environment: Maybe[Environment]
) -> Iterator[Finding]:
    """accelerate's configuration file starts another number of processes than it says, or more than there are GPUs.

    ## What breaks
    With `distributed_type: NO` or `MULTI_CPU` one process trains alone whatever num_processes says, without a warning. Where
    there are more processes than GPUs, the last ones end with "invalid device ordinal".

    ## Why
    The file was made for another host, or lies in a home folder that several hosts share. accelerate's own launcher starts
    several processes on GPUs alone; on CPUs mpirun does, where mpirun_config names a hostfile, or torchrun.

    ## Fix
    Give the number on the command line, `accelerate launch --num_processes 4 train.py`, or change the file.
    """
    file = _file(accelerate, packages)
    each = on_each_machine(file)
    processes, machines = file.number("num_processes", -1) or -1, file.number("num_machines", 1) or 1
    if each is None:
        return
    if kind(file) in ONE_PROCESS:
        if machines == 1 and processes > 1:
            yield _starts_one(file, processes, gpus, environment)
        return
    if each * machines != processes:
        asked, even = plural(processes, "process", "processes"), machines * max(1, each)
        yield Finding.of(
            f"accelerate's configuration file asks for {asked} on {machines} machines, which gives {each} on each",
            _seen(file, "num_processes", "num_machines"),
            _edit(file, "num_processes", str(even), ", or another multiple of num_machines"),
            _launch("--num_processes", even),
            cause=f"accelerate starts num_processes / num_machines on each machine, and drops what is left over: {each * machines} in all.",
        )
    if kind(file) not in ON_CUDA_GPUS:
        return
    known(gpus)
    there = _gpus_for(file, gpus, environment)
    if there and each > len(there):
        enough = machines * len(there)
        yield Finding.of(
            f"accelerate's configuration file starts {each} processes here, but they may use only {plural(len(there), 'GPU')}",
            _seen(file, "num_processes", "num_machines", "gpu_ids"),
            Evidence(f"GPUs for them: {listed(there, 8)}", "NVML"),
            _edit(file, "num_processes", str(enough)),
            _launch("--num_processes", enough),
            cause="Each process takes a GPU of its own: the last ones find none, and end with an error.",
        )
    elif there:
        known(environment)  # Fewer may be visible.


def _starts_one(file: ConfigFile, processes: int, gpus: Maybe[Gpus], environment: Maybe[Environment]) -> Finding:
    there = () if file.value("use_cpu") is True else _gpus_for(file, gpus, environment)
    fixes = (
        _edit(file, "distributed_type", "MULTI_GPU"),
        _launch("--multi_gpu --num_processes", min(processes, len(there))),
    )
    if len(there) < 2:
        torchrun = f"ACCELERATE_USE_CPU=true torchrun --nproc-per-node={processes} train.py"
        fixes = (
            Fix("Start it with torch's launcher, which starts several on CPUs, too", (torchrun,)),
            _edit(file, "num_processes", "1", ", if one is what you want"),
        )
    return Finding.of(
        f"accelerate's configuration file asks for {processes} processes, but distributed_type {kind(file)} starts one",
        _seen(file, "distributed_type", "num_processes"),
        fixes,
        cause="It trains alone on all of the data, without a warning.",
    )


def _gpus_for(file: ConfigFile, gpus: Maybe[Gpus], environment: Maybe[Environment]) -> Sequence[str]:
    """The GPUs that the processes may use; () where there are none (as on a login node with the same home), or that isn't known."""
    if isinstance(gpus, Unknown) or not gpus.answering:
        return ()
    chosen = file.value("gpu_ids", "all")
    if isinstance(chosen, str) and chosen != "all":
        # It takes the place of CUDA_VISIBLE_DEVICES.
        return list(what_cuda_shows(chosen, gpus.devices).taken) if selector(gpus, Unknown("")) is None else []
    return [str(shown.gpu.index) for shown in visible_gpus(gpus, environment)]


@check("accelerate-config-gpus", severity=WARN, owner=Owner.USER)
def accelerate_config_gpus(accelerate: Accelerate, packages: Packages, gpus: Gpus) -> Iterator[Finding]:
    """accelerate's configuration file doesn't fit the GPUs of this host.

    ## What breaks
    Training runs on the CPU beside idle GPUs, ends with "No CUDA GPUs are available", or is slower than in full precision.

    ## Why
    The file was made for another host, or before the GPUs were there. GPUs before Ampere (compute capability 8.0) have no units for
    bf16: torch emulates it, or accelerate refuses. fp8 needs 8.9 (Ada) or newer.

    ## Fix
    Change the line, or override it on the command line: `accelerate launch --mixed_precision fp16 train.py`.
    """
    file = _file(accelerate, packages)
    requires(gpus.vendor != "amd" and gpus.answering, "no NVIDIA GPU answers on this host")
    if file.value("use_cpu") is True and kind(file) in ONE_PROCESS:
        yield Finding.of(
            f"accelerate's configuration file trains on the CPU, and this host has {plural(len(gpus.answering), 'GPU')}",
            _seen(file, "use_cpu", "distributed_type"),
            Evidence(f"GPUs: {len(gpus.answering)}", "NVML"),
            _edit(file, "use_cpu", "false"),
            ASK_AGAIN,
            cause="use_cpu keeps accelerate from all GPUs.",
        )
        return
    chosen = file.value("gpu_ids", "all")
    if isinstance(chosen, str) and chosen != "all" and (wrong := what_cuda_shows(chosen, gpus.devices).stopped):
        yield Finding.of(
            f"accelerate's configuration file names GPUs that aren't here: gpu_ids {quoted(chosen)}, but {wrong}",
            _seen(file, "gpu_ids"),
            Evidence(f"GPUs: {len(gpus.devices)}", "NVML"),
            _edit(file, "gpu_ids", "all"),
            _launch("--gpu_ids", "all"),
            cause="accelerate sets CUDA_VISIBLE_DEVICES to it, and CUDA stops at the first entry that is wrong.",
        )
    yield from _precision(file, gpus)


LEAST_CAPABILITY = {"bf16": (8, 0), "fp8": (8, 9)}


def _precision(file: ConfigFile, gpus: Gpus) -> Iterator[Finding]:
    precision = str(file.value("mixed_precision", "no")).lower()
    least = LEAST_CAPABILITY.get(precision)
    if least is None:
        return
    capabilities = {gpu: gpu.compute_capability for gpu in gpus.answering}
    for gpu, has in capabilities.items():
        if isinstance(has, tuple) and has < least:
            yield Finding.of(
                f"accelerate's configuration file asks for {precision}, which {gpu.name or f'GPU {gpu.index}'} can't do by itself",
                _seen(file, "mixed_precision"),
                Evidence(f"compute capability of GPU {gpu.index}: {dotted(has)}", "NVML"),
                _edit(file, "mixed_precision", "fp16"),
                _launch("--mixed_precision", "fp16"),
                cause=f"{precision} needs compute capability {dotted(least)}, the GPU has {dotted(has)}: slow emulation, or an error.",
            )
            return
    for capability in capabilities.values():
        known(capability)


@check("accelerate-config-main-process", severity=WARN, owner=Owner.USER)
def accelerate_config_main_process(
    accelerate: Accelerate,
    packages: Packages,
    network: Network,
    environment: Environment,
    processes: Maybe[Processes],
) -> Iterator[Finding]:
    """The main process of accelerate's configuration file can't be met, or isn't where the file says.

    ## What breaks
    `accelerate launch` on several machines ends at once, or each machine waits for the others until the timeout.

    ## Why
    The file was copied from another machine with its machine_rank, main_process_ip is missing or means each machine itself, or
    the port is taken on the machine that is to hold it.

    ## Fix
    Give all machines the same main_process_ip, an address of machine 0 that the others reach, and main_process_port; and each
    its own machine_rank: `accelerate launch --machine_rank 1 --main_process_ip 10.0.0.11 --main_process_port 29500 train.py`.
    """
    file = _file(accelerate, packages)
    machines = file.number("num_machines", 1) or 1
    requires(machines > 1, "accelerate's configuration file is for one machine")
    rank = file.number("machine_rank", 0)
    if rank is not None and rank >= machines:
        yield Finding.of(
            f"accelerate's configuration file says machine_rank {rank} of {machines} machines",
            _seen(file, "machine_rank", "num_machines"),
            _launch("--machine_rank", machines - 1, WHICH_MACHINE),
            cause=f"They count from 0 to {machines - 1}.",
        )
    looks = (
        _address(file, rank, accelerate, network),
        _port(file, rank, accelerate, processes),
        _against_settings(file, environment),
    )
    yield from judged_apart(looks)


def _port(file: ConfigFile, rank: int | None, accelerate: Accelerate, processes: Maybe[Processes]) -> Iterator[Finding]:
    port = file.number("main_process_port", 0)
    if rank == 0 and port and accelerate.port_taken and not _job_runs(known(processes)):
        yield Finding.of(
            f"Port {port}, accelerate's main_process_port, is taken on this host, which is machine 0",
            _seen(file, "main_process_port"),
            Evidence(f"bind to port {port}: Address already in use", "bind()"),
            Fix("See which process has it", (f"ss -tlnp 'sport = :{port}'",)),
            _edit(file, "main_process_port", str(port + 1), ", on all machines"),
            cause="accelerate refuses to start where it can't listen there.",
        )


def _job_runs(processes: Processes) -> bool:
    """Whether ranks run here, which may have that very port."""
    return any(process.role in (ProcessRole.RANK, ProcessRole.LAUNCHER) for process in processes.listed)


def _address(file: ConfigFile, rank: int | None, accelerate: Accelerate, network: Network) -> Iterator[Finding]:
    here = if_known(own_address, network, default=None)
    if rank == 0 and here:
        fixes = [_edit(file, "main_process_ip", here, ", on all machines"), _launch("--main_process_ip", here)]
    else:
        text = "Show the addresses of machine 0 there, and write the one that the others reach into the file"
        fixes = [Fix(text, ("hostname -I",)), _launch("--main_process_ip", "ADDRESS")]
    if file.value("main_process_ip") is None:
        yield Finding.of(
            "accelerate's configuration file is for several machines, and names no main_process_ip",
            _seen(file, "main_process_ip", "num_machines"),
            fixes,
            cause="Without an address the machines don't find each other, unless each launch gives it.",
        )
        return
    main = known(accelerate.main_process)
    if main is None:
        return
    other_key, name = "machine_rank", plain(main.name)
    if not main.addresses:
        other_key = ""
        summary = f"accelerate's main_process_ip is {name}, which this host can't resolve: {plain(main.error)}"
        cause = "The launch on this machine doesn't find the main process."
    elif means_each_node_itself(main, network) or set(main.addresses) <= {"0.0.0.0", "::"}:
        other_key = "num_machines"
        summary = f"accelerate's main_process_ip is {name}, which means each machine itself"
        cause = "Each machine then waits at its own address for the others."
    elif rank == 0 and not is_here(main, network):
        summary = f"accelerate's configuration file calls this host machine 0, but main_process_ip {name} isn't here"
        cause = MEETING_PLACE
        fixes = [_launch("--machine_rank", "1", WHICH_MACHINE), *fixes]
    elif rank and is_here(main, network):
        summary = f"accelerate's main_process_ip {name} is this host, but machine_rank {rank} says that it is another"
        cause = MEETING_PLACE
        fixes = [_edit(file, "machine_rank", "0"), _launch("--machine_rank", "0")]
    else:
        return
    yield Finding.of(summary, _seen(file, "main_process_ip", other_key), resolved(main), fixes, cause=cause)


def _against_settings(file: ConfigFile, environment: Environment) -> Iterator[Finding]:
    for name, key in (("MASTER_ADDR", "main_process_ip"), ("MASTER_PORT", "main_process_port")):
        found, value = environment.setting(name), file.value(key)
        if found and found.value and value is not None and str(value) != found.value:
            yield Finding.of(
                f"{name}={quoted(found.value)} and {key} {quoted(str(value))} of accelerate's configuration file: the file wins",
                _seen(file, key),
                evidence_of(found),
                _launch(f'--{key} "${name}"', text="If the setting is right, pass it on"),
                cause=f"`{LAUNCH}` sets {name} again, to what the file says.",
                severity=INFO,
            )
