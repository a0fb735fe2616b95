"""How sure it is that the script is at fault for an exception that no sign knows."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.analyze.script_errors import BlamedCode, fault_of
from ddpdoctor.logs.analyze.verdict import RunOutcome
from ddpdoctor.logs.diagnosis import LogJudgement, judge_log
from ddpdoctor.logs.exceptions import library_of
from ddpdoctor.logs.render.headline import headline, outcome
from tests.log_corpus import LOGS, log_of
from tests.support.logs_by_hand import read

SITE = "/opt/env/lib/python3.11/site-packages"
OWN = ("/home/grace/train.py", 40, "main", "run(batch)")


def judged(exception: str, *frames: tuple[str, int, str, str]) -> LogJudgement:
    calls = "".join(f'  File "{path}", line {line}, in {within}\n    {code}\n' for path, line, within, code in frames)
    head = "Traceback (most recent call last):\n" if frames else ""
    return judge_log(read(f"{head}{calls}{exception}\n"), catalogue())


def fault(exception: str, *frames: tuple[str, int, str, str]) -> BlamedCode:
    raised = judged(exception, *frames).verdict.raised
    assert raised is not None
    return fault_of(raised, Log())


def within(package: str, code: str) -> tuple[str, int, str, str]:
    return f"{SITE}/{package}/core.py", 7, "inner", code


@pytest.mark.parametrize(
    "exception", ["RuntimeError: bad state", "AssertionError", "KeyError: 'lr'", "StopIteration", "MyError: no"]
)
def test_what_its_own_line_raised_is_surely_the_scripts(exception: str) -> None:
    assert fault(exception, OWN) is BlamedCode.SCRIPT
    python = ("/usr/lib/python3.11/os.py", 679, "__getitem__", "raise KeyError(key) from None")
    assert fault(exception, OWN, python) is BlamedCode.SCRIPT


@pytest.mark.parametrize(
    ("exception", "code"),
    [
        ("ValueError: temperature must be positive, not -1", "raise ValueError("),
        ("TypeError: expected a list of strings, got dict", "raise TypeError(msg)"),
        ("ValueError: workers should be positive, but got 0", '"workers should be positive, but got {}".format(n))'),
        ("AssertionError: heads must be divisible by 8", 'assert heads % 8 == 0, "heads must be divisible by 8"'),
        ("PIL.UnidentifiedImageError: cannot identify image file 'a.jpg'", "raise UnidentifiedImageError(msg)"),
        ("KeyError: 'unknown optimizer adamx'", 'raise KeyError(f"unknown optimizer {name}")'),
        ("omegaconf.errors.ConfigAttributeError: Key 'x' is not in struct", "raise ex"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a.json'", "with open(path) as file:"),
        ("requests.exceptions.HTTPError: 404 Client Error: Not Found for url: u", "raise HTTPError(message)"),
    ],
)
def test_what_a_library_refuses_is_surely_the_scripts_or_its_datas(exception: str, code: str) -> None:
    assert fault(exception, OWN, within("somelib", code)) is BlamedCode.ARGUMENTS


@pytest.mark.parametrize(
    ("exception", "code"),
    [
        ("AssertionError", "assert self.ready"),
        ("AssertionError: {'id': 3}", "assert not param.users, param.summary()"),
        ("RuntimeError: generator raised StopIteration", "item = next(it)"),
        ("StopIteration", "return next(self._it)"),
        ("TypeError: attend(): argument 'mask' must be Tensor, not Mask", "return attend(q, k, mask)"),
        ("UnboundLocalError: local variable 'x' referenced before assignment", "return x"),
        ("AttributeError: 'NoneType' object has no attribute 'shape'", "return self.cache.shape"),
        ("IndexError: list index out of range", "return self.buckets[index]"),
        ("ValueError: No attention backend is available for these inputs", "raise ValueError("),
        ("ValueError: inconsistent internal state, please report this", "raise ValueError("),
        ("NotImplementedError: ring attention isn't implemented", "raise NotImplementedError("),
    ],
)
def test_what_a_library_raises_about_itself_is_told_as_likely(exception: str, code: str) -> None:
    told = judged(exception, OWN, within("somelib", code))
    assert told.verdict.raised is not None
    assert fault_of(told.verdict.raised, told.log) is BlamedCode.LIBRARY
    (opinion,) = told.opinions
    assert not opinion.suspect.sure
    assert "within somelib; perhaps the script uses it wrongly" in headline(told)
    assert "No illness" not in opinion.finding.cause
    assert "somelib/core.py, line 7 in inner" in opinion.finding.cause
    assert "train.py, line 40" in opinion.finding.cause
    assert any(
        "pip list" in command and "somelib" in command for fix in opinion.finding.fixes for command in fix.commands
    )
    assert "nothing speaks of" not in outcome(told)


def test_torchs_complaint_of_shapes_is_the_callers_where_the_script_called_torch() -> None:
    words = "RuntimeError: The size of tensor a (77) must match the size of tensor b (120) at non-singleton dimension 1"
    linear = (f"{SITE}/torch/nn/modules/linear.py", 134, "forward", "return F.linear(x)")
    assert fault(words, OWN, linear) is BlamedCode.ARGUMENTS
    assert fault(words, OWN, within("somelib", "self.proj(x)"), linear) is BlamedCode.LIBRARY
    assert fault("RuntimeError: bad magic of the stream", OWN, linear) is BlamedCode.LIBRARY


@pytest.mark.parametrize(
    ("exception", "path", "code"),
    [
        ("OSError: encoder error -9 when reading image file", "PIL/ImageFile.py", "raise _get_oserror(err_code)"),
        ("soundfile.LibsndfileError: Error opening 'a.wav': System error.", "soundfile.py", "raise LibsndfileError(err)"),
        ("IndexError: single positional indexer is out-of-bounds", "pandas/core/indexing.py", "self._validate(key)"),
        ("ValueError: operands could not be broadcast together with shapes (2,2) (3,2)", "numpy/lib/pad.py", "it = np.nditer("),
    ],
)  # fmt: skip
def test_what_reads_data_refuses_it_whatever_handed_it_on(exception: str, path: str, code: str) -> None:
    between, last = within("somelib", "self.read(sample)"), (f"{SITE}/{path}", 9, "inner", code)
    assert fault(exception, OWN, between, last) is BlamedCode.ARGUMENTS
    at_fault = (last[0], 9, "inner", "return self.part.x")
    assert fault("AttributeError: 'Part' object has no attribute 'x'", OWN, between, at_fault) is BlamedCode.LIBRARY
    assert fault("OSError: decoder tiff not available", OWN, between, last) is BlamedCode.LIBRARY


def test_an_exception_without_its_traceback_is_most_likely_the_scripts() -> None:
    told = judge_log(read("[rank2]: KeyError: 'target'\n"), catalogue())
    assert "most likely of an ordinary error in the script" in headline(told)
    assert "No traceback tells where it was raised" in told.opinions[0].finding.cause


def test_an_assertion_without_words_is_told_by_its_code() -> None:
    assert "AssertionError: assert self.ready" in headline(
        judged("AssertionError", OWN, within("lib", "assert self.ready"))
    )


def test_the_settings_that_a_message_asks_for_are_a_command() -> None:
    words = "ValueError: no kernel fits. Run with LIB_DEBUG=1 LIB_LEVEL=2 to see why."
    told = judged(words, OWN, within("somelib", "raise ValueError("))
    assert told.opinions[0].finding.fixes[0].commands == ("export LIB_DEBUG=1", "export LIB_LEVEL=2")


@pytest.mark.parametrize(
    "words",
    [
        "WORLD_SIZE=6 is not divisible by TENSOR_PARALLEL=4",
        "BATCH_SIZE=33 must be even",
        "BATCH_SIZE=33 doesn't go with WORLD_SIZE=4",
        "Pass another size. WORLD_SIZE=6 is too many",
    ],
)
def test_values_that_a_message_only_tells_of_are_no_command(words: str) -> None:
    fixes = judged(f"ValueError: {words}", OWN).opinions[0].finding.fixes
    assert not any("export" in command for fix in fixes for command in fix.commands)


RACE = ("/usr/lib/python3.11/os.py", 225, "makedirs", "mkdir(name, mode)")


@pytest.mark.parametrize(
    ("words", "label", "is_race"),
    [
        ("[Errno 17] File exists: '/data/eeg'", "[rank1]: ", True),
        ("[Errno 17] File exists: '/data/eeg'", "", False),
        ("the run folder is there: give --overwrite", "[rank1]: ", False),
    ],
)
def test_only_of_several_ranks_the_system_tells_that_they_made_the_same_file(
    words: str, label: str, is_race: bool
) -> None:
    calls = "".join(f'  File "{path}", line {line}, in {name}\n    {code}\n' for path, line, name, code in (OWN, RACE))
    text = f"Traceback (most recent call last):\n{calls}FileExistsError: {words}\n"
    fixes = (
        judge_log(read("".join(label + line for line in text.splitlines(keepends=True))), catalogue())
        .opinions[0]
        .finding.fixes
    )
    assert any("let one rank do it" in fix.text for fix in fixes) is is_race


WHILE_WRITTEN = "What it read is empty or cut short"
GONE = "It is gone already"
OF_RANK_0 = "Rank 0 has what the others lack"
OF_ONE_HOST = "ranks of one host alone miss /tmp/prepared/stats.json"


def cause_of(log: Log) -> str:
    return judge_log(log, catalogue()).opinions[0].finding.cause


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("sick-read-while-rank-0-writes", WHILE_WRITTEN),
        ("sick-removed-by-another-rank", GONE),
        ("sick-only-rank-0-has-a-writer", OF_RANK_0),
        ("sick-file-on-another-hosts-disk", OF_ONE_HOST),
    ],
)
def test_what_only_some_ranks_raise_is_told_by_what_the_others_did(name: str, cause: str) -> None:
    assert cause in cause_of(log_of(LOGS / f"user-code-error/{name}.log"))


@pytest.mark.parametrize(
    ("exception", "line", "cause"),
    [
        ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "json.load(file)", WHILE_WRITTEN),
        ("ValueError: mmap length is greater than file size", "numpy.load(path, mmap_mode='r')", WHILE_WRITTEN),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a'", "os.remove(path)", GONE),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a'", "open(path)", ""),
        ("TypeError: 'NoneType' object is not iterable", "for part in gathered:", OF_RANK_0),
        ("UnboundLocalError: local variable 'run' referenced before assignment", "print(run)", OF_RANK_0),
        ("wandb.errors.errors.Error: You must call wandb.init() before wandb.log()", "wandb.log(loss)", OF_RANK_0),
    ],
)
@pytest.mark.parametrize("ranks", [(1, 2, 3), (0, 1, 2, 3), (0, 2), (3,)])
def test_which_ranks_raised_it_decides_what_it_means(
    exception: str, line: str, cause: str, ranks: tuple[int, ...]
) -> None:
    """All four do, where the file or the script is wrong; of None one rank alone may have its sample."""
    lines = ["Traceback (most recent call last):", '  File "/w/a.py", line 3, in <module>', f"    {line}", exception]
    text = [f"[rank{rank}]: step 1" for rank in range(4)]
    text += [f"[rank{rank}]: {line}" for rank in ranks for line in lines]
    holds = ranks == (1, 2, 3) or (cause != OF_RANK_0 and len(ranks) < 4)
    found = cause_of(read("\n".join(text)))
    assert (found.partition(",")[0].partition(":")[0].partition(" here")[0] == cause) is (holds or not cause)


def test_ranks_whose_lines_have_no_label_are_those_that_the_launcher_names_unless_more_said_so() -> None:
    text = (LOGS / "user-code-error/sick-only-rank-0-has-a-writer.log").read_text(encoding="utf-8")
    traceback = text[: text.index("W0607")]
    assert OF_RANK_0 not in cause_of(read(traceback + text))


def test_a_traceback_within_pythons_own_modules_alone_is_not_surely_the_scripts() -> None:
    told = judged(
        "ValueError: I/O operation on closed file.", ("/usr/lib/python3.11/threading.py", 16, "run", "self.go()")
    )
    assert told.verdict.raised is not None
    assert fault_of(told.verdict.raised, told.log) is BlamedCode.UNKNOWN
    assert not told.opinions[0].suspect.sure
    assert told.opinions[0].finding.cause.startswith("No line of the script is in its traceback: ")


@pytest.mark.parametrize(
    ("path", "package"),
    [
        (f"{SITE}/deepspeed/runtime/zero/stage3.py", "deepspeed"),
        (f"{SITE}/six.py", "six"),
        ("/x/site-packages/foo-1.2-py3.7.egg/foo/a.py", "foo"),
        ("C:\\env\\lib\\site-packages\\datasets\\builder.py", "datasets"),
        ("/usr/lib/python3.11/json/decoder.py", "Python"),
        ("<frozen importlib._bootstrap>", "Python"),
        (".../torch/cuda/amp/grad_scaler.py", "torch"),
        ("/src/pytorch/torch/nn/modules/module.py", "torch"),
        (".../mmcv/runner/hooks/optimizer.py", "mmcv"),
        (".../train.py", ""),
        ("/home/grace/torch/train.py", ""),
        ("/home/grace/torch/run.py", ""),
        ("/home/grace/examples/torch/distributed/train.py", ""),
        ("/home/grace/datasets/make.py", ""),
    ],
)
def test_the_package_of_a_file(path: str, package: str) -> None:
    assert library_of(path) == package


@pytest.mark.parametrize(
    "words",
    [
        "a worker failed. Please check the print statements above for the actual error message",
        "This is not the actual error message! Look further up your stdout",
        "see above for the original traceback",
        "training failed, see the error message above",
    ],
)
def test_what_says_itself_that_the_error_stands_above_is_no_cause(words: str) -> None:
    raised = f"RuntimeError: {words}"
    alone = judged(raised, OWN)
    assert alone.verdict.outcome is RunOutcome.EFFECTS_ONLY
    first = 'Traceback (most recent call last):\n  File "/home/grace/data.py", line 3, in get\n    return table[key]\nKeyError: 9\n'
    then = f'Traceback (most recent call last):\n  File "/home/grace/train.py", line 40, in main\n    run()\n{raised}\n'
    lead = judge_log(read(first + then), catalogue()).verdict.lead
    assert lead is not None
    assert lead.text == "KeyError: 9"


@pytest.mark.parametrize(
    "words",
    [
        "the loss is above 10",
        "see the docs for the options",
        "values above the limit raise an error",
        "look here",
        "see values above 10, which cause overflow",
        "refer to the table above for valid error modes",
        "Please check the data loader settings above; error code 3",
        "check the settings: the error is above the limit",
    ],
)
def test_other_words_with_above_are_the_scripts_own_error(words: str) -> None:
    assert judged(f"RuntimeError: {words}", OWN).verdict.outcome is RunOutcome.USER_ERROR


@pytest.mark.parametrize(
    "between", ["", "\n", "one more line of it\n\n", "one more line of it\nand one\nand a third\n\n"]
)
def test_an_exception_whose_message_goes_on_is_told_before_the_launchers_word(between: str) -> None:
    text = f"FileExistsError: [Errno 17] File exists:\n'/data/sets/eeg/S043'\n{between}srun: error: node7: task 3: Exited with exit code 1\n"
    told = judge_log(read(text), catalogue())
    assert "FileExistsError: [Errno 17] File exists: '/data/sets/eeg/S043'" in headline(told)
    assert any("let one rank do it" in fix.text for fix in told.opinions[0].finding.fixes)


def test_a_job_that_slurm_cancelled_behind_an_exception_is_told_as_that() -> None:
    """Nobody says that a task ended by itself: the script may have caught the exception."""
    steps = "".join(f"step {step} loss 0.5\n" for step in range(30))
    cancelled = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01T10:00:00 DUE TO TIME LIMIT ***\n"
    told = judge_log(read(f"{steps}ValueError: sample 7 is empty\n\n{cancelled}"), catalogue())
    assert told.verdict.outcome is RunOutcome.STOPPED
    assert "its time was up" in headline(told)


def test_a_training_s_words_behind_an_exception_are_no_message_of_it() -> None:
    text = "ValueError: sample 7 is empty\nvalidating batches 3 of 9\nepochs done 3\n\nsrun: error: node7: task 3: Exited with exit code 1\n"
    assert judge_log(read(text), catalogue()).verdict.raised is None


@pytest.mark.parametrize("count", [3, 4, 8])
def test_an_exception_behind_which_steps_follow_is_not_why_the_launcher_saw_an_end(count: int) -> None:
    steps = "".join(f"epoch 1 step {step} loss 0.5\n" for step in range(count)) + "\n"
    text = f"ValueError: sample 7 is empty:\n{steps}srun: error: node7: task 3: Exited with exit code 1\n"
    assert "ValueError" not in headline(judge_log(read(text), catalogue())).partition("before that")[0]
