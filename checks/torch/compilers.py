"""What compiles code while a training runs, or for it: torch.compile, Triton, extensions of packages."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import LONGEST_QUOTE, clip
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.log_traits import LogTraits
from ddpdoctor.facts.log import Log, LoggedException, LogLine, SignMatch
from ddpdoctor.knowledge.python_commands import python_of, versions_installed
from ddpdoctor.logs.analyze.sightings import lines, where, word

HEADERS: Final = "import os, sysconfig; print(os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
WITHOUT_COMPILING: Final = Fix(
    "Or, where that was torch.compile, train without it for now: slower, and the same results",
    ("export TORCHDYNAMO_DISABLE=1",),
)


MAX_LINES_OF_WARNING: Final = 100
"""Lines of torch.compile's warning, with the traceback that says why."""


def _left_as_it_is(seen: Sequence[SignMatch], log: Log) -> list[LoggedException]:
    """The exceptions that torch.compile only warns of: it goes on without compiling."""
    return [raised for raised in log.raised if _is_in_a_warning(raised.line, log)]


def _is_in_a_warning(line: LogLine, log: Log) -> bool:
    warned = (
        match.line for match in log.sightings if match.slug == "compiler-missing" and match.role is SignRole.NOISE
    )
    return any(one.stream == line.stream and 0 < line.number - one.number <= MAX_LINES_OF_WARNING for one in warned)


def _is_only_warned_of(one: SignMatch, log: Log) -> bool:
    return _is_in_a_warning(one.line, log)


