"""NCCL's own choice of interface, asked of the library itself, and the prediction for NCCL and gloo."""

from __future__ import annotations

from typing import Annotated

from ddpdoctor.base.unknown import Facts, Maybe, Source


class Nccl(Facts, frozen=True, kw_only=True):
    """`answer_*` come from ncclGetUniqueId in a subprocess; `predicted_*` from our reading of the interfaces."""

    library: Annotated[str | None, Source("the target Python's packages, torch/lib, the loader")] = None
    """Path of the libnccl.so.2 that was asked; None: there is none."""
    version: Annotated[Maybe[str | None], Source("ncclGetVersion")] = None
    answer_status: Annotated[Maybe[int | None], Source("ncclGetUniqueId in a subprocess")] = None
    """0 is good; 5: no usable interface; None: not asked."""
    answer_address: Annotated[str | None, Source("ncclGetUniqueId in a subprocess")] = None
    answer_interface: Annotated[str | None, Source("ncclGetUniqueId in a subprocess")] = None
    answer_log: Annotated[str, Source("NCCL_DEBUG=INFO in a subprocess")] = ""
    predicted_interface: Annotated[Maybe[str | None], Source("NCCL's rules over this host's interfaces")] = None
    """None: NCCL will find none."""
    predicted_address: Annotated[str | None, Source("NCCL's rules over this host's interfaces")] = None
    gloo_interface: Annotated[Maybe[str | None], Source("gloo's rules over this host's interfaces")] = None
    """None: gloo will fail to find its address."""
    gloo_address: Annotated[Maybe[str | None], Source("gloo's rules over this host's interfaces")] = None
    gloo_reason: Annotated[Maybe[str], Source("gloo's rules over this host's interfaces")] = ""
    """"GLOO_SOCKET_IFNAME", "hostname resolves to it", "fell back to 127.0.0.1" ..."""

    @property
    def interface(self) -> str | None:
        """The interface NCCL takes: its own answer, else the prediction."""
        predicted = self.predicted_interface if isinstance(self.predicted_interface, str) else None
        return self.answer_interface or predicted
