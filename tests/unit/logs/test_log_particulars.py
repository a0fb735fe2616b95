"""What a log itself tells of an illness beyond its page."""

from __future__ import annotations

import pytest

from ddpdoctor.base.findings import Finding
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.diagnosis import judge_log, particulars
from tests.log_corpus import LOGS, log_of
from tests.support.logs_by_hand import read
from tests.support.registered_checks import find_check


def found(name: str, slug: str) -> Finding:
    """What is found of that illness in a log of the corpus."""
    opinions = judge_log(log_of(LOGS / f"{name}.log"), catalogue()).opinions
    return next(opinion.finding for opinion in opinions if opinion.check.slug == slug)


def commands(finding: Finding) -> str:
    return "\n".join(command for fix in finding.fixes for command in fix.commands)


def test_without_a_log_there_is_nothing_particular() -> None:
    assert all(particulars(find_check(slug), (), Log()) == Particulars() for slug in ("gcc-too-new", "shm-too-small"))


@pytest.mark.parametrize(
    ("name", "newest"),
    [
        ("sick-apex-setup", "10"),  # nvcc's header: "later than 10"
        ("sick-torch-bounds", "11"),  # torch: "<12.0"
    ],
)
def test_the_gcc_that_nvcc_takes(name: str, newest: str) -> None:
    finding = found(f"gcc-too-new/{name}", "gcc-too-new")
    assert f"gcc {newest} at most" in finding.summary
    assert f"CC=gcc-{newest} " in commands(finding)


def test_a_log_that_does_not_say_which_gcc_leaves_it_to_the_page() -> None:
    seen = log_of(LOGS / "gcc-too-new/sick-apex-setup.log").sightings[:0]
    assert not particulars(find_check("gcc-too-new"), seen, Log()).fixes


def test_the_toolkit_that_apex_asks_for() -> None:
    finding = found("apex-cuda-mismatch/sick-setup-py", "apex-cuda-mismatch")
    assert finding.summary.startswith("Apex wasn't built")
    assert "CUDA_HOME=/usr/local/cuda-" in commands(finding)
    assert "nothing was built" in finding.cause


def test_a_missing_header_is_no_missing_nvcc() -> None:
    finding = found("cuda-home-missing/sick-toolkit-in-part", "cuda-home-missing")
    assert "cusparse.h" in finding.summary
    assert "no nvcc" not in finding.summary
    assert "no nvcc" in found("cuda-home-missing/sick-setup-py", "cuda-home-missing").summary


def test_as_many_tasks_as_lightning_has_devices() -> None:
    finding = found("slurm-launch-mismatch/sick-tasks-srun", "slurm-launch-mismatch")
    assert "--ntasks-per-node=8" not in commands(finding)
    assert "srun --ntasks-per-node=" in commands(finding)


def test_two_ranks_on_slices_need_no_set_device() -> None:
    finding = found("duplicate-gpu/sick-slices", "duplicate-gpu")
    assert "MIG slices" in finding.summary
    assert "set_device" not in " ".join(fix.text for fix in finding.fixes)
    assert "MIG" not in found("duplicate-gpu/sick-no-set-device", "duplicate-gpu").summary


def test_holders_of_a_gpu_that_are_ranks_of_this_run() -> None:
    finding = found("missing-set-device/sick-all-on-gpu0", "missing-set-device")
    assert "ranks 1-3 of this very run" in finding.summary
    assert "very run" not in found("missing-set-device/sick-two-gpus", "missing-set-device").summary


def test_holders_whom_only_the_launcher_closes_are_ranks_of_this_run() -> None:
    finding = found("missing-set-device/sick-closed-by-torchrun", "missing-set-device")
    assert "processes 4712 (6.1 GiB) and 4713 (6.1 GiB) of this very run, rank 0 9.4 GiB" in finding.summary
    loaded = found("ckpt-device-pin/sick-loaded-onto-gpu-0", "ckpt-device-pin")
    assert "process 4712 of this very run holds 41.6 GiB, rank 3 5.1 GiB, and 96 MiB more" in loaded.summary
    assert ('torch.load("last.pt", map_location="cpu")',) in [fix.commands for fix in loaded.fixes]


