"""The index of checks: a check that it skips would have said the same. That it says what the modules do is compared with all that is
generated."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine import registry
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Catalogue, CheckListing, SkipReason, diagnose, judge, load_needed
from ddpdoctor.facts.snapshot import UNTRIED, Snapshot
from tests.support.fixture_hosts import healthy_facts, healthy_names, host_cases, to_snapshot
from tests.support.running_jobs import wait_until

SKIPPED = [check for check in all_checks() if check.idle_reason(Snapshot())]
PRINT_LOADED = """
import sys
from {module} import {what}
{call}
print(*(name for name in sys.modules if name.startswith("ddpdoctor.checks.") and name.count(".") == 3))
"""


def loaded_by(what: str, call: str, module: str = "ddpdoctor.checks.catalogue") -> set[str]:
    """The modules of checks that a new Python loads by it."""
    program = PRINT_LOADED.format(module=module, what=what, call=call)
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def test_what_nobody_tried_is_skipped() -> None:
    assert len(SKIPPED) > 70
    assert {group for check in SKIPPED for group in check.groups & UNTRIED.keys()} == set(UNTRIED)


def test_a_skipped_check_would_have_said_the_same_on_every_host() -> None:
    snapshots = [to_snapshot(healthy_facts(name)) for name in healthy_names()]
    snapshots += [case.snapshot() for case in host_cases()]
    assert len(snapshots) > 1000
    for snapshot in snapshots:
        plan = plan_for(snapshot)
        skipped = [check for check in SKIPPED if check.idle_reason(snapshot)]
        for check, result in zip(skipped, diagnose(snapshot, plan, skipped), strict=True):
            assert result.not_tested is not None
            assert result.not_tested.why is SkipReason.NOT_APPLICABLE
            assert judge(check, snapshot, plan) == result


@pytest.mark.parametrize("name", sorted(UNTRIED))
def test_they_are_run_where_it_is_not_known_whether_something_was_tried(name: str) -> None:
    snapshot = Snapshot(**{name: Unknown("nobody knows")})  # type: ignore[arg-type]
    assert [check.slug for check in SKIPPED if name in check.groups and check.idle_reason(snapshot)] == []
    assert any(name in check.groups for check in SKIPPED)


def test_to_list_them_loads_none_and_to_explain_them_all_of_them() -> None:
    assert loaded_by("all_checks", "[check.family for check in all_checks()]; all_checks()[0].groups") == set()
    assert len(loaded_by("all_prescriptions", "all_prescriptions()")) > 50


def test_one_page_loads_one_module() -> None:
    loaded = loaded_by("find_pages", "find_pages('Shm_Too_Small')", "ddpdoctor.api.check_pages")
    assert loaded == {"ddpdoctor.checks.host.shared_memory"}


def test_an_index_that_names_what_is_not_there_is_told() -> None:
    catalogue = Catalogue()
    catalogue.announce("ddpdoctor.checks.host.memory", [CheckListing("no-such-check", ())])
    (listed,) = catalogue.checks
    with pytest.raises(LookupError, match="no check no-such-check"):
        assert listed.severity
    catalogue.drop_missing()
    assert catalogue.checks == ()


TAKES_LONG_TO_IMPORT = """
import time
from ddpdoctor.base.findings import Finding, Owner
from ddpdoctor.engine.registry import check

@check("imported-slowly", owner=Owner.USER)
def imported_slowly():
    yield Finding(WORDS)

time.sleep(0.5)
WORDS = "all is there"
"""


def test_a_check_whose_module_another_thread_imports_is_judged_by_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_up_checks").mkdir()
    (tmp_path / "made_up_checks" / "slow.py").write_text(TAKES_LONG_TO_IMPORT)
    monkeypatch.syspath_prepend(tmp_path)
    catalogue = Catalogue()
    monkeypatch.setattr(registry, "REGISTERED", catalogue)
    catalogue.announce("made_up_checks.slow", [CheckListing("imported-slowly", ())])
    (listed,) = catalogue.checks
    loading = threading.Thread(target=load_needed, args=([listed], Snapshot()))
    loading.start()
    wait_until(lambda: "predicate" in vars(listed))
    result = judge(listed, Snapshot(), plan_for(Snapshot()))
    loading.join()
    assert result.not_tested is None
    assert [finding.summary for finding in result.findings] == ["all is there"]
