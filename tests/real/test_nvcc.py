"""What a real nvcc makes, read back; and what the recorded files say it makes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.toolchain import Nvcc
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.elf import opened
from ddpdoctor.probes.toolchain import probe

KERNEL = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; } void run(float* x) { twice<<<1, 32>>>(x); }"
NVCC = shutil.which("nvcc")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(NVCC is None, reason="no nvcc, which few hosts have")]


def compiled(folder: Path, *options: str) -> tuple[str, ...]:
    (folder / "twice.cu").write_text(KERNEL)
    command = [str(NVCC), "-shared", "-Xcompiler", "-fPIC", "-cudart", "shared", *options, "twice.cu", "-o", "twice.so"]
    subprocess.run(command, cwd=folder, check=True)
    with opened(folder / "twice.so") as library:
        assert any(name.startswith("libcudart.so.") for name in library.needed)
        return library.architectures


def test_cubins_and_ptx(tmp_path: Path) -> None:
    found = compiled(
        tmp_path, "-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=[sm_90,compute_90]"
    )
    assert found == ("sm_80", "sm_90", "compute_90")


def test_the_probe_finds_it_with_its_limit() -> None:
    context = Context("python3", environ=os.environ)
    context.answered_by(lambda group: Unknown("not asked"))
    found = probe(context)
    assert isinstance(found.nvccs[0], Nvcc)
    assert found.nvccs[0].version
    assert found.nvccs[0].error == ""
    assert found.nvccs[0].gcc_max is not None
