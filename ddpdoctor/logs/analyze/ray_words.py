"""How Ray tells that a worker's process went without a word. Pure."""

from __future__ import annotations

from ddpdoctor.base.log_signs import LogSign, SignRole

SOURCE = "ray 2.x: src/ray/raylet/node_manager.cc, python/ray/exceptions.py, as reported in public"


def worker_gone(why: str) -> tuple[LogSign, ...]:
    """What Ray says of a worker that is gone, whether it was killed or crashed: an effect. why: what that illness has to do with it."""
    return (
        LogSign(
            "A worker died or was killed while executing a task by an unexpected system error",
            why=why,
            role=SignRole.EFFECT,
            source=SOURCE,
        ),
        LogSign(
            "ray.exceptions.",
            why=why,
            role=SignRole.EFFECT,
            pattern=r"^ray\.exceptions\.(?:(?:ActorDied|RayActor|WorkerCrashed|NodeDied|LocalRayletDied)Error): "
            r"(?!.*because of an error raised in its creation task)",
            source=SOURCE,
        ),
        LogSign(
            "Worker exit detail: Worker unexpectedly exits with a connection error code",
            why=why,
            role=SignRole.EFFECT,
            source=SOURCE,
        ),
    )