def test_how_much_of_a_full_gpu_is_whose() -> None:
    finding = found("gpu-memory-held-by-others/sick-own-part-greater", "gpu-memory-held-by-others")
    assert (
        "GPU 1 is full (out of memory): process 90211 holds 14.2 GiB, rank 1 24.4 GiB, and 1.5 GiB" in finding.summary
    )
    assert "smaller batch" in finding.fixes[0].text
    assert "ps -o pid,user,etime,args -p 90211" in finding.fixes[1].commands
    lesser = found("gpu-memory-held-by-others/sick-torch2-listed", "gpu-memory-held-by-others")
    assert "smaller batch" not in " ".join(fix.text for fix in lesser.fixes)


def test_a_rank_on_another_gpu_than_its_own_may_share_it_with_the_runs_ranks() -> None:
    for slug in ("missing-set-device", "gpu-memory-held-by-others"):
        assert "process 90211 holds" in found("gpu-memory-held-by-others/sick-unknown-holder", slug).summary


def test_what_torchrun_killed_before() -> None:
    finding = found("zombie-gpu-process/sick-killed-by-torchrun", "zombie-gpu-process")
    assert "4411" in finding.summary
    assert "9000" not in finding.summary  # the own one


def test_the_compilers_first_error_is_shown() -> None:
    finding = found("apex-build-failed/sick-header-missing", "apex-build-failed")
    assert "No such file or directory" in finding.summary
    assert "error: " in finding.evidence[0].text


def test_an_argument_is_laid_to_the_launcher_that_adds_it() -> None:
    finding = found("local-rank-arg-mismatch/sick-deepspeed", "local-rank-arg-mismatch")
    assert "deepspeed adds" in finding.summary
    assert (
        "torch.distributed.launch adds"
        in found("local-rank-arg-mismatch/sick-launch", "local-rank-arg-mismatch").summary
    )


def test_ranks_that_say_two_versions_of_nccl() -> None:
    assert "2.10.3 and 2.14.3" in found("nccl-message-truncated/sick-two-versions", "nccl-message-truncated").summary


@pytest.mark.parametrize(
    ("name", "summary", "command"),
    [
        (
            "sick-compiled-into-bare",
            "The checkpoint's keys begin with _orig_mod.,",
            "ddpdoctor fix-checkpoint --strip-prefix _orig_mod. FILE",
        ),
        ("sick-held-as-an-attribute", "The checkpoint's keys begin with model.,", "k.removeprefix('model.')"),
        (
            "sick-bare-into-compiled",
            "The model's keys begin with _orig_mod.,",
            "model._orig_mod.load_state_dict(state)",
        ),
        ("sick-bare-into-ddp", "The model's keys begin with module.,", "model.module.load_state_dict(state)"),
        (
            "sick-wrapped-in-another-order",
            "The model's keys begin with _orig_mod.module.,",
            "{'_orig_mod.module.' + k.removeprefix('module._orig_mod.'): v",
        ),
    ],
)
def test_which_prefix_it_is_and_on_which_side(name: str, summary: str, command: str) -> None:
    finding = found(f"ckpt-module-prefix/{name}", "ckpt-module-prefix")
    assert finding.summary.startswith(summary)
    assert command in commands(finding)
    assert "strict=False" not in commands(finding)


@pytest.mark.parametrize(
    ("name", "summary", "command"),
    [
        ("sick-file-init-in-the-root", "its address has one slash too few", 'init_method="file:///tmp/somefile"'),
        (
            "sick-file-init-no-such-folder",
            "can't be made: No such file or directory",
            'ls -ld "$(dirname /runs/meet)"',
        ),
        (
            "sick-file-init-of-another-user",
            "can't be made: Permission denied",
            'ls -ld "$(dirname /nfs/runs/store)"',
        ),
    ],
)
def test_the_file_at_which_the_ranks_meet_is_no_folder_that_training_writes_to(
    name: str, summary: str, command: str
) -> None:
    finding = found(f"folder-not-writable/{name}", "folder-not-writable")
    assert finding.summary.endswith(summary)
    assert command in commands(finding)


def test_a_requirement_at_the_end_of_a_sentence_is_told_without_its_dot() -> None:
    finding = found("package-version-mismatch/sick-mmcv", "package-version-mismatch")
    assert finding.summary == "A package requires mmcv>=1.1.1, <=1.2.0, and MMCV==1.7.1 is installed"
    assert "pip install 'mmcv>=1.1.1,<=1.2.0'" in commands(finding)
    assert "pip list | grep -iE mmcv\n" in commands(finding)


