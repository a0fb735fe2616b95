"""A pattern for the frames into which libraries put the CUDA runtime's own words for an error."""

from __future__ import annotations

from typing import Final

_WHO: Final = r"\bcuda(?!\w*-)\w*(?: (?:runtime|driver|api|rt|kernel(?: launch)?|launch))?"
_PLACE: Final = (
    r"(?:[: ]{0,2}[\[(]?(?:code ?=? ?)?\d{1,3}[\])]?)?(?:(?: at| in)? \(?[\w./-]+[: ]\d{1,6}\)?)?(?: in \w+)?"
)
CUDA_SAYS: Final = (
    rf"(?:(?i:{_WHO} (?:error|failure|failed)\b{_PLACE} ?[:,]? ?)|"
    r"(?i:\bcuda execution failed with error) \d+ ?[:,]? ?|"
    r"\bTriton Error \[CUDA\]: |\bGPUassert: |\bcudaError[A-Z]\w{1,60}: |"
    r"\b(?:parallel_for|\w{0,40}(?:sort|scan|reduce|copy|unique)\w{0,20})(?: failed|: failed on \w+ step): |"
    r"\berror in \w{0,60}(?:cuda|gpu|kernel|im2col|col2im)\w{0,60}: |^(?i:error) (?=.{1,80} at line \d+ in file ))'?"
)
"""What stands right before them: "CUDA error: " of torch, "cuda runtime error (77) : " of its older releases, "Cuda failure 700 '"
of NCCL, "parallel_for failed: cudaErrorIllegalAddress: " of thrust, "CUDA kernel launch error 98, " of spconv, "cudaMalloc
error " of faiss, "CUDA kernel failed : " of pointnet2, "Cuda error FILE:LINE '" of macros that many have copied, "GPUassert: " of another one,
"error in deformable_im2col: " of deformable convolutions, and "Error ... at line 74 in file ..." of bitsandbytes."""
