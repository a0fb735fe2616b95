"""fix-checkpoint and check on checkpoints written from the GPU."""

from __future__ import annotations

import hashlib

from tests.gpu.kit import Kit, part

WRITE = """
import sys
device = sys.argv[1]
if device == "cpu":  # A rehearsal: it writes as a GPU's process would.
    torch.serialization.location_tag = lambda storage: "cuda:0"
model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300)).to(device)
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler("cuda", enabled=device != "cpu")
model(torch.ones(4, 300, device=device)).sum().backward()
optimizer.step()
ddp = {"module." + name: value for name, value in model.state_dict().items()}
torch.save({"model": ddp, "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(), "step": 7,
            "half": torch.ones(5, dtype=torch.bfloat16, device=device)}, "last.ckpt")
torch.save(model, "whole.pt")
print("null")
"""
READ = """
import sys
loaded = torch.load(sys.argv[1], weights_only=True, map_location=sys.argv[2] or None)
digest = __import__("hashlib").sha256()
devices = set()
def walk(value):
    if isinstance(value, torch.Tensor):
        devices.add(str(value.device))
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.dim() else
                      repr(value.item()).encode())
    elif isinstance(value, dict):
        for key in value: walk(value[key])
    elif isinstance(value, (list, tuple)):
        for one in value: walk(one)
walk(loaded)
print(json.dumps([digest.hexdigest(), sorted(devices)]))
"""


@part(
    "checkpoint",
    "a checkpoint from the GPU is unpinned, loads without a GPU bit by bit, and the undo brings it back",
    20,
    beside=True,
)
def checkpoint(kit: Kit) -> None:
    on_gpu = "cuda:0" if not kit.machine.rehearsal else "cpu"
    kit.asked_of_torch(f"import sys\nsys.argv = ['-', {on_gpu!r}]\n{WRITE}")
    path = kit.folder / "last.ckpt"
    original = hashlib.sha256(path.read_bytes()).hexdigest()
    read = f"import sys\nsys.argv = ['-', {str(path)!r}, '']\n{READ}"
    mapped = read.replace("''", "'cpu'") if kit.machine.rehearsal else read
    digest, devices = kit.asked_of_torch(mapped)
    kit.saw("devices before", devices)
    ran = kit.ddpdoctor("fix-checkpoint", path)
    kit.keep("fix-checkpoint.txt", ran.stdout)
    kit.hold(ran.code == 0, f"fix-checkpoint ended with exit code {ran.code}")
    again, after = kit.asked_of_torch(read, CUDA_VISIBLE_DEVICES="")
    kit.saw("devices after, without a GPU", after)
    kit.hold(after == ["cpu"], f"after the fix there are tensors on {after}")
    kit.hold(again == digest, "the numbers are others than before")
    # Adam's numbers of steps are on the CPU from the beginning.
    kit.hold(kit.machine.rehearsal or "cuda:0" in devices, f"before the fix the tensors were on {devices}")
    kit.hold(kit.ddpdoctor("fix-checkpoint", "--undo", path).code == 0, "--undo failed")
    kit.hold(hashlib.sha256(path.read_bytes()).hexdigest() == original, "--undo brought back other bytes")


@part(
    "checkpoint-pinned",
    "check names a checkpoint that is pinned to the GPU, and a whole model in a file",
    10,
    beside=True,
)
def checkpoint_pinned(kit: Kit) -> None:
    kit.asked_of_torch(f"import sys\nsys.argv = ['-', '{'cpu' if kit.machine.rehearsal else 'cuda:0'}']\n{WRITE}")
    report = kit.report(
        "check", "--quick", "--checkpoint", kit.folder / "last.ckpt", "--checkpoint", kit.folder / "whole.pt"
    )
    found = [f"{finding['severity']}: {finding['slug']}: {finding['summary']}" for finding in report["findings"]]
    kit.saw("findings", found)
    named = {finding["slug"] for finding in report["findings"]}
    kit.hold("ckpt-whole-module" in named, "a pickled model is not named")
    if kit.machine.rehearsal:
        kit.hold("ckpt-device-pin" in named, "the pins are not named where there is no such GPU")
        return
    # Here cuda:0 is there; with no GPU to be seen it isn't.
    report = kit.report("check", "--quick", "--checkpoint", kit.folder / "last.ckpt", CUDA_VISIBLE_DEVICES="")
    kit.saw("findings without a GPU", without := sorted(finding["slug"] for finding in report["findings"]))
    kit.compare("the pins are named where no GPU is to be seen", True, "ckpt-device-pin" in without)
