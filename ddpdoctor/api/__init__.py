"""The commands for programs: a function a command, typed results, nothing printed.

In come the arguments of the command line under the names of its options, out goes a `CommandResult`: its verdict, its findings, the same
report as JSON, Markdown or text. `cli/` calls these and adds what a terminal needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ddpdoctor.api.checking import CheckResult as CheckResult
    from ddpdoctor.api.checking import check as check
    from ddpdoctor.api.checkpoint_fixing import CheckpointResult as CheckpointResult
    from ddpdoctor.api.checkpoint_fixing import FixingObserver as FixingObserver
    from ddpdoctor.api.checkpoint_fixing import fix_checkpoint as fix_checkpoint
    from ddpdoctor.api.errors import NoVerdictError as NoVerdictError
    from ddpdoctor.api.errors import SpokenForError as SpokenForError
    from ddpdoctor.api.errors import UnsafeError as UnsafeError
    from ddpdoctor.api.errors import UsageError as UsageError
    from ddpdoctor.api.errors import WriteError as WriteError
    from ddpdoctor.api.fleet_comparison import FleetResult as FleetResult
    from ddpdoctor.api.fleet_comparison import fleet as fleet
    from ddpdoctor.api.host_snapshot import HostSnapshot as HostSnapshot
    from ddpdoctor.api.host_snapshot import snapshot as snapshot
    from ddpdoctor.api.job_watching import WatchResult as WatchResult
    from ddpdoctor.api.job_watching import watch as watch
    from ddpdoctor.api.leftovers import ZombiesResult as ZombiesResult
    from ddpdoctor.api.leftovers import zombies as zombies
    from ddpdoctor.api.lightning_callback import LightningPreflight as LightningPreflight
    from ddpdoctor.api.log_diagnosis import LogResult as LogResult
    from ddpdoctor.api.log_diagnosis import diagnose_log as diagnose_log
    from ddpdoctor.api.network_checking import NetcheckResult as NetcheckResult
    from ddpdoctor.api.network_checking import netcheck as netcheck
    from ddpdoctor.api.node_gate import GateResult as GateResult
    from ddpdoctor.api.node_gate import gate as gate
    from ddpdoctor.api.rank_preflight import PreflightError as PreflightError
    from ddpdoctor.api.rank_preflight import PreflightResult as PreflightResult
    from ddpdoctor.api.rank_preflight import preflight as preflight
    from ddpdoctor.api.results import CommandResult as CommandResult
    from ddpdoctor.api.running_jobs import HangResult as HangResult
    from ddpdoctor.api.running_jobs import JobsResult as JobsResult
    from ddpdoctor.api.running_jobs import jobs as jobs
    from ddpdoctor.api.script_linting import LintResult as LintResult
    from ddpdoctor.api.script_linting import lint as lint
    from ddpdoctor.api.training import SmokeObserver as SmokeObserver
    from ddpdoctor.api.training import smoke as smoke
    from ddpdoctor.api.training_results import JointSmokeResult as JointSmokeResult
    from ddpdoctor.api.training_results import SmokeResult as SmokeResult
    from ddpdoctor.api.transformers_callback import TransformersPreflight as TransformersPreflight

_NAMES: Final = {
    "checking": ("CheckResult", "check"),
    "checkpoint_fixing": ("CheckpointResult", "FixingObserver", "fix_checkpoint"),
    "errors": ("NoVerdictError", "SpokenForError", "UnsafeError", "UsageError", "WriteError"),
    "fleet_comparison": ("FleetResult", "fleet"),
    "node_gate": ("GateResult", "gate"),
    "host_snapshot": ("HostSnapshot", "snapshot"),
    "leftovers": ("ZombiesResult", "zombies"),
    "lightning_callback": ("LightningPreflight",),
    "log_diagnosis": ("LogResult", "diagnose_log"),
    "job_watching": ("WatchResult", "watch"),
    "network_checking": ("NetcheckResult", "netcheck"),
    "rank_preflight": ("PreflightError", "PreflightResult", "preflight"),
    "results": ("CommandResult",),
    "running_jobs": ("HangResult", "JobsResult", "jobs"),
    "script_linting": ("LintResult", "lint"),
    "training": ("SmokeObserver", "smoke"),
    "training_results": ("JointSmokeResult", "SmokeResult"),
    "transformers_callback": ("TransformersPreflight",),
}
MODULES: Final = {name: module for module, names in _NAMES.items() for name in names}
"""A name to the module that has it: loaded once it is asked for, since each command's start-up counts."""


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ddpdoctor.api.{MODULES[name]}"), name)
