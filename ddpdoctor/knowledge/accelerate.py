"""accelerate's configuration file: how its YAML and JSON are read, and how many processes a launch starts by it. Pure.

Only what accelerate itself writes into such a file is read: a key and a plain value on a line. Whatever else YAML knows is left
out, and known by its key alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.facts.accelerate import ConfigEntry, ConfigFile, Value

MAX_ENTRIES: Final = 200
MAX_KEY_LENGTH: Final = 60
MAX_VALUE_LENGTH: Final = 1000

ONE_PROCESS: Final = ("NO", "MULTI_CPU")
"""Values of distributed_type by which accelerate starts the script itself, once, unless mpirun does."""
DISTRIBUTED_TYPES: Final = (
    *ONE_PROCESS, "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU", "MULTI_NEURON",
    "DEEPSPEED", "FSDP", "XLA", "TPU", "MEGATRON_LM",
)  # fmt: skip
ON_CUDA_GPUS: Final = ("MULTI_GPU", "DEEPSPEED", "FSDP", "MEGATRON_LM")
"""Those that start one process a GPU with torch's launcher."""
PRECISIONS: Final = ("no", "fp16", "bf16", "fp8")
KEYS: Final = (
    "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "num_processes", "machine_rank",
    "num_machines", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend", "same_network", "main_training_function",
    "enable_cpu_affinity", "fp8_config", "deepspeed_config", "fsdp_config", "parallelism_config", "megatron_lm_config",
    "mpirun_config", "downcast_bf16", "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands",
    "tpu_vm", "tpu_env", "dynamo_config", "dynamo_backend", "fp16", "ipex_config",
)  # fmt: skip
"""Of accelerate 1.15.0, and of older files."""


class NotUnderstoodError(ValueError):
    """The file isn't made of keys and values; says where, and nothing of what stands there."""


def read_config(path: str, text: str) -> ConfigFile:
    """Read the file as accelerate does: JSON by its name's ending, else YAML. It raises `NotUnderstoodError` where we can't."""
    return _read_json(path, text) if path.endswith(".json") else _read_yaml(path, text)


def _read_json(path: str, text: str) -> ConfigFile:
    try:
        content = msgspec.json.decode(text.encode())
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotUnderstoodError("it isn't JSON") from error
    if not isinstance(content, dict) or len(content) > MAX_ENTRIES:
        raise NotUnderstoodError("it isn't a list of keys and values")
    lines = text.splitlines()
    entries, nested = [], []
    for name, value in content.items():
        if not isinstance(value, Value) or (isinstance(value, str) and len(value) > MAX_VALUE_LENGTH):
            nested.append(name[:MAX_KEY_LENGTH])
            continue
        line = next((number for number, line in enumerate(lines, 1) if f'"{name}"' in line), 1)
        entries.append(ConfigEntry(name=name[:MAX_KEY_LENGTH], value=value, line=line))
    return ConfigFile(path=path, entries=tuple(entries), nested=tuple(nested))


_KEY: Final = compile_lazily(rf"([A-Za-z_]\w{{0,{MAX_KEY_LENGTH - 1}}})[ ]*:(?:[ ]+(.*))?", re.ASCII)


def _read_yaml(path: str, text: str) -> ConfigFile:
    entries: list[ConfigEntry] = []
    nested: list[str] = []
    last = ""
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = raw.rstrip()
        if not line or line.lstrip().startswith("#") or (line == "---" and not last):
            continue
        if line[0] in " -" and line != "---" and last:
            # It belongs to the key above, whose value is more than what stands on its line.
            entries = [entry for entry in entries if entry.name != last]
            nested.append(last)
            continue
        found = _KEY.fullmatch(line)
        if found is None or len(entries) >= MAX_ENTRIES:
            raise NotUnderstoodError(f"line {number} isn't a key with its value")
        last = found[1]
        try:
            entries.append(ConfigEntry(name=last, value=_scalar(found[2] or ""), line=number))
        except NotUnderstoodError:
            if _may_go_on(found[2]):
                raise NotUnderstoodError(f"the value in line {number} may end in another line") from None
            nested.append(last)
    return ConfigFile(path=path, entries=tuple(entries), nested=tuple(dict.fromkeys(nested)))


