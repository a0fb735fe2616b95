"""Whether a rank has moved in the pause between two deep looks that both saw it in one place: by its wakes and by the cores it used."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.watching.movement import movements
from tests.support.deep_looks import MOMENTS, NEVER, SLEEPS, AtMoments, Seen, deep_look, in_between, why
from tests.support.hangs import Stack, collective, loader, rendezvous


@pytest.mark.parametrize(
    ("now", "wakes", "says"),
    [
        # It sleeps within both looks: one time awake in between is enough.
        (SLEEPS, in_between(1), "its main thread woke up 1 time between two looks"),
        (SLEEPS, NEVER, ""),
        # Once a second, within both: in the ten seconds between it may be twice that, and one more.
        (SLEEPS, (0, 2, 24, 26), "its main thread woke up 22 times between two looks"),
        (SLEEPS, (0, 2, 23, 25), ""),
        # The look with fewer counts.
        (SLEEPS, (0, 8, 30, 32), "its main thread woke up 22 times between two looks"),
        (SLEEPS, (0, 2, 24, 32), "its main thread woke up 22 times between two looks"),
        (SLEEPS, (0, 8, 29, 31), ""),
        # Who waits for a DataLoader, or for a rendezvous, asks now and then whether it is still there.
        (loader(), in_between(4), "its main thread woke up 4 times between two looks"),
        (loader(), in_between(3), ""),
        (rendezvous(), in_between(4), "its main thread woke up 4 times between two looks"),
        (rendezvous(), in_between(3), ""),
        (collective("broadcast"), in_between(1), "its main thread woke up 1 time between two looks"),
        # Where the kernel doesn't tell.
        (SLEEPS, (0, 0, Unknown("no"), Unknown("no")), ""),
        (SLEEPS, (Unknown("no"), Unknown("no"), 5, 5), ""),
    ],
)
def test_how_often_it_woke_up(now: Stack, wakes: Sequence[int | Unknown], says: str) -> None:
    assert why(Seen(now=now, wakes=wakes)) == says
    assert why(Seen(now=now, wakes=wakes), alone=True) == ""


@pytest.mark.parametrize(
    ("now", "cpu", "says"),
    [
        # In the ten seconds between, and none within a look.
        (SLEEPS, in_between(3), "it used 0.3 cores between two looks, and 0.0 within one"),
        (SLEEPS, in_between(2), ""),
        (collective("broadcast"), in_between(3), "it used 0.3 cores between two looks, and 0.0 within one"),
        (collective("broadcast"), in_between(2), ""),
        # A tenth of a core is busy; between busy and more busy there is no difference.
        (SLEEPS, (0, 0, 3.2, 3.38), "it used 0.3 cores between two looks, and 0.1 within one"),
        (SLEEPS, (0, 0, 3.2, 3.42), ""),
        (SLEEPS, (0, 0, 2.5, 2.66), ""),
        # In the look before, and no more.
        (SLEEPS, (0, 2, 2, 2), ""),
    ],
)
def test_what_it_used_between(now: Stack, cpu: AtMoments, says: str) -> None:
    assert why(Seen(now=now, cpu=cpu, main_cpu=cpu)) == says
    assert why(Seen(now=now, cpu=cpu, main_cpu=cpu), alone=True) == ""


@pytest.mark.parametrize(
    ("between", "says"),
    [
        (0.0, "it used 0.0 cores between two looks, and 0.3 within one"),
        (0.9, "it used 0.1 cores between two looks, and 0.3 within one"),
        (1.0, ""),
    ],
)
def test_one_that_computes_within_the_look_alone(between: float, says: str) -> None:
    cpu = (0.0, 0.0, between, between + 0.6)
    assert why(Seen(now=SLEEPS, cpu=cpu, main_cpu=cpu)) == says


@pytest.mark.parametrize(("pause", "says"), [(0.0, ""), (0.5, "its main thread woke up 50 times between two looks")])
def test_two_looks_without_time_between_them_tell_nothing_of_it(pause: float, says: str) -> None:
    one = Seen(now=SLEEPS, wakes=in_between(50))
    soon = msgspec.structs.replace(deep_look(1, one), began=MOMENTS[1] + pause)
    assert movements(soon, deep_look(0, one), ())[1].why == says
