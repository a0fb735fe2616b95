"""Over made-up hosts with made-up /dev/shm: no file that somebody may still want is ever proven to be left over, and what the dead
left there is. The maker of each file knows what it made; of names, modes and pids the judgement here knows nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final
from unittest import mock

import msgspec
import pytest

from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.probes import segment_users, shared_memory
from ddpdoctor.probes.context import INITIAL_PID_NAMESPACE, Context
from ddpdoctor.processes.leftovers.all_kinds import leftovers_of
from tests.support.process_trees import Host
from tests.support.segments import make, nccl_name

OWNER: Final = os.geteuid()
SOMEBODY: Final = 4242
KTHREAD: Final = 0x00200040


class World:
    """A tree with /proc and /dev/shm. dead: names of what is left over for certain."""

    def __init__(self, root: Path, random: Random, namespace: str = INITIAL_PID_NAMESPACE) -> None:
        self.root = root
        self.random = random
        self.namespace = namespace
        self.me = OWNER
        self.dead: set[str] = set()
        self.closed: set[str] = set()
        self._pids = iter(random.sample(range(300, 4_000_000), 60))
        (root / "dev/shm").mkdir(parents=True)
        (root / "proc/self/ns").mkdir(parents=True)
        (root / "proc/self/ns/pid").symlink_to(namespace)
        self.process(1)
        self.process(2, flags=KTHREAD)

    def process(
        self,
        pid: int = 0,
        *,
        maps: Path | None = None,
        opened: Path | None = None,
        state: str = "S",
        flags: int = 0x400000,
        inner: int = 0,
        command: str = "python",
        task: str = "",
    ) -> int:
        """inner: its pid in a container. task: another thread has this, the first one has ended."""
        pid = pid or next(self._pids)
        place = self.root / "proc" / str(pid)
        place.mkdir(exist_ok=True)
        threads = 2 if task else 1
        fields = [state, "1", "1", "1", "0", "-1", str(flags), *("0" * 10), str(threads), "0", "100"]
        (place / "stat").write_text(f"{pid} (a b) c) {' '.join(fields)}\n")
        (place / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}" + (f"\t{inner}" if inner else "") + "\n")
        (place / "cmdline").write_text(f"{command}\0")
        where = place / "task" / task if task else place
        (where / "fd").mkdir(parents=True)
        if task:
            (place / "task" / str(pid) / "fd").mkdir(parents=True)
            for one in (place, place / "task" / str(pid)):
                (one / "maps").write_text("")
        lines = ["00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/python\n"]
        if maps:
            status = maps.stat()
            device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
            lines.append(f"7f00-7f01 rw-s 00000000 {device} {status.st_ino}     /elsewhere/{maps.name}\n")
        (where / "maps").write_text("".join(lines))
        if opened:
            (where / "fd/3").symlink_to(opened)
        (where / "fd/1").symlink_to("/dev/null")
        return pid

    def file(self, name: str, mode: int = 0o600) -> Path:
        return make(self.root / "dev/shm" / name, mode=mode)

    def unseen_pid(self) -> int:
        return next(self._pids)

    def proven(self) -> set[str]:
        """By the tool."""

        def readable(task: Path) -> set[segment_users.Inode]:
            if task.relative_to(self.root / "proc").parts[0] in self.closed:
                raise PermissionError(13, "Permission denied")
            return _MAPPED(task)

        with (
            mock.patch.object(shared_memory, "SETTLED_SECONDS", -1.0),
            mock.patch.object(segment_users, "_mapped", readable),
            mock.patch.object(os, "geteuid", return_value=self.me),
        ):
            found = shared_memory.probe(Context("python", root=self.root))
        assert isinstance(found, SharedMemory)
        processes, gpus = Host(self.random).facts()
        processes = msgspec.structs.replace(processes, uid=self.me)
        return {Path(one.path).name for one in leftovers_of(processes, gpus, found) if one.path and one.proven}


_MAPPED: Final = segment_users._mapped


def torch_name(world: World, pid: int) -> str:
    return f"torch_{pid}_{world.random.randrange(10**6, 2**32)}_{world.random.randrange(40)}"


def drawn(world: World) -> str:
    return world.random.choice((nccl_name(world.random), torch_name(world, world.unseen_pid())))


def left_by_nccl(world: World) -> None:
    world.dead.add(world.file(nccl_name(world.random)).name)


def left_by_torch(world: World) -> None:
    world.dead.add(world.file(torch_name(world, world.unseen_pid())).name)


def left_while_another_maps_its_own(world: World) -> None:
    left_by_nccl(world)
    world.process(maps=world.file(nccl_name(world.random)))


def left_beside_one_that_nobody_collects(world: World) -> None:
    """Who has ended has nothing, whoever may look into it."""
    world.closed.add(str(pid := world.process(state="Z")))
    (world.root / f"proc/{pid}/maps").unlink()
    left_by_nccl(world)


def somebodys_file(world: World) -> None:
    names = (
        "torch_cache.pt",
        "nccl-topo.xml",
        "torch_2024_11_22",
        "nccl-config",
        "nccl-3XkQz1.bak",
        "psm_table",
        "sem.mp-lock",
    )
    world.file(world.random.choice(names), world.random.choice((0o600, 0o644)))


def named_like_ours_by_chance(world: World) -> None:
    """Made as one makes a file."""
    world.file(drawn(world), world.random.choice((0o644, 0o664, 0o640, 0o700)))


def kept_by_a_second_name(world: World) -> None:
    os.link(world.file(drawn(world)), world.root / f"kept-{world.unseen_pid()}")


def mapped(world: World) -> None:
    world.process(maps=world.file(drawn(world)))


def opened(world: World) -> None:
    world.process(opened=world.file(drawn(world)))


def opened_by_another_path(world: World) -> None:
    (world.root / "elsewhere").mkdir(exist_ok=True)
    path = world.file(drawn(world))
    link = world.root / "elsewhere" / path.name
    link.symlink_to(path)
    world.process(opened=link)


def mapped_by_a_thread_that_outlived_the_first(world: World) -> None:
    path = world.file(drawn(world))
    world.process(maps=path, state="Z", task=str(world.unseen_pid()))


def maybe_mapped_by_one_that_is_closed_to_us(world: World) -> None:
    world.closed.add(str(world.process(maps=world.file(drawn(world)))))


def made_by_one_that_lives(world: World) -> None:
    world.file(torch_name(world, world.process()))


def made_in_a_container_that_shares_the_folder(world: World) -> None:
    inner = world.random.randrange(1, 200)
    world.process(inner=inner)
    world.file(torch_name(world, inner))


def kept_by_torchs_manager(world: World) -> None:
    """For whoever is to come, after its maker has gone."""
    world.process(command="torch_shm_manager")
    world.file(torch_name(world, world.unseen_pid()))


def pythons(world: World) -> None:
    """Meant to stay, as far as anybody can tell."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789_"
    world.file(f"psm_{world.random.getrandbits(32):08x}")
    world.file("sem.mp-" + "".join(world.random.choices(letters, k=8)))


