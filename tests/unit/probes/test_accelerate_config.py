"""accelerate's configuration file is read as accelerate itself reads it, and refused where it refuses it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.accelerate import Accelerate, ConfigFile
from ddpdoctor.knowledge.accelerate import KEYS, NotUnderstoodError, on_each_machine, read_config
from ddpdoctor.probes.accelerate import default_path, probe, read_file, requested_processes
from ddpdoctor.probes.context import Context
from tests.support.command import ddpdoctor, plain_environ
from tests.support.other_users import User

BY_HAND = """\
# my cluster
compute_environment: LOCAL_MACHINE
distributed_type: 'MULTI_GPU'   # all of them
main_process_ip: 10.0.0.11
main_process_port: 29500
machine_rank: 0
num_machines: 2
num_processes: 16
gpu_ids: 0,1,2
mixed_precision: "bf16"
use_cpu: no
deepspeed_config:
  zero_stage: 3
  gradient_clipping: 1.0
commands:
- one
main_training_function: main
"""

SCALARS = st.one_of(
    st.sampled_from(["no", "NO", "yes", "on", "null", "~", "", "0", "007", "0x1f", "1_000", "1:30", "1.5", "1e3", ".inf", "10.0.0.1"]),
    st.sampled_from(["0,1", "'0'", '"0"', "'it''s'", "fe80::1", "node-01:29500", "[::1]", "{a: 1}", "&a b", "*a", "!!str 5", "|", ">"]),
    st.sampled_from(["a # b", "a#b", "'a' # b", "2001-12-14", "- a", "@x", "`x`", "%x", "? x", "a: b", "true", "a b", "=", "<<", "-1", "+5"]),
    st.text("ab01 .,:#'\"-[]{}&*!|>%@`~?=/_\\", max_size=8),
)  # fmt: skip


@settings(max_examples=3000, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(KEYS[:6]), SCALARS, st.sampled_from(["", "  more", "- item", "# word"])), max_size=4
    )
)
def test_what_we_read_is_what_yaml_reads(lines: list[tuple[str, str, str]]) -> None:
    """Whatever we say that a key holds, YAML says, too; what we don't understand, we don't say."""
    text = "".join(f"{key}: {value}\n{below}\n" for key, value, below in lines)
    try:
        ours = read_config("c.yaml", text)
    except NotUnderstoodError:
        return
    try:
        theirs = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError):
        return
    for name in {entry.name for entry in ours.entries} - set(ours.nested):
        entry = ours.entry(name)
        assert entry is not None
        assert (type(entry.value), entry.value) == (type(theirs[name]), theirs[name]), text


def test_a_file_written_by_hand() -> None:
    file = read_config("c.yaml", BY_HAND)
    expected = {name: value for name, value in yaml.safe_load(BY_HAND).items() if not isinstance(value, (dict, list))}
    assert {entry.name: entry.value for entry in file.entries} == expected
    assert file.nested == ("deepspeed_config", "commands")
    port = file.entry("main_process_port")
    assert port
    assert port.line == 5
    assert on_each_machine(file) == 8


def test_a_json_file_and_its_lines() -> None:
    text = json.dumps({"distributed_type": "NO", "num_processes": 4, "fsdp_config": {}}, indent=2)
    file = read_config("c.json", text)
    assert [(entry.name, entry.value, entry.line) for entry in file.entries] == [
        ("distributed_type", "NO", 2),
        ("num_processes", 4, 3),
    ]
    assert on_each_machine(file) == 1


@pytest.mark.parametrize("text", ["root:x:0:0:root:/root:/bin/bash\n", "- a\n- b\n", "{a: 1}\n", "%YAML 1.2\n"])
def test_another_file_is_not_understood_and_not_shown(text: str) -> None:
    with pytest.raises(NotUnderstoodError) as caught:
        read_config("c.yaml", text)
    assert "root" not in str(caught.value)


@pytest.mark.parametrize("text", ["[1]", "{", '"a"', "[" * 100_000, ""])
def test_json_of_another_kind_is_not_understood(text: str) -> None:
    with pytest.raises(NotUnderstoodError):
        read_config("c.json", text)


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"HOME": "/home/ada"}, "/home/ada/.cache/huggingface/accelerate/default_config.yaml"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "/c"}, "/c/huggingface/accelerate/default_config.yaml"),
        (
            {"HOME": "/home/ada", "HF_HOME": "~/hf", "XDG_CACHE_HOME": "/c"},
            "/home/ada/hf/accelerate/default_config.yaml",
        ),
        ({"HOME": "/home/ada", "HF_HOME": "relative"}, ""),
    ],
)
def test_where_the_file_lies(environ: dict[str, str], path: str) -> None:
    assert default_path(environ, os.getuid()) == path


def in_home(home: Path, text: str) -> Path:
    file = home / ".cache" / "huggingface" / "accelerate" / "default_config.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def probed(home: Path) -> Accelerate:
    return probe(Context("/usr/bin/python3", environ={"HOME": str(home)}))


def test_no_file_is_none_and_a_pipe_or_a_large_file_is_unknown(tmp_path: Path) -> None:
    assert probed(tmp_path).file is None
    file = in_home(tmp_path, "a: b\n" * 20_000)
    found = probed(tmp_path).file
    assert isinstance(found, Unknown)
    assert "larger" in found.reason
    file.unlink()
    os.mkfifo(file)
    assert isinstance(probed(tmp_path).file, Unknown)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("accelerate launch --config_file {file} train.py", "default_config.yaml, line 2"),
        ("accelerate launch --config-file={file} -m train", "default_config.yaml, line 2"),
        ("python -m accelerate.commands.launch train.py", "default_config.yaml, line 2"),
        ("accelerate launch --cpu train.py", ""),
        ("accelerate launch --num_processes 2 --config_file {file} train.py", ""),
        ("accelerate launch --config_file /nothing train.py --config_file {file}", ""),
        ("accelerate launch --cpu train.py --config_file {file}", ""),
    ],
)
def test_the_file_that_a_launch_takes(tmp_path: Path, words: str, line: str) -> None:
    """Its own options end where the script begins; what the command line says goes before the file."""
    file = in_home(tmp_path, "distributed_type: NO\nnum_processes: 4\n")
    command = ["/usr/bin/python3", *words.format(file=file).split()]
    command = command[1:] if command[1] == "python" else command
    found = requested_processes(os.getpid(), os.getuid(), command, {"HOME": str(tmp_path)})
    assert (found.source.rpartition("/")[2] if found else "") == line
    assert found is None or found.processes == 4


@pytest.mark.root
def test_a_launcher_without_home_takes_the_file_of_its_own_user(
    tmp_path: Path, eve: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = {os.getuid(): tmp_path / "ours", eve.uid: tmp_path / "hers"}
    monkeypatch.setattr("ddpdoctor.probes.accelerate.home_of", lambda uid: str(homes[uid]))
    in_home(homes[os.getuid()], "distributed_type: NO\nnum_processes: 4\n")
    command = ["/usr/bin/python3", "/usr/bin/accelerate", "launch", "train.py"]
    assert requested_processes(os.getpid(), eve.uid, command, {}) is None
    in_home(homes[eve.uid], "distributed_type: NO\nnum_processes: 8\n")
    found = requested_processes(os.getpid(), eve.uid, command, {})
    assert found is not None
    assert found.processes == 8


@pytest.mark.root
def test_another_users_file_is_not_believed(shared: Path, eve: User) -> None:
    """By herself, and by a link to a file of root's that nobody else may read."""
    eve.does(f"umask 022; echo 'distributed_type: NO' > {shared}/hers.yaml; ln -s /etc/shadow {shared}/link.yaml")
    found = read_file(shared / "hers.yaml", "hers", (0,))
    assert isinstance(found, Unknown)
    assert "isn't believed" in found.reason
    assert isinstance(read_file(shared / "hers.yaml", "hers", (eve.uid,)), ConfigFile)
    stolen = read_file(shared / "link.yaml", "link", (eve.uid,))
    assert isinstance(stolen, Unknown)
    assert "isn't believed" in stolen.reason


