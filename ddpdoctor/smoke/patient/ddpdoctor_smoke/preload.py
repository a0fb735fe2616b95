"""Imported once by the server that the ranks are forked from: all that takes seconds. What is missing, the ranks will miss."""
# mypy: allow-untyped-defs, allow-untyped-calls

import importlib
import os

from ddpdoctor_smoke.doctor import die_with_the_parent

# DDP() imports torch._dynamo by itself, since 2.0.
MODULES = ("torch", "torch.distributed", "torch._dynamo", "torch.nn.parallel", "torch.utils.data")

die_with_the_parent()

# The engine put our folder there for this server alone.
if "DDPDOCTOR_PYTHONPATH" in os.environ:
    os.environ["PYTHONPATH"] = os.environ.pop("DDPDOCTOR_PYTHONPATH")
else:
    os.environ.pop("PYTHONPATH", None)

for module in MODULES:
    try:
        importlib.import_module(module)
    except Exception:
        continue  # Each rank will come to the same, and say so.
