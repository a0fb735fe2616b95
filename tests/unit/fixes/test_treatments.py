"""What `check --fix` may apply, where it writes it, and what it makes of the proof."""

from __future__ import annotations

import errno
import os
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.api.errors import SpokenForError, refuse_other_ranks
from ddpdoctor.base.findings import Fix, Severity
from ddpdoctor.checks.catalogue import select
from ddpdoctor.cli.fix_check_options import arguments_again
from ddpdoctor.engine.examination import Examination, Verdict, examine
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.fixes import settings_file as file
from ddpdoctor.fixes.appliable_fixes import AppliableFix, Case, cases, remedy_of
from ddpdoctor.fixes.applying import Applied, apply, find_refusals
from ddpdoctor.fixes.choosing import FixChoice, ask_for_each, choose_first_of_each
from ddpdoctor.fixes.free_port import free_port
from ddpdoctor.fixes.proof import Proof, SmokeReport, judge_treatments
from ddpdoctor.fixes.settings_lines import Line, keys_of_line, lines_of
from ddpdoctor.probes.taken_ports import error_of_bind
from ddpdoctor.report.reported_fixes import FixState
from tests.support.fixture_hosts import host_case, host_cases, judge, slugs_with_hosts
from tests.support.recorded_launches import SRUN, TORCHRUN_ONE_NODE

DAY = "2026-11-21"


