"""Finds the target Python's compiled extensions of torch and reads them as files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.extensions import Apex, Extension, Extensions, SharedObject
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.elf import NotElf, SharedLibrary, broken_tables_named, opened
from ddpdoctor.probes.files import isdir, isfile, names_in
from ddpdoctor.probes.site_packages import TORCH_LIBRARY, SitePackages, site_packages

PACKAGES = (
    "causal_conv1d", "deepspeed", "detectron2", "fairseq", "flash_attn", "flash_attn_3", "fused_kernels", "gsplat",
    "horovod", "kaolin", "mamba_ssm", "MinkowskiEngine", "mmcv", "natten", "nvdiffrast", "pytorch3d", "spconv",
    "tinycudann", "torch_cluster", "torch_scatter", "torch_sparse", "torch_spline_conv", "torchaudio", "torchcodec",
    "torchtext", "torchvision", "transformer_engine", "vllm", "xformers",
)  # fmt: skip
"""Packages with compiled parts that link to torch, by folder. Extensions directly in site-packages are found anyway."""

APEX_PARTS = {"amp", "contrib", "mlp", "multi_tensor_apply", "normalization", "optimizers", "parallel", "transformer"}
"""Folders of NVIDIA's Apex through its history; releases have dropped one or another."""

APEX_MODULE = compile_lazily(
    r"amp_C|apex_C|syncbn|mlp_cuda|fused_(?:layer_norm|dense|weight_gradient_mlp)_cuda|fused_rotary_positional_embedding"
    r"|(?:generic_|upper_triang_)?scaled_(?:upper_triang_)?(?:masked_)?softmax_cuda|distributed_(?:adam|lamb)_cuda"
    r"|xentropy_cuda|fast_layer_norm|fast_multihead_attn|fmhalib|bnp|group_norm_(?:v2_)?cuda|focal_loss_cuda"
    r"|fused_(?:adam|lamb)_cuda|fused_index_mul_2d|fused_conv_bias_relu|transducer_(?:joint|loss)_cuda|cudnn_gbn_lib"
    r"|peer_memory_cuda|nccl_p2p_cuda|fast_bottleneck|permutation_search_cuda|_apex_\w+"
)
"""Modules that Apex's setup.py puts directly into site-packages."""

FILE_NAME = compile_lazily(r"(?P<module>[^.]+)(?:\.(?P<tag>(?:cpython|pypy)-?\w+|abi3)(?:-[\w-]+)?)?\.so")
MAX_OBJECTS = 200
MAX_SYMBOLS = 20


def probe(context: Context) -> Extensions | Unknown:
    """Read every shared object that links to torch; imports none."""
    if sys.platform != "linux":
        return Unknown("shared objects are read on Linux only")
    site = site_packages(context)
    if isinstance(site, Unknown):
        return site
    with ExitStack() as stack:
        reader = _Reader(stack, site.torch_libraries)
        apex = tuple(_apexes(site, reader))
        taken = {shared_object.path for found in apex for shared_object in found.objects}
        packages = [*_packages(site, reader), *_top_level(site, reader, taken)]
        return Extensions(packages=tuple(packages), apex=apex)


