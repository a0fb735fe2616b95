"""Things that the dynamic loader can't find for torch: whole libraries, or new enough symbols in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown, known, known_or
from ddpdoctor.checks.shared_fixes import distribution_of, install_package, is_debian
from ddpdoctor.checks.torch.cxx_libraries import which_is_too_old
from ddpdoctor.engine.registry import LogTraits, check, required, requires
from ddpdoctor.facts.snapshot import Container, Extensions, Libraries, Machine, Packages, TargetPython, Torch
from ddpdoctor.knowledge.cuda_stack import import_broken, pin_of, reinstall, without_folder
from ddpdoctor.knowledge.evidence import told, torch_version
from ddpdoctor.knowledge.privileges import by_root, runtime_of
from ddpdoctor.knowledge.python_commands import conda_install, pip_install
from ddpdoctor.knowledge.wheels import index_options, numbers

FROM_PIP = compile_lazily(
    r"lib(c10|caffe2|torch|shm\b|gomp-|cu[a-z]|nccl|nv[A-Za-z]|magma|roc|rccl|MIOpen|hip|amdhip|aotriton|triton|kineto)"
)
"""Libraries of torch's own wheels and of the packages that these require; others are the system's or conda's."""

NOT_OPENED = compile_lazily(r"(?<![\w.+-])(lib[\w.+-]{1,200}\.so[.\d]{0,60}): cannot open shared object file")

INTEL = {"libiomp5": "intel-openmp", "libmkl_": "mkl"}
"""How the libraries begin that Intel ships as packages of Python's."""

OF_THE_SYSTEM = {
    "libgomp.so.1": ("libgomp1", "libgomp", "libgomp"),
    "libstdc++.so.6": ("libstdc++6", "libstdc++", "libstdcxx-ng"),
    "libgfortran.so.5": ("libgfortran5", "libgfortran", "libgfortran5"),
    "libopenblas.so.0": ("libopenblas0", "openblas", "libopenblas"),
    "libnuma.so.1": ("libnuma1", "numactl-libs", "numactl"),
    "libibverbs.so.1": ("libibverbs1", "libibverbs", "rdma-core"),
    "librdmacm.so.1": ("librdmacm1", "librdmacm", "rdma-core"),
    "libmpi.so.40": ("openmpi-bin", "openmpi", "openmpi"),
    "libz.so.1": ("zlib1g", "zlib", "zlib"),
}
"""Library to its package in Debian and Ubuntu, in Red Hat's family and Fedora, and on conda-forge."""


@check("cuda-lib-not-found", severity=FAIL, owner=Owner.USER)
def cuda_lib_not_found(
    torch: Torch,
    packages: Maybe[Packages],
    libraries: Libraries,
    target_python: TargetPython,
    container: Maybe[Container],
    machine: Maybe[Machine],
) -> Iterator[Finding]:
    """A shared library that torch or an extension needs is nowhere to be found.

    ## What breaks
    `import torch` ends with "libcudart.so.12: cannot open shared object file".

    ## Why
    torch was installed without its nvidia-* packages (`--no-deps`, a lock file made elsewhere), one was uninstalled, or they
    are those of another CUDA major. An extension (flash-attn, Apex) that was built for another CUDA major asks for libraries that
    this torch doesn't bring. A torch from conda or from source also needs libraries of the system.

    ## Fix
    Install the package that provides it, in the version that torch pins; where the traceback ends in an extension, install or
    build that again for torch's CUDA (`python -c "import torch; print(torch.version.cuda)"`). Don't link one version's file under another's name.
    """
    requires(torch.installed, "torch is not installed")
    if torch.import_state == "ok":
        return
    named = NOT_OPENED.search(torch.import_error)
    missing = [named[1]] if named else []
    see = "container-no-gpu" if runtime_of(container) else "no-nvidia-driver"
    for soname in missing:
        requires(not re.match(r"lib(cuda|nvidia-ml)\.so", soname), f"{soname} is the driver's: see {see}")
    if not named or not isinstance(libraries.missing, Unknown):
        # The import stops at the first; the files tell what else would be missed.
        others = [soname for soname in known(libraries.missing) if not re.match(r"lib(cuda|nvidia-.*)\.so", soname)]
        missing += [soname for soname in others if soname not in missing]
    if not missing:
        return
    from_pip = [soname for soname in missing if FROM_PIP.match(soname)]
    fixes = [_bring(from_pip, torch, packages, target_python)] if from_pip else []
    fixes += [_other(soname, target_python, machine) for soname in missing if soname not in from_pip]
    last_line = (torch.import_error.strip().splitlines() or [""])[-1]
    yield Finding.of(
        f"torch needs {listed(missing, most=3)}, which {'is' if len(missing) == 1 else 'are'} not found here",
        told(torch, "import_error", f"import torch: {last_line}")
        if named
        else told(libraries, "missing", f"needed, and not found: {listed(missing)}"),
        torch_version(torch),
        fixes,
        severity=FAIL if named or import_broken(torch) else WARN,
    )


