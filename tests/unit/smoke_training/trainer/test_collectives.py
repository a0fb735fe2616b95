"""The stages of a smoke training whose collectives have known answers: a wrong one is found, and its rank named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ddpdoctor_smoke.rank import Worker, WrongOutcome
from ddpdoctor_smoke.stages import collectives

from tests.support.smoke_single_rank import rank

SIZE = 3


class World:
    """torch.distributed as rank 0 of three has it; with `spoilt` the last number is another one in that op, for tensors of so
    many elements and, where ranks send, from that rank."""

    def __init__(self, spoilt: tuple[str, int, int] | None = None) -> None:
        self.spoilt = spoilt

    def is_initialized(self) -> bool:
        return True

    def all_reduce(self, tensor: torch.Tensor) -> None:
        tensor.add_(2 + 3)
        self._spoil("all_reduce", tensor, 0)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        tensor.fill_(source)
        self._spoil("broadcast", tensor, source)

    def all_gather(self, found: list[torch.Tensor], tensor: torch.Tensor) -> None:
        for source, part in enumerate(found):
            part.fill_(source)
            self._spoil("all_gather", part, source)

    def _spoil(self, op: str, tensor: torch.Tensor, source: int) -> None:
        if self.spoilt == (op, tensor.numel(), source):
            tensor[-1] += 7


def first_of(world: World, tmp_path: Path) -> Worker:
    one = rank(tmp_path)
    one.world_size, one.dist = SIZE, world
    return one


STAGES = (collectives.all_reduce, collectives.broadcast, collectives.all_gather)


@pytest.mark.parametrize("stage", STAGES)
def test_right_answers_pass(stage: Any, tmp_path: Path) -> None:
    assert stage(first_of(World(), tmp_path)) == ""


@pytest.mark.parametrize(
    ("spoilt", "words", "culprits"),
    [
        (("all_reduce", 1, 0), "the sum over 3 ranks should be 6 and is 13", []),
        (("all_reduce", 1024, 0), "the sum over 3 ranks should be 6 and is 6 to 13", []),
        (("all_reduce", 1024 * 1024, 0), "the sum over 3 ranks should be 6 and is 6 to 13", []),
        (("broadcast", 1024, 0), "what rank 0 sent should be 0 and is 0 to 7", [0]),
        (("broadcast", 1024, 2), "what rank 2 sent should be 2 and is 2 to 9", [2]),
        (("all_gather", 1024, 0), "what rank 0 sent should be 0 and is 0 to 7", [0]),
        (("all_gather", 1024, 2), "what rank 2 sent should be 2 and is 2 to 9", [2]),
    ],
)
def test_one_wrong_number_is_told_with_what_it_should_be(
    spoilt: tuple[str, int, int], words: str, culprits: list[int], tmp_path: Path
) -> None:
    with pytest.raises(WrongOutcome) as wrong:
        getattr(collectives, spoilt[0])(first_of(World(spoilt), tmp_path))
    assert (str(wrong.value), wrong.value.culprits) == (words, culprits)


def test_what_is_no_number_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "all_reduce", lambda self, tensor: tensor.fill_(float("nan")))
    with pytest.raises(WrongOutcome, match="should be 6 and is nan"):
        collectives.all_reduce(first_of(World(), tmp_path))