def sourced(path: Path, environ: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a bash that has sourced the file."""
    done = subprocess.run(
        ["bash", "-c", '. "$1"; env -0', "bash", str(path)], env=environ or {}, capture_output=True, check=True
    )
    assert done.stderr == b""
    return dict(os.fsdecode(part).split("=", 1) for part in done.stdout.split(b"\0") if part)


def settings_for(*commands: str, slug: str = "some-check") -> list[file.SettingsLine]:
    return [file.SettingsLine(line, slug) for command in commands for line in lines_of(command)]


# --- what may be applied ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("export A=1", ["export A=1"]),
        ("export NCCL_SOCKET_IFNAME==eth0", ["export NCCL_SOCKET_IFNAME==eth0"]),
        ("unset A B; export C='d e' E=", ["unset A", "unset B", "export C='d e'", "export E="]),
        ("ulimit -n 65536", ["ulimit -n 65536"]),
        ("ulimit -u $(ulimit -Hu)", ["ulimit -u $(ulimit -Hu)"]),
        ("mkdir -p '/a b/tmp' && export TMPDIR='/a b/tmp'", ["mkdir -p '/a b/tmp' && export TMPDIR='/a b/tmp'"]),
    ],
)
def test_statements_for_the_settings_file(command: str, lines: list[str]) -> None:
    assert [one.text for one in lines_of(command)] == lines


@pytest.mark.parametrize(
    "command",
    [
        "", "export A", "export A=$B", "export A=$(rm -r x)", "export A=`rm x`", 'export A="$(x)"', "export A=~/x",
        "export A=1 && rm x", "export A=1; rm x", "export A=1;", "export A=1 | x", "export A=1\nrm x", "export A='1\n2'",
        "unset", "unset A-B", "unset 'A B'", "unset A $B", "unset -f A", "sudo export A=1", "A=1 python", "env A=1",
        "ulimit -n $(x)", "ulimit -n 1 2", "ulimit -c 0", "mkdir -p /a && export TMPDIR=/b", "mkdir -p /a", "cd ~",
        "mkdir -p /a && export TMPDIR=/ab", "export A=(1 2)", "export A=1 > x", "export A={1,2}", "export A=*",
    ],
)  # fmt: skip
def test_what_a_settings_file_must_not_hold(command: str) -> None:
    assert lines_of(command) == ()


def test_only_what_its_check_calls_safe_is_applied() -> None:
    command = ("export A=1",)
    assert remedy_of(Fix("Set it", command)) is None
    assert remedy_of(Fix("Set it", command, appliable=True)) is not None
    assert remedy_of(Fix("Set it", (*command, "sudo reboot"), appliable=True)) is None
    assert remedy_of(Fix("Look at it", appliable=True)) is None


def test_checkpoints_without_options_alone() -> None:
    one = remedy_of(Fix("", ("ddpdoctor fix-checkpoint 'a b.pt' c/",), appliable=True))
    assert one is not None
    assert one.checkpoints == ("a b.pt", "c/")
    for command in ("ddpdoctor fix-checkpoint --to cuda:0 a.pt", "ddpdoctor fix-checkpoint", "rm a.pt"):
        assert remedy_of(Fix("", (command,), appliable=True)) is None


def test_a_port_on_which_the_store_can_listen() -> None:
    line = free_port("MASTER_PORT")
    assert line is not None
    port = int(line.text.removeprefix("export MASTER_PORT="))
    assert error_of_bind(port) == 0
    with socket.socket() as taken:
        taken.bind(("", port))
        taken.listen()
        assert error_of_bind(port) != 0


@pytest.mark.parametrize("slug", slugs_with_hosts())
def test_every_fix_that_is_called_appliable_can_be_applied(slug: str) -> None:
    """And none of them needs root, or has a placeholder."""
    for case in host_cases(slug, "sick-"):
        for fix in (fix for finding in judge(case).findings for fix in finding.fixes if fix.appliable):
            assert remedy_of(fix) is not None, (case.id, fix)
            placeholders = ("sudo", "<", "...", "/path/to")
            assert not any(sign in command for command in fix.commands for sign in placeholders), (case.id, fix)


# --- the settings file --------------------------------------------------------------------------------------------------


def test_a_shell_that_sources_it_has_the_settings(tmp_path: Path) -> None:
    path = file.free_path(tmp_path)
    assert path.name == "ddpdoctor-settings.sh"
    commands = ["export A='it'\"'\"'s $HOME, `x` and \"y\"' B=", "unset C D", "export NCCL_SOCKET_IFNAME==eth0"]
    file.write(path, settings_for(*commands), DAY)
    environ = sourced(path, {"B": "old", "C": "gone", "KEPT": "1"})
    assert environ["A"] == 'it\'s $HOME, `x` and "y"'
    assert environ["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert environ["B"] == ""
    assert "C" not in environ
    assert environ["KEPT"] == "1"


@given(st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=("Cs",)), max_size=40))
def test_any_value_comes_through_the_shell(value: str) -> None:
    lines = lines_of(f"export A={shlex.quote(value)}")
    if not lines:
        return  # Nothing that shlex.quote gives is misread; what it leaves unquoted is plain, or isn't taken.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.sh"
        file.write(path, [file.SettingsLine(lines[0], "slug")], DAY)
        assert sourced(path)["A"] == value


def test_limits_count_for_what_is_started_after_it(tmp_path: Path) -> None:
    path = file.free_path(tmp_path)
    file.write(path, settings_for("ulimit -n $(ulimit -Hn)"), DAY)
    script = 'ulimit -S -n 64; . "$1"; test "$(ulimit -Sn)" = "$(ulimit -Hn)"'
    assert subprocess.run(["bash", "-c", script, "bash", str(path)], check=False).returncode == 0


def test_a_second_run_changes_only_what_it_sets(tmp_path: Path) -> None:
    path = file.free_path(tmp_path)
    file.write(path, settings_for("export A=1; unset B", slug="first"), DAY)
    path.chmod(0o640)
    with path.open("a") as opened:
        opened.write("export MY_OWN=1  # by hand\n")
    assert file.free_path(tmp_path) == path
    file.write(path, settings_for("unset A; export C=3", slug="second"), DAY)
    assert path.read_text().splitlines()[2:] == [
        f"unset B  # first, {DAY}",
        "export MY_OWN=1  # by hand",
        f"unset A  # second, {DAY}",
        f"export C=3  # second, {DAY}",
    ]
    assert path.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


def test_a_users_own_line_that_is_overruled_stays_as_a_comment(tmp_path: Path) -> None:
    path = file.free_path(tmp_path)
    file.write(path, settings_for("export A=1", slug="first"), DAY)
    with path.open("a") as opened:
        opened.write("export B=mine\n")
    file.write(path, settings_for("export A=2; export B=2", slug="second"), DAY)
    assert path.read_text().splitlines()[2:] == [
        "# yours, replaced by what follows: export B=mine",
        f"export A=2  # second, {DAY}",
        f"export B=2  # second, {DAY}",
    ]


@pytest.mark.parametrize("own", ["exit 3", "if [ x", "exec true", "read answer < /dev/zero", "sleep 60"])
def test_a_file_that_ends_a_shell_is_left_alone(tmp_path: Path, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "SOURCING_SECONDS", 0.5)
    path = file.free_path(tmp_path)
    file.write(path, settings_for("export A=1"), DAY)
    before = path.read_text() + f"{own}\n"
    path.write_text(before)
    other = file.free_path(tmp_path)
    assert other.name == "ddpdoctor-settings-2.sh"
    file.write(other, settings_for("export A=2"), DAY)
    assert path.read_text() == before
    assert file.free_path(tmp_path) == other


def test_a_line_that_two_checks_ask_for_stands_there_once(tmp_path: Path) -> None:
    path = file.free_path(tmp_path)
    file.write(path, settings_for("unset A", slug="one") + settings_for("unset A", slug="two"), DAY)
    assert path.read_text().splitlines()[2:] == [f"unset A  # one, two, {DAY}"]


@pytest.mark.parametrize("text", ["export MINE=1\n", "", "\0\xff"])
def test_somebody_elses_file_is_not_touched(tmp_path: Path, text: str) -> None:
    theirs = tmp_path / "ddpdoctor-settings.sh"
    theirs.write_text(text)
    ours = file.free_path(tmp_path)
    assert ours.name == "ddpdoctor-settings-2.sh"
    file.write(ours, settings_for("unset A"), DAY)
    assert theirs.read_text() == text
    assert file.free_path(tmp_path) == ours


@pytest.mark.parametrize("mode", [0o666, 0o646, 0o664, 0o620])
def test_a_file_that_others_can_write_is_not_ours(tmp_path: Path, mode: int) -> None:
    path = file.free_path(tmp_path)
    file.write(path, settings_for("unset A"), DAY)
    path.chmod(mode)
    assert file.free_path(tmp_path) != path


@pytest.mark.root
def test_neither_is_one_that_somebody_else_owns(tmp_path: Path) -> None:
    path = file.free_path(tmp_path)
    file.write(path, settings_for("unset A"), DAY)
    os.chown(path, 65534, -1)
    assert file.free_path(tmp_path) != path


def test_neither_is_a_link_to_one(tmp_path: Path) -> None:
    file.write(tmp_path / "real", settings_for("unset A"), DAY)
    (tmp_path / "ddpdoctor-settings.sh").symlink_to("real")
    (tmp_path / "ddpdoctor-settings-2.sh").symlink_to("nowhere")
    (tmp_path / "ddpdoctor-settings-3.sh").mkdir()
    assert file.free_path(tmp_path).name == "ddpdoctor-settings-4.sh"


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of a first file nor of a second one."""
    path = file.free_path(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fchmod", full)
        with pytest.raises(OSError, match="No space left"):
            file.write(path, settings_for("unset A"), DAY)
    assert list(tmp_path.iterdir()) == []
    file.write(path, settings_for("unset A"), DAY)
    before = path.read_text()
    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(OSError, match="No space left"):
        file.write(path, settings_for("unset B"), DAY)
    assert [path.name for path in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == before


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o644), (0, 0o644)])
def test_a_new_file_is_ours_under_any_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        path = file.free_path(tmp_path)
        file.write(path, settings_for("unset A"), DAY)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o7777 == mode
    assert file.free_path(tmp_path) == path