def test_a_requirement_of_a_release_that_is_still_made_names_the_package_alone() -> None:
    error = "ImportError: tokenizers>=0.19.0.dev0,<0.20 is required for a normal functioning of this module, but found tokenizers==0.15.2."
    (opinion,) = judge_log(read(f"Traceback (most recent call last):\n{error}\n"), catalogue()).opinions
    assert "pip list | grep -iE tokenizers\n" in commands(opinion.finding)
    assert "pip install 'tokenizers>=0.19.0.dev0,<0.20'" in commands(opinion.finding)


def test_what_torch_sees_is_asked_of_the_python_that_ran() -> None:
    see = found("no-gpu-visible/sick-lightning-sees-none", "no-gpu-visible").fixes[0]
    assert [command.partition(" ")[0] for command in see.commands] == [
        "/opt/py/bin/python",
        "echo",
        "nvidia-smi",
    ]
    assert all(";" not in command for command in see.commands[1:])


def test_of_two_packages_each_upgrade_says_for_which_case_it_is() -> None:
    finding = found("package-version-mismatch/sick-method-of-a-known-class", "package-version-mismatch")
    assert "which clip_grad_norm_() doesn't take: transformers and accelerate don't fit" in finding.summary
    assert "grep -iE 'transformers|accelerate'" in commands(finding)
    cases = {fix.text.partition(" is too old")[0]: fix.commands for fix in finding.fixes if "too old" in fix.text}
    assert cases["Where accelerate"][0].endswith("--upgrade accelerate")
    assert cases["Where transformers"][0].endswith("--upgrade transformers")


def test_a_called_package_that_isnt_known_is_looked_for_by_what_is_imported() -> None:
    finding = found("package-version-mismatch/sick-keyword-between-packages", "package-version-mismatch")
    assert "grep -nw MetricLogger " in commands(finding)
    assert "--upgrade" not in commands(finding)
    lightning = found("package-version-mismatch/sick-script-of-older-release", "package-version-mismatch")
    assert "transformers" not in lightning.summary


def test_who_holds_a_port_is_named_first() -> None:
    taken = found("port-in-use/sick-torch-2.3", "port-in-use")
    assert taken.fixes[0].commands == ("MASTER_PORT=29500 ddpdoctor check --select port-in-use",)
    assert [fix.commands for fix in taken.fixes[1:]] == [("torchrun --master-port 29501 ...",)]
    private = found("port-in-use/sick-privileged", "port-in-use")
    assert private.fixes[0].text.startswith("Take another port")


@pytest.mark.parametrize(
    ("name", "job"), [("sick-srun-task", "4711"), ("sick-slurm", "512233"), ("sick-slurm-batch-step", "60717")]
)
def test_slurm_is_asked_of_the_job_that_the_log_names(name: str, job: str) -> None:
    killed = found(f"host-oom-killed/{name}", "host-oom-killed")
    assert killed.fixes[-1].commands == (f"sacct -j {job} --format=JobID,MaxRSS,ReqMem,State",)
    assert "Docker" not in str(killed)
    assert "container" not in str(killed)


def test_dockers_own_bridge_is_called_so() -> None:
    wrong = found("nccl-wrong-interface/sick-docker0-2.27", "nccl-wrong-interface")
    assert wrong.cause.startswith("172.17.0.1 is the address of Docker's own default bridge (docker0)")
    assert wrong.fixes[0].commands == ("ip -br addr",)


@pytest.mark.parametrize(
    ("name", "taken", "command"),
    [
        ("sick-system-for-conda", "/usr/lib64/libstdc++.so.6", "export LD_LIBRARY_PATH=/opt/miniforge3/envs/bert/lib:"),
        (
            "sick-conda-for-extension",
            "/home/ada/mambaforge/envs/llm/lib/libstdc++.so.6",
            "conda install -p /home/ada/mambaforge/envs/llm -c conda-forge 'libstdcxx-ng>=13'",
        ),
        ("sick-folder-of-a-program", "/srv/tools/sim/lib/libstdc++.so.6", "grep -vx /srv/tools/sim/lib "),
        ("sick-extension", "/lib/x86_64-linux-gnu/libstdc++.so.6", "sort -Vu"),
    ],
)
def test_the_cxx_library_that_was_taken_decides_the_command(name: str, taken: str, command: str) -> None:
    finding = found(f"glibcxx-too-old/{name}", "glibcxx-too-old")
    assert f"{taken} doesn't have" in finding.summary
    assert command in commands(finding)
    assert ("conda install" in commands(finding)) == ("conda" in name)
