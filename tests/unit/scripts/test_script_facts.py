"""What is learnt of a script: conditions, processes, settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.facts.script import Condition, OriginKind, Ranks, Role, Script
from ddpdoctor.scripts.following import MAX_STATEMENTS, MAX_STATEMENTS_UNTOLD
from ddpdoctor.scripts.project import ModuleCache
from ddpdoctor.scripts.reading import read_script, read_text

HEAD = "import os\nimport torch\nimport torch.distributed as dist\nimport torch.multiprocessing as mp\nimport multiprocessing\n"


def facts(text: str) -> Script:
    script = read_text((HEAD + text).encode(), "train.py")
    assert not script.problem
    return script


def conditions(text: str) -> tuple[Condition, ...]:
    """The conditions of the only collective."""
    (call,) = facts(text).with_role(Role.COLLECTIVE)
    return call.conditions


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "test", "is_negated", "by_leaving"),
    [
        ("if step % 4 == 0:\n    dist.barrier()\n", "step % 4 == 0", False, False),
        ("if step % 4:\n    pass\nelse:\n    dist.barrier()\n", "step % 4", True, False),
        ("for step in range(9):\n    if step % 4:\n        continue\n    dist.barrier()\n", "step % 4", True, True),
        ("while os.path.exists('x'):\n    dist.barrier()\n", "os.path.exists('x')", False, False),
        ("x = 1 if os.getppid() else dist.barrier()\n", "os.getppid()", True, False),
    ],
    ids=["if", "else", "continue", "while", "expression"],
)
def test_a_condition_that_is_no_question_of_the_rank(text: str, test: str, is_negated: bool, by_leaving: bool) -> None:
    (condition,) = conditions(text)
    assert condition.ranks is Ranks.ALL
    assert (condition.test.text, condition.is_negated, condition.by_leaving) == (test, is_negated, by_leaving)


@pytest.mark.parametrize(
    "text",
    [
        "from somebody import first\nif first:\n    dist.barrier()\n",
        "from somebody import ask\nif ask():\n    dist.barrier()\n",
        "from somebody import build\nengine = build()\nif engine.is_ours:\n    dist.barrier()\n",
        "from somebody import build\nengine = build()\nour = engine.ours() and engine.of_us() == 0\nif our:\n    dist.barrier()\n",
        "from somebody import build\nshown, number = build()\nif number == 0:\n    dist.barrier()\n",
        "if torch.load('x') and unheard_of:\n    dist.barrier()\n",
    ],
    ids=["name", "function", "attribute", "stored", "number", "and"],
)
def test_a_condition_that_can_not_be_followed_may_be_one_on_the_rank(text: str) -> None:
    (condition,) = conditions(text)
    assert condition.ranks is Ranks.MAY_BE_SOME


@pytest.mark.parametrize(
    "test",
    ["ask() > 3", "ask() == 'save'", "step % ask() == 0", "isinstance(ask(), list)", "loaded_from is not None"],
)
def test_a_size_a_word_and_what_is_loaded_are_no_ranks(test: str) -> None:
    (condition,) = conditions(f"from somebody import ask, step, loaded_from\nif {test}:\n    dist.barrier()\n")
    assert condition.ranks is Ranks.ALL


def test_a_condition_on_the_rank_has_its_test_too() -> None:
    (condition,) = conditions("if dist.get_rank() == 0 and os.getpid() == 4:\n    dist.barrier()\n")
    assert condition.ranks is Ranks.ZERO
    assert condition.test.text == "dist.get_rank() == 0 and os.getpid() == 4"


@pytest.mark.parametrize(
    "text", ["while True:\n    dist.barrier()\n", "if __name__ == '__main__':\n    dist.barrier()\n"]
)
def test_what_always_holds_is_no_condition(text: str) -> None:
    assert conditions(text) == ()


def test_what_a_test_is_made_of_is_known_through_calls() -> None:
    script = facts(
        "def step(last):\n    if last:\n        dist.barrier()\nfor i in range(9):\n    step((i + 1) % 4 == 0)\n"
    )
    (call,) = script.with_role(Role.COLLECTIVE)
    assert [origin.text for origin in call.conditions[0].test.flattened()][:2] == ["compare", "%"]


def test_many_conditions_within_each_other_cost_no_more() -> None:
    script = facts("def work(x):\n" + "".join(f"    if x == f{number}():\n        return\n    dist.barrier()\n" for number in range(1000)) + "work(os.getpid())\n")  # fmt: skip
    assert len(list(script.with_role(Role.COLLECTIVE))) == 1000
    assert max(len(call.conditions) for call in script.calls) < 100


@pytest.mark.parametrize("process", ["mp.Process", "multiprocessing.Process", "mp.get_context('spawn').Process"])
def test_the_function_of_a_process_is_followed(process: str) -> None:
    script = facts(
        "def work(gpu, world, *, port):\n"
        "    torch.cuda.set_device(gpu)\n"
        "    dist.barrier(port)\n"
        "for i in range(2):\n"
        f"    {process}(target=work, args=(i, 2), kwargs={{'port': 5}}).start()\n"
    )
    (spawn,), (barrier,), (device,) = (
        script.with_role(role) for role in (Role.SPAWN, Role.COLLECTIVE, Role.SET_DEVICE)
    )
    assert spawn.loops
    assert not barrier.loops, "the loop over processes is none of theirs"
    assert barrier.is_reached
    assert barrier.arguments[0].value.is_constant("5")
    assert [origin.kind for origin in device.arguments[0].value.origins] == [OriginKind.SPAWN_INDEX]


def test_spawn_numbers_its_processes_and_notebook_launcher_does_not() -> None:
    launcher = "from accelerate import notebook_launcher as start\n"
    text = "def work(first):\n    dist.barrier(first)\nstart(work, args=(7,), nprocs=2)\n"
    for source, kind in ((launcher, OriginKind.CONSTANT), ("start = mp.spawn\n", OriginKind.SPAWN_INDEX)):
        (call,) = facts(source + text).with_role(Role.COLLECTIVE)
        assert [origin.kind for origin in call.arguments[0].value.origins] == [kind]


def test_a_setting_is_written_where_somebody_comes() -> None:
    script = facts(
        "def never():\n    os.environ['MASTER_ADDR'] = 'a'\ndef called():\n    os.environ['MASTER_PORT'] = '1'\ncalled()\n# torchrun\n"
    )
    assert {written.name: written.is_reached for written in script.settings} == {
        "MASTER_ADDR": False,
        "MASTER_PORT": True,
    }


@pytest.mark.parametrize(
    "text",
    [
        "def work():\n    dist.barrier()\n",
        "from torch.distributed import barrier as wait\ndef work():\n    wait()\n",
        "def inner():\n    dist.barrier()\ndef work():\n    inner()\n",
        "class Work:\n    def run(self):\n        self.wait = dist\n        self.wait.barrier()\n",
        "def work():\n    def inner():\n        dist.barrier()\n    inner()\n",
    ],
    ids=["function", "alias", "through another", "class", "nested"],
)
def test_a_function_that_nobody_calls_is_followed_where_it_tells(text: str) -> None:
    calls = list(facts(text).with_role(Role.COLLECTIVE))
    assert calls
    assert not any(call.is_reached for call in calls)


def test_a_class_that_is_handed_a_loader_is_followed() -> None:
    script = facts(
        "from torch.utils.data import DataLoader\n"
        "class Work:\n    def __init__(self, data):\n        self.data = data\n"
        "    def run(self):\n        for batch in self.data:\n            print(batch)\n"
        "Work(DataLoader([1]))\n"
    )
    (loader,) = script.with_role(Role.LOADER)
    assert [iteration.is_reached for iteration in loader.iterations] == [False]


def test_the_environment_counts_where_nobody_calls() -> None:
    assert facts("def work():\n    return os.environ['LOCAL_RANK']\n").read_settings == ("LOCAL_RANK",)


def test_helpers_that_nobody_calls_cost_nothing() -> None:
    body = "    x += 1\n" * 100
    helpers = "".join(f"def helper_{number}(x):\n{body}" for number in range(MAX_STATEMENTS // 100 + 1))
    script = facts(f"{helpers}def work():\n    dist.barrier()\n")
    assert not script.is_cut_short
    assert len(list(script.with_role(Role.COLLECTIVE))) == 1


def test_a_project_that_does_not_speak_of_training_is_not_followed_to_its_end(tmp_path: Path) -> None:
    numbers = "x = 0\n" + "x += 1\n" * (MAX_STATEMENTS_UNTOLD + 1)
    plain, training = tmp_path / "plain.py", tmp_path / "training.py"
    plain.write_text(f"{numbers}import os\nos.environ['LOCAL_RANK']\n")
    training.write_text(f"import torch\n{plain.read_text()}")
    assert read_script(str(plain), ModuleCache()).is_cut_short
    followed = read_script(str(training), ModuleCache())
    assert not followed.is_cut_short
    assert followed.read_settings == ("LOCAL_RANK",)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("    sampler = DistributedSampler([1])\n    sampler.set_epoch(0)\n", ()),
        ("    handed.sampler.set_epoch(0)\n", ("set_epoch",)),
        ("    kept.sampler.set_epoch(0)\n", ("set_epoch",)),
        ("    print(1)  # sampler.set_epoch(0)\n", ()),
    ],
    ids=["its own", "handed to it", "of the module", "a comment"],
)
def test_what_another_run_tells_its_own_sampler(tmp_path: Path, line: str, told: tuple[str, ...]) -> None:
    """A module has a training of its own, which the script that borrows a function of it never starts."""
    other = "from torch.utils.data import DistributedSampler\nkept = {}\n"
    (tmp_path / "other.py").write_text(f"{other}def main(handed):\n{line}\ndef evaluate():\n    pass\n")
    (tmp_path / "train.py").write_text("import torch\nfrom other import evaluate\nevaluate()\n")
    assert read_script(str(tmp_path / "train.py"), ModuleCache()).unfollowed == told
