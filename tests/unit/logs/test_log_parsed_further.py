"""Exceptions whose names or places don't tell that they are some, messages of several lines, and ends without a word of Python's."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from tests.support.logs_by_hand import read

SITE = "/opt/venv/lib/python3.11/site-packages"


def verdict(text: str) -> LogVerdict:
    return verdict_of(read(text), catalogue())


@pytest.mark.parametrize(
    ("name", "frame", "code"),
    [
        ("triton.runtime.errors.OutOfResources", "triton/compiler/compiler.py", "raise OutOfResources(a, b, c)"),
        ("triton.runtime.errors.OutOfResources", "triton/compiler/compiler.py", "self._init_handles()"),
        ("torch._dynamo.exc.Unsupported", "torch/_dynamo/exc.py", "raise Unsupported(msg)"),
        ("zipfile.BadZipFile", "numpy/lib/npyio.py", 'raise BadZipFile("File is not a zip file")'),
    ],
)
def test_the_name_of_a_module_s_class_behind_a_frame_is_an_exception(name: str, frame: str, code: str) -> None:
    found = verdict(f'  File "{SITE}/{frame}", line 36, in run\n    {code}\n{name}: no more of it\n')
    assert (found.outcome, found.raised and found.raised.exception) == (RunOutcome.USER_ERROR, name)


@pytest.mark.parametrize(
    "text",
    [
        "pyarrow.lib.ArrowInvalid: offset overflow while concatenating arrays\n",
        "google.api_core.exceptions.Forbidden: 403 GET https://storage.example/b/photos\n",
        "subprocess.TimeoutExpired: Command '['nvidia-smi']' timed out after 30 seconds\n",
        "Error executing job with overrides: ['model=tiny']\n",
    ],
)
def test_an_exception_that_only_its_module_tells_is_no_good_end(text: str) -> None:
    assert verdict(text).outcome in (RunOutcome.USER_ERROR, RunOutcome.UNRECOGNISED)


@pytest.mark.parametrize(
    "text",
    [
        'step 3\n  File "/home/ada/train.py", line 3, in run\n    log()\nmylib.stats: 12\nstep 4\n',
        "urllib3.exceptions.InsecureRequestWarning: Unverified HTTPS request is being made\n",
        "see torch.distributed.errors.Unknown in the manual\n",
        "Error at line 3 in file settings.yaml was mended\n",
    ],
)
def test_what_only_looks_like_one_is_none(text: str) -> None:
    assert verdict(text).outcome is RunOutcome.NOTHING


def test_a_chain_is_found_behind_a_message_of_many_lines() -> None:
    message = "".join(f"column_{number}: string\n" for number in range(9))
    found = verdict(
        f'Traceback (most recent call last):\n  File "{SITE}/datasets/table.py", line 22, in cast\n    raise CastError(\n'
        f"datasets.table.CastError: Couldn't cast\n{message}\nDuring handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/home/ada/sft.py", line 4, in <module>\n    load()\n'
        f'  File "{SITE}/datasets/builder.py", line 9, in load\n    raise DatasetGenerationError()\n'
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset\n"
    )
    assert found.raised is not None
    assert (found.raised.exception, found.raised.chained) == ("datasets.table.CastError", True)


@pytest.mark.parametrize(
    ("slug", "text"),
    [
        (
            "gpu-arch-unsupported",
            f'Traceback (most recent call last):\n  File "{SITE}/spconv/pytorch/ops.py", line 4, in pairs\n    pairs()\n'
            "RuntimeError: /io/build/spconv/indice.cu 165\ncuda execution failed with error 98 invalid device function\n",
        ),
        (
            "nan-loss",
            f'  File "{SITE}/torch/distributions/distribution.py", line 55, in __init__\n    raise ValueError(\n'
            "ValueError: Expected parameter probs (Tensor of shape (2, 2)) of distribution Categorical(probs: torch.Size([2, 2])) to satisfy the "
            "constraint Simplex(), but found invalid values:\ntensor([[0.5000, 0.5000],\n        [nan, nan]], device='cuda:0')\n",
        ),
        (
            "gpu-arch-unsupported",
            "Error named symbol not found at line 74 in file /home/ada/bitsandbytes/csrc/ops.cu\n",
        ),
        ("process-crashed", "Windows fatal exception: access violation\n\n"),
        ("process-crashed", "Epoch 0: 3\n\nProcess finished with exit code -1073740791 (0xC0000409)\n"),
        ("process-crashed", "The Kernel crashed while executing code in the current cell or a previous cell. \n"),
        (
            "user-code-error",
            "Error locating target 'models.tiny.Net', set env var HYDRA_FULL_ERROR=1 to see chained exception.\nfull_key: model\n",
        ),
        (
            "user-code-error",
            "'torchrun' is not recognized as an internal or external command,\noperable program or batch file.\n",
        ),
        (
            "user-code-error",
            "AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage \"TypeError: forward() got an unexpected keyword argument 'x'\"\n",
        ),
    ],
)
def test_what_stands_on_another_line_or_isnt_pythons_is_told(slug: str, text: str) -> None:
    assert verdict(text).suspects[0].slug == slug


def test_an_exception_named_after_credentials_keeps_its_message() -> None:
    found = verdict("botocore.exceptions.NoCredentialsError: Unable to locate credentials\n")
    assert found.raised is not None
    assert found.raised.message == "Unable to locate credentials"
