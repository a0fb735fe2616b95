"""What is said of installations, Apex and checkpoints from a log alone, and which of several illnesses the same words belong to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.base.findings import Finding
from ddpdoctor.checks.catalogue import all_checks, catalogue
from ddpdoctor.engine.registry import NotApplicable
from ddpdoctor.facts.log import Log, LogFile
from ddpdoctor.knowledge.loader_messages import MESSAGES, loader_fault
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from tests.log_corpus import LOGS, log_of
from tests.support.logs_by_hand import read
from tests.support.registered_checks import find_check

SAID = (
    ("ckpt-arch-mismatch/sick-size-mismatch", "The checkpoint's 0.weight is [32, 16], the model's [64, 16]"),
    ("ckpt-arch-mismatch/sick-missing-keys-srun", "The model has 3.weight, and the checkpoint doesn't"),
    ("ckpt-arch-mismatch/sick-distributed-checkpoint", "The checkpoint's model.embed_tokens.weight is [32000, 1024]"),
    ("ckpt-arch-mismatch/sick-megatron-parts-missing", "don't name all parts of what they are to load: 24 are missing"),
    ("apex-build-failed/sick-error-code", "Apex could not be built"),
    ("apex-build-failed/sick-header-missing", "the first line with error: above says why"),
    ("torch-version-bug/sick-gloo-windows", "makeDeviceForHostname(): unsupported gloo device"),
)

OF_THE_LOADER = (
    ("ImportError: /e/own.so: undefined symbol: my_solver_init", "another release", False),
    ("ImportError: /e/site-packages/scipy/_lib.cpython-311-x86_64-linux-gnu.so: undefined symbol: dgemm_", "another release", False),
    ("ImportError: /lib/libm.so.6: version `GLIBC_2.29' not found (required by /e/torch/lib/libtorch_cpu.so)", "(glibc)", True),
    ("ImportError: /e/libssl.so.3: version `OPENSSL_3.2.0' not found (required by /e/_x.so)", "is older", True),
    ("ImportError: libsox.so: cannot open shared object file: No such file or directory", "is found nowhere", True),
    ("OSError: /e/pkg/libpkg.so: cannot open shared object file: No such file or directory", "never built", True),
    ("OSError: /e/pkg/libpkg.so: cannot open shared object file: Permission denied", "may not be read", True),
    ("ImportError: ../ops/nms.cpython-310-x86_64-linux-gnu.so: failed to map segment from shared object", "noexec", True),
    ("ImportError: /e/a.so: failed to map segment from shared object: Cannot allocate memory", "doesn't fit into the memory", True),
    ("RuntimeError: /e/a b/libx-1.2.so.1.0.0: cannot allocate memory in static TLS block", "too late", True),
    ("OSError: /e/a.so: file too short", "no whole library", True),
    ("OSError: /e/a.so: invalid ELF header", "no whole library", True),
    ("OSError: /e/a.so: cannot read file data: Input/output error", "no whole library", True),
    ("OSError: /e/a.so: ELF load command past end of file", "no whole library", True),
    ("OSError: /e/a.so: wrong ELF class: ELFCLASS32", "kind of processor", True),
    ("ImportError: /e/a.so: cannot enable executable stack as shared object requires: Invalid argument", "refuses", True),
    ("ImportError: /e/a.so: cannot restore segment prot after reloc: Permission denied", "security policy", True),
    ("ImportError: /e/a.so: cannot apply additional memory protection after relocation: Cannot allocate memory", "no memory", True),
    ("ImportError: /e/a.so: symbol blas_x, version LAPACK_3 not defined in file libl.so.3 with link time reference", "another release", False),
    ("OSError: /e/a.so: ELF file's phentsize not the expected size", "no whole library", True),
    ("OSError: /e/a.so: object file has no loadable segments", "no whole library", True),
    ("ImportError: /e/a.so: cannot make segment writable for relocation: Permission denied", "security policy", True),
    ("ImportError: /e/a.so: cannot change memory protections", "security policy", True),
)  # fmt: skip


def findings(slug: str, log: Log) -> list[Finding]:
    check = next(check for check in all_checks() if check.slug == slug)
    return list(check.predicate(log))


@pytest.mark.parametrize(("name", "words"), SAID, ids=lambda one: one if "/" in one else "")
def test_the_finding_has_the_logs_own_words(name: str, words: str) -> None:
    (found,) = findings(name.partition("/")[0], log_of(LOGS / f"{name}.log"))
    assert words in found.summary
    assert found.evidence
    assert found.fixes


@pytest.mark.parametrize("slug", sorted({name.partition("/")[0] for name, _ in SAID}))
def test_nothing_is_said_of_a_log_without_the_signs(slug: str) -> None:
    assert findings(slug, Log(files=(LogFile(name="run.log", lines=1),))) == []
    with pytest.raises(NotApplicable):
        findings(slug, Log())


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        ("ImportError: libcublas.so.11: cannot open shared object file: No such file or directory", "cuda-lib-not-found"),
        ("ImportError: /e/apex/amp_C.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops4add", "apex-undefined-symbol"),
        ("ImportError: /e/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E", "extension-abi-mismatch"),
        ("ImportError: /e/torchvision/_C.so: undefined symbol: _ZN3c105ErrorC2E", "torch-torchvision-mismatch"),
        ("AttributeError: module 'torch' has no attribute 'nn'", "torch-shadowed"),
        ("AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'", "torch-cpu-only"),
    ],
)  # fmt: skip
def test_the_same_words_belong_to_who_is_named_in_them(error: str, slug: str) -> None:
    verdict = verdict_of(
        read(f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    x\n{error}\n'),
        catalogue(),
    )
    assert [suspect.slug for suspect in verdict.suspects] == [slug]


@pytest.mark.parametrize(
    "error",
    [
        "AttributeError: module 'torch' has no attribute 'manual_sed'",
        "EOFError: Ran out of input",
        "ModuleNotFoundError: No module named 'torch_helpers'",
    ],
)
def test_what_only_looks_alike_is_the_scripts_own(error: str) -> None:
    verdict = verdict_of(
        read(f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    x\n{error}\n'),
        catalogue(),
    )
    assert verdict.outcome is RunOutcome.USER_ERROR


def test_an_exception_that_pip_shows_of_a_build_is_no_source_line() -> None:
    shown = "        File \"<string>\", line 1, in <module>\n      ModuleNotFoundError: No module named 'torch'\n"
    log = read(f"  Getting requirements to build wheel: started\n      Traceback (most recent call last):\n{shown}")
    assert [suspect.slug for suspect in verdict_of(log, catalogue()).suspects] == ["apex-build-isolation"]


@pytest.mark.parametrize(("error", "means", "sure"), OF_THE_LOADER)
def test_what_the_loader_says_of_a_file_is_no_mistake_of_the_script(error: str, means: str, sure: bool) -> None:
    log = read(f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    x\n{error}\n')
    assert [(one.slug, one.sure) for one in verdict_of(log, catalogue()).suspects] == [
        ("shared-object-unloadable", sure)
    ]
    (found,) = findings("shared-object-unloadable", log)
    assert means in found.summary
    assert found.fixes


@pytest.mark.parametrize("pattern", dict.fromkeys(pattern for message in MESSAGES for pattern in message.patterns))
def test_each_message_of_the_loader_has_a_sign(pattern: str) -> None:
    signs = find_check("shared-object-unloadable").log_signs
    said = [error for error, _, _ in OF_THE_LOADER if re.search(rf"\.so[\d.]*: {pattern}", error)]
    assert said
    assert all(any(sign.text in error and re.search(sign.pattern, error) for sign in signs) for error in said)


def of_the_loader(words: str) -> str:
    """What is to be typed where the loader says that."""
    fault = loader_fault(words)
    assert fault is not None
    return "\n".join(command for fix in fault.fixes for command in fix.commands)


@pytest.mark.parametrize(("before", "after"), [("", "/e/libgomp.so.1"), ("a.so", "/e/libgomp.so.1:a.so")])
def test_what_was_preloaded_stays_so(before: str, after: str) -> None:
    preload = of_the_loader("/e/libgomp.so.1: cannot allocate memory in static TLS block").splitlines()[0]
    shell = ["sh", "-c", f"LD_PRELOAD={before}; {preload}; echo $LD_PRELOAD"]
    shown = subprocess.run(shell, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    assert shown.stdout == f"{after}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="greps a file as Linux does")
def test_the_versions_that_a_library_has_are_read_from_itself(tmp_path: Path) -> None:
    library = tmp_path / "libstdc++.so.6"
    library.write_bytes(b"\x7fELF\0GLIBCXX_3.4.9\0\xff\xfeGLIBCXX_3.4.28\0glibcxx\0CXXABI_1.3\0GLIBCXX_3.4.9\0")
    command = of_the_loader(f"{library}: version `GLIBCXX_3.4.32' not found (required by /e/x.so)").splitlines()[0]
    shown = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=True)
    assert shown.stdout.split() == ["CXXABI_1.3", "GLIBCXX_3.4.9", "GLIBCXX_3.4.28"]


def test_each_command_on_a_library_is_one() -> None:
    assert of_the_loader("libsox.so: cannot open shared object file: x").splitlines()[1:3] == [
        "apt-file search libsox.so",
        "dnf provides '*/'libsox.so",
    ]
    assert of_the_loader("/e/own.so: undefined symbol: x") == "ldd /e/own.so"


@pytest.mark.parametrize(
    "error",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: 'weights.so'",
        "ValueError: file too short",
        "OSError: data.bin: file too short",
        "KeyError: 'undefined symbol: x'",
    ],
)
def test_words_like_the_loaders_on_another_file_are_the_scripts_own(error: str) -> None:
    verdict = verdict_of(
        read(f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    x\n{error}\n'),
        catalogue(),
    )
    assert verdict.outcome is RunOutcome.USER_ERROR


def test_packages_that_were_made_for_another_python_are_told() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/ada/program.py", line 2, in <module>\n    import vision\n'
        '  File "/home/ada/env/lib/python3.10/site-packages/vision/__init__.py", line 7, in <module>\n    import numpy as np\n'
        '  File "/apps/SciPy-bundle/lib/python3.11/site-packages/numpy/core/overrides.py", line 8, in <module>\n    from numpy.core._multiarray_umath import (\n'
        "ModuleNotFoundError: No module named 'numpy.core._multiarray_umath'\n"
    )
    (opinion,) = judge_log(read(text), catalogue()).opinions
    assert opinion.suspect.sure
    assert (
        opinion.finding.summary
        == "Python 3.10 takes packages that were made for Python 3.11, from /apps/SciPy-bundle/lib/python3.11"
    )
    assert "unset PYTHONPATH" in opinion.finding.fixes[0].commands
