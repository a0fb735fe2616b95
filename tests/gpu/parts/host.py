"""check and snapshot against what the driver, NVML and torch say themselves."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.gpu.kit import Kit, NotPossibleError, part
from tests.support.command import ROOT

ASK_TORCH = """
import ctypes, os
gpus = [torch.cuda.get_device_properties(at) for at in range(torch.cuda.device_count())]
torch.cuda.init() if gpus else None
libraries = {os.path.realpath(line.split()[-1]) for line in open("/proc/self/maps") if ".so" in line}
of = lambda name: sorted(path for path in libraries if os.path.basename(path).startswith(name))
print(json.dumps({
    "count": len(gpus),
    "gpus": [{"name": one.name, "memory": one.total_memory, "capability": [one.major, one.minor],
              "uuid": str(getattr(one, "uuid", "")), "processors": one.multi_processor_count} for one in gpus],
    "arch_list": torch.cuda.get_arch_list(), "cudnn": torch.backends.cudnn.version(),
    "nccl": list(torch.cuda.nccl.version()) if torch.version.cuda else [],
    "libcuda": of("libcuda.so"), "libnccl": of("libnccl.so"), "libcudart": of("libcudart"),
}))
"""
SMI_FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "memory.total",
    "compute_cap",
    "compute_mode",
    "mig.mode.current",
    "pci.bus_id",
)
HEALTHY = ROOT / "fixtures" / "hosts" / "healthy" / "h100x8-bare-metal.json"
"""What our fixtures expect of a host with such GPUs."""
CONTEXT = """
import time, torch
torch.ones(1, device={device!r}).sum().item()
print("ready", flush=True)
time.sleep(120)
"""


def gpus_of(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = snapshot["gpus"].get("devices", [])
    return found


@part("check", "check finds nothing that would stop a training on a healthy GPU host", 12)
def check(kit: Kit) -> None:
    report = kit.report("check")
    kit.keep("check.json", json.dumps(report, indent=1))
    kit.saw("verdict", report["verdict"])
    kit.saw(
        "findings",
        [f"{finding['severity']}: {finding['slug']}: {finding['summary']}" for finding in report["findings"]],
    )
    kit.saw("not tested", {skipped["slug"]: skipped.get("reason", "") for skipped in report["not_tested"]})
    kit.saw("passed", len(report["passed"]))
    crashed = [skipped["slug"] for skipped in report["not_tested"] if skipped["why"] == "crashed"]
    kit.hold(not crashed, f"checks crashed: {', '.join(crashed)}")
    failed = [finding["slug"] for finding in report["findings"] if finding["severity"] == "fail"]
    failed = [slug for slug in failed if not (kit.machine.rehearsal and slug == "torch-cpu-only")]
    kit.hold(not failed, f"check says that this host would not train: {', '.join(failed)}")


@part(
    "snapshot",
    "the facts of the GPUs are those of torch, and no fewer are known than of the fixtures' hosts",
    10,
    beside=True,
)
def snapshot(kit: Kit) -> None:
    facts = kit.snapshot()
    gpus = gpus_of(facts)
    kit.saw("gpus", gpus)
    kit.hold(gpus, f"the snapshot has no GPU: {facts['gpus']}")
    for line in unknown_against(json.loads(HEALTHY.read_text()), facts):
        kit.differs.append(f"the fixtures know this of a host with GPUs, and here it isn't known: {line}")
    torch = kit.asked_of_torch(ASK_TORCH, rehearsed=as_torch_would(facts))
    kit.saw("torch", torch)
    kit.hold(len(gpus) == torch["count"], f"NVML shows {len(gpus)} GPUs, torch {torch['count']}")
    for gpu, properties in zip(gpus, torch["gpus"], strict=True):
        kit.hold(gpu["name"] == properties["name"], f"NVML calls it {gpu['name']!r}, torch {properties['name']!r}")
        kit.hold(
            list(gpu["compute_capability"]) == properties["capability"],
            f"NVML says compute capability {gpu['compute_capability']}, torch {properties['capability']}",
        )
        kit.hold(
            properties["uuid"] in ("", gpu["uuid"], gpu["uuid"].removeprefix("GPU-")),
            f"NVML says {gpu['uuid']}, torch {properties['uuid']}",
        )
        ratio = properties["memory"] / gpu["memory_total"]
        kit.saw("torch's memory of NVML's", round(ratio, 4))
        kit.hold(0.9 < ratio <= 1.0, f"torch sees {properties['memory']} bytes, NVML {gpu['memory_total']}")
    for name, expected in (("arch_list", torch["arch_list"]), ("nccl_version", torch["nccl"])):
        kit.hold(
            facts["torch"][name] == expected, f"torch's {name} is {expected}, the snapshot has {facts['torch'][name]}"
        )


RUN_A_KERNEL = """
def runs(at):
    try:
        return torch.ones(2, device=f"cuda:{at}").add(1).sum().item() == 4
    except RuntimeError as error:
        return str(error).splitlines()[0]
