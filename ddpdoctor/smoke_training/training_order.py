"""The user's options, and the order for the ranks of one host, which goes to the target Python as JSON."""

from __future__ import annotations

import msgspec

from ddpdoctor.facts.smoke import ELASTIC, Smoke, stage_seconds
from ddpdoctor.smoke_training.stages import IMPORT_SECONDS, STAGE_SECONDS, STAGES, import_seconds


class Launched(msgspec.Struct, frozen=True):
    """The rank that a launcher gave to this process."""

    rank: int
    local_rank: int


class Fault(msgspec.Struct, frozen=True):
    """For tests: what one rank does wrong; see smoke_training/trainer/ddpdoctor_smoke/faults.py."""

    rank: int
    stage: str
    kind: str
    when: str = "begin"


class SmokeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The user's options; None where they say nothing. Over several hosts node 0's backend, stages and timeout count for all."""

    python: str
    nproc: int | None = None
    backend: str = "auto"
    timeout: float | None = None
    """Seconds that a stage may take."""
    stages: tuple[str, ...] = STAGES
    """Those to run, in their order, the burn-in among them where there is one."""
    stages_given: bool = False
    """Whether the stages were asked for, or are all there are."""
    duration: float = 0.0
    """Seconds of the burn-in; 0: none."""
    scaling: bool = False
    launcher: str = ""
    """The launcher that has started each rank; "" where each host starts its own."""
    launched: Launched | None = None
    """The rank that it has given to this process."""
    store_running: bool = False
    """Whether the launcher's own store holds the master's port."""
    engine: str = ELASTIC
    """See `facts.smoke.Smoke`."""
    fault: Fault | None = None

    @property
    def seconds(self) -> float:
        """That a stage may take."""
        return self.timeout or STAGE_SECONDS

    @property
    def import_seconds(self) -> float:
        """That the first stage may take."""
        return import_seconds(self.timeout)


class TrainingOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One host's share of a run. Its fields are explained in smoke_training/trainer/ddpdoctor_smoke/orders.py; channel and folder are
    filled in when it is started."""

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
    """The first rank on this host; None: every host has as many."""
    gpus: int = 0
    duration: float = 0.0
    fault: Fault | None = None

    @property
    def ranks(self) -> list[int]:
        """The ranks of this host."""
        if self.launched is not None:
            return [self.launched.rank]
        first = self.node_rank * self.nproc if self.first_rank is None else self.first_rank
        return [first + local for local in range(self.nproc)]

    def seconds_for(self, stage: str) -> float:
        """The seconds that a stage may take."""
        return stage_seconds(
            stage, self.seconds, self.import_seconds, apart=self.launched is not None or self.nnodes > 1
        )

    def facts(self) -> Smoke:
        """The facts of a training that is ordered and hasn't begun."""
        return Smoke(
            world_size=self.world_size,
            nnodes=self.nnodes,
            backend=self.backend,
            stages=self.stages,
            deadline=self.seconds,
            import_seconds=self.import_seconds,
        )

    def to_json(self, channel: str, folder: str) -> str:
        """Encode the order for the target Python, whose ranks report at that socket and have their files in that folder."""
        # The target Python reads all of them, also those that are left out because of their value.
        names = ("nnodes", "node_rank", "master", "port", "backend", "stages", "seconds", "import_seconds")
        whole = {name: getattr(self, name) for name in names}
        return msgspec.json.encode(
            {**msgspec.to_builtins(self), **whole, "channel": channel, "folder": folder}
        ).decode()
