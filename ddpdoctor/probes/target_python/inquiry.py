"""Runs in the target Python and says what it is. Standard library only, Python >= 3.8.

    python inquiry.py MODE START END SECONDS FOLDER

MODE is "interpreter" (imports nothing of the target Python's) or "torch" (imports torch). What is learned goes to the standard
output as JSON objects, each between the two random words START and END, so that whatever else is printed there does no
harm; later objects add to earlier ones. SECONDS is when the caller's patience ends. FOLDER is where a training script would
lie ("" where there is none any more): modules there are named, but imported only if it is the working folder as well.

The syntax of the whole file must be parseable by Python 2.7, or the gate below could not speak there.
"""
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="union-attr,var-annotated"
# ruff: noqa: B905, E402

import sys

MODE, START, END, SECONDS, FOLDER = sys.argv[1:6]

if sys.version_info < (3, 8):
    sys.stdout.write(START + '{"too_old": "%d.%d.%d"}' % sys.version_info[:3] + END)
    sys.stdout.flush()
    sys.exit(0)

# A training script doesn't see this file's folder, and nothing in there may stand in for a module of the library.
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

import os

# The answers keep a way out of their own: a sitecustomize or torch may put something else in place of sys.stdout.
ANSWERS = os.dup(1)

import importlib.machinery
import json
import re
import signal
import stat

# If the caller was killed, nobody else ends what hangs here. Unlike a thread's, this clock needs no GIL.
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.alarm(int(float(SECONDS)) + 5)

MATTERS = re.compile(
    r"""(?x)
    torch.* | pytorch.* | functorch | nvidia-.* | triton.* | cuda-.* | cupy.* | apex | deepspeed.* | accelerate | transformers
    | lightning.* | flash-attn.* | flashinfer.* | xformers | transformer-engine.* | bitsandbytes | vllm | megatron.* | horovod
    | fairscale | fairseq | colossalai | composer | mosaicml | mpi4py | numpy | fbgemm.* | pyg-lib | timm | diffusers | peft
    | intel-extension-for-pytorch | intel-openmp | mkl | mamba-ssm | causal-conv1d | grouped-gemm | auto-gptq | autoawq
    | amdsmi | rocm.* | pip | setuptools | wheel | ninja | cmake | packaging | pybind11 | ddpdoctor
    """
)
"""Names of distributions, normalised, that matter to training."""

FOLDER_NAME = re.compile(r"^([A-Za-z0-9](?:[\w.+]|-(?!\d))*)(?:-(\d[^-]*)(?:-.*)?)?\.(?:dist-info|egg-info)$")


def tell(**facts):
    """Write one object of answers."""
    data = (START + json.dumps(facts) + END).encode("ascii")
    while data:
        data = data[os.write(ANSWERS, data) :]


def finish():
    """End without the tear-down, which takes long with torch in the process, and may crash."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        pass
    os._exit(0)


def attempt(question):
    """["ok", the answer], or ["error", why there is none]."""
    try:
        return ["ok", question()]
    except BaseException as error:
        return ["error", in_one_line(error)]


def in_one_line(error):
    """ "OSError: libcudart.so.12: cannot open shared object file": type and first line of the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    return "%s: %s" % (name, lines[0][:500]) if lines else name


def working_folder():
    """Folder that stands first on the path of a script in this folder, as a list of one, or empty."""
    return [FOLDER] if FOLDER and not getattr(sys.flags, "safe_path", False) else []


def importable_folder():
    """The same, unless it is only to be looked at: root imports nothing that somebody else could have put there."""
    try:
        return working_folder() if os.getcwd() == FOLDER else []
    except OSError:
        return []