def test_a_rehearsal_leaves_nothing(tmp_path: Path) -> None:
    file.rehearse(file.free_path(tmp_path), settings_for("unset A"), DAY)
    assert list(tmp_path.iterdir()) == []
    path = file.free_path(tmp_path)
    file.write(path, settings_for("unset A"), DAY)
    before = path.read_text()
    file.rehearse(path, settings_for("unset B"), DAY)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_comment_behind_a_line_is_no_part_of_it() -> None:
    assert keys_of_line("export A=1 B='#'  # slug, day") == {"A", "B"}
    assert keys_of_line("export A=1; rm x") == set()
    assert keys_of_line("# export A=1") == set()


# --- choosing -----------------------------------------------------------------------------------------------------------


def case(slug: str, *commands: str) -> Case:
    """A finding with a fix a command, all of them appliable."""
    fixes = tuple(Fix(f"Do {command}", (command,), appliable=True) for command in commands)
    found = tuple(one for one in map(remedy_of, fixes) if one)
    return Case(slug=slug, severity=Severity.WARN, summary=f"{slug} is wrong", fixes=fixes, remedies=found)


class Says:
    """Answers as it was told."""

    def __init__(self, *places: int | None, instead: Sequence[bool] = ()) -> None:
        self.places = list(places)
        self.insteads = list(instead)

    def which(self, case: Case, number: int, total: int) -> int | None:
        return self.places.pop(0)

    def instead(self, remedy_of: AppliableFix, earlier: FixChoice) -> bool:
        return self.insteads.pop(0)


