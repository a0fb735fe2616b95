"""How CUDA's libraries give up without a reason: signs that several illnesses share."""

from __future__ import annotations

from typing import Final

from ddpdoctor.base.log_signs import LogSign, SignRole

CUDNN_GIVES_UP: Final = tuple(
    LogSign(
        words,
        role=SignRole.HINTS,
        why="cuDNN found no way to start or to compute it: mostly no memory left on the GPU, else a cuDNN that doesn't fit torch or the GPU",
        source=source,
    )
    for words, source in (
        ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "torch 1.13.1 and 2.9.1: aten/src/ATen/cudnn/Handle.cpp"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "torch 1.13.1 and 2.9.1: aten/src/ATen/cudnn/Exceptions.h"),
        ("no valid convolution algorithms available in CuDNN", "torch 0.4 to 1.4: aten/src/ATen/native/cudnn/Conv.cpp"),
        (
            "Unable to find a valid cuDNN algorithm to run convolution",
            "torch 1.13.1: aten/src/ATen/native/cudnn/Conv_v7.cpp",
        ),
        (
            " was unable to find an engine to execute this computation",
            "torch 2.1: aten/src/ATen/native/cudnn/Conv_v8.cpp",
        ),
    )
)
CUBLAS_GIVES_UP: Final = LogSign(
    "CUBLAS_STATUS_NOT_INITIALIZED when calling",
    role=SignRole.HINTS,
    why="cuBLAS could not start: mostly no memory left on the GPU, or an index past an array that was said too late",
    source="torch 1.13.1 and 2.9.1: aten/src/ATen/cuda/CublasHandlePool.cpp",
)