def test_check_names_the_file_and_the_line(tmp_path: Path) -> None:
    """The whole way, from the file in a home folder to the command line's findings, and what it then says to do mends it."""
    file = in_home(
        tmp_path,
        "compute_environment: LOCAL_MACHINE\ndistributed_type: NO\nmixed_precision: no\nnum_processes: 4\nuse_cpu: true\n",
    )
    environ = {**plain_environ(), "HOME": str(tmp_path)}
    done = ddpdoctor("check", "--quick", "--json", "--select", "launch", environ=environ)
    found = {finding["slug"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1
    refused, processes = found["accelerate-config-refused"], found["accelerate-config-processes"]
    assert refused["severity"] == "fail"
    assert [evidence["source"] for evidence in refused["evidence"]] == [f"{file}, line 3"]
    assert [evidence["source"] for evidence in processes["evidence"]] == [f"{file}, line 2", f"{file}, line 4"]
    assert os.system(refused["fixes"][0]["commands"][0]) == 0
    assert yaml.safe_load(file.read_text())["mixed_precision"] == "no"
    done = ddpdoctor("check", "--quick", "--json", "--select", "launch", environ=environ)
    assert "accelerate-config-refused" not in [finding["slug"] for finding in json.loads(done.stdout)["findings"]]


DEFAULT = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 2\n"


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        (DEFAULT, False),
        (DEFAULT.replace("bf16", "no"), True),
        (DEFAULT.replace("bf16", "'no'"), False),
        (DEFAULT.replace("bf16", "bfloat16"), True),
        (DEFAULT.replace("MULTI_GPU", "MULTIGPU"), True),
        (DEFAULT.replace("MULTI_GPU", "NO"), False),
        (DEFAULT.replace("distributed_type: MULTI_GPU\n", ""), True),
        (DEFAULT + "gpu_ids: 0\n", True),
        (DEFAULT + "gpu_ids: '0'\n", True),
        (DEFAULT + "gpu_ids: 0,1\n", False),
        (DEFAULT + "main_proces_ip: 10.0.0.1\n", True),
    ],
)
def test_accelerate_itself_refuses_what_we_call_refused(tmp_path: Path, text: str, is_refused: bool) -> None:
    """Its own functions, up to where it would start the processes."""
    launch = pytest.importorskip("accelerate.commands.launch")
    utils = pytest.importorskip("accelerate.utils.launch")
    from ddpdoctor.checks.launch.accelerate import find_refusals

    path = tmp_path / "c.yaml"
    path.write_text(text)
    arguments = launch.launch_command_parser().parse_args(
        ["--config_file", str(path), "--main_process_port", "0", "train.py"]
    )
    refused = False
    try:
        launch._validate_launch_command(arguments)
        (utils.prepare_multi_gpu_env if arguments.multi_gpu else utils.prepare_simple_launcher_cmd_env)(arguments)
    except (ValueError, AttributeError):
        refused = True
    assert refused == is_refused
    assert bool(list(find_refusals(read_config(str(path), text)))) == is_refused
