"""What the checks say that know a mistake in the training script, or in its start, from its log alone."""

from __future__ import annotations

import pytest

from ddpdoctor.base.findings import Finding
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.checks.catalogue import all_checks, catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import NotApplicable, diagnose
from ddpdoctor.facts.log import Log, LogFile, LogLine, SignMatch
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.logs.diagnosis import judge_log
from tests.log_corpus import LOGS, log_of
from tests.support.logs_by_hand import read
from tests.support.registered_checks import find_check

SAID = (
    ("unused-parameters/sick-names-tee", "no gradient, which DDP does not allow: boxes.bias, boxes.weight", 0),
    ("unused-parameters/sick-second-head", "numbers 4 5 of model.parameters()", None),
    ("ddp-reentrant-checkpoint/sick-find-unused", "The gradient of parameter", None),
    ("ddp-reentrant-checkpoint/sick-twice-called-tee", "parameter block.0.bias came twice", None),
    ("ddp-buffer-inplace/sick-position-ids", "between forward and backward: LongTensor [1, 512]", 1),
    ("ddp-param-mismatch/sick-vocabulary", "Parameter 0 with sizes [50274, 32] differs from rank 0's", 1),
    ("ddp-param-mismatch/sick-counts-tee", "Rank 0 has 7 parameters, rank 1 has 9", 0),
    ("ddp-param-mismatch/sick-one-of-many", "Rank 2 has 180 parameters, the other ranks have 247", 2),
    ("model-not-on-device/sick-device-ids", "its parameters are on {device(type='cpu')}", None),
    ("model-not-on-device/sick-nccl-cpu-model", "its parameters are on the CPU", 1),
    ("model-not-on-device/sick-nccl-older-words", "its parameters are on the CPU", 0),
    ("model-not-on-device/sick-nccl-cpu-tensor", "A collective was given a tensor on the CPU, and this group", 0),
    ("model-not-on-device/sick-fsdp", "on which FSDP is to train it: its parameters are on the CPU", 2),
    ("ddp-buffer-inplace/sick-broken-lines", "between forward and backward: FloatTensor [6, 6]", None),
    ("batchnorm-batch-of-one/sick-last-batch", "one value per channel: torch.Size([1, 64])", None),
    ("user-label-out-of-range/sick-target-cpu", "Label 10 is out of range", 1),
    ("user-label-out-of-range/sick-classes-gpu", "A label or an index is out of range", 2),
    ("user-label-out-of-range/sick-bce-input", "An input of BCELoss is not between 0 and 1", None),
    ("unused-parameters/sick-static-graph-late", "With static_graph=True other parameters took part", 0),
    ("unused-parameters/sick-lightning", "Parameters got no gradient", 0),
    ("fsdp-mixed-parameters/sick-lora", "parameters of torch.bfloat16 and torch.float32 in one unit", 0),
    ("fsdp-mixed-parameters/sick-frozen-base", "without use_orig_params=True", 1),
    ("fsdp-mixed-parameters/sick-quantised", "FSDP got integer parameters", 0),
    ("nan-loss/sick-fairseq-collapse", "The gradients overflow in fp16 at any loss scale", None),
    ("nan-loss/sick-anomaly", "SqrtBackward0 made NaN in the backward pass", None),
    ("nan-loss/sick-apex-collapse", "The gradients overflow in fp16 at any loss scale", None),
    ("nan-loss/sick-megatron-grad-norm", "The gradients became NaN", None),
    ("nan-loss/sick-printed", "The loss became NaN", None),
    ("cuda-fork-reinit/sick-dataset-on-gpu", "A forked process used CUDA", 1),
    ("efa-plugin-misconfigured/sick-address-vector", "aws-ofi-nccl could not open AV", None),
    (
        "efa-plugin-misconfigured/sick-request-failed",
        "could not send or receive: libfabric refused it, or the peer",
        None,
    ),
    (
        "user-code-error/sick-raised-of-another",
        "The script raised KeyError: 'a7' (store.py:9), and of it RuntimeError: shard a7 is missing",
        None,
    ),
    ("user-code-error/sick-empty-queue", "raised ValueError: no sample came from the reader", 0),
    ("barrier-device-unknown/sick-first-barrier", "NCCL guessed GPU 0 for a barrier", 0),
    ("local-rank-arg-mismatch/sick-launch", "doesn't know --local-rank, which torch.distributed.launch adds", None),
    ("libuv-missing/sick-windows-torchrun", "This build of torch has no libuv", None),
    (
        "ckpt-arch-mismatch/sick-megatron-shape",
        "embedding.word_embeddings.weight is [32000, 4096], the model's (32128, 4096)",
        None,
    ),
    ("ckpt-arch-mismatch/sick-distributed-part", "model.head.weight is [100, 512], the model's [1000, 512]", None),
    ("ckpt-arch-mismatch/sick-headline-alone", "the log doesn't show for which keys", None),
    ("ckpt-arch-mismatch/sick-megatron-arguments", "The checkpoint's num_layers is 24, the model's 32", None),
    ("checkpoint-save-timeout/sick-transformers", "timed out while a checkpoint was being saved", None),
    ("nccl-message-truncated/sick-bootstrap-mpirun", "a message of another size", None),
    ("ddp-grad-stride-warning/near-miss-warning", "harmless", None),
)