_QUOTED: Final = compile_lazily(r"'(?:[^']|'')*'" r'|"(?:[^"\\]|\\.)*"')


def _may_go_on(value: str) -> bool:
    """Whether a quotation or a list in brackets is left open: what looks like keys below it may stand in it."""
    rest = re.sub(r"\s#.*", "", _QUOTED.sub("", value))
    return "'" in rest or '"' in rest or any(rest.count(first) != rest.count(last) for first, last in ("[]", "{}"))


_TRUE: Final = ("yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
_FALSE: Final = ("no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
_NOTHING: Final = ("", "~", "null", "Null", "NULL")
_PLAIN: Final = compile_lazily(r"[A-Za-z_/.0-9](?:[^\x00-\x1f:#]|:(?=[^ ])|(?<! )#)*")
_NUMBER_OF_SOME_KIND: Final = compile_lazily(r"[-+.0-9][0-9_:xXa-fA-F.eE+-]*|[-+]?\.(?:inf|Inf|INF|nan|NaN|NAN)")
_NO_NUMBER: Final = compile_lazily(r"[0-9]+(?:\.[0-9]+){2,}|[0-9]+(?:,[0-9]*)+")
"""Addresses and lists of GPUs."""


def _scalar(text: str) -> Value:
    """One value as YAML 1.1 reads it, in which "no" is false and 0 is a number.

    Raises:
        NotUnderstoodError: it is more than a plain value.
    """
    text = text.strip()
    if found := re.fullmatch(r"'((?:[^']|'')*)'(?:\s+#.*)?", text):
        return found[1].replace("''", "'")
    if found := re.fullmatch(r'"([^"\\]*)"(?:\s+#.*)?', text):
        return found[1]
    text = re.sub(r"(?:\A|(?<=\s))#.*", "", text).rstrip()
    if text in _NOTHING:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if re.fullmatch(r"[-+]?(?:0|[1-9][0-9]{0,17})", text):
        return int(text)
    if re.fullmatch(r"[-+]?[0-9]{1,15}\.[0-9]{0,15}", text):
        return float(text)
    is_number = _NUMBER_OF_SOME_KIND.fullmatch(text) and not _NO_NUMBER.fullmatch(text)
    if is_number or not _PLAIN.fullmatch(text) or text.endswith(":"):
        raise NotUnderstoodError("not a plain value")
    if len(text) > MAX_VALUE_LENGTH:
        raise NotUnderstoodError("too long")
    return text


def kind(file: ConfigFile) -> str:
    """The file's distributed_type; "NO" also where YAML has made false of it, "" where it isn't known."""
    value = file.value("distributed_type")
    return "NO" if value is False else value if isinstance(value, str) else ""


def is_of_this_host(file: ConfigFile) -> bool:
    """Whether its processes are started here, and not at Amazon's."""
    return file.value("compute_environment", "LOCAL_MACHINE") == "LOCAL_MACHINE"


def on_each_machine(file: ConfigFile) -> int | None:
    """Count the processes that a launch by that file starts on each machine; None where it doesn't say, or we can't tell."""
    processes, machines = file.number("num_processes", 1 if kind(file) == "NO" else -1), file.number("num_machines", 1)
    if processes is None or machines is None or processes < 1 or machines < 1:
        return None
    if kind(file) in ONE_PROCESS:
        return None if "mpirun_config" in file else 1
    return processes // machines if kind(file) in DISTRIBUTED_TYPES else None


def strange_keys(file: ConfigFile) -> Iterator[tuple[ConfigEntry, str]]:
    """Keys that accelerate refuses, each with the known one that is meant, by all that their names tell."""
    import difflib

    for entry in file.entries:
        if entry.name not in KEYS and (near := difflib.get_close_matches(entry.name, KEYS, n=1, cutoff=0.85)):
            yield entry, near[0]
