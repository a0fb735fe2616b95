"""The rules of scripts: each finds the mistake in every script that makes it, and is silent on honest ones that look the same."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
import warnings

import pytest

from ddpdoctor.base.findings import INFO, WARN, Severity
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.registry import Check, SkipReason, judge
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.scripts.reading import read_text
from tests.support.registered_checks import find_check
from tests.support.script_cases import ORIGINS, SCRIPTS, ScriptCase, script_cases, slugs_with_scripts

RULES = [check for check in all_checks() if "script" in check.groups]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.slug)
every_case = pytest.mark.parametrize("case", script_cases(), ids=lambda case: case.id)


@pytest.mark.quick
@every_rule
def test_a_rule_has_sick_scripts_and_honest_ones(rule: Check) -> None:
    assert script_cases(rule.slug, "sick-")
    assert script_cases(rule.slug, "near-miss-")


@every_rule
def test_an_honest_script_is_judged_and_fine(rule: Check) -> None:
    """Silence may also mean that there was nothing to look at: that alone proves nothing."""
    assert any(case.judge().passed for case in script_cases(rule.slug, "near-miss-"))


@pytest.mark.quick
def test_every_folder_of_scripts_is_a_rules() -> None:
    assert set(slugs_with_scripts()) == {rule.slug for rule in RULES}


@every_case
def test_a_script_is_judged_right(case: ScriptCase) -> None:
    result = case.judge()
    assert result.not_tested is None or result.not_tested.why is SkipReason.NOT_APPLICABLE, result.not_tested
    assert bool(result.findings) is case.is_sick
    for finding in result.findings:
        assert finding.place is not None
        assert finding.place.text
        assert finding.evidence
        assert finding.fixes
        assert len(finding.summary) <= 120
        assert "\n" not in finding.summary


@every_case
def test_a_script_says_where_it_comes_from(case: ScriptCase) -> None:
    first = case.path.read_text().partition("\n")[0]
    assert first.startswith(ORIGINS)
    assert len(first) > 20


@pytest.mark.quick
@pytest.mark.parametrize("case", script_cases(kind="sick-"), ids=lambda case: case.id)
def test_code_to_paste_knows_the_scripts_names(case: ScriptCase) -> None:
    for finding in case.judge().findings:
        assert finding.place is not None
        for fix in finding.fixes:
            (*_, file) = (finding.place.file, *re.findall(r"([\w-]+\.py):\d", fix.text))
            known = names_in((case.path.parent / file).read_text())
            code = "\n".join(fix.commands)
            assert "...)" not in code
            assert names_in(code) - names_bound_in(code) <= known | set(dir(builtins)), fix


def names_in(code: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(textwrap.dedent(code))))
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return imported | defined | arguments | {node.id for node in nodes if isinstance(node, ast.Name)}


def names_bound_in(code: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(textwrap.dedent(code))))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    imports = [node for node in nodes if isinstance(node, ast.Import)]
    return stored | {alias.name.partition(".")[0] for node in imports for alias in node.names}


def test_a_fix_names_places_and_shows_statements_whole() -> None:
    source = """
import os
from torch import nn
import torch.distributed as d
import torch as t
from torch.nn.parallel import DistributedDataParallel as DDP
d.init_process_group("nccl")
model = DDP(nn.Linear(1, 1).cuda(int(os.environ["LOCAL_RANK"])))
def save(model):
        t.save(
            model.state_dict(),
            "last.pt",
        )
save(model)
"""
    script = read_text(source.encode(), "train.py")
    (finding,) = judge(find_check("save-by-every-rank"), Snapshot(script=script), Plan(1, "a test")).findings
    assert finding.fixes[0].commands == (
        "if d.get_rank() == 0:",
        "    t.save(",
        "        model.state_dict(),",
        '        "last.pt",',
        "    )",
    )


def test_the_body_of_an_if_on_one_line_is_moved_alone() -> None:
    source = b"import torch.distributed as dist\ndist.init_process_group()\nif dist.get_rank() == 0: dist.barrier()\n"
    script = read_text(source, "train.py")
    (finding,) = judge(find_check("collective-on-some-ranks"), Snapshot(script=script), Plan(1, "a test")).findings
    assert finding.fixes[0].commands == ("dist.barrier()",)


def test_a_break_on_the_line_of_its_condition_is_left_together() -> None:
    source = b"""
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
model = DistributedDataParallel(make())
for batch in batches():
    model(batch).backward()
    if dist.get_rank() == 0: break
"""
    script = read_text(source, "train.py")
    (finding,) = judge(find_check("collective-on-some-ranks"), Snapshot(script=script), Plan(1, "a test")).findings
    assert "# at train.py:8, instead of break" in finding.fixes[0].commands


ACCUMULATION = "accumulation-without-no-sync"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("sick-one-turn-off", "if turn % 8 == 0 else"),
        ("sick-step-behind-continue", "if not ((turn + 1) % 4 != 0) else"),
        ("sick-test-on-two-lines", "if (turn + 1) % 4 == 0 or turn + 1 == len(batches) else"),
    ],
)
def test_the_last_micro_batch_is_the_one_before_the_step(name: str, advice: str) -> None:
    (case,) = script_cases(ACCUMULATION, name)
    (finding,) = case.judge().findings
    assert any(advice in line for line in finding.fixes[0].commands)


def test_python_warns_nobody_of_a_scripts_literals() -> None:
    source = (SCRIPTS / ACCUMULATION / "sick-one-turn-off.py").read_text()
    text = source.replace("if turn % 8 == 0:", r'if re.search("\d", str(turn)) and turn % 8 == 0:')
    assert text != source
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        script = read_text(text.encode(), "train.py")
        result = judge(find_check(ACCUMULATION), Snapshot(script=script), Plan(1, "a test"))
    assert result.findings
    assert not warned


@pytest.mark.parametrize(("run_by_processes", "severity"), [("train", WARN), ("log", INFO)])
def test_a_helper_process_is_no_rank_on_the_same_host(run_by_processes: str, severity: Severity) -> None:
    source = f"""
import torch.distributed as dist, torch.multiprocessing as mp
from torchvision.datasets import MNIST
def log():
    print("running")
def train():
    dist.init_process_group("nccl")
    MNIST("data", download=True)
for number in range(2):
    mp.Process(target={run_by_processes}).start()
train()
"""
    script = read_text(source.encode(), "train.py")
    (finding,) = judge(find_check("download-by-every-rank"), Snapshot(script=script), Plan(1, "a test")).findings
    assert finding.severity is severity
