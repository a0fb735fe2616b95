"""torch in the target Python: what its files say without importing it, and what an import in a subprocess came to."""

from __future__ import annotations

from typing import Annotated

from ddpdoctor.base.unknown import Facts, Maybe, Source, Unknown

NOT_IMPORTED = Unknown("torch was not imported")


class Torch(Facts, frozen=True, kw_only=True):
    """`installed` False: no torch on the target Python's path, everything else is at its default (but for `location` and
    `found_through`, where something else by that name is found).

    import_state: "ok", "fails" (an exception), "crashes" (died by a signal), "hangs" (our deadline passed), "not-tried" (--quick).
    Versions of CUDA are strings as torch writes them ("13.0"); those of NCCL and cuDNN (2, 28, 9) and (9, 15, 1).
    """

    installed: Annotated[bool, Source("importlib.util.find_spec in the target Python")]
    version: Annotated[str | None, Source("torch/version.py")] = None
    """"2.13.0+cu130", "2.13.0+cpu"."""
    cuda: Annotated[str | None, Source("torch/version.py")] = None
    """None: built without CUDA."""
    hip: Annotated[str | None, Source("torch/version.py")] = None
    """ROCm's HIP version; None: not a ROCm build."""
    location: Annotated[str, Source("importlib.util.find_spec in the target Python")] = ""
    """The torch folder; a file where something else by that name is found first."""
    found_through: Annotated[str, Source("sys.path of a script in the working folder")] = ""
    """"the working folder" or "PYTHONPATH" where that is why it is found; "" for the target Python's own packages."""
    hidden: Annotated[str, Source("sys.path without the working folder and PYTHONPATH")] = ""
    """Another torch folder, which would be found if those two were not there."""
    import_state: Annotated[str, Source("import torch in a subprocess")] = "not-tried"
    import_error: Annotated[str, Source("import torch in a subprocess")] = ""
    """Last line of the traceback, the signal's name, or the deadline."""
    import_traceback: Annotated[str, Source("import torch in a subprocess")] = ""
    """The last lines of stderr."""
    in_the_way: Annotated[str, Source("its traceback, and sys.path")] = ""
    """Where the import raised: a file in the working folder or on PYTHONPATH, or the folder of a package there, that the
    error comes from or speaks of, and that is found in place of a module of Python's own or of an installed one."""
    import_seconds: Annotated[float, Source("import torch in a subprocess")] = 0.0
    arch_list: Annotated[Maybe[tuple[str, ...]], Source("torch.cuda.get_arch_list()")] = NOT_IMPORTED
    """"sm_80", "sm_90", "compute_90" ...; empty for a CPU build."""
    cuda_available: Annotated[Maybe[bool], Source("torch.cuda.is_available()")] = NOT_IMPORTED
    cuda_error: Annotated[str, Source("torch.cuda.init()")] = ""
    """What initialising CUDA said, where it failed."""
    device_count: Annotated[Maybe[int], Source("torch.cuda.device_count()")] = NOT_IMPORTED
    distributed_available: Annotated[Maybe[bool], Source("torch.distributed.is_available()")] = NOT_IMPORTED
    nccl_available: Annotated[Maybe[bool], Source("torch.distributed.is_nccl_available()")] = NOT_IMPORTED
    gloo_available: Annotated[Maybe[bool], Source("torch.distributed.is_gloo_available()")] = NOT_IMPORTED
    nccl_version: Annotated[Maybe[tuple[int, ...] | None], Source("torch.cuda.nccl.version()")] = NOT_IMPORTED
    cudnn_version: Annotated[Maybe[tuple[int, ...] | None], Source("torch.backends.cudnn.version()")] = NOT_IMPORTED
    """The cuDNN that is loaded."""
    cudnn_built: Annotated[Maybe[tuple[int, ...] | None], Source("torch._C._cudnn.getCompileVersion()")] = NOT_IMPORTED
    """The cuDNN that torch was built against."""
    cxx11_abi: Annotated[Maybe[bool], Source("torch._C._GLIBCXX_USE_CXX11_ABI")] = NOT_IMPORTED
    num_threads: Annotated[Maybe[int], Source("torch.get_num_threads()")] = NOT_IMPORTED

    @property
    def cpu_only(self) -> bool:
        """Built for neither CUDA nor ROCm. Something else by the name of torch, or half of one, has no version."""
        return self.installed and self.version is not None and self.cuda is None and self.hip is None

    @property
    def impostor(self) -> str:
        """Path that is found by the name of torch and isn't PyTorch (a torch.py, a folder without version.py), or ""."""
        return self.location if self.found_through and self.version is None else ""
