"""torch in the target Python: its files, and an import of it under our deadline."""

from __future__ import annotations

from typing import Any

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.torch import Torch
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.target_python.asking import SECONDS, Answer, ask, ask_interpreter, last_lines, maybe

DEADLINE = SECONDS["torch"] + 5

AFTER_IMPORT = {
    "arch_list": "torch.cuda.get_arch_list()",
    "distributed_available": "torch.distributed.is_available()",
    "nccl_available": "torch.distributed.is_nccl_available()",
    "gloo_available": "torch.distributed.is_gloo_available()",
    "nccl_version": "torch.cuda.nccl.version()",
    "cudnn_version": "asking for cuDNN's version",
    "cudnn_built": "asking for the cuDNN that torch was built against",
    "cxx11_abi": "asking for torch's C++ ABI",
    "num_threads": "torch.get_num_threads()",
}
FROM_DRIVER = {"cuda_available": "torch.cuda.is_available()", "device_count": "torch.cuda.device_count()"}


def probe(context: Context) -> Torch | Unknown:
    # The import takes longest, so it is under way before the files are asked for.
    imported = None if context.quick else ask(context, "torch")
    files = ask_interpreter(context, "torch", "looking for torch")
    if isinstance(files, Unknown):
        return files
    if files is None:
        return Torch(installed=False)
    if files["found_through"] and not files["version"] and not files["hidden"]:
        # A torch.py or a folder of that name, and no PyTorch anywhere.
        return Torch(installed=False, location=files["location"], found_through=files["found_through"])
    return Torch(installed=True, **files, **({} if imported is None else import_facts(imported)))


def import_facts(answer: Answer) -> dict[str, Any]:
    """The fields of `Torch` that the import tells."""
    told = answer.told
    if told.get("import_state") == "ok":
        return {
            "import_state": "ok",
            "import_seconds": told["import_seconds"],
            **{name: maybe(told, name, doing) for name, doing in AFTER_IMPORT.items()},
            **_driver_facts(answer),
        }
    printed = last_lines(answer.ended.stderr)
    if "import_state" in told:
        return {name: told[name] for name in ("import_state", "import_error", "import_traceback", "in_the_way")}
    state, error = _end(answer)
    return {"import_state": state, "import_error": error, "import_traceback": printed}


def _driver_facts(answer: Answer) -> dict[str, Any]:
    told = answer.told
    if "cuda_available" in told:
        found = {name: maybe(told, name, doing) for name, doing in FROM_DRIVER.items()}
        return {"cuda_error": told["cuda_error"], **found}
    end = _end(answer)[1]
    if not all(name in told for name in AFTER_IMPORT):
        return dict.fromkeys(FROM_DRIVER, Unknown(f"torch was imported, but then {end}"))
    error = f"CUDA initialisation: {end}"
    return {"cuda_error": error, **dict.fromkeys(FROM_DRIVER, Unknown(error))}


def _end(answer: Answer) -> tuple[str, str]:
    """The state of an import that said nothing more, and how its process ended."""
    ended = answer.ended
    if ended.timed_out:
        return "hangs", f"no answer within {SECONDS['torch']:.0f} s"
    if ended.signal_name:
        return "crashes", f"the process was ended by {ended.signal_name}"
    if answer.state != "ok":
        return "fails", answer.detail
    return "fails", f"the process ended itself with exit code {ended.returncode}"
