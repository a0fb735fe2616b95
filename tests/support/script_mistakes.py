"""Mistakes of scripts for the closed loop: each script, what is to be seen of it on two ranks, and how its advice is carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from tests.support.script_ranks import Ran

NO_PORT: Final = "{port}"
"""In a script: a port at which nobody listens."""
STAND_INS: Final = {
    "waiting.py": """
import os, time
from pathlib import Path

def wait_for(name, count=1):
    until = time.monotonic() + float(os.environ["OTHERS_SECONDS"])
    while time.monotonic() < until and len(list(Path().glob(name))) < count:
        time.sleep(0.01)
""",
    "wandb.py": "def init(project):\n    print('opened a run')\n",
    "torchvision/__init__.py": "",
    "torchvision/datasets.py": """
import os
from pathlib import Path

from waiting import wait_for

def MNIST(root, download):
    if not Path(root).exists():
        print("fetches it")
        Path(f"{os.getpid()}.part").touch()
        # A download takes long: the other rank begins its own meanwhile.
        wait_for("*.part", 2)
        Path(root).mkdir(exist_ok=True)
""",
}
"""Libraries of which a stand-in tells what they are asked for, and a wait for what another rank leaves in the folder."""

HEAD: Final = """\
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ["PATIENCE"])))
rank = dist.get_rank()
dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
"""
NUMBERS: Final = 16
"""In the data set of a script."""
LOCAL_RANK_OPTION: Final = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
torch.cuda.set_device(parser.parse_args().local_rank)
"""
WITH_ACCELERATE: Final = """\
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
"""
LONG_WAITS: Final = MappingProxyType({"PATIENCE": "600"})
OTHERS_COME: Final = MappingProxyType({**LONG_WAITS, "OTHERS_SECONDS": "600"})
NOBODY_COMES: Final = MappingProxyType({**LONG_WAITS, "OTHERS_SECONDS": "0.1"})
"""So long a rank waits for what another one does only in the sick script."""
ALONE_ON_NODE: Final = MappingProxyType({**LONG_WAITS, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
SHORT_WAITS: Final = MappingProxyType({"PATIENCE": "2"})
"""So long a collective of the sick script waits: what hangs is ended by that, as in a real job half an hour later."""


class Mistake(NamedTuple):
    """A script with a mistake.

    Args:
        slug: of it.
        seen: what happens, in words.
        script: behind `HEAD`, unless it has a head of its own.
        shows: what is to be seen of the sick script, and not of the healed one.
        mended: texts of the script, and what stands in their place afterwards; {0}, {1} are the lines of the fix, {fix} all of them.
            Empty: `lint --fix` mends it.
        advice: beginning of the fix, where it gives no code that is used.
        is_told: the diagnosis of the sick run's words names the line.
        head: of the script.
        name: where a slug has several.
        arguments: of the script.
        environ: of the sick script.
        environ_later: of the healed one.
        gpus: that the stand-in has.
    """

    slug: str
    seen: str
    script: str
    shows: Callable[[Ran], bool]
    mended: tuple[tuple[str, str], ...] = ()
    advice: str = ""
    is_told: bool = False
    head: str = HEAD
    name: str = ""
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = LONG_WAITS
    environ_later: Mapping[str, str] = LONG_WAITS
    gpus: int = 0

    @property
    def remedy(self) -> str:
        """What mends it, in words."""
        if self.mended:
            return f'"{self.advice}"' if self.advice else "the code of the fix"
        return "`lint --fix`"


def fails_with(words: str) -> Callable[[Ran], bool]:
    """Whether a rank ends with these words."""
    return lambda ran: any(code > 0 and words in said for code, said in zip(ran.codes, ran.words, strict=True))


def says(*lines: str) -> Callable[[Ran], bool]:
    """Whether that is all that the ranks print, in any order."""
    return lambda ran: sorted("".join(ran.said).splitlines()) == sorted(lines)


def ranks_say_the_same(ran: Ran) -> bool:
    first, second = ran.said
    return bool(first) and first == second


def epochs_are_the_same(ran: Ran) -> bool:
    return all(len({line.partition(":")[2] for line in said.splitlines()}) == 1 for said in ran.said)


def some_are_left_out(ran: Ran) -> bool:
    """Whether the ranks together have seen fewer than all numbers, of which they print theirs."""
    seen = [number for said in ran.said for number in said.strip("[]\n ").split(", ")]
    return len(set(seen)) < NUMBERS


MISTAKES: Final = (
    Mistake(
        "sampler-without-set-epoch",
        "each epoch has the same order",
        """
model = DistributedDataParallel(torch.nn.Linear(1, 1))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=4, sampler=sampler)
for epoch in range(2):
    order = []
    for (batch,) in loader:
        order += batch.flatten().tolist()
        model(batch).sum().backward()
    print(f"{epoch}: {order}")
""",
        epochs_are_the_same,
    ),
    Mistake(
        "shuffle-with-sampler",
        '"ValueError: sampler option is mutually exclusive with shuffle"',
        """
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=4, shuffle=True, sampler=sampler)
""",
        fails_with("ValueError: sampler option is mutually exclusive with shuffle"),
        is_told=True,
    ),
    Mistake(
        "loader-without-sampler",
        "both ranks train on all of the data",
        """
model = DistributedDataParallel(torch.nn.Linear(1, 1))
loader = DataLoader(dataset, batch_size=4, shuffle=True)
for epoch in range(1):
    numbers = []
    for (batch,) in loader:
        numbers += batch.flatten().tolist()
        model(batch).sum().backward()
    print(sorted(numbers))
""",
        ranks_say_the_same,
        mended=(
            ("loader = DataLoader(dataset, batch_size=4, shuffle=True)", "{0}\n{1}"),
            ("    numbers = []", "    {2}\n    numbers = []"),
        ),
    ),
    Mistake(
        "data-sharded-twice",
        "of 16 samples the ranks see 8",
        """
accelerator = Accelerator(cpu=True)
dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
sampler = DistributedSampler(dataset, accelerator.num_processes, accelerator.process_index)
loader = DataLoader(dataset, batch_size=2, sampler=sampler)
model, loader = accelerator.prepare(torch.nn.Linear(1, 1), loader)
numbers = []
for (batch,) in loader:
    numbers += batch.flatten().tolist()
    accelerator.backward(model(batch).sum())
print(sorted(numbers))
""",
        some_are_left_out,
        mended=(("loader = DataLoader(dataset, batch_size=2, sampler=sampler)", "{fix}"),),
        head=WITH_ACCELERATE,
    ),
    Mistake(
        "sampler-seed-per-rank",
        "some samples are seen by both ranks, others by none",
        """
model = DistributedDataParallel(torch.nn.Linear(1, 1))
sampler = DistributedSampler(dataset, seed=rank)
loader = DataLoader(dataset, batch_size=4, sampler=sampler)
for epoch in range(1):
    sampler.set_epoch(epoch)
    numbers = []
    for (batch,) in loader:
        numbers += batch.flatten().tolist()
        model(batch).sum().backward()
    print(sorted(numbers))
""",
        some_are_left_out,
        mended=(("sampler = DistributedSampler(dataset, seed=rank)", "{fix}"),),
    ),
    Mistake(
        "collective-on-some-ranks",
        "rank 0 waits in `all_reduce` until the timeout of its group",
        """
model = DistributedDataParallel(torch.nn.Linear(1, 1))
for step in range(2):
    loss = model(torch.ones(4, 1)).sum()
    loss.backward()
    if rank == 0:
        dist.all_reduce(loss.detach())
""",
        fails_with("Timed out waiting"),
        mended=(("    if rank == 0:\n        dist.all_reduce(loss.detach())", "    {fix}"),),
        is_told=True,
        environ=SHORT_WAITS,
    ),
    Mistake(
        "collective-on-some-ranks",
        "rank 0 leaves, and rank 1 loses it in `backward`",
        """
model = DistributedDataParallel(torch.nn.Linear(1, 1))
for step in range(3):
    loss = model(torch.ones(4, 1)).sum()
    loss.backward()
    if rank == 0:
        if step == 1:
            break
""",
        fails_with("by peer"),
        mended=(
            ("    if rank == 0:\n", "    {1}\n    if rank == 0:\n"),
            ("            break", "            {3}\n    {5}\n    {6}\n    {7}"),
        ),
        name="leaving the loop",
    ),
    Mistake(
        "collective-on-some-ranks",
        "rank 0 waits in the `all_reduce` of a function until rank 1 is gone",
        """
def total(values):
    dist.all_reduce(values)
    return values.item()


if rank == 0:
    print(total(torch.ones(1)))
""",
        fails_with("by peer"),
        mended=(
            ("if rank == 0:\n    print(", "value = total(torch.ones(1))\nif rank == 0:\n    print("),
            ("    print(total(torch.ones(1)))", "    print(value)"),
        ),
        advice="The collective is in a function: call that on every rank",
        name="in a function",
    ),
    Mistake(
        "save-by-every-rank",
        'rank 0 reads what rank 1 is writing anew: "EOFError"',
        """
from collections import OrderedDict
from pathlib import Path
from signal import pause

from waiting import wait_for


class Metrics:
    def __reduce__(self):
        if rank == 1:
            # As one that is slow: its file is open, and nothing is in it yet.
            Path("rank-1-saves").touch()
            pause()
        return OrderedDict, ()


state = {"weights": torch.randn(4), "metrics": Metrics()}
if rank == 1:
    wait_for("rank-0-has-saved")
torch.save(state, "last.pt")
if rank == 0:
    Path("rank-0-has-saved").touch()
    wait_for("rank-1-saves")
    torch.load("last.pt", map_location="cpu")
""",
        fails_with("EOFError"),
        mended=(('torch.save(state, "last.pt")', "{fix}"),),
        is_told=True,
        environ=OTHERS_COME,
        environ_later=NOBODY_COMES,
    ),
    Mistake(
        "load-without-map-location",
        '"Attempting to deserialize object on a CUDA device", on a host without one',
        """
model = torch.nn.Linear(1, 1)
if rank == 0:
    # As one that was saved on a GPU.
    torch.serialization.location_tag = lambda storage: "cuda:0"
    torch.save(model.state_dict(), "last.pt")
dist.barrier()
model.load_state_dict(torch.load("last.pt"))
model = DistributedDataParallel(model)
""",
        fails_with("Attempting to deserialize object on a CUDA device"),
        is_told=True,
    ),
    Mistake(
        "wrapper-in-checkpoint",
        '"Unexpected key(s) in state_dict: "module.weight""',
        """
model = DistributedDataParallel(torch.nn.Linear(1, 1))
if rank == 0:
    torch.save(model.state_dict(), "last.pt")
dist.barrier()
bare = torch.nn.Linear(1, 1)
bare.load_state_dict(torch.load("last.pt", map_location="cpu"))
model = DistributedDataParallel(bare)
""",
        fails_with('Unexpected key(s) in state_dict: "module.weight"'),
        mended=(("model.state_dict()", "{0}"),),
        is_told=True,
    ),
    Mistake(
        "changed-after-ddp",
        '"Expected to have finished reduction in the prior iteration"',
        """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = torch.nn.Linear(1, 2), torch.nn.Linear(2, 1)

    def forward(self, batch):
        return self.head(self.stem(batch)).sum()


model = DistributedDataParallel(Net())
model.module.stem.requires_grad_(False)
for step in range(3):
    model(torch.ones(4, 1)).backward()
""",
        fails_with("Expected to have finished reduction in the prior iteration"),
        mended=(
            ("model = DistributedDataParallel(Net())\nmodel.module.stem", "model = Net()\nmodel.stem"),
            ("(False)\n", "(False)\nmodel = DistributedDataParallel(model)\n"),
        ),
        advice="Call requires_grad_ on the bare model, and wrap it then",
        is_told=True,
    ),
    Mistake(
        "download-by-every-rank",
        "both ranks fetch the data set (a stand-in of torchvision)",
        """
from torchvision.datasets import MNIST

local_rank = int(os.environ["LOCAL_RANK"])
data = MNIST("data", download=True)
""",
        says("fetches it", "fetches it"),
        mended=(('data = MNIST("data", download=True)', "{fix}"),),
        environ=OTHERS_COME,
        environ_later=NOBODY_COMES,
    ),
    Mistake(
        "logger-on-every-rank",
        "both ranks open a run (a stand-in of wandb)",
        """
import wandb

wandb.init(project="demo")
""",
        says("opened a run", "opened a run"),
        mended=(('wandb.init(project="demo")', "{fix}"),),
    ),
    Mistake(
        "local-rank-argument-only",
        "both ranks ask for GPU 0 (a stand-in of `torch.cuda`)",
        LOCAL_RANK_OPTION,
        says("chooses cuda:0", "chooses cuda:0"),
        gpus=2,
    ),
    Mistake(
        "local-rank-argument-only",
        '"unrecognized arguments: --local-rank=0"',
        LOCAL_RANK_OPTION,
        fails_with("error: unrecognized arguments: --local-rank="),
        mended=(('parser.add_argument("--local_rank", type=int, default=0)', "{fix}"),),
        name="under torch.distributed.launch",
        arguments=("--local-rank={rank}",),
        gpus=2,
    ),
    Mistake(
        "rank-as-device",
        'rank 1 asks for GPU 1 of a node that has one: "invalid device ordinal" (a stand-in of `torch.cuda`)',
        "torch.cuda.set_device(rank)\n",
        fails_with("CUDA error: invalid device ordinal"),
        mended=(("torch.cuda.set_device(rank)", "{fix}"),),
        is_told=True,
        name="two nodes with a GPU each",
        environ=ALONE_ON_NODE,
        environ_later=ALONE_ON_NODE,
        gpus=1,
    ),
    Mistake(
        "device-not-set",
        "the models of both ranks are on GPU 0 (a stand-in of `torch.cuda`)",
        "model = DistributedDataParallel(torch.nn.Linear(1, 1).cuda())\n",
        says("is on cuda:0", "is on cuda:0"),
        mended=(("model = ", "{fix}\nmodel = "),),
        gpus=2,
    ),
    Mistake(
        "rendezvous-overwritten",
        '"client socket has timed out"',
        """
os.environ["MASTER_PORT"] = "{port}"
local_rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ["PATIENCE"])))
""",
        fails_with("client socket has timed out"),
        mended=(('os.environ["MASTER_PORT"] = "{port}"', "{fix}"),),
        is_told=True,
        head="import os\nfrom datetime import timedelta\n\nimport torch.distributed as dist\n",
        environ=SHORT_WAITS,
    ),
    Mistake(
        "accumulation-without-no-sync",
        "three averagings over the ranks for one step",
        """
import contextlib

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


class Net(torch.nn.Linear):
    def forward(self, batch):
        return super().forward(batch).sum()


def averaged(state, bucket):
    print("averaged")
    return allreduce_hook(state, bucket)


batch = torch.ones(4, 1)
model = DistributedDataParallel(Net(1, 1))
model.register_comm_hook(None, averaged)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1):
    for micro_step in range(3):
        loss = model(batch)
        loss.backward()
    optimizer.step()
""",
        says(*["averaged"] * 6),
        mended=(("        loss = model(batch)\n        loss.backward()", "        {fix}"),),
    ),
    Mistake(
        "same-seed-for-workers",
        "the workers of both ranks draw the same numbers",
        """
class Augmented(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(1)


data = Augmented()
model = DistributedDataParallel(torch.nn.Linear(1, 1))
generator = torch.Generator()
generator.manual_seed(0)
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), num_workers=1, generator=generator)
for batch in loader:
    print(batch.flatten().tolist())
    model(batch).sum().backward()
""",
        ranks_say_the_same,
        mended=(("generator.manual_seed(0)", "{fix}"),),
    ),
)

NOT_MADE: Final = {
    "backend-for-device": "nothing goes wrong but time, and that on GPUs alone",
}
"""Mistakes that two ranks without GPUs can't make, and why."""


def table() -> str:
    """A row a mistake, for docs/accuracy.md."""
    rows = ["| mistake | on two ranks | mended by |", "|---|---|---|"]
    for mistake in MISTAKES:
        name = f"`{mistake.slug}`" + (f", {mistake.name}" if mistake.name else "")
        rows.append(f"| {name} | {mistake.seen} | {mistake.remedy} |")
    rows += [f"| `{slug}` | not made here: {why} | |" for slug, why in NOT_MADE.items()]
    return "\n".join(rows)
