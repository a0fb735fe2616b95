"""Packages, builds, files and checkpoints: what their words name, and which of them name nothing."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from tests.support.logs_by_hand import read

SITE = "/opt/env/lib/python3.10/site-packages"
STEPS = "".join(f"epoch 0 step {step} loss 1.{step}\n" for step in range(30))
OWN = '  File "/home/ada/data.py", line 8, in __getitem__\n    return self.file["x"][index]\n'

NAMED = {
    "package-version-mismatch": [
        "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.1 as it may crash.\nRuntimeError: Numpy is not available",
        "AttributeError: module 'numpy' has no attribute 'bool'.",
        "AttributeError: `np.float_` was removed in the NumPy 2.0 release. Use `np.float64` instead.",
        "RuntimeError: version_ <= kMaxSupportedFileFormatVersion INTERNAL ASSERT FAILED at /pytorch/caffe2/serialize/inline_container.cc:132, please "
        "report a bug to PyTorch. Attempted to read a PyTorch file with version 4, but the maximum supported version for reading is 3.",
        "RuntimeError: runs/last.pt is a zip archive (did you mean to use torch.jit.load()?)",
        "RuntimeError: Dynamo is not supported on Python 3.13+",
        "TypeError: LoraConfig.__init__() got an unexpected keyword argument 'eva_config'",
        "ERROR: Could not find a version that satisfies the requirement torch==1.9.0+cu111 (from versions: 2.1.0, 2.2.0)\n"
        "ERROR: No matching distribution found for torch==1.9.0+cu111",
    ],
    "extension-build-failed": [
        f"{SITE}/torch/include/c10/util/C++17.h:24:2: error: #error You need C++17 to compile PyTorch\nninja: build stopped: subcommand failed.",
        "roi.cpp:31:40: error: cannot convert ‘at::DeprecatedTypeProperties’ to ‘c10::ScalarType’",
        "roi.cu:3:10: fatal error: THC/THC.h: No such file or directory",
        "RuntimeError: Unable to JIT load the async_io op due to it not being compatible due to hardware/software issue. None",
    ],
    "compiler-missing": [
        'error: Microsoft Visual C++ 14.0 or greater is required. Get it with "Microsoft C++ Build Tools": https://visualstudio.microsoft.com/',
        "subprocess.CalledProcessError: Command '['where', 'cl']' returned non-zero exit status 1.",
    ],
    "cuda-home-missing": [
        "/bin/sh: 1: :/opt/cuda/bin/nvcc: not found\nninja: build stopped: subcommand failed.",
        "/usr/bin/ld: cannot find -lcublas: No such file or directory\ncollect2: error: ld returned 1 exit status\nRuntimeError: Error building extension 'own'",
    ],
    "apex-missing-ext": [
        "RuntimeError: ('Attempted to call MultiTensorApply method, but MultiTensorApply is not available, possibly because Apex was installed without "
        "--cpp_ext --cuda_ext.  Original import error message:', ModuleNotFoundError(\"No module named 'amp_C'\"))"
    ],
    "torch-distributed-missing": ["RuntimeError: PyTorch built without distributed support"],
    "accelerate-config-refused": [
        "ValueError: The config file at /home/ada/c.yaml had unknown keys (['fp8']), please try upgrading your `accelerate` version or fix (and "
        "potentially remove) these keys from your config file."
    ],
    "disk-full": [
        'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })'
    ],
    "disk-unanswered": ["OSError: [Errno 5] Input/output error: '/scratch/ada/part-3.bin'"],
    "folder-not-writable": [
        "PermissionError: [Errno 13] Permission denied: '/tmp/torchinductor_ada/fxgraph/x7'",
        'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 13, kind: PermissionDenied, message: "Permission denied" })',
    ],
    "ckpt-truncated": ["RuntimeError: storage has wrong byte size: expected 4096 got 1024"],
    "shm-too-small": [
        "ValueError: The configured object store size (30.0GB) exceeds /dev/shm size (0.06GB). This will harm performance.",
        "ray.exceptions.ObjectStoreFullError: Failed to put object 00ffab in object store because it is full. Object size is 100 bytes.",
    ],
    "memory-low": [
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nAborted (core dumped)"
    ],
    "shared-object-unloadable": [
        "INTEL MKL ERROR: /opt/env/lib/libmkl_avx2.so.1: undefined symbol: mkl_sparse_optimize_bsr_trsm_i8.\n"
        "Intel MKL FATAL ERROR: Cannot load libmkl_avx2.so or libmkl_def.so."
    ],
    "setting-invalid": [
        "Error: mkl-service + Intel(R) MKL: MKL_THREADING_LAYER=INTEL is incompatible with libgomp-7c85b1e2.so.1 library."
    ],
}


@pytest.mark.parametrize(("slug", "text"), [(slug, text) for slug, texts in NAMED.items() for text in texts])
def test_words_name_what_is_wrong(slug: str, text: str) -> None:
    found = verdict_of(read(f"{text}\n"), catalogue())
    assert found.suspects[0].slug == slug
    assert not found.ended_well


@pytest.mark.parametrize(
    "text",
    [
        "/usr/bin/ld: cannot find -lcurand: No such file or directory\ncollect2: error: ld returned 1 exit status",
        "ERROR: Could not find a version that satisfies the requirement torch==1.9.0 (from versions: 2.1.0)",
        "UserWarning: Failed to initialize NumPy: _ARRAY_API not found",
        "DeprecationWarning: `np.float` is a deprecated alias for the builtin `float`.",
        "Warning:  apex was installed without --cuda_ext. Original ImportError was: No module named 'amp_C'",
        "see: `RuntimeError: Dynamo is not supported on Python 3.13+`",
    ],
)
def test_what_a_run_gets_over_is_no_failure(text: str) -> None:
    assert verdict_of(read(f"{text}\n{STEPS}training finished\n"), catalogue()).outcome is RunOutcome.NOTHING


@pytest.mark.parametrize(
    ("error", "means"),
    [
        ("BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11, error message = 'x')", "HDF5_USE_FILE_LOCKING=FALSE"),
        ("OSError: Unable to synchronously open file (truncated file: eof = 96, sblock->base_addr = 0, stored_eof = 2048)", "damaged"),
        ("OSError: Can't read data (inflate() failed)", "in each worker"),
        ("TypeError: cannot pickle 'Environment' object", "in each worker"),
        ("sqlite3.OperationalError: database is locked", "Another process writes"),
        ("zlib.error: Error -3 while decompressing data: invalid block type", "damaged"),
        ("pyarrow.lib.ArrowInvalid: JSON parse error: Column() changed from number to array in row 3", "line of a JSON file"),
        ("RuntimeError: Using sequence parallelism requires setting the environment variable CUDA_DEVICE_MAX_CONNECTIONS to 1", "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
        ("RuntimeError: Distributed package doesn't have MPI built in. MPI is only included if you build PyTorch from source on a host that has MPI installed.", "no wheel"),
        ("FloatingPointError: Fatal error: gradients are inconsistent between workers. Try --ddp-backend=legacy_ddp.", "norm of the gradients"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("head", ["", "Traceback (most recent call last):\n"])
def test_what_libraries_say_of_files_and_settings_is_explained(error: str, means: str, head: str) -> None:
    (opinion,) = judge_log(read(f"{head}{OWN}{error}\n"), catalogue()).opinions
    assert opinion.check.slug == "user-code-error"
    told = [opinion.finding.cause, *(line for fix in opinion.finding.fixes for line in (fix.text, *fix.commands))]
    assert means in "\n".join(told)


def test_cythons_files_are_no_lines_of_the_script() -> None:
    cython = '  File "h5py/h5f.pyx", line 106, in h5py.h5f.open\n'
    raised = verdict_of(read(f"Traceback (most recent call last):\n{OWN}{cython}ValueError: no\n"), catalogue()).raised
    assert raised is not None
    assert raised.own is not None
    assert raised.own.path == "/home/ada/data.py"


def test_a_replica_without_parameters_is_explained_by_its_own_traceback() -> None:
    call = (
        f'  File "{SITE}/torch/nn/parallel/parallel_apply.py", line 61, in _worker\n    output = module(*input)\n'
        f'  File "{SITE}/transformers/modeling_utils.py", line 113, in device\n    return next(self.parameters()).device\n'
    )
    text = f"StopIteration: Caught StopIteration in replica 1 on device 1.\nOriginal Traceback (most recent call last):\n{call}StopIteration\n"
    (opinion,) = judge_log(read(text), catalogue()).opinions
    assert "DataParallel" in opinion.finding.cause


@pytest.mark.parametrize(
    "call",
    ["", f'Traceback (most recent call last):\n  File "/opt/env/bin/deepspeed", line 6, in <module>\n    main()\n  File "{SITE}/deepspeed/launcher/runner.py", line 551, in main\n    raise RuntimeError(\n'],
)  # fmt: skip
def test_deepspeeds_launcher_misses_the_program_that_it_starts(call: str) -> None:
    (opinion,) = judge_log(read(f"{call}RuntimeError: launcher 'pdsh' not installed.\n"), catalogue()).opinions
    assert opinion.check.slug == "user-code-error"
    assert "pdsh" in opinion.finding.summary


def test_a_folder_of_compiled_code_is_moved_to_one_of_the_users_own() -> None:
    (opinion,) = judge_log(
        read("PermissionError: [Errno 13] Permission denied: '/tmp/torchinductor_root/ab'\n"), catalogue()
    ).opinions
    commands = [command for fix in opinion.finding.fixes for command in fix.commands]
    assert 'export TORCHINDUCTOR_CACHE_DIR="$HOME/.cache/torchinductor"' in commands
    assert not any("rm " in command for command in commands)