def findings(slug: str, log: Log) -> list[Finding]:
    check = next(check for check in all_checks() if check.slug == slug)
    return list(check.predicate(*(catalogue() if name == "catalogue" else log for name in check.needs)))


@pytest.mark.parametrize(("name", "words", "rank"), SAID, ids=lambda one: one if "/" in str(one) else "")
def test_the_finding_has_the_logs_own_words(name: str, words: str, rank: int | None) -> None:
    (found,) = findings(name.partition("/")[0], log_of(LOGS / f"{name}.log"))
    assert words in found.summary
    assert len(found.summary) <= 160
    assert found.evidence
    assert found.fixes
    assert rank is None or found.rank == rank


@pytest.mark.parametrize("slug", sorted({name.partition("/")[0] for name, _, _ in SAID}))
def test_nothing_is_said_of_a_log_without_the_signs(slug: str) -> None:
    quiet = Log(files=(LogFile(name="run.log", lines=1),))
    assert findings(slug, quiet) == []
    with pytest.raises(NotApplicable):
        findings(slug, Log())


def test_names_of_many_parameters_are_cut() -> None:
    names = ", ".join(f"backbone.layers.{number}.attention.weight" for number in range(40))
    seen = SignMatch(
        slug="unused-parameters",
        sign="Parameters which did not receive grad for rank",
        role=SignRole.NAMES,
        line=LogLine(file=0, number=7, text=names, rank=3),
        words={"names": names},
    )
    snapshot = Snapshot(log=Log(files=(LogFile(name="run.log"),), sightings=(seen,)))
    (result,) = diagnose(snapshot, plan_for(snapshot), [find_check("unused-parameters")])
    (found,) = result.findings
    assert len(found.summary) <= 160
    assert found.rank == 3


def test_with_a_static_graph_the_search_for_unused_parameters_alone_is_no_advice() -> None:
    for name in ("sick-static-graph", "sick-static-graph-late"):
        (found,) = findings("unused-parameters", log_of(LOGS / "unused-parameters" / f"{name}.log"))
        assert found.fixes[0].text.startswith("Drop static_graph=True")


def test_processes_that_were_forked_are_told_how_to_start_otherwise() -> None:
    started, loader = (
        findings("cuda-fork-reinit", log_of(LOGS / "cuda-fork-reinit" / f"{name}.log"))[0].fixes
        for name in ("sick-start-processes", "sick-dataset-on-gpu")
    )
    assert any('start_method="spawn"' in process.text for process in started)
    assert any("DataLoader" in one.text for one in loader)
    assert not any("DataLoader" in process.text for process in started)


def test_two_ranks_alone_have_no_odd_one_out() -> None:
    text = "DDP expects same model across all ranks, but Rank 1 has 7 params, while rank 0 has inconsistent 9 params."
    (found,) = findings("ddp-param-mismatch", read(f"RuntimeError: {text}\n"))
    assert found.summary.startswith("Rank 1 has 7 parameters, rank 0 has 9")


def test_lightning_is_told_by_its_own_setting() -> None:
    (found,) = findings("unused-parameters", log_of(LOGS / "unused-parameters/sick-lightning.log"))
    assert any("ddp_find_unused_parameters_true" in fix.text for fix in found.fixes)