Story = Callable[[World], None]

DEAD: tuple[Story, ...] = (
    left_by_nccl,
    left_by_torch,
    left_while_another_maps_its_own,
    left_beside_one_that_nobody_collects,
)
INNOCENT: tuple[Story, ...] = (
    somebodys_file,
    named_like_ours_by_chance,
    kept_by_a_second_name,
    mapped,
    opened,
    opened_by_another_path,
    mapped_by_a_thread_that_outlived_the_first,
    maybe_mapped_by_one_that_is_closed_to_us,
    made_by_one_that_lives,
    made_in_a_container_that_shares_the_folder,
    kept_by_torchs_manager,
    pythons,
)


def made_up(root: Path, seed: int) -> tuple[World, bool, bool]:
    """A world, whether it hides something from who looks, and whether all that is left over there is known to be."""
    random = Random(seed)
    contained = random.random() < 0.1
    world = World(root, random, "pid:[4026532618]" if contained else INITIAL_PID_NAMESPACE)
    stories = random.sample(INNOCENT, random.randint(0, 4)) + random.choices(DEAD, k=random.randint(0, 2))
    random.shuffle(stories)
    for tell in stories:
        tell(world)
    hidden = random.random() < 0.1
    if hidden:
        (world.root / "proc/1").rename(world.root / "init")
    if random.random() < 0.1:
        world.me = SOMEBODY
    hides = contained or hidden or world.me != OWNER or maybe_mapped_by_one_that_is_closed_to_us in stories
    return world, hides, not hides and kept_by_torchs_manager not in stories


def judge(root: Path, seeds: range) -> None:
    clear = 0
    for seed in seeds:
        world, hides, known = made_up(root / str(seed), seed)
        found = world.proven()
        assert found <= (set() if hides else world.dead), f"seed {seed}"
        if known:
            clear += bool(world.dead)
            assert found == world.dead, f"seed {seed}"
    assert clear > len(seeds) / 10


def test_nothing_innocent_in_made_up_folders(tmp_path: Path) -> None:
    judge(tmp_path, range(150))


@pytest.mark.thorough
def test_nothing_innocent_in_many_made_up_folders(tmp_path: Path) -> None:
    judge(tmp_path, range(150, 3_000))


@pytest.mark.parametrize("tell", INNOCENT)
def test_each_innocent_by_itself(tell: Story, tmp_path: Path) -> None:
    for seed in range(8):
        world = World(tmp_path / str(seed), Random(seed))
        tell(world)
        assert not world.dead
        assert not world.proven(), f"seed {seed}"


@pytest.mark.parametrize("tell", DEAD)
def test_each_dead_by_itself(tell: Story, tmp_path: Path) -> None:
    for seed in range(8):
        world = World(tmp_path / str(seed), Random(seed))
        tell(world)
        assert world.dead
        assert world.proven() == world.dead, f"seed {seed}"
