"""A new file, killed at every call that changes something on the disk: it is there whole, or not at all."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from ddpdoctor.checkpoints.writing.new_file import hidden_name

CALLS = ("pwrite64", "copy_file_range", "ftruncate", "fchmod", "utimensat", "renameat2", "link", "unlink")
SCRIPT = textwrap.dedent("""
    import sys
    from pathlib import Path
    from ddpdoctor.checkpoints.formats.opening import open_layout
    from ddpdoctor.checkpoints.writing.copying import write_copy
    from ddpdoctor.checkpoints.writing.rebuilding import rebuild

    how, path, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    with open_layout(path, "zip") as layout:
        new = {"data.pkl": layout.pickles()["data.pkl"][:-1] + b"q\\xff."}
        if how == "copy":
            write_copy(path, layout.change(new), out, lambda done, total: None)
        else:
            rebuild(layout, new, None, out, lambda done, total: None)
""")


@pytest.mark.tool("strace")
@pytest.mark.parametrize("how", ["copy", "rebuild"])
def test_killed_at_every_call(how: str, tmp_path: Path) -> None:
    path, out, log = tmp_path / "model.pt", tmp_path / "new.pt", tmp_path / "log"
    torch.save({"weight": torch.arange(100_000.0), "bias": torch.ones(3)}, path)
    original = path.read_bytes()
    command = [sys.executable, "-c", SCRIPT, how, str(path), str(out)]
    traced = ["strace", "-f", "-qq", "-o", str(log)]
    subprocess.run([*traced, "-e", f"trace={','.join(CALLS)}", *command], check=True)
    expected = out.read_bytes()
    out.unlink()
    names = [name for line in log.read_text().splitlines() if (name := line.split()[1].partition("(")[0]) in CALLS]
    assert {"pwrite64", "copy_file_range", "fchmod", "utimensat", "renameat2"} <= set(names)
    for name in CALLS:
        for number in range(1, names.count(name) + 1):
            kill = f"inject={name}:signal=KILL:when={number}"
            done = subprocess.run([*traced, "-e", f"trace={name}", "-e", kill, *command])
            assert done.returncode in (-9, 137), (name, number)
            assert path.read_bytes() == original
            if out.exists():
                assert out.read_bytes() == expected, (name, number)
                out.unlink()
            else:
                assert hidden_name(out).exists(), (name, number)
    # The next run doesn't stumble over what the killed ones left.
    subprocess.run(command, check=True)
    assert out.read_bytes() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "model.pt", "new.pt"]
