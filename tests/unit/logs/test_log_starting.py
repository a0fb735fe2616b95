"""Processes that could not be started, programs that a rank starts, and Windows, where ranks are started and modules lie otherwise."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.related_lines import more_of
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.render.next_steps import next_steps
from tests.support.logs_by_hand import read

UNIX = ("/opt/env/lib/python3.11/", "/")
WINDOWS = ("C:\\Users\\ada\\Python311\\Lib\\", "\\")


def at(place: tuple[str, str], *parts: str) -> str:
    """A path below Python's own modules."""
    return place[0] + place[1].join(parts)


def child(place: tuple[str, str], error: str = "EOFError: Ran out of input") -> str:
    spawn = at(place, "multiprocessing", "spawn.py")
    return (
        "Traceback (most recent call last):\n"
        '  File "<string>", line 1, in <module>\n'
        f'  File "{spawn}", line 122, in spawn_main\n    exitcode = _main(fd, parent_sentinel)\n'
        f'  File "{spawn}", line 132, in _main\n    self = reduction.pickle.load(from_parent)\n'
        f"{error}\n"
    )


def parent(place: tuple[str, str], error: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "train.py", line 9, in <module>\n    main()\n'
        f'  File "{at(place, "multiprocessing", "reduction.py")}", line 60, in dump\n    ForkingPickler(file, protocol).dump(obj)\n'
        f"{error}\n"
    )


def verdict(text: str) -> LogVerdict:
    return verdict_of(read(text), catalogue())


@pytest.mark.parametrize("place", [UNIX, WINDOWS])
@pytest.mark.parametrize("error", ["EOFError: Ran out of input", "_pickle.UnpicklingError: pickle data was truncated"])
@pytest.mark.parametrize("child_first", [True, False])
def test_what_a_started_process_gets_no_more_of_is_an_effect(
    place: tuple[str, str], error: str, child_first: bool
) -> None:
    both = [child(place, error), parent(place, "AttributeError: Can't pickle local object 'main.<locals>.augment'")]
    found = verdict("".join(both if child_first else both[::-1]))
    assert found.outcome is RunOutcome.USER_ERROR
    assert found.raised is not None
    assert found.raised.exception == "AttributeError"
    assert found.raised.own is not None
    assert found.raised.own.path == "train.py"


def test_alone_it_leaves_the_cause_open() -> None:
    assert verdict(child(WINDOWS)).outcome is RunOutcome.EFFECTS_ONLY
    loads = '  File "/home/ada/train.py", line 3, in <module>\n    state = torch.load(f)\n'
    with_torch = (
        loads + '  File "/opt/env/lib/python3.11/site-packages/torch/serialization.py", line 9, in load\n    x\n'
    )
    text = "Traceback (most recent call last):\n" + with_torch + "OSError: none\n" + child(UNIX)
    assert "ckpt-truncated" not in [suspect.slug for suspect in verdict(text).suspects]


def test_where_to_look_for_the_cause_is_told() -> None:
    assert "its own traceback says why" in next_steps(judge_log(read(child(UNIX)), catalogue()))[0].text


def test_a_failed_program_is_not_explained_by_a_traceback_that_is_cut() -> None:
    raised = "Traceback (most recent call last):\nsubprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n"
    cut = (
        "\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
    )
    log = read(raised + cut + '  File "/home/ada/train.py", line 3, in main\n    fused()\n    ^^^^^^^\n')
    found = verdict_of(log, catalogue())
    assert [suspect.slug for suspect in found.suspects] == ["extension-build-failed"]
    assert not more_of(found.lead, found.raised, log)


def test_an_empty_file_that_a_started_process_reads_itself_is_no_effect() -> None:
    own = '  File "/home/ada/data.py", line 5, in __setstate__\n    self.rows = pickle.load(f)\nEOFError: Ran out of input\n'
    found = verdict(child(UNIX).rpartition("EOFError")[0] + own)
    assert found.outcome is RunOutcome.USER_ERROR


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("C:\\Users\\ada\\env\\lib\\site-packages\\torch\\distributed\\rendezvous.py", RunOutcome.UNRECOGNISED),
        ("C:\\work\\lib\\train.py", RunOutcome.USER_ERROR),
    ],
)
def test_modules_of_windows_are_known(path: str, outcome: RunOutcome) -> None:
    text = f'Traceback (most recent call last):\n  File "{path}", line 3, in f\n    g()\nValueError: no such store\n'
    found = verdict(text)
    assert found.outcome is outcome
    assert (found.raised is not None and found.raised.own is not None) == (outcome is RunOutcome.USER_ERROR)