class _Reader:
    """Reads shared objects against one torch, whose libraries it opens once and only when something asks."""

    def __init__(self, stack: ExitStack, paths: dict[str, Path]) -> None:
        self._stack = stack
        self._paths = paths

    @cached_property
    def _torch(self) -> list[SharedLibrary]:
        libraries = (_opened(self._stack, path) for path in self._paths.values())
        return [library for library in libraries if isinstance(library, SharedLibrary)]

    def read(self, paths: list[Path], base: Path, *, architectures: bool = False) -> tuple[SharedObject, ...]:
        """Those of the paths that link to torch or can't be read; what one of them exports isn't missing in another.

        architectures: walk their fat binaries too, which for the largest packages are thousands of pages on the disk.
        """
        with ExitStack() as stack:
            libraries = {path: _opened(stack, path) for path in paths}
            objects = (self._describe(path, base, libraries, architectures) for path in paths)
            return tuple(shared_object for shared_object in objects if shared_object is not None)

    def _describe(
        self, path: Path, base: Path, libraries: dict[Path, SharedLibrary | str], architectures: bool
    ) -> SharedObject | None:
        name = FILE_NAME.fullmatch(path.name)
        module = ".".join([*path.relative_to(base).parent.parts, name["module"] if name else path.stem])
        described = SharedObject(path=str(path), module=module, python_tag=(name["tag"] or "") if name else "")
        library = libraries[path]
        if isinstance(library, str):
            return msgspec.structs.replace(described, error=library)
        try:
            # Not only where it is opened: all that are read together would be given up there for one of them.
            with broken_tables_named():
                needed, undefined = library.needed, library.undefined()
                ours = [name for name in needed if TORCH_LIBRARY.fullmatch(name)]
                if not ours and not undefined:
                    return None
                beside = (other for other in libraries.values() if other is not library and not isinstance(other, str))
                exporters = [*self._torch, *beside]
                lacking = [
                    name
                    for name in undefined
                    if self._torch and not any(_may_export(exporter, name) for exporter in exporters)
                ]
                return msgspec.structs.replace(
                    described,
                    needed=needed,
                    missing=tuple(name for name in ours if self._paths and name not in self._paths),
                    undefined=tuple(lacking[:MAX_SYMBOLS]),
                    architectures=library.architectures if architectures else (),
                    glibcxx=library.glibcxx,
                )
        except NotElf as error:
            return msgspec.structs.replace(described, error=str(error))


def _may_export(library: SharedLibrary, name: str) -> bool:
    """Whether it defines that symbol, or can't be asked: another's broken tables are none of who needs it."""
    try:
        return library.exports(name) is not False
    except NotElf:
        return True


def _opened(stack: ExitStack, path: Path) -> SharedLibrary | str:
    """The open library, or why it can't be read."""
    try:
        return stack.enter_context(opened(path))
    except NotElf as error:
        return str(error)


def _shared_objects(folder: Path) -> list[Path]:
    """Every .so below a folder, without following links to folders."""
    found = []
    for parent, folders, files in os.walk(folder):
        folders.sort()
        found += [Path(parent) / name for name in sorted(files) if name.endswith(".so")]
        if len(found) >= MAX_OBJECTS:
            break
    return found[:MAX_OBJECTS]


def _apexes(site: SitePackages, reader: _Reader) -> Iterator[Apex]:
    seen = set()
    for folder in site.folders:
        location = folder / "apex"
        if location in seen or not isfile(location / "__init__.py"):
            continue
        seen.add(location)
        is_nvidia = len(APEX_PARTS & set(names_in(location))) >= 2
        paths = []
        if is_nvidia:
            top = [folder / name for name in names_in(folder) if name.endswith(".so")]
            paths = [path for path in top if APEX_MODULE.fullmatch(path.name.partition(".")[0])]
            paths += _shared_objects(location)
        yield Apex(
            location=str(location),
            version=site.version("apex"),
            kind="nvidia" if is_nvidia else "other",
            objects=reader.read(paths, folder, architectures=True),
        )


def _packages(site: SitePackages, reader: _Reader) -> Iterator[Extension]:
    for package in PACKAGES:
        folder = next((folder for folder in site.folders if isdir(folder / package)), None)
        if folder is None:
            continue
        objects = reader.read(_shared_objects(folder / package), folder)
        if objects:
            yield Extension(
                package=package, version=site.version(package), location=str(folder / package), objects=objects
            )


def _top_level(site: SitePackages, reader: _Reader, taken: set[str]) -> Iterator[Extension]:
    """Extensions that lie in site-packages itself, as flash_attn_2_cuda does."""
    for folder in site.folders:
        names = [name for name in names_in(folder) if name.endswith(".so")]
        paths = [folder / name for name in names if str(folder / name) not in taken]
        for shared_object in reader.read(paths, folder):
            if shared_object.error and not shared_object.python_tag:
                continue  # No telling whether it was meant to be a Python module.
            owner = next((known for known in PACKAGES if shared_object.module.startswith(known)), shared_object.module)
            yield Extension(
                package=owner, version=site.version(owner), location=shared_object.path, objects=(shared_object,)
            )
