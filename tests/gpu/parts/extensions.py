"""An extension that is really compiled for this GPU, judged as Apex is."""

from __future__ import annotations

import json
import shutil
import sysconfig
from pathlib import Path

from tests.gpu.kit import Kit, NotPossibleError, part

SOURCE = r"""
#include <torch/extension.h>
__global__ void twice_kernel(float *values, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) values[at] *= 2;
}
torch::Tensor twice(torch::Tensor values) {
    auto result = values.clone();
    twice_kernel<<<(result.numel() + 255) / 256, 256>>>(result.data_ptr<float>(), result.numel());
    return result;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("twice", &twice); }
"""
BUILD = """
import os, sys
from torch.utils import cpp_extension
if sys.argv[1] == "cuda":
    built = cpp_extension.load(name="amp_C", sources=["twice.cu"], build_directory="built", verbose=False)
    assert built.twice(torch.ones(1000, device="cuda")).sum().item() == 2000
else:
    open("twice.cpp", "w").write('#include <torch/extension.h>\\ntorch::Tensor twice(torch::Tensor values) { return values * 2; }\\n'
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("twice", &twice); }')
    built = cpp_extension.load(name="amp_C", sources=["twice.cpp"], build_directory="built", verbose=False)
    assert built.twice(torch.ones(1000)).sum().item() == 2000
print(json.dumps(built.__file__))
"""


@part("toolchain", "the snapshot's nvcc, CUDA home and compiler are those with which torch builds", 10, beside=True)
def toolchain(kit: Kit) -> None:
    facts = kit.snapshot()["toolchain"]
    kit.saw("toolchain", facts)
    home = kit.asked_of_torch("from torch.utils.cpp_extension import CUDA_HOME\nprint(json.dumps(CUDA_HOME))")
    kit.saw("torch's CUDA_HOME", home)
    if home is None:
        kit.differs.append("torch finds no CUDA home here")
        return
    kit.hold(home in json.dumps(facts), f"torch builds with {home}, which the snapshot doesn't have")


@part(
    "extension",
    "an extension compiled here with nvcc is read and judged: its architectures, its torch",
    80,
    beside=True,
)
def extension(kit: Kit) -> None:
    kit.needs_program("ninja")
    kit.needs_program("g++")
    home = kit.asked_of_torch("from torch.utils.cpp_extension import CUDA_HOME\nprint(json.dumps(CUDA_HOME))")
    if not kit.machine.rehearsal and not (home and Path(home, "bin", "nvcc").exists()):
        raise NotPossibleError(f"there is no nvcc: torch's CUDA home is {home}")
    # As an installed Apex lies: its compiled part beside its package.
    site = kit.folder / "site-packages"
    for package in ("apex", "apex/amp", "apex/optimizers"):
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").write_text("")
    (site / "apex-0.1.dist-info").mkdir()
    (site / "apex-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: apex\nVersion: 0.1\n")
    (kit.folder / "twice.cu").write_text(SOURCE)
    (kit.folder / "built").mkdir()
    device = kit.machine.device
    built = kit.asked_of_torch(
        f"import sys\nsys.argv = ['-', {device!r}]\n{BUILD}", seconds=130, TORCH_EXTENSIONS_DIR=str(kit.folder)
    )
    shutil.copy(built, site / f"amp_C{sysconfig.get_config_var('EXT_SUFFIX')}")
    path = f"{kit.environ()['PYTHONPATH']}:{site}"
    ran = kit.ddpdoctor("snapshot", PYTHONPATH=path)
    facts = json.loads(ran.stdout)["extensions"]
    kit.saw("extensions", facts)
    apex = facts["apex"]
    kit.hold(apex, "the Apex is not found")
    (objects,) = (one["objects"] for one in apex[:1])
    compiled = [one for one in objects if one["module"] == "amp_C"]
    kit.hold(compiled, "the compiled module is not among its objects")
    kit.hold(
        not compiled[0]["missing"] and not compiled[0]["undefined"], f"it loads here, and is said to lack {compiled[0]}"
    )
    kit.saw("architectures", compiled[0]["architectures"])
    if not kit.machine.rehearsal:
        major, minor = kit.asked_of_torch("print(json.dumps(torch.cuda.get_device_capability()))")
        kit.hold(f"sm_{major}{minor}" in compiled[0]["architectures"], "this GPU's architecture is not read from it")
