"""Why a check has no answer where this user may not open the GPUs. Pure."""

from __future__ import annotations

SHUT = "this user may not open the GPUs' device nodes: see gpu-device-permission"
