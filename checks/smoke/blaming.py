"""Whether a check of this family has anything to say of a smoke training. Pure."""

from __future__ import annotations

from ddpdoctor.engine.registry import requires
from ddpdoctor.facts.smoke import Smoke
from ddpdoctor.smoke_training.analysis.failure_attribution import (
    NO_SMOKE,
    TrainingFailure,
    TrainingFailureKind,
    attribute_failure,
    has_ended_early,
    ranks_not_started,
)


def blame_for(smoke: Smoke, *kinds: TrainingFailureKind) -> TrainingFailure | None:
    """What a training that wasn't finished came to, for a check that speaks of those kinds; None where it was finished.

    Raises:
        NotApplicable: there was none, or it ended for another reason, so that nothing is known of these.
    """
    requires(smoke.ranks or smoke.problem, NO_SMOKE)
    requires(smoke.ranks and not ranks_not_started(smoke), "ranks could not be started: see smoke-not-started")
    requires(not has_ended_early(smoke), "what had started the ranks ended: see smoke-ended-early")
    found = attribute_failure(smoke.ranks)
    requires(found is None or found.kind in kinds, "the smoke training ended early for another reason")
    return found
