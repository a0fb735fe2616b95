"""The page of `fleet --html` in a real browser: it shows, filters, loads nothing, and executes nothing that stands in a snapshot."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import command, plain_environ
from tests.support.fleet_of_fixtures import fleet_snapshots, host_name

pytestmark = pytest.mark.tool("chromium")

COUNT = 12
HOSTILE = "</script><script>document.title='hijacked'</script><img src=x onerror=\"document.title='hijacked'\"><!--"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a fleet with a sick host, an odd one, an absent one, and one that is hostile."""
    folder = tmp_path_factory.mktemp("fleet")

    def change(number: int, facts: dict[str, Any]) -> None:
        if number == 3:
            facts["shared_memory"]["size"] = facts["shared_memory"]["free"] = 64 * 1024**2
        if number == 4:
            facts["gpus"]["devices"][3]["pcie_width"] = 8
        if number == 5:
            (setting,) = (entry for entry in facts["environment"]["settings"] if entry["name"] == "OMP_NUM_THREADS")
            setting["value"] = HOSTILE

    for facts in fleet_snapshots(COUNT, change):
        (folder / f"{facts['host']}.json").write_text(json.dumps(facts))
    (folder / "foreign.json").write_text(json.dumps({"name": HOSTILE}))
    (folder / f"{HOSTILE[:9].replace('/', '')}.json").write_text("{")
    written = folder / "fleet.html"
    ended = subprocess.run(
        command("fleet", folder, "--html", written, "--expect", f"node[00001-{COUNT + 1:05}]", "-q"),
        env=plain_environ(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    return written


def browse(page: Path, *options: str, words: str = "") -> str:
    """The page's DOM after its script has run, as a browser without network has it."""
    chromium = shutil.which("chromium") or "chromium"
    with_profile = f"--user-data-dir={page.parent / 'profile'}"
    environ = {**os.environ, "HOME": str(page.parent)}
    ended = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND", with_profile,
            "--virtual-time-budget=5000", *options, f"file://{page}{f'#{words}' if words else ''}",
        ],
        env=environ, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def shown_hosts(dom: str) -> list[str]:
    return re.findall(r'<td class="hosts">([^<]*)</td>', dom)


def test_hosts_findings_and_odd_ones_are_shown(page: Path) -> None:
    dom = browse(page, "--dump-dom")
    assert shown_hosts(dom) == [host_name(number) for number in range(1, COUNT + 2)]
    text = re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)
    assert "shm-too-small" in text
    assert "gpus.devices[3].pcie_width: node00004: 8, not 16 as on 11 of 12" in text
    assert "it didn't answer" in text
    canvas = re.search(r'<canvas id="cells" width="(\d+)" height="(\d+)"', dom)
    assert canvas
    assert int(canvas[1]) > 14
    assert int(canvas[2]) == (COUNT + 1) * 12


@pytest.mark.parametrize(
    ("words", "hosts"),
    [("pcie_width", [4]), ("shm-too", [3]), ("node00007", [7]), ("answer", [13]), ("no-such-word", [])],
)
def test_the_filter_leaves_those_that_fit(page: Path, words: str, hosts: list[int]) -> None:
    assert shown_hosts(browse(page, "--dump-dom", words=words)) == [host_name(number) for number in hosts]


def told_by(page: Path, script: str) -> Any:
    """What a script's list `told` holds, which runs in a copy of the page, after its own."""
    copied = page.with_name("copied.html")
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page.read_text())
    copied.write_text(
        f"{text}<pre id=told></pre><script>const told = []; {script}; byId('told').textContent = JSON.stringify(told)</script>"
    )
    found = re.search(r'<pre id="told">(.*?)</pre>', browse(copied, "--dump-dom"))
    assert found
    return json.loads(html.unescape(found[1]))


def test_rows_of_the_heat_map_get_lower_the_more_hosts_there_are(page: Path) -> None:
    script = """
        const few = data.hosts, cells = byId("cells");
        for (const count of [200, 300, 2500, 9000, 20000]) {
            data.hosts = Array.from({length: count}, (_, number) => few[number % few.length]);
            show();
            const box = cells.getBoundingClientRect(), third = 2 * height + Math.floor(height / 2);
            cells.dispatchEvent(new MouseEvent("mousemove", {clientX: box.left + 1, clientY: box.top + third}));
            told.push([count, cells.height, byId("pointed").textContent.split(":")[0], byId("shown").textContent, byId("hosts").rows.length]);
        }"""
    assert told_by(page, script) == [
        [200, 200 * 12, host_name(3), "(200 of 200)", 200],
        [300, 300 * 4, host_name(3), "(300 of 300)", 300],
        [2500, 2500 * 2, host_name(3), "(2500 of 2500, the first 500 shown)", 500],
        [9000, 9000, host_name(3), "(9000 of 9000, the first 500 shown)", 500],
        [20000, 16000, host_name(3), "(20000 of 20000, the first 500 shown)", 500],
    ]


def test_the_list_of_verdicts_leaves_those_that_fit(page: Path) -> None:
    script = """
        for (const verdict of byId("verdict").options) {
            byId("verdict").value = verdict.value;
            byId("verdict").dispatchEvent(new Event("input"));
            told.push([verdict.value, [...document.querySelectorAll("td.hosts")].map((cell) => Number(cell.textContent.slice(-5)))]);
        }"""
    everybody = list(range(1, COUNT + 2))
    assert dict(told_by(page, script)) == {
        "": everybody, "failing": [3, 13], "fail": [3, 13], "warn": [5], "unknown": [],
        "ok": [number for number in everybody if number not in (3, 5, 13)], "odd": [3, 4, 5],
    }  # fmt: skip


def test_a_filter_that_is_no_escape_leaves_the_page_whole(page: Path) -> None:
    assert f"(0 of {COUNT + 1})" in browse(page, "--dump-dom", words="50%")


def test_nothing_of_a_snapshot_is_executed(page: Path) -> None:
    dom = browse(page, "--dump-dom")
    assert "<title>ddpdoctor fleet</title>" in dom
    assert "<img" not in re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)
    assert len(re.findall(r"<script", dom)) == 2
    assert "\\u003c/script" in page.read_text()


def test_the_page_names_no_other_address(page: Path) -> None:
    shell = re.sub(r'<script type="application/json".*?</script>', "", page.read_text(), flags=re.DOTALL)
    assert re.findall(r"https?:|//[a-z]|url\(|@import|src=|href=", shell) == []
    assert "default-src 'none'" in shell


def test_a_picture_has_the_colours_of_the_heat_map(page: Path) -> None:
    picture = page.parent / "fleet.png"
    browse(page, f"--screenshot={picture}", "--window-size=1100,1400")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert picture.stat().st_size > 20_000
