"""How fast it all is, as ratios within this run."""

from __future__ import annotations

import statistics
import sys

from tests.gpu.kit import Kit, part
from tests.gpu.parts.smoke import trained


@part("scaling", "smoke --scaling: DDP at 1, 2, 4 ranks, and DataParallel where it can be compared", 60)
def scaling(kit: Kit) -> None:
    report = trained(kit, "--nproc", str(kit.machine.ranks), "--stages", "training", "--scaling")
    found = report["smoke"]["scaling"]
    kit.saw("scaling", found)
    kit.hold(found and not found["problem"], f"no figures: {found and found['problem']}")
    first = found["speeds"][0]["samples_per_second"]
    kit.saw(
        "speed of one rank's",
        {
            f"{one['ranks']} {one['way']}": round(one["samples_per_second"] / first, 3)
            for one in found["speeds"]
            if first
        },
    )
    kit.hold(all(not one["failed"] for one in found["speeds"]), f"a number of ranks failed: {found['speeds']}")


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