print(json.dumps([runs(at) for at in range(torch.cuda.device_count())]))
"""


@part("architecture", "torch has code for a GPU if, and only if, a kernel of its own runs there", 8, beside=True)
def architecture(kit: Kit) -> None:
    facts = kit.snapshot()
    kit.saw(
        "GPUs and torch's architectures",
        [[one["compute_capability"] for one in gpus_of(facts)], facts["torch"]["arch_list"]],
    )
    runs = kit.asked_of_torch(RUN_A_KERNEL, rehearsed=[True])
    kit.saw("a kernel runs", runs)
    report = kit.report("check", "--select", "gpu-arch-unsupported")
    kit.saw("not tested", report["not_tested"])
    said = "gpu-arch-unsupported" in report["passed"]
    kit.hold(
        kit.machine.rehearsal or said is all(run is True for run in runs), f"check passed: {said}; kernels: {runs}"
    )


def as_torch_would(facts: dict[str, Any]) -> dict[str, Any]:
    """The answer to ASK_TORCH on a host with these facts."""
    gpus = [
        {
            "name": gpu["name"],
            "memory": gpu["memory_total"],
            "capability": list(gpu["compute_capability"]),
            "uuid": gpu["uuid"],
        }
        for gpu in gpus_of(facts)
    ]
    libraries = {"libcuda": [facts["driver"]["libcuda_path"]], "libnccl": [facts["nccl"]["library"]], "libcudart": []}
    torch = facts["torch"]
    return {
        "count": len(gpus),
        "gpus": gpus,
        "arch_list": torch["arch_list"],
        "nccl": torch["nccl_version"],
        **libraries,
    }


def _unknown(value: object) -> bool:
    return isinstance(value, dict) and value.get("type") == "unknown"


def unknown_against(expected: object, found: object, name: str = "") -> list[str]:
    """What is Unknown here and not there, by its place; of lists the first entry stands for all."""
    if _unknown(found) and not _unknown(expected):
        assert isinstance(found, dict)
        return [f"{name}: {found.get('reason')}"]
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            line
            for key in sorted(expected.keys() & found.keys())
            for line in unknown_against(expected[key], found[key], f"{name}.{key}".lstrip("."))
        ]
    if isinstance(expected, list) and isinstance(found, list) and expected and found:
        return unknown_against(expected[0], found[0], f"{name}[0]")
    return []


@part("gpu-modes", "compute mode, MIG and ECC of each GPU, read and never set, are what NVML says", 5, beside=True)
def gpu_modes(kit: Kit) -> None:
    import pynvml

    from ddpdoctor.probes.nvidia_libraries.nvml_inquiry import COMPUTE_MODES

    def asked(question: Any, *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except pynvml.NVMLError as error:
            return f"({error})"

    gpus = gpus_of(kit.snapshot("--quick"))
    pynvml.nvmlInit()
    kit.hold(pynvml.nvmlDeviceGetCount() == len(gpus), f"NVML counts {pynvml.nvmlDeviceGetCount()}, found {len(gpus)}")
    for gpu in gpus:
        handle = pynvml.nvmlDeviceGetHandleByIndex(gpu["index"])
        mode = asked(pynvml.nvmlDeviceGetComputeMode, handle)
        mig, ecc = asked(pynvml.nvmlDeviceGetMigMode, handle), asked(pynvml.nvmlDeviceGetEccMode, handle)
        kit.saw(f"GPU {gpu['index']}", {name: gpu[name] for name in ("compute_mode", "mig_enabled", "ecc_enabled")})
        kit.saw(f"NVML of GPU {gpu['index']}", {"compute mode": mode, "MIG": mig, "ECC": ecc})
        told = COMPUTE_MODES[mode] if isinstance(mode, int) else None
        for name, said in (
            ("compute_mode", told),
            ("mig_enabled", None if isinstance(mig, str) else mig[0] == 1),
            ("ecc_enabled", None if isinstance(ecc, str) else ecc[0] == 1),
        ):
            if said is not None:
                kit.hold(gpu[name] == said, f"{name}: NVML says {said}, the snapshot {gpu[name]}")


@part("nvidia-smi", "the facts of driver and GPUs are nvidia-smi's", 6, beside=True)
def nvidia_smi(kit: Kit) -> None:
    program = kit.needs_program("nvidia-smi") if not kit.machine.rehearsal else _stand_in_for_smi(kit)
    ran = kit.run([program, f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"])
    if ran.code:
        raise NotPossibleError(f"nvidia-smi ended with {ran.code}: {(ran.stdout + ran.stderr).strip()[:200]}")
    kit.keep("nvidia-smi.csv", ran.stdout)
    kit.keep("nvidia-smi-q.txt", kit.run([program, "-q"]).stdout)
    facts = kit.snapshot("--quick")
    driver, gpus = facts["driver"], gpus_of(facts)
    kit.saw("driver", driver)
    rows = [dict(zip(SMI_FIELDS, map(str.strip, line.split(",")), strict=True)) for line in ran.stdout.splitlines()]
    kit.saw("nvidia-smi", rows)
    kit.hold(len(rows) == len(gpus), f"nvidia-smi lists {len(rows)} GPUs, the snapshot {len(gpus)}")
    for row, gpu in zip(rows, gpus, strict=True):
        version = (
            driver["kernel_version"] if isinstance(driver["kernel_version"], str) else driver["nvml_driver_version"]
        )
        kit.hold(row["driver_version"] == version, f"nvidia-smi: driver {row['driver_version']}, snapshot: {version}")
        for field, fact in (("name", "name"), ("uuid", "uuid")):
            kit.hold(row[field] == gpu[fact], f"{field}: {row[field]} and {gpu[fact]}")
        kit.hold(
            row["pci.bus_id"].lower().endswith(gpu["bus_id"].lower()), f"bus id: {row['pci.bus_id']}, {gpu['bus_id']}"
        )
        capability = ".".join(map(str, gpu["compute_capability"]))
        kit.hold(row["compute_cap"] == capability, f"capability: {row['compute_cap']}, {capability}")
        if not _unknown(gpu["compute_mode"]):
            mode = row["compute_mode"].lower().replace("_", "-")
            kit.hold(mode == gpu["compute_mode"], f"compute mode: {row['compute_mode']}, {gpu['compute_mode']}")
        if not _unknown(gpu["mig_enabled"]):
            kit.hold((row["mig.mode.current"] == "Enabled") is gpu["mig_enabled"], f"MIG: {row['mig.mode.current']}")


def _stand_in_for_smi(kit: Kit) -> str:
    """A program that says what the snapshot does."""
    facts = kit.snapshot("--quick")
    version = facts["driver"]["nvml_driver_version"]
    facts["driver"]["kernel_version"] = version
    lines = [
        f"{gpu['index']}, {gpu['name']}, {gpu['uuid']}, {version}, {gpu['memory_total'] >> 20}, "
        f"{'.'.join(map(str, gpu['compute_capability']))}, Default, Disabled, 0000{gpu['bus_id']}"
        for gpu in gpus_of(facts)
    ]
    path = kit.folder / "nvidia-smi"
    path.write_text("#!/bin/sh\ncat <<'end'\n" + "\n".join(lines) + "\nend\n")
    path.chmod(0o755)
    return str(path)


@part("driver", "cuInit, its CUDA version and the library's path are what a process gets", 5, beside=True)
def driver(kit: Kit) -> None:
    found = kit.snapshot("--quick")["driver"]
    kit.saw("driver", found)
    kit.hold(found["cuda_init"] == 0, f"cuInit returned {found['cuda_init']}, {found['cuda_end']}")
    kit.hold(found["nvml_status"] == 0, f"nvmlInit returned {found['nvml_status']}: {found['nvml_message']}")
    code = (
        "import ctypes, json, os; cuda = ctypes.CDLL('libcuda.so.1'); number = ctypes.c_int(); cuda.cuInit(0);"
        "cuda.cuDriverGetVersion(ctypes.byref(number));"
        "paths = {os.path.realpath(l.split()[-1]) for l in open('/proc/self/maps') if 'libcuda.so' in l};"
        "print(json.dumps([number.value, sorted(paths)]))"
    )
    number, paths = json.loads(kit.run([sys.executable, "-c", code]).stdout)
    said = [number // 1000, number % 1000 // 10]
    kit.hold(list(found["cuda_version"]) == said, f"libcuda says CUDA {said}, the snapshot {found['cuda_version']}")
    kit.hold(found["libcuda_path"] in paths, f"a process gets {paths}, the snapshot has {found['libcuda_path']}")


@part("nvml-errors", "NVML's words for its return codes", 2, beside=True)
def nvml_errors(kit: Kit) -> None:
    code = (
        "import ctypes, json; nvml = ctypes.CDLL('libnvidia-ml.so.1'); nvml.nvmlErrorString.restype = ctypes.c_char_p;"
        "print(json.dumps({code: (nvml.nvmlErrorString(code) or b'').decode() for code in [*range(32), 999]}))"
    )
    ran = kit.run([sys.executable, "-c", code])
    kit.hold(ran.code == 0, f"NVML can't be asked: {ran.stderr.strip()[-200:]}")
    words = json.loads(ran.stdout)
    kit.saw("words", words)
    kit.keep("nvml-errors.json", ran.stdout)
    import pynvml

    for number, said in words.items():
        known = pynvml.NVMLError._errcode_to_string.get(int(number), "")
        if said != "Unknown Error":
            kit.compare(f"NVML's code {number}, and nvidia-ml-py's word for it", known or said, said)


@part("nccl-library", "the NCCL that torch loads is the one that the snapshot names", 8, beside=True)
def nccl_library(kit: Kit) -> None:
    facts = kit.snapshot()
    nccl = facts["nccl"]
    kit.saw("nccl", nccl)
    torch = kit.asked_of_torch(ASK_TORCH, rehearsed=as_torch_would(facts))
    if kit.machine.rehearsal:
        return
    kit.saw("libraries", {name: torch[name] for name in ("libcuda", "libnccl", "libcudart")})
    kit.hold(nccl["library"] in torch["libnccl"], f"torch loads {torch['libnccl']}, the snapshot has {nccl['library']}")
    version = ".".join(map(str, torch["nccl"]))
    kit.hold(nccl["version"] == version, f"torch says NCCL {version}, the snapshot {nccl['version']}")
    kit.compare("NCCL's answer to ncclGetUniqueId", 0, nccl["answer_status"])
    kit.hold(
        nccl["predicted_interface"] == nccl["answer_interface"],
        f"predicted was {nccl['predicted_interface']}, NCCL took {nccl['answer_interface']}",
    )


@part("nccl-interface", "NCCL's own choice of interface in a real communicator is the predicted one", 12, beside=True)
def nccl_interface(kit: Kit) -> None:
    nccl = kit.snapshot("--quick")["nccl"]
    with kit.training(1, settings={"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,GRAPH"}) as job:
        job.until_it_trains()
        printed = job.printed()
    kit.keep("nccl-info.txt", printed)
    if kit.machine.rehearsal:
        printed = f"host:1:1 [0] NCCL INFO Bootstrap: Using {nccl['predicted_interface']}:10.0.0.1<0>"
    lines = [line for line in printed.splitlines() if "NCCL INFO" in line]
    bootstrap = [line.split("Bootstrap")[1] for line in lines if "Bootstrap" in line and "Using" in line]
    kit.saw("bootstrap", bootstrap)
    kit.saw("network", [line.partition("NCCL INFO")[2].strip() for line in lines if "NET/" in line][:10])
    kit.saw("version", [line.strip() for line in printed.splitlines() if "NCCL version" in line][:1])
    kit.hold(bootstrap, "NCCL said nothing of its bootstrap interface")
    predicted = nccl["predicted_interface"]
    kit.hold(isinstance(predicted, str) and predicted in bootstrap[0], f"predicted {predicted}; NCCL:{bootstrap[0]}")


@part("other-user", "an ordinary user is told the same of the GPUs", 10, beside=True)
def other_user(kit: Kit) -> None:
    kit.needs_root("to become another user")
    kit.needs_program("setpriv")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    ran = kit.run([*nobody, sys.executable, "-c", "import msgspec, ddpdoctor"], HOME="/tmp")
    if ran.code:
        raise NotPossibleError(f"another user can't run this Python or read {ROOT}")
    mine, theirs = (
        kit.report("check", "--quick"),
        kit.run([*nobody, sys.executable, "-m", "ddpdoctor", "check", "--quick", "--json"], 90, HOME="/tmp"),
    )
    kit.hold("Traceback" not in theirs.stderr, "a traceback")
    other = json.loads(theirs.stdout)
    failed = {finding["slug"] for finding in other["findings"] if finding["severity"] == "fail"}
    if "python-unusable" in failed:
        raise NotPossibleError(f"another user can't start {sys.executable}")
    kit.saw("only as another user", sorted(failed - {finding["slug"] for finding in mine["findings"]}))
    kit.hold(other["verdict"] != "unknown", f"another user gets no verdict: {other['problems']}")
    kit.hold(
        not failed - {finding["slug"] for finding in mine["findings"]}, f"only for another user fails: {sorted(failed)}"
    )


def holders_of(kit: Kit) -> dict[int, Any]:
    """Bytes on the first GPU by the pid that is named for them, as the snapshot has it."""
    holders = gpus_of(kit.snapshot("--quick"))[0]["holders"]
    return {holder["pid"]: holder["memory"] for holder in holders} if isinstance(holders, list) else {}


@part("context-memory", "what a CUDA context and a rank take of a GPU, and who is named for it", 25)
def context_memory(kit: Kit) -> None:
    import pynvml

    from ddpdoctor.processes.gpu_holders import BARE_CONTEXT

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    with kit.started(CONTEXT.format(device=kit.machine.device)) as bare:
        took = pynvml.nvmlDeviceGetMemoryInfo(handle).used - before
        kit.saw("memory of a context with one number in it, MiB", took >> 20)
        kit.compare("a context without tensors takes less than ddpdoctor's line for it", True, took < BARE_CONTEXT)
        kit.saw("who NVML says holds it", listed := holders_of(kit))
        if bare not in listed and not kit.machine.rehearsal:
            kit.differs.append(f"NVML does not list the process {bare}, which has a context: {listed}")
    before = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    with kit.training(1) as job:
        job.until_it_trains()
        (pid,) = job.pids()
        used = pynvml.nvmlDeviceGetMemoryInfo(handle).used - before
        kit.saw("memory of one rank, MiB", used >> 20)
        kit.saw("holders", listed := holders_of(kit))
        if pid not in listed and not kit.machine.rehearsal:
            kit.differs.append(f"NVML does not list the rank {pid} as a holder: {listed}")
        report = kit.report("jobs")
    (found,) = [job for job in report["jobs"] if pid in [rank["process"]["pid"] for rank in job["ranks"]]] or [None]
    kit.saw("jobs", found)
    kit.hold(found is not None, "jobs does not show the training")