def _other(soname: str, target_python: TargetPython, machine: Maybe[Machine]) -> Fix:
    """The fix that brings a library that isn't torch's."""
    debian, fedora, conda = OF_THE_SYSTEM.get(soname, ("", "", ""))
    intel = next((package for begin, package in INTEL.items() if soname.startswith(begin)), "")
    in_conda = target_python.environment_kind == "conda" and bool(conda or intel)
    if in_conda or intel:
        install = conda_install(target_python, conda or intel) if in_conda else pip_install(target_python, intel)
        return Fix(f"Install the package that provides {soname}", (install,))
    apt = is_debian(machine)
    if debian and (apt or distribution_of(machine) in ("rhel", "rocky", "almalinux", "centos", "fedora")):
        install = install_package(machine, debian, fedora)
        return by_root(f"Install the system's package that provides {soname}", (install,))
    search = f"apt-file search {shlex.quote(soname)}" if apt else f"dnf provides {shlex.quote(f'*/{soname}')}"
    return Fix(f"Find out which of the system's packages provides {soname}, and have it installed", (search,))


def _bring(missing: list[str], torch: Torch, packages: Maybe[Packages], target_python: TargetPython) -> Fix:
    """The fix that brings the libraries: pip adds absent packages by itself, but puts back a lost file only when forced."""
    packages = known_or(packages, Packages(installed=()))
    wanted = {pin.package: pin for pin in (pin_of(soname, packages, target_python) for soname in missing) if pin}
    version = packages.version("torch") or torch.version or ""
    named = (f"torch=={version}" if version else "torch", *index_options(version))
    if any(pin.installed is None for pin in wanted.values()):
        return Fix("Let pip install the missing packages that torch requires", (pip_install(target_python, *named),))
    if wanted:
        return Fix("Install the packages that provide them again", (reinstall(target_python, *wanted.values()),))
    again = pip_install(target_python, "--force-reinstall", *named)
    return Fix("Install torch again, with all that it requires", (again,))


@check("glibcxx-too-old", severity=FAIL, owner=Owner.USER, log=LogTraits(particulars=which_is_too_old))
def glibcxx_too_old(
    torch: Torch, libraries: Libraries, target_python: TargetPython, extensions: Maybe[Extensions]
) -> Iterator[Finding]:
    """The C++ library that the interpreter gets is older than torch or an extension needs.

    ## What breaks
    The import ends with "libstdc++.so.6: version `GLIBCXX_3.4.32' not found".

    ## Why
    Something was compiled by a newer compiler than the libstdc++ that is loaded first: conda's, the system's, or one on
    LD_LIBRARY_PATH.

    ## Fix
    In conda: `conda install -c conda-forge libstdcxx-ng`. Elsewhere build the extension with the system's own compiler, or
    put the newer library first.
    """
    requires(torch.installed, "torch is not installed")
    said = re.search(
        r"version [`'](GLIBCXX|CXXABI)_([\d.]+)' not found(?: \(required by ([^)]+)\))?",
        torch.import_error + "\n" + torch.import_traceback,
    )
    if said:
        seen = told(torch, "import_error", f"import torch: {said[0]}")
        yield _too_old(f"{said[1]}_{said[2]}", said[3] or "torch", libraries, target_python, seen)
        return
    have = required(known(libraries.glibcxx_provided), "the interpreter gets no libstdc++.so.6")
    extensions = known(extensions)
    compiled = [package.objects for package in extensions.packages]
    for objects in (*compiled, *(apex.objects for apex in known_or(extensions.apex, ()))):
        for library in objects:
            needed = library.glibcxx.removeprefix("GLIBCXX_")
            if needed and numbers(needed) > numbers(have.removeprefix("GLIBCXX_")):
                seen = Evidence(f"{library.module} needs GLIBCXX_{needed}", library.path)
                yield _too_old(f"GLIBCXX_{needed}", library.module, libraries, target_python, seen)
                break
    known(extensions.apex)


def _too_old(needed: str, by: str, libraries: Libraries, target_python: TargetPython, seen: Evidence) -> Finding:
    known_version = isinstance(libraries.glibcxx_provided, str)
    have = str(libraries.glibcxx_provided).removeprefix("GLIBCXX_")
    path = libraries.glibcxx_path or "libstdc++.so.6"
    fix = without_folder(libraries, path.rpartition("/")[0])
    if not fix and target_python.environment_kind == "conda":
        fix = Fix("Install a newer libstdc++ with conda", (conda_install(target_python, "libstdcxx-ng>=13"),))
    elif not fix:
        fix = Fix(
            "Take a newer base image or distribution, or rebuild what needs it with this system's compiler; this shows the "
            "newest version that is here",
            (f"grep -ao 'GLIBCXX_[0-9.]*' {shlex.quote(path)} | sort -Vu | tail -n 1",),
        )
    return Finding.of(
        f"{by.rpartition('/')[2]} needs {needed}, but {path} is older{f' (GLIBCXX_{have})' if known_version else ''}",
        seen,
        told(libraries, "glibcxx_provided", f"newest that is there: GLIBCXX_{have}") if known_version else None,
        told(libraries, "glibcxx_path", f"libstdc++ in use: {path}"),
        fix,
    )
