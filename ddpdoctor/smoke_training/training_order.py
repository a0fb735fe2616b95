"""What the ranks of one host are told to do. The order goes to the target Python as JSON."""

from __future__ import annotations

import msgspec

from ddpdoctor.facts.smoke import stage_seconds
from ddpdoctor.smoke_training.stages import IMPORT_SECONDS, STAGE_SECONDS, STAGES


class Launched(msgspec.Struct, frozen=True):
    """The rank that a launcher gave to this very process."""

    rank: int
    local_rank: int


class Fault(msgspec.Struct, frozen=True):
    """For tests: what one rank does wrong; see smoke_training/trainer/ddpdoctor_smoke/faults.py."""

    rank: int
    stage: str
    kind: str
    when: str = "begin"


class TrainingOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One host's share of a run. Fields as in smoke_training/trainer/ddpdoctor_smoke/orders.py; channel and folder are filled in when
    it is started. import_seconds: what the stage import may take, and the rendezvous with ranks that we don't hear of."""

    nproc: int
    world_size: int
    nnodes: int = 1
    node_rank: int = 0
    master: str = ""
    port: int = 0
    backend: str = "gloo"
    stages: tuple[str, ...] = STAGES
    seconds: float = STAGE_SECONDS
    import_seconds: float = IMPORT_SECONDS
    launched: Launched | None = None
    first_rank: int | None = None
    """On this host; None: every host has as many."""
    gpus: int = 0
    fault: Fault | None = None

    @property
    def ranks(self) -> list[int]:
        """Those of this host."""
        if self.launched is not None:
            return [self.launched.rank]
        first = self.node_rank * self.nproc if self.first_rank is None else self.first_rank
        return [first + local for local in range(self.nproc)]

    def seconds_for(self, stage: str) -> float:
        """What it may take, as `facts.smoke.stage_seconds` has it."""
        return stage_seconds(
            stage, self.seconds, self.import_seconds, apart=self.launched is not None or self.nnodes > 1
        )

    def to_json(self, channel: str, folder: str) -> str:
        """What the target Python is given."""
        return msgspec.json.encode(
            {**msgspec.to_builtins(self), **self._whole(), "channel": channel, "folder": folder}
        ).decode()

    def _whole(self) -> dict[str, object]:
        """Fields that the target Python reads whatever their value is."""
        names = ("nnodes", "node_rank", "master", "port", "backend", "stages", "seconds", "import_seconds")
        return {name: getattr(self, name) for name in names}
