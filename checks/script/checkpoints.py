"""How a script saves and loads what it has learned."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import INFO, WARN, Finding, Fix, Owner
from ddpdoctor.checks.script.script_facts import at, may_be_on_some_ranks, reached, require_distributed
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import LibraryCall, Role, Script

_LOAD = "torch.load"


@check("load-without-map-location", severity=WARN, owner=Owner.USER)
def load_without_map_location(script: Script) -> Iterator[Finding]:
    """A checkpoint is loaded without map_location by every rank.

    ## What breaks
    Every rank puts the tensors where the rank that saved them had them, mostly on GPU 0: there each of them takes a CUDA context of some
    hundred MiB and memory for the whole checkpoint, and a job that has trained for days runs out of memory as it resumes.

    ## Why
    A checkpoint knows the device of each tensor, and `torch.load` restores it there unless it is told otherwise.

    ## Fix
    `torch.load(path, map_location="cpu")`: `load_state_dict` copies the values to where the model is.
    """
    require_distributed(script)
    requires(not script.does("load"), "a framework that the script uses loads its checkpoints")
    for load in reached(script, Role.LOAD):
        if load.name != _LOAD or load.argument("map_location", 1) or load.unpacks or may_be_on_some_ranks(load):
            continue
        restored = _restored_from(script, load)
        if restored is not None:
            yield _loaded_where_it_was(script, load, restored)


def _restored_from(script: Script, load: LibraryCall) -> LibraryCall | None:
    """The call that takes a state out of what was loaded."""
    for restoring in script.with_role(Role.LOAD_STATE):
        loaded = script.made_by(restoring.argument("state_dict", 0), Role.LOAD)
        if any(other.place == load.place for other in loaded):
            return restoring
    return None


def _loaded_where_it_was(script: Script, load: LibraryCall, restored: LibraryCall) -> Finding:
    saves_states = any(
        any(script.made_by(argument.value, Role.STATE))
        for save in script.with_role(Role.SAVE)
        for argument in save.arguments
    )
    path = load.argument("f", 0)
    shown = path.text if path else "path"
    return Finding.of(
        "Every rank loads the checkpoint to the GPU from which it was saved, mostly GPU 0",
        at(load.place, "loaded without map_location"),
        at(restored.place, "restored from it"),
        Fix(
            "Load it into the host's memory: load_state_dict copies it to the rank's device",
            (f'torch.load({shown}, map_location="cpu")',),
        ),
        severity=WARN if saves_states else INFO,
        place=load.place,
    )