def chosen(choices: Sequence[FixChoice]) -> dict[str, tuple[str, ...]]:
    return {choice.case.slug: choice.remedy.commands for choice in choices if choice.remedy}


def test_without_questions_the_first_fix_of_each_is_taken() -> None:
    choices = choose_first_of_each([case("one", "export A=1", "unset A"), case("two", "unset B"), case("three")])
    assert chosen(choices) == {"one": ("export A=1",), "two": ("unset B",)}


def test_without_questions_of_two_that_contradict_each_other_neither_is_taken() -> None:
    choices = choose_first_of_each([case("one", "export A=1"), case("two", "unset A"), case("three", "unset B")])
    assert chosen(choices) == {"three": ("unset B",)}
    assert choices[0].reason == "it contradicts the fix of two: `export A=1` against `unset A`"


def test_two_that_agree_are_both_taken() -> None:
    choices = choose_first_of_each([case("one", "unset A"), case("two", "unset A")])
    assert len(chosen(choices)) == 2


def test_with_questions_the_user_chooses() -> None:
    found = [case("one", "export A=1", "unset A"), case("two", "unset B"), case("three", "unset C")]
    choices = ask_for_each(found, Says(1, None, 0))
    assert chosen(choices) == {"one": ("unset A",), "three": ("unset C",)}
    assert choices[1].reason == "you said no"


@pytest.mark.parametrize(("instead", "taken"), [(True, "two"), (False, "one")])
def test_of_a_contradiction_the_user_is_asked(instead: bool, taken: str) -> None:
    found = [case("one", "export A=1"), case("two", "unset A")]
    choices = ask_for_each(found, Says(0, 0, instead=[instead]))
    assert list(chosen(choices)) == [taken]
    assert [choice.case.slug for choice in choices] == ["one", "two"]


# --- applying, and what is made of the proof ----------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    applied = Applied()
    choices = choose_first_of_each([case("one", "unset A")])
    apply(choices, tmp_path / "gone", applied)
    assert not applied.anything
    (told,) = judge_treatments(choices, applied, None)
    assert told.state is FixState.LEFT
    assert "could not be written: No such file or directory" in told.reason


def test_a_dry_run_tells_of_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    choices = choose_first_of_each([case("one", "unset A"), case("two", "unset B")])
    assert find_refusals(choices, tmp_path) == {}
    # Nobody can make a file there, not even root.
    refused = find_refusals(choices, Path("/proc"))
    assert set(refused) == {choice.remedy for choice in choices}
    assert all("ddpdoctor-settings.sh could not be written: " in one for one in refused.values())


def test_a_fix_with_nothing_left_to_change_says_so() -> None:
    (told,) = judge_treatments(choose_first_of_each([case("one", "unset A")]), Applied(), None)
    assert (told.state, told.reason) == (FixState.LEFT, "there was nothing left to change")


def test_the_proof_trains_on_this_host_alone() -> None:
    """Whatever job the variables of its shell speak of."""
    look, train = arguments_again("python", 2, chosen=None, ignored=None, checkpoints=None, quick=False)
    assert train == ("--python=python", "--nproc=2", "--nnodes=1", "--node-rank=0")
    assert look == ("--python=python", "--nproc=2")


