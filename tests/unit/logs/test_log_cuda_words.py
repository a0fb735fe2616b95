"""CUDA's own words in the frames of many libraries, and what libraries say of GPUs, their memory and NCCL."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from tests.support.logs_by_hand import read

ILLEGAL = "an illegal memory access was encountered"
FULL = "out of memory"
ASSERTED = (
    "../aten/src/ATen/native/cuda/TensorCompare.cu:106: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion `probability tensor "
    "contains either `inf`, `nan` or element < 0` failed.\n"
)


def _judged(text: str) -> LogVerdict:
    return verdict_of(read(text), catalogue())


def _first(text: str) -> str:
    return next((suspect.slug for suspect in _judged(text).suspects), "")


def _summary(text: str) -> str:
    return judge_log(read(text), catalogue()).opinions[0].finding.summary


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        (f"RuntimeError: parallel_for failed: cudaErrorIllegalAddress: {ILLEGAL}\n", "cuda-illegal-access"),
        (f"RuntimeError: radix_sort: failed on 1st step: cudaErrorIllegalAddress: {ILLEGAL}\n", "cuda-illegal-access"),
        (f"RuntimeError: CUDA kernel launch error: 700, {ILLEGAL}\n", "cuda-illegal-access"),
        (f"RuntimeError: Triton Error [CUDA]: {ILLEGAL}\n", "cuda-illegal-access"),
        (f"GPUassert: {ILLEGAL} /home/ada/ops/nms.cu 88\n", "cuda-illegal-access"),
        ("RuntimeError: CUDA error: misaligned address\n", "cuda-illegal-access"),
        ("RuntimeError: /build/all.cc(47)\nCUDA kernel launch error 98, invalid device function\n", "gpu-arch-unsupported"),
        ("Error invalid device function at line 508 in file /home/ada/csrc/ops.cu\n", "gpu-arch-unsupported"),
        ("Error named symbol not found at line 74 in file /home/ada/csrc/ops.cu\n", "gpu-arch-unsupported"),
        ("RuntimeError: parallel_for failed: cudaErrorNoKernelImageForDevice\n", "gpu-arch-unsupported"),
        (f"RuntimeError: Error: StandardGpuResources: alloc fail size 61440 bytes (cudaMalloc error {FULL} [2])\n", "oom-batch-too-large"),
        (f"Failed: Cuda error ops/common.cu:102 '{FULL}'\n", "oom-batch-too-large"),
        ("RuntimeError: CUDA Error: invalid device ordinal\n", "nproc-exceeds-gpus"),
        (
            'RuntimeError: Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File "pets.py", line 9, '
            'in __getitem__\n    return self.rows[i].to("cuda")\nRuntimeError: CUDA error: initialization error\n',
            "cuda-fork-reinit",
        ),
    ],
)  # fmt: skip
def test_cuda_s_own_words_are_known_in_whatever_frame(text: str, slug: str) -> None:
    assert _first(text) == slug


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        (f"{ASSERTED}RuntimeError: CUDA error: device-side assert triggered\n", "nan-loss"),
        (
            "ValueError: Expected parameter probs (Tensor of shape (2, 3)) of distribution Categorical(probs: torch.Size([2, 3])) to satisfy the "
            "constraint Simplex(), but found invalid values:\ntensor([[nan, nan, nan],\n        [nan, nan, nan]])\n",
            "nan-loss",
        ),
        ("RuntimeError: Found Tesla P100-PCIE-16GB which is too old to be supported by the triton GPU compiler, which is used as the backend.\n", "gpu-arch-unsupported"),
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has 7.5.\n", "gpu-arch-unsupported"),
        ("ValueError: bf16 mixed precision requires PyTorch >= 1.10 and a supported device.\n", "gpu-arch-unsupported"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, a, CUDA_R_16BF, lda)`\n", "gpu-arch-unsupported"),
        (
            "THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=405 error=11 : invalid argument\nepoch 1\n"
            "RuntimeError: cublas runtime error : the GPU program failed to execute at /pytorch/aten/src/THC/THCBlas.cu:249\n",
            "gpu-arch-unsupported",
        ),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle)`\n", "user-label-out-of-range"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED\n", "oom-batch-too-large"),
        ('RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1123, please report a bug to PyTorch.\n', "oom-batch-too-large"),
        (
            "ValueError: Free memory on device (3.21/79.11 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB). Decrease GPU memory utilization.\n",
            "gpu-memory-held-by-others",
        ),
        ("AssertionError: Invalid device id\n", "nproc-exceeds-gpus"),
        ("ValueError: Total available GPUs 4 is less than total desired GPUs 8\n", "nproc-exceeds-gpus"),
        ("n2:991:991 [0] bootstrap.cc:210 NCCL WARN Bootstrap Root : mismatch in rank count from procs 16 : 8\n", "launcher-env-inconsistent"),
        ("RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:492, invalid usage\n", "duplicate-gpu"),
        ("n3:221:260 [1] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_create_qp failed\n", "memlock-limit"),
        ("ncclInvalidArgument: Invalid value for an argument.\nLast error:\nBroadcast : invalid root 4 (root should be in the 0..4 range)\n", "user-code-error"),
        ('RuntimeError: nnodes=2:4:8 is not in "MIN:MAX" format\n', "user-code-error"),
        (
            'Traceback (most recent call last):\n  File "/usr/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
            '  File "/env/lib/python3.10/site-packages/torch/distributed/run.py", line 200, in parse_min_max_nnodes\n    raise RuntimeError(\n'
            'RuntimeError: nnodes=2:4:8 is not in "MIN:MAX" format\n',
            "user-code-error",
        ),
        (
            'Traceback (most recent call last):\n  File "/opt/lib/python3.8/site-packages/torch/utils/cpp_extension.py", line 1561, in _get_cuda_arch_flags\n'
            "    arch_list[-1] += '+PTX'\nIndexError: list index out of range\n",
            "extension-build-failed",
        ),
        ("RuntimeError: Not compiled with CUDA support\n", "extension-abi-mismatch"),
    ],
)  # fmt: skip
def test_what_libraries_say_of_the_gpu_and_of_nccl_is_known(text: str, slug: str) -> None:
    assert _first(text) == slug


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: too many resources requested for launch",
        "CUDA error: invalid configuration argument",
        "CUDA error: operation not permitted when stream is capturing",
        "CUDA error: peer mapping resources exhausted",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
        "trying to initialize the default process group twice!",
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
    ],
)
def test_what_cuda_says_of_a_call_is_explained(words: str) -> None:
    told = judge_log(read(f"RuntimeError: {words}\n"), catalogue())
    assert told.verdict.outcome is RunOutcome.USER_ERROR
    assert "No traceback tells" not in told.opinions[0].finding.cause
    assert told.opinions[0].finding.fixes


def test_a_size_that_was_computed_wrongly_is_told_from_a_batch_that_is_too_large() -> None:
    figures = "(GPU 0; 23.69 GiB total capacity; 22.02 GiB already allocated; 0.20 GiB free; 22.10 GiB reserved in total by PyTorch)"
    message = "RuntimeError: CUDA out of memory. Tried to allocate {} GiB {}\n"
    assert "computed wrongly" in _summary(message.format("1048576.00", figures))
    assert "computed wrongly" not in _summary(message.format("30.00", figures))


@pytest.mark.parametrize(
    "package", ["Not compiled with GPU support", "nms_impl: implementation for device cuda:0 not found."]
)
def test_an_extension_without_cuda_is_told_from_one_of_another_torch(package: str) -> None:
    assert "without CUDA" in _summary(f"RuntimeError: {package}\n")


@pytest.mark.parametrize(
    "text",
    [
        "[0]:\n  time      : 2026-01-02_03:04:05\n  host      : desk\n  rank      : 0 (local_rank: 0)\n  exitcode  : 3221225477 (pid: 812)\n  error_file: <N/A>\n",
        "Process finished with exit code -1073741819 (0xC0000005)\n",
    ],
)  # fmt: skip
def test_windows_numbers_of_a_crash_are_known(text: str) -> None:
    box = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n=====\ntrain.py FAILED\n-----\nRoot Cause (first observed failure):\n"
    assert _first(text if text.startswith("Process") else box + text) == "process-crashed"


@pytest.mark.parametrize(
    "text",
    [
        "See the docs on 'an illegal memory access was encountered' and misaligned address\nepoch 1 step 1 loss 0.5\n",
        "INFO upload failed: out of memory on the server, trying again\nepoch 1 step 1 loss 0.5\nepoch 1 step 2 loss 0.4\n",
        "the camera's initialization error is 0.03\nepoch 1 step 1 loss 0.5\n",
        "exit code 32212254770 is unknown\nepoch 1 step 1 loss 0.5\n",
    ],
)
def test_a_mention_of_such_words_raises_no_alarm(text: str) -> None:
    assert _judged(text).outcome is RunOutcome.NOTHING
