"""How fast it all is, as ratios within this run."""

from __future__ import annotations

import statistics
import sys
from typing import Any

from tests.gpu.kit import Kit, part
from tests.gpu.parts.smoke import trained


def measured(kit: Kit, ranks: int) -> dict[str, Any]:
    """The figures of smoke --scaling up to so many ranks."""
    report = trained(kit, "--nproc", str(ranks), "--stages", "training", "--scaling")
    found: dict[str, Any] = report["smoke"]["scaling"]
    kit.saw("scaling", found)
    kit.hold(found and not found["problem"], f"no figures: {found and found['problem']}")
    return found


@part(
    "data-parallel",
    "DataParallel beside DDP: a figure, and on one GPU a word that it can't be compared",
    18,
    beside=True,
)
def data_parallel(kit: Kit) -> None:
    speeds = measured(kit, min(kit.machine.ranks, 2))["speeds"]
    (found,) = [speed for speed in speeds if speed["way"] == "DataParallel"]
    kit.hold(not found["failed"], f"it failed: {found['problem']}")
    if kit.machine.rehearsal or kit.machine.gpus == 1:
        kit.hold(
            found["problem"] and not found["samples_per_second"], f"a figure where nothing can be compared: {found}"
        )
    else:
        kit.hold(found["samples_per_second"] > 0, f"no figure: {found['problem']}")


@part("scaling", "smoke --scaling: DDP at 1, 2, 4 ranks, as ratios of one rank's speed", 30)
def scaling(kit: Kit) -> None:
    kit.needs_gpus(2)
    found = measured(kit, kit.machine.ranks)
    first = found["speeds"][0]["samples_per_second"]
    kit.saw(
        "speed of one rank's",
        {
            f"{speed['ranks']} {speed['way']}": round(speed["samples_per_second"] / first, 3)
            for speed in found["speeds"]
            if first
        },
    )
    kit.hold(all(not speed["failed"] for speed in found["speeds"]), f"a number of ranks failed: {found['speeds']}")


@part("speed", "check and check --quick against an import of torch, and of typer and rich", 30)
def speed(kit: Kit) -> None:
    def median(words: list[str], rounds: int = 3) -> float:
        return statistics.median(kit.run(words).seconds for _ in range(rounds))

    torch = median([sys.executable, "-c", "import torch"])
    light = median([sys.executable, "-c", "import typer, rich"])
    doctor = [sys.executable, "-m", "ddpdoctor", "check", "--json"]
    kit.saw("check, of an import of torch", round(median(doctor) / torch, 2))
    quick = median([*doctor, "--quick"])
    kit.saw("check --quick, of an import of typer and rich", round(quick / light, 2))
    kit.hold(quick < 50, f"check --quick took {quick:.0f} s")