@pytest.mark.parametrize("command", ["['ninja', '-v']", "['/usr/local/cuda/bin/nvcc', '-V']"])
def test_a_program_that_is_no_rank_fails_by_itself(command: str) -> None:
    raised = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/opt/env/lib/python3.11/subprocess.py", line 571, in run\n'
        f"[rank1]:     raise CalledProcessError(retcode, process.args,\n[rank1]: subprocess.CalledProcessError: Command '{command}' returned non-zero exit status 1.\n"
    )
    end = "E1122 23:44:19.924000 29 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 0 (pid: 31) of binary: python\n"
    found = verdict(raised + end)
    assert found.raised is not None
    assert found.raised.exception == "subprocess.CalledProcessError"
    builds = found.outcome is RunOutcome.ILLNESS and found.suspects[0].slug == "extension-build-failed"
    assert builds if "ninja" in command else found.outcome is RunOutcome.UNRECOGNISED
    assert found.lead is not None
    assert found.lead.rank == 1


def test_a_script_that_was_started_by_another_is_still_its_rank() -> None:
    raised = "Traceback (most recent call last):\nsubprocess.CalledProcessError: Command '['{}', 'train.py']' returned non-zero exit status 1.\n"
    assert verdict(raised.format("/usr/bin/python3")).outcome is RunOutcome.EFFECTS_ONLY
    assert verdict(raised.format("git")).outcome is RunOutcome.USER_ERROR


UNGUARDED = """\
    self._launch(process_obj)
  File "/opt/env/lib/python3.11/multiprocessing/spawn.py", line 140, in _check_not_importing_main
    raise RuntimeError('''
RuntimeError: 
        An attempt has been made to start a new process before the
        current process has finished its bootstrapping phase.

            if __name__ == '__main__':
                freeze_support()
"""
DIED = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 24, in <module>
    for batch in loader:
RuntimeError: DataLoader worker (pid 4711) exited unexpectedly with exit code 1. Details are lost due to multiprocessing.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/ada/train.py", line 24, in <module>
    for batch in loader:
RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly
"""


def test_a_script_without_the_guard_is_told_where_to_put_it() -> None:
    mine = '  File "/home/ada/train.py", line 24, in <module>\n    for batch in loader:\n  File "/opt/env/lib/python3.11/multiprocessing/popen_spawn_posix.py", line 42, in _launch\n'
    judgement = judge_log(read(child(UNIX, mine + UNGUARDED) + DIED), catalogue())
    (opinion,) = judgement.opinions
    assert opinion.check.slug == "user-code-error"
    assert "without the guard" in opinion.finding.summary
    assert judgement.verdict.raised is not None
    assert judgement.verdict.raised.message == "An attempt has been made to start a new process before the"
    (fix,) = opinion.finding.fixes
    assert "/home/ada/train.py" in fix.text
    assert fix.commands[0] == "if __name__ == '__main__':"


def test_what_a_worker_says_by_itself_is_still_its_end() -> None:
    found = verdict(DIED)
    assert [suspect.slug for suspect in found.suspects][:1] == ["dataloader-worker-killed"]


@pytest.mark.parametrize(("below", "message"), [("        Give a path.", "Give a path."), ("step 4 loss 0.5", "")])
def test_a_message_may_begin_below_its_name(below: str, message: str) -> None:
    found = verdict(
        f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    load()\nValueError: \n{below}\n'
    )
    assert found.raised is not None
    assert found.raised.message == message


FAILED = """\
downloading
Traceback (most recent call last):
  File "/home/ada/train.py", line 43, in <module>
    subprocess.run(command, check=True)
  File "/opt/env/lib/python3.11/subprocess.py", line 571, in run
    raise CalledProcessError(retcode, process.args,
subprocess.CalledProcessError: Command '['{program}', 'a', 'b']' returned non-zero exit status 7.
"""


@pytest.mark.parametrize("program", ["rsync", "/bin/bash", "/usr/bin/azcopy"])
def test_a_program_that_the_script_starts_is_its_failure(program: str) -> None:
    judgement = judge_log(read(FAILED.format(program=program)), catalogue())
    (opinion,) = judgement.opinions
    assert opinion.check.slug == "user-code-error"
    assert "exit status 7. (train.py:43)" in opinion.finding.summary
    assert "A program that the script starts" in opinion.finding.cause


@pytest.mark.parametrize("program", ["/opt/env/bin/python3.11", "torchrun", "srun"])
def test_of_a_program_that_starts_ranks_the_words_are_elsewhere(program: str) -> None:
    assert verdict(FAILED.format(program=program)).outcome is RunOutcome.EFFECTS_ONLY


def test_a_wrapper_around_a_rank_is_none_such() -> None:
    labelled = "".join(f"[1,0]<stderr>:{line}\n" for line in FAILED.format(program="rsync").splitlines())
    assert verdict(labelled).outcome is RunOutcome.EFFECTS_ONLY


def test_a_program_that_failed_after_a_rank_is_not_the_cause() -> None:
    bug = "Traceback (most recent call last):\n  File \"/home/ada/rank.py\", line 3, in <module>\n    x = y\nNameError: name 'y' is not defined\n"
    found = verdict(bug + FAILED.format(program="/bin/bash"))
    assert found.raised is not None
    assert found.raised.exception == "NameError"