def folders_of_pythonpath():
    return [absolute(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def absolute(path):
    try:
        return os.path.abspath(path)
    except OSError:
        return path  # The working folder is gone.


def read(path, size=1024 * 1024):
    """The text of a file, "" if it can't be read: no pipe is waited for, no device is read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        if not path.startswith("/proc/") and not stat.S_ISREG(os.fstat(file).st_mode):
            return ""
        with os.fdopen(os.dup(file), "rb") as opened:
            return opened.read(size).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(file)


# Mode "interpreter".


def interpreter():
    site_packages = [
        path
        for path in sys.path
        if path.rstrip("/").endswith(("site-packages", "dist-packages")) and os.path.isdir(path)
    ]
    tell(
        version="%d.%d.%d" % sys.version_info[:3],
        implementation=sys.implementation.name,
        prefix=sys.prefix,
        base_prefix=sys.base_prefix,
        environment_kind=environment_kind(),
        externally_managed=externally_managed(),
        site_packages=site_packages,
        user_site=user_site(),
        platform_tag="%s-%s" % (sys.platform, os.uname().machine),
        glibc_version=attempt(glibc_version),
    )
    # Each in an object of its own: a finder that crashes in one leaves the others.
    packages = attempt(lambda: distributions(working_folder() + sys.path))
    tell(packages=packages)
    tell(pip_version=attempt(lambda: pip_version(packages[1] if packages[0] == "ok" else [])))
    tell(torch=attempt(torch_files))


def environment_kind():
    if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):
        return "conda"
    return "venv" if sys.prefix != sys.base_prefix else "system"


def externally_managed():
    """Whether pip refuses to install here: the marker counts outside of virtual environments only (PEP 668)."""
    marker = os.path.join(os.path.dirname(os.__file__), "EXTERNALLY-MANAGED")
    return sys.prefix == sys.base_prefix and os.path.exists(marker)


def user_site():
    site = sys.modules.get("site")
    folder = getattr(site, "USER_SITE", None) if getattr(site, "ENABLE_USER_SITE", False) else None
    return folder if folder in sys.path else ""


def glibc_version():
    """ "2.36", None where the C library isn't glibc."""
    try:
        name, version = os.confstr("CS_GNU_LIBC_VERSION").split()
    except (ValueError, OSError, AttributeError):
        return None
    return version if name == "glibc" else None


def pip_version(packages):
    """Version of pip; None: `python -m pip` would not work.

    Raises:
        LookupError: it is there without its metadata.
    """
    if finder_says("pip", sys.path) is None:
        return None
    for package in packages:
        if package["name"] == "pip":
            return package["version"]
    raise LookupError("pip is there, but its metadata isn't")


def distributions(path):
    """Those that matter, in the order of the path. Only their own metadata is opened: environments hold hundreds."""
    found = found_on(path, MATTERS.fullmatch)
    # What torch pins exactly differs from release to release.
    pinned = {
        normalised(re.match(r"[\w.-]*", text).group())
        for package in found
        if package["name"] == "torch"
        for text in package["requires"]
    }
    others = {name for name in pinned if not MATTERS.fullmatch(name)}
    return found + (found_on(path, others.__contains__) if others else [])


def found_on(path, is_wanted):
    """Distributions whose normalised name is wanted, in the order of the path."""
    found = []
    for folder in dict.fromkeys(path):
        if folder.endswith(".egg"):
            # `setup.py install` puts a folder of its own on the path.
            entries = [(os.path.basename(folder).replace(".egg", ".egg-info"), os.path.join(folder, "EGG-INFO"))]
        else:
            try:
                names = sorted(os.listdir(folder))
            except OSError:
                continue
            entries = [(name, os.path.join(folder, name)) for name in names if name.endswith("-info")]
        for name, place in entries:
            match = FOLDER_NAME.match(name)
            if match and is_wanted(normalised(match.group(1))):
                package = distribution(place, folder, match.group(1), match.group(2) or "")
                if package not in found:
                    found.append(package)
    return found


def normalised(name):
    return re.sub("[-_.]+", "-", name).lower()


def distribution(place, folder, name, version):
    """One distribution, from its headers; what they don't say, the name of their folder does."""
    # An egg-info may be a file.
    text = (
        "" if os.path.isfile(place) else read(os.path.join(place, "METADATA")) or read(os.path.join(place, "PKG-INFO"))
    )
    headers = (text or read(place)).replace("\r\n", "\n").partition("\n\n")[0]
    versions = re.findall(r"(?m)^Version: *(\S+)", headers)
    required = [line.strip() for line in re.findall(r"(?m)^Requires-Dist: *(\S.*)$", headers)]
    # What an extra would add isn't required; but torch gets its CUDA libraries through the extras of cuda-toolkit.
    if normalised(name) != "cuda-toolkit":
        required = [line for line in required if not re.search(r"\bextra *==", line)]
    names = [re.match(r"[\w.-]*", line).group() for line in required]
    return {
        "name": normalised(name),
        "version": versions[0] if versions else version,
        "location": folder,
        "requires": [
            requirement
            for requirement, package in zip(required, names)
            if MATTERS.fullmatch(normalised(package))
            or (normalised(name) == "torch" and "==" in requirement.partition(";")[0])
        ],
        "installer": read(os.path.join(place, "INSTALLER")).strip().lower(),
    }


def finder_says(name, path):
    """Find where a top-level module would come from with that sys.path: a file, or the folder of a package. Imports nothing."""
    before = sys.path[:]
    sys.path[:] = path
    try:
        for finder in sys.meta_path:
            # Editable installs bring finders of their own.
            ask = getattr(finder, "find_spec", None)
            spec = ask(name, None) if ask else None
            if spec is not None:
                folders = list(spec.submodule_search_locations or ())
                return folders[0] if folders else spec.origin
    finally:
        sys.path[:] = before
    return None


def torch_files():
    """Describe what is there by the name of torch. None: nothing."""
    folders = working_folder()
    location = finder_says("torch", folders + sys.path)
    if location is None:
        return None
    pythonpath = folders_of_pythonpath()
    in_front = folders + pythonpath
    behind = finder_says("torch", [entry for entry in sys.path if absolute(entry) not in in_front])
    text = read(os.path.join(location, "version.py"))
    found_in = os.path.dirname(absolute(location))
    return {
        "location": location,
        "found_through": "the working folder"
        if found_in in folders
        else "PYTHONPATH"
        if found_in in pythonpath
        else "",
        "hidden": behind if behind and os.path.realpath(behind) != os.path.realpath(location) else "",
        "version": assigned(text, "__version__"),
        "cuda": assigned(text, "cuda"),
        "hip": assigned(text, "hip"),
    }


def assigned(text, name):
    """The string that a line such as `cuda: Optional[str] = '13.0'` assigns; None for None."""
    match = re.search(r"(?m)^%s\b[^=\n]*= *['\"]([^'\"]*)['\"]" % name, text)
    return match.group(1) if match else None


# Mode "torch".


def import_torch():
    import gc
    import time
    import traceback

    # Bytecode of another user's files would be left behind under our name.
    sys.dont_write_bytecode = sys.dont_write_bytecode or os.stat(sys.prefix).st_uid != os.geteuid()
    sys.argv[:] = [""]
    sys.path[:0] = importable_folder()
    importlib.invalidate_caches()
    watch()
    tell(started=True)
    files = torch_files()
    if files and files["found_through"] and not os.path.isdir(files["location"]):
        tell(
            import_state="fails",
            import_error="not tried: import torch would run %s" % files["location"],
            import_traceback="",
            in_the_way=files["location"],
        )
        return
    gc.disable()  # Nothing is thrown away here: looking for garbage would only take time.
    began = time.perf_counter()
    try:
        import torch
    except BaseException as error:
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
        tell(
            import_state="fails",
            import_error=in_one_line(error),
            import_traceback="\n".join(lines[-25:]),
            in_the_way=in_the_way(error),
        )
        return
    tell(
        import_state="ok",
        import_seconds=time.perf_counter() - began,
        imported_version=str(getattr(torch, "__version__", "")),
        loaded=attempt(loaded),
    )
    tell(**after_import(torch))
    # From here on the driver is asked, which can hang or crash: the above is safe.
    tell(**cuda(torch))
    tell(loaded=attempt(loaded))


def in_the_way(error):
    """The user's file, or folder of a package, that is found in place of another module, where the error comes from it or
    speaks of it; "" where there is none."""
    import traceback

    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    stacks = [traceback.extract_tb(error.__traceback__)[::-1] for error in chain[::-1]]
    frames = [frame_summary.filename for stack in stacks for frame_summary in stack]
    words = " ".join(map(str, chain))
    spoken_of = [sys.modules.get(name) for name in re.findall(r"'([A-Za-z_]\w*)", words)]
    files = frames + [getattr(name, "__file__", None) or "" for name in spoken_of]
    for number, path in enumerate(map(absolute, filter(None, files))):
        if os.path.basename(path) == "__init__.py":
            path = os.path.dirname(path)
        folder, name = os.path.split(path)
        in_front = working_folder() + folders_of_pythonpath()
        name = name.partition(".")[0]
        if folder not in in_front or finder_says(name, in_front + sys.path) != path:
            continue
        instead_of = finder_says(name, [entry for entry in sys.path if absolute(entry) not in in_front]) or ""
        library = os.path.dirname(instead_of) == os.path.dirname(os.__file__)
        # A package there may be meant to go before the installed one, and a file that only calls isn't to blame for it.
        if library or (instead_of and path.endswith(".py") and not 0 < number < len(frames)):
            return path
    return ""


def watch():
    """Have the stack written to stderr where the process crashes, and shortly before the caller's patience ends."""
    import faulthandler

    try:
        faulthandler.enable()
        faulthandler.dump_traceback_later(max(0.5, float(SECONDS) - 1.5))
    except Exception:
        pass  # stderr is closed or has been replaced; the import is what counts.


def after_import(torch):
    """Tell what torch says without touching a driver."""

    def distributed(question):
        def ask():
            import torch.distributed

            return bool(getattr(torch.distributed, question, lambda: False)())

        return attempt(ask)

    def nccl():
        packed = core._nccl_version()
        return [packed >> 32, packed >> 16 & 65535, packed & 65535]

    # Something else by the name of torch has none of these.
    core = getattr(torch, "_C", None)
    with_nccl = hasattr(core, "_nccl_version")
    cudnn = getattr(core, "_cudnn", None) if getattr(getattr(torch, "version", None), "cuda", None) else None
    # torch.cuda.get_arch_list() is empty in some releases where no GPU is available.
    flags = getattr(core, "_cuda_getArchFlags", None)
    return {
        "arch_list": attempt(lambda: (flags() or "").split() if flags else []),
        "distributed_available": distributed("is_available"),
        "nccl_available": distributed("is_nccl_available"),
        "gloo_available": distributed("is_gloo_available"),
        "nccl_version": attempt(nccl) if with_nccl else ["ok", None],
        # Unlike torch.backends.cudnn.version() these don't raise where the two don't fit.
        "cudnn_version": attempt(lambda: list(cudnn.getRuntimeVersion())) if cudnn else ["ok", None],
        "cudnn_built": attempt(lambda: list(cudnn.getCompileVersion())) if cudnn else ["ok", None],
        "cxx11_abi": attempt(lambda: bool(core._GLIBCXX_USE_CXX11_ABI)),
        "num_threads": attempt(lambda: torch.get_num_threads()),
    }


def cuda(torch):
    """Whether CUDA starts. cudaGetDeviceCount() calls cuInit() and makes no context, so no GPU memory is taken; torch
    turns its error into a warning. NVML, which torch asks instead where PYTORCH_NVML_BASED_CUDA_CHECK is 1, would say
    that GPUs are there without proof that CUDA can use them."""
    import warnings

    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = attempt(lambda: bool(torch.cuda.is_available()))
    count = attempt(lambda: int(torch.cuda.device_count()))
    said = [
        str(warning_message.message)
        for warning_message in caught
        if "CUDA" in str(warning_message.message) or "HIP" in str(warning_message.message)
    ]
    if available[0] == "error":
        said.append(available[1])
    return {
        "cuda_available": available,
        "device_count": count,
        "cuda_error": said[0].partition("(Triggered internally at ")[0].strip() if said else "",
    }


def loaded():
    """Shared libraries in this process, without Python's extension modules; the kernel gives paths without links.

    Raises:
        OSError: the kernel doesn't tell.
    """
    paths = {}
    for line in read("/proc/self/maps", 1 << 25).splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        if ".so" in path and ".cpython-" not in path:
            paths[path.replace(" (deleted)", "")] = None
    if not paths:
        raise OSError("/proc/self/maps can't be read")
    return list(paths)


if MODE == "torch":
    import_torch()
else:
    interpreter()
finish()
