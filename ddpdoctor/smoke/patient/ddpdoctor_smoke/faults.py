"""Faults for tests: one rank that misbehaves at one stage, in a way that real ones have. Nothing without an order."""
# mypy: allow-untyped-defs, allow-untyped-calls

import os
import signal
import time


class Faults:
    """fault: {"rank", "stage", "kind"} or None. kinds: raise, exit, kill, stop, sleep, other-collective, shape; and seed,
    sampler, drift, which the stages ask for by `wanted`."""

    def __init__(self, fault, one):
        self.fault = fault if fault and int(fault["rank"]) == one.rank else None
        self.struck = False

    def wanted(self, kind):
        """Whether this rank is to do that wrong; for faults that only the stage itself can commit."""
        return self.fault is not None and self.fault["kind"] == kind

    def begin(self, stage):
        """At the beginning of a stage."""
        if not self.fault or self.fault["stage"] != stage:
            return
        kind = self.fault["kind"]
        if kind == "raise":
            raise RuntimeError("a fault for a test")
        if kind == "exit":
            os._exit(7)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "sleep":
            print("this rank sleeps now", flush=True)
            time.sleep(3600)

    def before(self, stage, op, tensor):
        """Before a collective: which one is called with what."""
        if not self.fault or self.fault["stage"] != stage or self.struck or tensor is None:
            return op, tensor
        if self.fault["kind"] == "shape":
            self.struck = True
            return op, tensor.new_ones(tensor.numel() + 3)
        if self.fault["kind"] == "other-collective":
            self.struck = True
            return "broadcast" if op != "broadcast" else "all_reduce", tensor
        return op, tensor