def test_of_a_launcher_s_processes_the_first_alone_applies_fixes() -> None:
    refuse_other_ranks("check", SRUN | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    with pytest.raises(SpokenForError, match=r"^Rank 1 of torchrun: rank 0 alone applies fixes"):
        refuse_other_ranks("check", TORCHRUN_ONE_NODE | {"RANK": "1"})
    with pytest.raises(SpokenForError, match=r"^Rank 1 of Slurm: "):
        refuse_other_ranks("check", SRUN | {"SLURM_PROCID": "1"})
    refuse_other_ranks("check", {})
    # A shell's own settings start no processes.
    refuse_other_ranks("check", {"RANK": "1", "WORLD_SIZE": "2"})


def test_a_checkpoint_that_was_changed_when_we_were_stopped_is_named(tmp_path: Path) -> None:
    """The fix itself is whole or not there at all; which of the two, its undo file says."""
    applied = Applied()
    applied.begin(tmp_path / "one.pt")
    applied.stopped()
    assert not applied.anything
    (tmp_path / "one.pt.ddpdoctor-undo").write_bytes(b"the old bytes")
    applied.stopped()
    applied.stopped()
    assert applied.fixed == [tmp_path / "one.pt"]


def examined(*settings: tuple[str, str]) -> Examination:
    facts = Environment(settings=tuple(Setting(name, value) for name, value in settings))
    return examine(Snapshot(environment=facts), 2, select(["setting-misspelt"]))


ILL = (("NCCL_SOCKT_IFNAME", "eth0"), ("GLOO_SOCKET_IFNAM", "eth0"))
PASSED = SmokeReport(verdict=Verdict.OK)
FAILED = SmokeReport(
    verdict=Verdict.FAIL,
    findings=(
        {"family": "host", "severity": "fail", "slug": "shm-too-small", "summary": "small"},
        {"family": "smoke", "severity": "fail", "slug": "smoke-failed", "summary": "Rank 1 raised"},
    ),
)


def told(after: Examination | str, smoke: SmokeReport | str, says: Says | None = None) -> dict[str, tuple[str, str]]:
    """Variable to state and reason, after both illnesses were treated as `says` wants it."""
    found = cases(examined(*ILL))
    choices = ask_for_each(found, says) if says else choose_first_of_each(found)
    applied = Applied()
    done = judge_treatments(choices, applied, Proof(examination=after, smoke=smoke))
    return {
        treatment.commands[0].partition(";")[0].split()[1]: (treatment.state.value, treatment.reason)
        for treatment in done
    }


def test_confirmed_when_its_check_and_smoke_pass() -> None:
    assert set(told(examined(), PASSED).values()) == {("confirmed", "its check passes now, and smoke passed")}


def test_not_confirmed_while_its_check_still_finds_it() -> None:
    found = told(examined(ILL[0]), PASSED)
    assert found["NCCL_SOCKT_IFNAME"][0] == "not-confirmed"
    assert found["NCCL_SOCKT_IFNAME"][1].startswith("its check still finds: NCCL_SOCKT_IFNAME")


def test_what_was_left_alone_does_not_count_against_the_other() -> None:
    found = told(examined(ILL[0]), PASSED, Says(None, 0))
    assert found["NCCL_SOCKT_IFNAME"] == ("left-to-you", "you said no")
    assert found["GLOO_SOCKET_IFNAM"][0] == "confirmed"


@pytest.mark.parametrize(
    ("smoke", "words"),
    [
        (FAILED, "its check passes now, but smoke failed: Rank 1 raised [smoke-failed]"),
        ("no torch", "its check passes now, but smoke could not be run: no torch"),
        (
            SmokeReport(verdict=Verdict.UNKNOWN, problems=("no rank came",)),
            "its check passes now, but smoke could not test anything: no rank came",
        ),
    ],
)
def test_not_confirmed_without_a_training_that_passed(smoke: SmokeReport | str, words: str) -> None:
    assert set(told(examined(), smoke).values()) == {("not-confirmed", words)}


def test_not_confirmed_where_its_check_could_not_be_judged() -> None:
    blind = examine(Snapshot(), 2, select(["setting-misspelt"]))
    assert next(iter(told(blind, PASSED).values()))[1].startswith("its check could not be judged: not looked at")
    assert next(iter(told("no answer", PASSED).values()))[1] == "its check could not be run again: no answer"


@pytest.mark.parametrize(("nodes", "appliable"), [("1", True), ("2", False)])
def test_a_port_is_taken_by_the_tool_only_where_no_other_host_has_to_name_it(nodes: str, appliable: bool) -> None:
    snapshot = host_case("port-in-use/sick-left-over-run").snapshot()
    job = Environment(settings=(Setting("MASTER_PORT", "29500"), Setting("PET_NNODES", nodes)))
    snapshot = msgspec.structs.replace(snapshot, environment=job)
    (found,) = cases(
        examine(snapshot, 2, select(["port-in-use"])), lambda variable: Line(variable, f"export {variable}=4711")
    )
    lines = [line.text for remedy in found.remedies for line in remedy.lines]
    assert lines == (["export MASTER_PORT=4711"] if appliable else [])
