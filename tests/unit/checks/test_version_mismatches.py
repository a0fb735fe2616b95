"""Exceptions that show versions which don't fit, by whose code raised them; and those that only look alike."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from tests.support.logs_by_hand import read

SITE = "/opt/conda/lib/python3.9/site-packages"
DEBIAN = "/usr/lib/python3/dist-packages"
EGG = f"{SITE}/engine-0.3-py3.9.egg"
WINDOWS = r"C:\env\Lib\site-packages"
SCRIPT = ("/home/ada/train.py", "run(cfg)")
SLUG = "package-version-mismatch"

SURE = [
    ("TypeError: __init__() got an unexpected keyword argument 'sharding'", (f"{SITE}/engine/a.py", "self.x = Planner(")),
    ("TypeError: Planner.__init__() missing 1 required positional argument: 'mesh'", (f"{DEBIAN}/engine/a.py", "return plan.Planner(x)")),
    ("TypeError: __init__() takes 2 positional arguments but 3 were given", (f"{EGG}/engine/a.py", "Planner(x, y)")),
    ("TypeError: load_parts() got an unexpected keyword argument 'mesh'", (rf"{WINDOWS}\engine\a.py", "load_parts(x, mesh=m, **more)")),
    ("AttributeError: module 'torch.library' has no attribute 'register_fake'", (f"{SITE}/engine/a.py", "@torch.library.register_fake")),
    (
        f"ImportError: cannot import name 'Plan' from 'plans.core' ({SITE}/plans/core.py)",
        (f"{SITE}/engine/a.py", "from plans.core import Plan"),
    ),
    ("ModuleNotFoundError: No module named 'torch._six'", (f"{SITE}/engine/a.py", "from torch._six import inf")),
    ("ImportError: No module named 'torch._six'", (f"{SITE}/engine/a.py", "from torch._six import inf")),
]  # fmt: skip

PERHAPS = [
    # A file, or a class of the script's, may be what doesn't fit.
    ("TypeError: compute_loss() got an unexpected keyword argument 'count'", (f"{SITE}/engine/a.py", "loss = self.compute_loss(m, x, count=n)")),
    ("TypeError: Base.__init__() got an unexpected keyword argument 'tok'", (f"{SITE}/engine/a.py", "super().__init__(")),
    ("TypeError: score_fn() got an unexpected keyword argument 'mask'", (f"{SITE}/engine/a.py", "score_fn(x, mask=m)")),
    ("AttributeError: 'Stepper' object has no attribute 'train'", (f"{SITE}/engine/a.py", "return self.optimizer.train()")),
    ("AttributeError: type object 'Plan' has no attribute 'of'", (f"{SITE}/engine/a.py", "Plan.of(x)")),
    # A folder of that name may hide the package.
    ("AttributeError: module 'wandb' has no attribute 'init'", (f"{SITE}/engine/a.py", "wandb.init()")),
    ("AttributeError: module 'pkgutil' has no attribute 'ImpImporter'", (f"{SITE}/engine/a.py", "register(pkgutil.ImpImporter)")),
    ("ModuleNotFoundError: No module named 'google.protobuf'", (f"{SITE}/engine/a.py", "from google.protobuf import message")),
    (
        "ImportError: cannot import name 'load' from 'datasets' (/home/ada/datasets/__init__.py)",
        (f"{SITE}/engine/a.py", "from datasets import load"),
    ),
    ("AttributeError: module 'torch' has no attribute 'compiler'", ("/home/ada/steps.py", "torch.compiler.reset()")),
    (
        f"ImportError: cannot import name 'AdamW' from 'transformers' ({SITE}/transformers/__init__.py)",
        ("/home/ada/steps.py", "from transformers import AdamW"),
    ),
    ("ModuleNotFoundError: No module named 'transformers.deepspeed'", ("/home/ada/steps.py", "from transformers.deepspeed import x")),
]  # fmt: skip

OWN = [
    ("TypeError: step() missing 1 required positional argument: 'y'", (f"{SITE}/engine/a.py", "return fn(*args, **kwargs)")),
    ("TypeError: collate() takes 1 positional argument but 2 were given", (f"{SITE}/torch/utils/data/fetch.py", "self.collate(x, y)")),
    ("TypeError: unsupported operand type(s) for +: 'int' and 'str'", (f"{SITE}/engine/a.py", "x + y")),
    ("TypeError: Plan.__init__() got an unexpected keyword argument 'lr'", ("/home/ada/plan.py", "Plan(lr=1)")),
    ("AttributeError: 'dict' object has no attribute 'lr'", (f"{SITE}/engine/a.py", "x.lr")),
    ("AttributeError: 'Net' object has no attribute 'head'", (f"{SITE}/torch/nn/modules/module.py", "raise AttributeError(")),
    ("AttributeError: module 'utils' has no attribute 'seed'", ("/home/ada/steps.py", "utils.seed()")),
    ("AttributeError: module '__main__' has no attribute 'Net'", (f"{SITE}/engine/a.py", "x.Net")),
    ("ModuleNotFoundError: No module named 'einops'", (f"{SITE}/engine/a.py", "import einops")),
    ("ModuleNotFoundError: No module named 'utils.seeds'", ("/home/ada/steps.py", "from utils.seeds import seed")),
    ("ImportError: cannot import name 'seed' from 'utils' (/home/ada/utils.py)", ("/home/ada/steps.py", "from utils import seed")),
    ("KeyError: 'lr'", (f"{SITE}/engine/a.py", "cfg['lr']")),
]  # fmt: skip

LABELS = ("", "[rank0]: ", "2026-11-20 10:01:44 node3 ")


def _judged(error: str, frame: tuple[str, str], label: str = "") -> LogVerdict:
    frames = [line for path, code in (SCRIPT, frame) for line in (f'  File "{path}", line 7, in f', f"    {code}")]
    lines = ["Traceback (most recent call last):", *frames, error]
    return verdict_of(read("".join(f"{label}{line}\n" for line in lines)), catalogue())


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize(("error", "frame"), SURE)
def test_what_one_package_asks_of_another_no_script_explains(error: str, frame: tuple[str, str], label: str) -> None:
    verdict = _judged(error, frame, label)
    assert [(suspect.slug, suspect.sure) for suspect in verdict.suspects] == [(SLUG, True)]


@pytest.mark.parametrize(("error", "frame"), PERHAPS)
def test_what_the_script_may_have_brought_about_is_told_with_doubt(error: str, frame: tuple[str, str]) -> None:
    verdict = _judged(error, frame)
    assert [(suspect.slug, suspect.sure) for suspect in verdict.suspects] == [(SLUG, False)]


@pytest.mark.parametrize(("error", "frame"), OWN)
def test_what_a_script_does_wrongly_stays_its_own(error: str, frame: tuple[str, str]) -> None:
    assert _judged(error, frame).outcome is RunOutcome.USER_ERROR
