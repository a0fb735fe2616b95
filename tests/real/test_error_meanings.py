"""What torch itself says of tensors that don't fit, and that it is explained."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from ddpdoctor.facts.log import Log, LogFrame, LoggedException, LogLine
from ddpdoctor.logs.analyze.error_meanings import meaning_of
from ddpdoctor.logs.analyze.script_errors import fault_words


def logged(name: str, words: str, code: str = "") -> LoggedException:
    line = LogLine(file=0, number=1, text=f"{name}: {words}")
    own = LogFrame("/w/train.py", 3, "main", code)
    return LoggedException(exception=name, message=words, line=line, began=line, frames=(own,), own=own)


def backward_of_many() -> None:
    torch.ones(3, requires_grad=True).mul(2).backward()


def backward_twice() -> None:
    loss = torch.ones(3, requires_grad=True).pow(2).sum()
    loss.backward()
    loss.backward()


def changed_in_place() -> None:
    weight = torch.ones(3, requires_grad=True)
    hidden = weight.exp()
    hidden.add_(1)
    hidden.sum().backward()


def batch_of_different_sizes() -> None:
    torch.utils.data.default_collate([torch.ones(2), torch.ones(3)])


@pytest.mark.parametrize(
    ("raising", "cause"),
    [
        (lambda: functional.linear(torch.ones(4, 12), torch.ones(32, 16)), "takes 16 features, and was given 12"),
        (lambda: functional.conv2d(torch.ones(8, 1, 9, 9), torch.ones(64, 3, 7, 7)), "takes 3 channels, and was given 1"),
        (lambda: functional.nll_loss(torch.zeros(2, 10), torch.tensor([1, 19])), "A label is 19"),
        (lambda: functional.embedding(torch.tensor([50]), torch.ones(5, 8)), "a row that it hasn't got"),
        (lambda: functional.linear(torch.ones(4, 16), torch.ones(32, 16).half()), "different dtypes"),
        (lambda: functional.conv2d(torch.ones(8, 3, 9, 9), torch.ones(6, 3, 7, 7).double()), "different dtypes"),
        (backward_of_many, "no single number"),
        (backward_twice, "used up and freed"),
        (changed_in_place, "changed in place"),
        (batch_of_different_sizes, "of different sizes"),
        (lambda: torch.ones(3).sum().backward(), "depends on no parameter"),
        (lambda: torch.distributed.get_rank(), "has no process group"),
        (lambda: torch.UntypedStorage.from_file("/none/of/it", False, 8), "/none/of/it isn't there"),
        (lambda: functional.conv2d(torch.ones(8, 3, 9, 9), torch.ones(0)), "A parameter is empty"),
    ],
)  # fmt: skip
def test_torchs_words_are_explained(raising: Callable[[], object], cause: str) -> None:
    with pytest.raises((RuntimeError, IndexError, ValueError)) as raised:
        raising()
    meaning = meaning_of(logged(type(raised.value).__name__, str(raised.value)), Log())
    assert meaning is not None, str(raised.value)
    assert cause in meaning.cause, str(raised.value)
    assert meaning.fixes


@pytest.mark.parametrize(
    ("name", "words", "code", "cause"),
    [
        ("bdb.BdbQuit", "", "if self.quitting: raise BdbQuit", "A breakpoint"),
        ("ZeroDivisionError", "division by zero", "return total / len(self.loader)", "the data set is empty"),
        ("ZeroDivisionError", "division by zero", "return a / b", ""),
        ("torch._dynamo.exc.Unsupported", "call_method __getitem__", "raise Unsupported(msg)", "can't trace"),
    ],
)
def test_a_name_or_a_line_may_tell_more_than_the_words(name: str, words: str, code: str, cause: str) -> None:
    raised = logged(name, words, code)
    assert cause in fault_words(raised, Log())
    assert bool(cause) is bool(fault_words(raised, Log()))
