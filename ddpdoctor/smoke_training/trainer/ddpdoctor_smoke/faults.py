"""Faults for tests: one rank that misbehaves at one stage, in a way that real ones have. Nothing without an order."""

import importlib
import os
import signal
import time

INSTEAD = {"all_reduce": "broadcast", "broadcast": "all_reduce", "all_gather": "all_reduce", "barrier": "all_reduce"}
"""The collective that is called in another one's place."""

LEAK_BYTES = 400 << 20
"""By the end."""
EVERY_RANK = -1


class Faults:
    """fault: {"rank", "stage", "kind", "when"} or None, rank -1 for all; worker: the rank.

    kinds
        raise, exit, kill, stop, sleep      when "begin": as the stage begins; when "call": once the rank has said what it
                                            is about to do, and doesn't do it
        other-collective                    another one in place of the stage's first; where DDP makes them, one too many
        shape                               the first collective's tensor is longer; where DDP makes them, the model is wider
        seed, sampler                       (sampler, training) the sampler has another seed; isn't a DistributedSampler
        drift                               (training, parameters) after a step something is added to the parameters
        slow, slow-later, fading, leak      (burn-in) its own part of a step takes three times as long; from half of the time on; ever
                                            longer; it keeps ever more memory
        module:function                     called with the rank's device, as those above that end or wait
    """

    def __init__(self, fault, worker):
        self.fault = fault if fault and int(fault["rank"]) in (worker.rank, EVERY_RANK) else None
        self.worker = worker
        self.struck = False
        self.kept = []

    def wanted(self, kind):
        """Whether this rank is to do that wrong in the present stage."""
        return self.fault is not None and self.fault["stage"] == self.worker.stage and self.fault["kind"] == kind

    def begin(self):
        """At the beginning of a stage."""
        self._end_or_wait("begin")

    def called(self):
        """After the words and before the deed."""
        self._end_or_wait("call")

    def one_too_many(self):
        """Whether a collective is to be called that nobody else calls; once."""
        if self.struck or not self.wanted("other-collective"):
            return False
        self.struck = True
        return True

    def instead(self, op, tensor):
        """The collective to call, and its tensor, in place of one."""
        if self.struck or self.fault is None:
            return op, tensor
        if self.wanted("shape") and tensor is not None:
            self.struck = True
            return op, tensor.new_ones(tensor.numel() + 3)
        if self.wanted("other-collective"):
            self.struck = True
            return INSTEAD[op], self.worker.torch.ones(1, device=self.worker.device) if tensor is None else tensor
        return op, tensor

    def burden(self, share, seconds):
        """In a step of the burn-in. share: of its time that is over; seconds: that the rank's own part took."""
        if self.wanted("slow") or (self.wanted("slow-later") and share > 0.5):
            time.sleep(2 * seconds)
        if self.wanted("fading"):
            time.sleep(3 * share * seconds)
        if self.wanted("leak") and sum(map(len, self.kept)) < share * LEAK_BYTES:
            self.kept.append(bytearray(b"x") * int(share * LEAK_BYTES - sum(map(len, self.kept))))

    def _end_or_wait(self, when):
        if self.fault is None or self.fault["stage"] != self.worker.stage or self.fault.get("when", "begin") != when:
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
        module, _, function = kind.partition(":")
        if function:
            getattr(importlib.import_module(module), function)(self.worker.device)