@log_check(
    "compiler-missing",
    severity=FAIL,
    owner=Owner.USER,
    log=LogTraits(recovered=_left_as_it_is, refuted=_is_only_warned_of),
)
def compiler_missing(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A compiler, Python's headers or Triton isn't there, and code has to be compiled.

    ## What breaks
    torch.compile, Triton and packages that bring their kernels as source compile at the first step, or as they are installed. Without a C
    compiler, without the file Python.h, or, for GPUs, without Triton they stop: "Failed to find C compiler", "fatal error: Python.h: No
    such file or directory", "Cannot find a working triton installation".

    ## Why
    Compute nodes and slim containers often have no gcc, though login nodes do. Python.h is in a package of its own (python3-dev,
    python3-devel), which the Python of an operating system comes without. Triton comes with torch's wheels for CUDA on Linux only.

    ## Fix
    Install the compiler or the headers on every node, or use a Python that brings its own (conda's, uv's), and conda's compiler:
    `conda install -c conda-forge gxx_linux-64`. Or train without compiling: `export TORCHDYNAMO_DISABLE=1`.
    """
    python = python_of(log)
    if word(seen, "triton"):
        return Finding.of(
            "torch.compile finds no Triton that works: it isn't installed, or goes with another torch",
            Fix(
                "See which torch that is, and whether Triton goes with it",
                (versions_installed(python, "torch", "triton"),),
            ),
            Fix(
                "On Linux install torch anew, which brings its Triton; on Windows it is triton-windows",
                ("pip install --force-reinstall torch",),
            ),
            WITHOUT_COMPILING,
        )
    if word(seen, "header"):
        return Finding.of(
            "Python's headers aren't there (Python.h), which compiled code needs",
            Fix(
                "See whether this Python has them, on that host", (f"{shlex.quote(python)} -c {shlex.quote(HEADERS)}",)
            ),
            Fix(
                "Install them there, for the very version of that Python",
                ("apt install python3-dev", "dnf install python3-devel"),
            ),
            Fix(
                "Without root: an environment of conda or uv brings its Python with its headers",
                ("conda create -n NAME python=3.11",),
            ),
            WITHOUT_COMPILING,
        )
    if word(seen, "msvc"):
        return Finding.of(
            "No compiler of Microsoft's is found, and code has to be compiled",
            Fix(
                "Install Visual Studio's Build Tools, with the workload for desktop development in C++",
                ("winget install Microsoft.VisualStudio.2022.BuildTools",),
            ),
            Fix(
                "Start the job in its `x64 Native Tools Command Prompt`, which puts cl into PATH; this shows where it is",
                ("where cl",),
            ),
            Fix(
                "Or take a wheel that is built already: conda-forge has many for Windows, and WSL runs those for Linux"
            ),
            WITHOUT_COMPILING,
        )
    program = word(seen, "program") or ("g++" if word(seen, "language") == "C++" else "gcc")
    return Finding.of(
        f"No compiler is found ({program}), and code has to be compiled",
        Fix("See whether there is one, on that host", ("command -v gcc g++ clang; echo CC=$CC CXX=$CXX",)),
        Fix("Install one there, or load the cluster's module", ("apt install g++", "module load gcc")),
        Fix(
            "Without root, conda has it; activate the environment again, which sets CC and CXX",
            ("conda install -c conda-forge gxx_linux-64",),
        ),
        WITHOUT_COMPILING,
    )


_OF_NVCC: Final = "): error: "
_OF_A_COMPILER: Final = compile_lazily(r"(?:^|\s|:)(?:fatal )?error(?: #?[A-Z]*\d+)?: |^nvcc fatal\b|^ld: ")
_OF_THE_BUILD: Final = compile_lazily(r"^\s*error: (?:command|subprocess|metadata|legacy)\b|^ERROR: ")


def _was_installed(one: SignMatch, log: Log) -> bool:
    """Whether pip says behind it that it has installed all after all."""
    installed = (
        match.line for match in log.sightings if match.slug == "extension-build-failed" and match.role is SignRole.NOISE
    )
    return any(line.stream == one.line.stream and line.order > one.line.order for line in installed)


def _known_reason(seen: Sequence[SignMatch]) -> Finding | None:
    """Tell of what the compiler, or who looked before it was called, says plainly."""
    standard, older, refused = (word(seen, name) for name in ("standard", "older", "refused"))
    if standard:
        wanted = standard.rpartition("C++")[2]
        return Finding.of(
            f"An extension is compiled as an older C++ than this torch's headers take: C++{wanted} is needed",
            Fix(
                f"Write c++{wanted} where its setup.py, or its call of load(), names another standard (-std=c++14)",
                ("grep -rnE 'std=c\\+\\+' .   # in the folder of its source",),
            ),
            Fix("Or take a newer release of that package, or the older torch that it was written for"),
            cause="torch 1.5 and later need C++14, 2.1 and later C++17: the package's own option comes last, and wins.",
        )
    if older:
        return Finding.of(
            f"An extension's source was written for an older torch: it uses {older}",
            Fix("Take a newer release of that package, or the torch that its own requirements name"),
            Fix(
                "In a source of your own: tensor.scalar_type() in place of tensor.type(), and ATen's headers in place of THC's"
            ),
            cause="Since 1.5 torch takes no tensor.type() where a kernel is chosen by its type, and since 1.11 there are no headers of THC's any more.",
        )
    if refused and not any(match.words.get("extension") for match in seen):
        lacks = "libaio and its headers are missing, mostly" if refused == "async_io" else "why, a line above tells"
        return Finding.of(
            f"DeepSpeed can't build its op {refused} on this host: {lacks}",
            Fix("See what it lacks for each of its ops", ("ds_report",)),
            *(
                (Fix("Install libaio", ("apt install libaio-dev", "conda install -c conda-forge libaio")),)
                if refused == "async_io"
                else ()
            ),
            cause="It looks before it compiles whether the op's libraries, the toolkit and the GPU are there.",
        )
    return None


@log_check(
    "extension-build-failed", severity=FAIL, owner=Owner.USER, log=LogTraits(sums_up=True, refuted=_was_installed)
)
def extension_build_failed(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """An extension in C++ or CUDA could not be compiled.

    ## What breaks
    A package that compiles its kernels at first use, or as it is installed, stops: "Error building extension 'fused_adam'", "Command
    '['ninja', '-v']' returned non-zero exit status 1", "Failed building wheel for flash-attn".

    ## Why
    The compiler's first error says it, and stands above these words, often far above. Mostly compiler, CUDA toolkit and torch don't go
    together, a header is missing, or the source was written for another torch.

    ## Fix
    Read the first "error:" above. `ddpdoctor check` sees whether nvcc, compiler and torch go together. A build that was left half done, or
    was made on another host, lies in `~/.cache/torch_extensions`: remove it, and start again on one rank.
    """
    if known := _known_reason(seen):
        return known
    if word(seen, "no_arch"):
        return Finding.of(
            "An extension is to be compiled, and nothing says for which GPUs: torch sees none, and TORCH_CUDA_ARCH_LIST is not set",
            Fix(
                "Name the GPUs' compute capability (A100: 8.0, RTX 30: 8.6, RTX 40: 8.9, H100: 9.0)",
                ("export TORCH_CUDA_ARCH_LIST='8.0;8.6;9.0'",),
            ),
            Fix("Or build where a GPU is seen", ("nvidia-smi -L",)),
            cause="torch compiles for the GPUs that it sees. A docker build, a login node, or a container that got no GPU shows none.",
        )
    name = word(seen, "extension")
    own = [match.line for match in seen if match.sign == _OF_NVCC]
    told = own or [
        line for line in log.errors if _OF_A_COMPILER.search(line.text) and not _OF_THE_BUILD.search(line.text)
    ]
    first = f": {told[0].text.strip()}" if told else ", and the compiler's own words aren't in this log"
    return Finding.of(
        clip(f"{f'The extension {name}' if name else 'An extension'} couldn't be compiled{first}", LONGEST_QUOTE),
        lines(log, seen),
        tuple(Evidence(line.text.strip(), where(log, line)) for line in told[:1]),
        Fix("See on that host whether nvcc, the compiler and torch go together", ("ddpdoctor check",)),
        None
        if told
        else Fix(
            "Read the first error of the compiler, which stands above all others: repeat the build by itself",
            ("MAX_JOBS=1 python setup.py build_ext 2>&1 | grep -m1 -B2 -A8 error:",),
        ),
        Fix(
            "A build that was left half done is taken up again: remove it, and let one rank alone build it",
            ("rm -r ~/.cache/torch_extensions",),
        ),
    )