def test_what_torchrun_does_not_heed_is_no_advice() -> None:
    by_torchrun, by_rank = (
        findings("libuv-missing", log_of(LOGS / "libuv-missing" / f"{name}.log"))[0].fixes[0].commands
        for name in ("sick-windows-torchrun", "sick-init-process-group")
    )
    assert by_rank == ("set USE_LIBUV=0",)
    assert by_rank != by_torchrun


@pytest.mark.parametrize(
    ("slug", "said"),
    [
        (
            "container-toolkit-missing",
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
        ),
        (
            "gcc-too-new",
            "host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 12 are not supported!",
        ),
        ("nan-loss", "Loss is inf, stopping training"),
        ("container-toolkit-missing", "docker: Error response from daemon: Unknown runtime specified nvidia."),
        ("nan-loss", "12:31:09 | ERROR | Minimum loss scale reached (0.0001). Your loss is probably exploding."),
    ],
)
def test_words_by_which_it_ended_are_no_mere_warning(slug: str, said: str) -> None:
    judgement = judge_log(read(f"step 1 | loss 2.3\n{said}\n"), catalogue())
    assert judgement.word is Verdict.FAIL
    assert judgement.opinions[0].check.slug == slug
    gone_on = "".join(f"step {number} | loss 2.3\n" for number in range(200))
    assert judge_log(read(f"{said}\n{gone_on}"), catalogue()).word is not Verdict.FAIL


@pytest.mark.parametrize(
    ("printed", "lost"),
    [
        ("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.3}", True),
        ("{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '1e-05', 'epoch': '0.3'}", True),
        ("{'loss': 2.31, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.01}", False),
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1", True),
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768", False),
        ("loss_dict = {'loss_cls': tensor(nan, device='cuda:1'), 'loss_box_reg': tensor(0.2, device='cuda:1')}", True),
        ("metrics = {'loss_val': tensor(nan), 'loss_cls': tensor(0.3)}", False),
        ("Epoch 3 | train loss 0.31 | val loss nan", False),
        ("Validation: loss nan, best loss nan", False),
        ("Epoch 3 | train loss nan | val loss 0.4", True),
        ("eval 0.31 | total loss: nan", True),
    ],
)
def test_a_skipped_step_of_fp16_is_no_loss_that_is_nan(printed: str, lost: bool) -> None:
    steps = "".join(f"step {number} done\n" for number in range(5))
    named = [opinion.check.slug for opinion in judge_log(read(f"{steps}{printed}\n{steps}"), catalogue()).opinions]
    assert named == (["nan-loss"] if lost else [])


@pytest.mark.parametrize(
    "error",
    [
        "OSError: You seem to have cloned a repository without having git-lfs installed. Please install git-lfs",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
        "_pickle.UnpicklingError: Weights only load failed. Do it only if you trust it. WeightsUnpickler error: Unsupported operand 118",
    ],
)
def test_a_pointer_in_a_checkpoints_place_is_told_as_that(error: str) -> None:
    text = 'Traceback (most recent call last):\n  File "/home/ada/tune.py", line 4, in <module>\n    load()\n' + error
    first = judge_log(read(text + "\n"), catalogue()).opinions[0]
    assert first.suspect.sure
    assert first.check.slug == "ckpt-truncated"
    assert "git lfs pull" in first.finding.fixes[0].text


def test_a_container_that_docker_could_not_start_has_failed() -> None:
    said = "docker: Error response from daemon: pull access denied for ada/train, repository does not exist.\n"
    assert judge_log(read(said), catalogue()).word is Verdict.FAIL
    steps = "".join(f"step {step} | loss 2.3\n" for step in range(9))
    assert judge_log(read(said + steps), catalogue()).word is Verdict.OK
    stopping = "Error response from daemon: No such container: train\n"
    assert judge_log(read(stopping + "step 1 | loss 2.3\n"), catalogue()).word is Verdict.OK


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (
            "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.head.weight.step.",
            "The model has optimizer.",
        ),
        (
            "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
            "The optimizer's state in the checkpoint is of other parameters",
        ),
    ],
)
def test_an_optimizers_state_may_be_of_another_model(error: str, summary: str) -> None:
    text = (
        'Traceback (most recent call last):\n  File "/home/ada/train.py", line 4, in <module>\n    resume()\n' + error
    )
    first = judge_log(read(text + "\n"), catalogue()).opinions[0]
    assert not first.suspect.sure
    assert first.check.slug == "ckpt-arch-mismatch"
    assert first.finding.summary.startswith(summary)
