"""Made-up hosts full of processes, and which of these are innocent: told by who made them up, not by who judges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.gpus import Gpu, GpuHolder, Gpus
from ddpdoctor.facts.hang import Frame
from ddpdoctor.facts.processes import Process, Processes, ProcessIdentity, ProcessRole, RankPlace, ThreadActivity

ME, SOMEBODY = 1000, 1001
OWN_NAMESPACE = "pid:[4026531836]"
WATCHED = 0.5
TICKS = 100
UPTIME = 1_000_000
"""Seconds since boot at which the host is looked at."""
RANK_MARKS = ("pt_gloo_runloop", "gloo_tcp_loop")
C10D = "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
TORCH = "/opt/lib/python3.11/site-packages/torch"
MAIN = Frame("<module>", "/home/ann/train.py", 40)
"""What a rank was called from."""
COLLECTIVES = (
    (Frame("all_reduce", C10D, 3252), Frame("wrapper", f"{TORCH}/distributed/c10d_logger.py", 83), MAIN),
    (Frame("barrier", C10D, 5100), Frame("wrapper", f"{TORCH}/distributed/c10d_logger.py", 83), MAIN),
    (Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 869), Frame("backward", f"{TORCH}/_tensor.py", 630), MAIN),
)  # fmt: skip
ELSEWHERE = (
    (MAIN,),  # time.sleep, accept, recv: what is written in C is not told.
    (Frame("rollouts", "/home/ann/train.py", 12), MAIN),
    (Frame("readinto", "/usr/lib/python3.11/socket.py", 706), Frame("_read_status", "/usr/lib/python3.11/http/client.py", 286), MAIN),
    (Frame("write", "/home/ann/store.py", 7), Frame("_save", f"{TORCH}/serialization.py", 1200), Frame("save", f"{TORCH}/serialization.py", 960), MAIN),
    (Frame("load", f"{TORCH}/serialization.py", 1500), MAIN),
    (Frame("recv", C10D, 2400), MAIN),
    (Frame("rendezvous", f"{TORCH}/distributed/rendezvous.py", 278), Frame("init_process_group", C10D, 1760), MAIN),
    (Frame("destroy_process_group", C10D, 2200), MAIN),
    (Frame("hook", "/home/ann/train.py", 20), *COLLECTIVES[2]),
    (),
)  # fmt: skip
"""Where a rank may go on by itself, however quiet it is."""


class Host:
    """Being filled. innocent, dead: what must not be ended, and what is left over indeed."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.processes: list[Process] = []
        self.holders: dict[int, list[GpuHolder]] = {index: [] for index in range(4)}
        self.utilisation: dict[int, int] = dict.fromkeys(range(4), 0)
        self.mps: set[int] = set()
        self.dead: set[ProcessIdentity] = set()
        self.clear: set[ProcessIdentity] = set()
        """Of the dead those that nothing hides."""
        self.named: set[ProcessIdentity] = set()
        """What may be left over, and must not be passed over in silence."""
        self.namespace = OWN_NAMESPACE
        self.container = ""
        self.unseen = ""
        self._free = list(range(300, 4000))
        dice.shuffle(self._free)
        self.init = self._first()
        shell = self.add(name="bash", parent=self.init.pid, age=50_000.0, terminal=True)
        self.add(name="ddpdoctor", parent=shell.pid, age=1.0, ours=True)

    def _first(self) -> Process:
        name, path, parent = self.dice.choice(
            [("systemd", "/usr/lib/systemd/systemd", 1), ("tini", "/sbin/tini", 1), ("process_api", "/process_api", 1)]
        )
        made = self.add(pid=1, name=name, executable=path, uid=0, parent=0, age=float(UPTIME))
        assert parent == made.pid
        return made

    def pid(self) -> int:
        return self._free.pop()

    def add(self, **facts: Any) -> Process:
        """One more process. By itself it is idle, the caller's, on this host, looked into, and a child of init."""
        age = facts.pop("age", float(self.dice.randint(60, 100_000)))
        pid = facts.pop("pid", 0) or self.pid()
        plain: dict[str, Any] = {
            "pid": pid,
            "start": facts.pop("start", None) or int((UPTIME - age) * TICKS) + self.dice.randint(1, 99),
            "parent": 1,
            "group": pid,
            "session": pid,
            "uid": ME,
            "user": "ann",
            "name": "python",
            "executable": "/usr/bin/python3.11",
            "age": age,
            "cpu_seconds": 100.0,
            "recent_cpu": 0.0,
            "recent_bytes": 0,
            "recent_switches": self.dice.randint(0, 2),
            "memory": 1 << 28,
            "settings": (),
            "devices": (),
            "listens": (),
            "shared_memory": (),
            "writes_to": (),
            "pid_namespace": self.namespace,
            "container": self.container,
        }
        made = Process(**{**plain, **facts})
        self.processes.append(made)
        return made

    def rank(self, number: int, count: int, *, local: int | None = None, elastic: bool = True, **facts: Any) -> Process:
        """One that waits in a collective for ever, unless `facts` tell of another stack."""
        local = count if local is None else local
        given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": str(count), "RANK": str(number)}
        given |= facts.pop("extra", {})
        if elastic:
            given |= {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"} | facts.pop(
                "elastic_extra", {}
            )
        settings = tuple(Setting(name, value) for name, value in given.items())
        place = RankPlace(
            rank=number, world_size=count, local_rank=number % local, local_world_size=local, source="RANK"
        )
        plain = {
            "role": ProcessRole.RANK,
            "place": place,
            "settings": settings,
            "marks": RANK_MARKS,
            **self.polling(),
            "stack": self.dice.choice(COLLECTIVES),
        }
        return self.add(**{**plain, "command": "python train.py", "threads": 5, **facts})

    def polling(self) -> dict[str, Any]:
        """What the threads of its process groups do while it waits: a loop of gloo's for each, perhaps NCCL's watchdogs beside
        them, and a few wake-ups of others."""
        loops, watchdogs = self.dice.choice([(1, 0), (1, 0), (3, 0), (8, 0), (1, 1), (1, 6)])
        threads = [
            *(
                ThreadActivity(name="gloo_tcp_loop", switches=self.dice.randint(45, 52), cpu=0.002)
                for _ in range(loops)
            ),
            *(ThreadActivity(name="pt_nccl_watchdg", switches=5, cpu=0.001) for _ in range(watchdogs)),
        ]
        rest = self.dice.randint(0, 2) + 2 * watchdogs
        return {
            "recent_threads": tuple(threads),
            "recent_switches": sum(thread.switches for thread in threads) + rest,
            "recent_cpu": round(sum(thread.cpu for thread in threads), 3),
        }

    def worker(self, **facts: Any) -> Process:
        return self.add(**{"role": ProcessRole.WORKER, "name": "pt_data_worker", "command": "python train.py", **facts})

    def hold(self, process: Process, gpu: int, kind: str = "compute") -> None:
        self.holders[gpu].append(GpuHolder(pid=process.pid, memory=1 << 30, kind=kind))
        self.change(process, devices=(gpu,))

    def change(self, process: Process, **facts: Any) -> Process:
        place = next(at for at, one in enumerate(self.processes) if one.identity == process.identity)
        self.processes[place] = msgspec.structs.replace(self.processes[place], **facts)
        return self.processes[place]

    def facts(self) -> tuple[Processes, Gpus]:
        devices = tuple(
            Gpu(
                index=index,
                memory_total=80 << 30,
                memory_used=sum(one.memory for one in held if isinstance(one.memory, int)),
                utilisation=self.utilisation[index],
                holders=tuple(held),
                mps_server=index in self.mps,
                mig_enabled=False,
            )
            for index, held in self.holders.items()
        )
        listed = tuple(sorted(self.processes, key=lambda one: one.pid))
        processes = Processes(
            listed=listed,
            count=len(listed),
            watched=WATCHED,
            cores=8,
            pid_namespace=self.namespace,
            uid=ME,
            unseen=self.unseen,
        )
        return processes, Gpus(devices=devices, vendor="nvidia")


Filler = Callable[[Host], None]


def _launcher(host: Host, **facts: Any) -> Process:
    return host.add(
        **{"role": ProcessRole.LAUNCHER, "name": "torchrun", "command": "torchrun train.py", "age": 5_000.0, **facts}
    )


def healthy_torchrun(host: Host) -> None:
    launcher = _launcher(host, parent=host.dice.choice([1, 1, host.processes[1].pid]))
    count = host.dice.randint(1, 4)
    for number in range(count):
        busy: dict[str, Any] = {"recent_cpu": 1.0, "state": "R"} if host.dice.random() < 0.5 else {}
        one = host.rank(number, count, parent=launcher.pid, age=4_000.0, **busy)
        host.worker(parent=one.pid, age=3_000.0, group=one.pid, session=one.pid)


def healthy_other_launcher(host: Host) -> None:
    name = host.dice.choice(["mpirun", "srun", "accelerate", "python", "slurmstepd"])
    launcher = _launcher(host, name=name, executable="/usr/bin/" + name)
    count = host.dice.randint(1, 4)
    for number in range(count):
        host.rank(
            number, count, elastic=False, parent=launcher.pid, age=4_000.0, group=launcher.pid, session=launcher.pid
        )


def by_hand(host: Host) -> None:
    """nohup python train.py &, and its shell is gone; perhaps with settings left over from a torchrun job."""
    stale = host.dice.random() < 0.5
    session = host.pid()
    count = host.dice.randint(1, 4)
    for number in range(count):
        host.rank(number, count, elastic=stale, group=host.pid(), session=session)


def waits_for_a_slow_peer(host: Host) -> None:
    """Its peer is on another host, and loads data for an hour."""
    count = 2 * host.dice.randint(1, 2)
    for number in range(count // 2):
        host.rank(number, count, local=count // 2, elastic=host.dice.random() < 0.7)


def by_hand_across_hosts(host: Host) -> None:
    """With setsid and the settings of an old torchrun job, whose sizes aren't true any more."""
    host.rank(0, 2, local=2, elastic_extra={"TORCHELASTIC_USE_AGENT_STORE": "False"}, listens=(29500,))


ALIVE: Sequence[dict[str, Any]] = (
    {"recent_cpu": 0.9},
    {"recent_cpu": 0.05},
    {"state": "R"},
    {"state": "D"},
    {"recent_bytes": 4096},
    {"recent_switches": 4000},
    {"recent_threads": (ThreadActivity(name="gloo_tcp_loop", switches=300),), "recent_switches": 300},
    {"recent_threads": (ThreadActivity(name="pt_nccl_watchdg", switches=5, cpu=0.1),), "recent_cpu": 0.1},
    {"recent_threads": (ThreadActivity(name="upload", switches=30),), "recent_switches": 30},
    {"writes_to": ("/data/checkpoints/step-1000.pt",)},
)


def orphaned_but_alive(host: Host) -> None:
    """torchrun was killed, and its ranks train on: one of them is seen at it, the others wait for it."""
    count = host.dice.randint(1, 4)
    alive = host.dice.randrange(count)
    for number in range(count):
        facts: dict[str, Any] = host.dice.choice(ALIVE) if number == alive else {}
        host.rank(number, count, **facts)


def orphaned_and_quiet(host: Host) -> None:
    """One of them sends its checkpoint to a slow store, waits for an answer, or sleeps; the others wait for it."""
    count = host.dice.randint(1, 4)
    quiet = host.dice.randrange(count)
    unread = Unknown(host.dice.choice(["py-spy isn't installed", "this user may not read its memory"]))
    for number in range(count):
        stack = host.dice.choice([*ELSEWHERE, unread]) if number == quiet else host.dice.choice(COLLECTIVES)
        host.rank(number, count, stack=stack, extra={"MASTER_PORT": "29600"})


def detached_server(host: Host) -> None:
    """Started by a rank of a torchrun that has ended since, with that rank's settings; it waits for those who ask."""
    host.rank(0, 1, listens=(8765,), command="python server.py", stack=(MAIN,), extra={"MASTER_PORT": "29700"})


def in_a_shell_of_torchruns(host: Host) -> None:
    """torchrun --no-python ./train.sh: the shell has more to do when its rank has ended."""
    number = host.dice.randrange(4)
    given = {"TORCHELASTIC_RUN_ID": "none", "RANK": str(number)}
    settings = tuple(Setting(name, value) for name, value in given.items())
    shell = host.add(name="bash", executable="/usr/bin/bash", settings=settings, age=60_000.0)
    host.rank(number, 4, parent=shell.pid, group=shell.pid, session=shell.pid, age=50_000.0)


def orphan_with_a_living_worker(host: Host) -> None:
    one = host.rank(0, 2)
    other = host.rank(1, 2)
    host.worker(parent=host.dice.choice([one, other]).pid, age=50.0, **host.dice.choice(ALIVE))


def kernels_run(host: Host) -> None:
    """It sleeps until its GPU has finished."""
    gpu = host.dice.randrange(4)
    host.utilisation[gpu] = host.dice.randint(1, 100)
    host.hold(host.rank(0, 1), gpu)


def attended(host: Host) -> None:
    facts: dict[str, Any] = host.dice.choice(
        [
            {"tracer": 4321},
            {"state": "t", "tracer": 4321},
            {"state": "T"},
            {"terminal": True},
            {"command": "python -m pdb train.py"},
            {"command": "python -m debugpy --listen 5678 train.py"},
        ]
    )
    if host.dice.random() < 0.5:
        host.rank(0, 1, **facts)
    else:
        host.worker(**facts)


def notebook(host: Host) -> None:
    command = "python -m ipykernel_launcher -f /run/kernel.json"
    parent = 1 if host.dice.random() < 0.5 else host.add(name="jupyter-lab", command="jupyter lab").pid
    role = host.dice.choice([ProcessRole.OTHER, ProcessRole.RANK])
    kernel = host.rank(0, 1, command=command, role=role, parent=parent, age=50.0)
    host.hold(kernel, host.dice.randrange(4))


def graphics(host: Host) -> None:
    name = host.dice.choice(["Xorg", "gnome-shell", "Xwayland", "kwin_x11"])
    shown = host.add(
        name=name, command=f"/usr/bin/{name}", executable=f"/usr/bin/{name}", uid=host.dice.choice([0, ME])
    )
    host.hold(shown, host.dice.randrange(4), "graphics")
    host.hold(host.add(name="blender", executable="/usr/bin/blender"), host.dice.randrange(4), "graphics")


def mps(host: Host) -> None:
    gpu = host.dice.randrange(4)
    host.mps.add(gpu)
    server = host.add(
        name="nvidia-cuda-mps", executable="/usr/bin/nvidia-cuda-mps-server", uid=host.dice.choice([0, ME])
    )
    host.hold(server, gpu, "mps server")
    host.hold(host.rank(0, 1), gpu, host.dice.choice(["mps client", "compute"]))


def daemons(host: Host) -> None:
    name = host.dice.choice(["nvidia-persiste", "nv-hostengine", "tritonserver", "ollama", "python"])
    host.hold(host.add(name=name, executable=f"/usr/bin/{name}", unit="model.service"), host.dice.randrange(4))
    host.hold(host.add(name=name, command=f"{name} serve"), host.dice.randrange(4))


def somebody_elses(host: Host) -> None:
    for number in range(2):
        host.rank(number, 2, uid=SOMEBODY, user="bob")
    host.worker(uid=host.dice.choice([0, SOMEBODY]), user="bob")


def in_a_container(host: Host) -> None:
    namespace = host.dice.choice([OWN_NAMESPACE, "pid:[4026532999]", ""])
    inside = 7 if namespace != OWN_NAMESPACE else 0
    first = host.add(name="tini", executable="/sbin/tini", pid_namespace=namespace, container="c0ffee", pid_inside=1)
    parent = host.dice.choice([1, first.pid])
    for number in range(2):
        host.rank(number, 2, parent=parent, pid_namespace=namespace, container="c0ffee", pid_inside=inside, age=50.0)


def young(host: Host) -> None:
    host.rank(0, 1, age=host.dice.uniform(0.0, 9.0))
    host.worker(age=host.dice.uniform(0.0, 9.0))


def a_first_process_that_starts_ranks(host: Host) -> None:
    """In this container pid 1 is the script or shell that started the job."""
    name, role = host.dice.choice(
        [("python3", ProcessRole.OTHER), ("bash", ProcessRole.OTHER), ("python3", ProcessRole.LAUNCHER)]
    )
    host.change(host.init, name=name, executable=f"/usr/bin/{name}", role=role)
    host.init = host.processes[0]
    # What else was adopted here can't be told from what pid 1 started.
    host.clear.clear()
    for number in range(2):
        host.rank(number, 2)
    host.worker()


def a_parent_that_adopts_nobody(host: Host) -> None:
    """Started by something that is none of the known launchers."""
    parent = host.add(name=host.dice.choice(["supervisord", "python", "tmux: server", "conmon"]), age=50_000.0)
    host.rank(0, 1, parent=parent.pid, age=50.0)
    host.worker(parent=parent.pid, age=50.0)


def user_service(host: Host) -> None:
    """systemd --user starts it by hand's settings."""
    manager = host.add(name="systemd", executable="/usr/lib/systemd/systemd", command="systemd --user", age=50_000.0)
    host.rank(0, 1, elastic=False, parent=manager.pid, unit="train.service", age=50.0)


def reused_pid(host: Host) -> None:
    """What has the pid of its parent today is younger than itself: who its parent was is not known."""
    host.init = host.change(host.init, start=(UPTIME - 30) * TICKS) if host.dice.random() < 0.05 else host.init
    if host.init.start > 100_000:
        host.clear.clear()
    late = host.add(name="bash", age=5.0)
    host.rank(0, 1, parent=late.pid)
    host.worker(parent=late.pid)
    # NVML still lists the pid of one that is long gone; an editor has it now.
    editor = host.add(name="vim", executable="/usr/bin/vim", terminal=host.dice.random() < 0.5)
    host.holders[0].append(GpuHolder(pid=editor.pid, memory=1 << 30))


def helped_by_a_child(host: Host) -> None:
    """It waits for a program that it started, which waits for a slow server."""
    one = host.rank(0, 1)
    host.add(name="aws", command="aws s3 cp s3://data .", parent=one.pid, age=50.0)


def parted_job(host: Host) -> None:
    """One rank of the job still has its parent."""
    shell = host.add(name="bash", age=60_000.0)
    host.rank(0, 2)
    host.rank(1, 2, parent=shell.pid)


def hidden_mates(host: Host) -> None:
    """Each rank in a container of its own; only this one can be seen."""
    host.unseen = "in this container only its own processes can be seen"
    host.clear = {process for process in host.clear if process.pid not in host_incomplete(host)}
    host.rank(0, 2)


def host_incomplete(host: Host) -> set[int]:
    """Pids of dead ranks whose job lacks one: with others unseen they can't be told from living ones."""
    ranks = [process for process in host.processes if process.place and process.identity in host.dead]
    return {rank.pid for rank in ranks}


def bare(host: Host) -> None:
    """Plain Pythons with a rank's settings, which inherited them from one: wandb's service, a logger."""
    host.rank(0, 1, marks=(), command="python -m wandb.service")
    host.add(name="python", command="python -m http.server", listens=(29500,))
    host.add(name="python", command="sleep 1000000", executable="/usr/bin/sleep")


def forked_from_a_living_rank(host: Host) -> None:
    """A worker whose fork server was killed, while its rank still reads from it."""
    launcher = _launcher(host)
    one = host.rank(0, 1, parent=launcher.pid)
    host.worker(group=one.group, session=one.session)


def half_told(host: Host) -> None:
    """Other users' hidepid, a hardened kernel: much of it can't be read."""
    denied = Unknown("permission denied")
    name = host.dice.choice(
        ["recent_cpu", "recent_bytes", "recent_switches", "writes_to", "settings", "devices", "executable"]
    )
    facts: dict[str, Any] = {name: denied}
    host.rank(0, 1, **facts)
    host.worker(**facts)


SUBREAPERS: Sequence[dict[str, Any]] = (
    {"name": "slurmstepd", "role": ProcessRole.LAUNCHER, "command": "slurmstepd: [4711.0]", "executable": "/usr/sbin/slurmstepd", "uid": 0},
    {"name": "containerd-shim", "command": "containerd-shim-runc-v2 -id c0ffee", "executable": "/usr/bin/containerd-shim-runc-v2", "uid": 0},
    {"name": "conmon", "command": "conmon --api-version 1", "executable": "/usr/bin/conmon"},
    {"name": "raylet", "command": "raylet --store_socket_name=x", "executable": "/opt/ray/raylet"},
    {"name": "python", "command": "python supervise.py", "executable": "/usr/bin/python3.11", "has_torch": False},
    {"name": "tmux: server", "command": "tmux", "executable": "/usr/bin/tmux"},
)  # fmt: skip
"""Those who adopt orphans, and may start ranks as well."""


def subreaper(host: Host) -> Process:
    return host.add(**host.dice.choice(SUBREAPERS), age=90_000.0)


def below_a_subreaper(host: Host) -> None:
    """Healthy: with torchrun, a script that calls it, or a shell in between; a worker beside its rank."""
    parent = subreaper(host)
    for _ in range(host.dice.randint(0, 2)):
        parent = host.add(name="bash", executable="/usr/bin/bash", parent=parent.pid, age=80_000.0)
    if host.dice.random() < 0.7:
        launcher = _launcher(host, parent=parent.pid, age=70_000.0)
    else:
        has_torch = host.dice.choice([True, Unknown("permission denied")])
        launcher = host.add(parent=parent.pid, command="python elastic.py", has_torch=has_torch, age=70_000.0)
    count = host.dice.randint(1, 4)
    for number in range(count):
        one = host.rank(number, count, parent=launcher.pid, age=60_000.0)
        host.worker(parent=one.pid, age=3_000.0, group=one.pid, session=one.pid)


def tasks_of_a_step(host: Host) -> None:
    """Healthy: srun's ranks, which slurmstepd puts into the process group of the first of them."""
    step = host.add(name="slurmstepd", command="slurmstepd: [1.0]", role=ProcessRole.LAUNCHER, age=70_000.0)
    first = 0
    for number in range(count := host.dice.randint(2, 8)):
        task = {"SLURM_PROCID": str(number), "SLURM_NTASKS": str(count)}
        pid = host.pid()
        first = first or pid
        host.rank(
            number,
            count,
            pid=pid,
            parent=step.pid,
            group=first,
            session=step.pid,
            elastic=False,
            extra=task,
            age=60_000.0,
        )


def adopted_by_a_subreaper(host: Host) -> None:
    """torchrun was killed, and whoever adopted its ranks may as well have started them: each is named, and none is proven."""
    parent = subreaper(host)
    count = host.dice.randint(1, 4)
    for number in range(count):
        busy: dict[str, Any] = {"recent_cpu": 1.0, "state": "R"} if host.dice.random() < 0.3 else {}
        one = host.rank(number, count, parent=parent.pid, age=60_000.0, **busy)
        host.worker(parent=one.pid, age=3_000.0, group=one.pid, session=one.pid)
        host.named.add(one.identity)


def spawned_and_adopted_by_a_subreaper(host: Host) -> None:
    """The script that called mp.spawn, or forked its ranks, was killed, or a rank that had workers."""
    parent = subreaper(host)
    gone = host.pid()
    command, source = host.dice.choice(
        [
            (
                "python -c 'from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)'",
                "RANK",
            ),
            ("python train.py", "the order in which its parent started them"),
        ]
    )
    group = host.dice.choice([gone, parent.group])
    for number in range(2):
        place = RankPlace(rank=number, world_size=2, local_rank=number, local_world_size=2, source=source)
        one = host.rank(
            number, 2, elastic=False, parent=parent.pid, group=group, session=group, place=place, command=command
        )
        host.named.add(one.identity)
    worker = host.worker(parent=parent.pid, group=gone, session=gone)
    host.named.add(worker.identity)


UNDER_SUBREAPERS: Sequence[Filler] = (adopted_by_a_subreaper, spawned_and_adopted_by_a_subreaper)

INNOCENT: Sequence[Filler] = (
    healthy_torchrun, healthy_other_launcher, by_hand, waits_for_a_slow_peer, by_hand_across_hosts, orphaned_but_alive, orphaned_and_quiet,
    detached_server, in_a_shell_of_torchruns, orphan_with_a_living_worker, kernels_run, attended, notebook, graphics, mps, daemons, somebody_elses, in_a_container,
    young, a_first_process_that_starts_ranks, a_parent_that_adopts_nobody, user_service, reused_pid, helped_by_a_child,
    parted_job, hidden_mates, bare, forked_from_a_living_rank, half_told, below_a_subreaper, tasks_of_a_step, *UNDER_SUBREAPERS,
)  # fmt: skip


def dead_job(host: Host) -> None:
    """torchrun was killed, and what is left waits for ever; perhaps some ranks are gone, too."""
    count = host.dice.randint(1, 4)
    there = host.dice.randint(1, count)
    port, age = str(host.pid() + 20_000), float(host.dice.randint(60, 100_000))
    found = []
    for number in range(there):
        one = host.rank(number, count, extra={"MASTER_PORT": port}, age=age)
        if host.dice.random() < 0.3:
            free = [index for index in range(4) if not host.utilisation[index] and index not in host.mps]
            if free:
                host.hold(one, host.dice.choice(free))
        found.append(one)
        for _ in range(host.dice.choice([0, 0, 2])):
            found.append(host.worker(parent=one.pid, age=40.0, group=one.pid, session=one.pid))
        if host.dice.random() < 0.3:
            found.append(host.add(role=ProcessRole.HELPER, parent=one.pid, age=40.0, group=one.pid, session=one.pid))
    host.dead |= {one.identity for one in found}
    plain = all(not host.processes[at].devices for at in range(len(host.processes)) if host.processes[at] in found)
    if there == count and plain:
        host.clear |= {process.identity for process in found if process.role is ProcessRole.RANK}


def dead_worker(host: Host) -> None:
    rank = host.pid()
    one = host.worker(group=rank, session=rank)
    host.dead.add(one.identity)
    host.clear.add(one.identity)


DEAD: Sequence[Filler] = (dead_job, dead_worker)


def random_host(dice: Random) -> Host:
    """Several of these beside each other. The rare ones that change the whole host come first."""
    host = Host(dice)
    chosen = [dice.choice(INNOCENT) for _ in range(dice.randint(0, 5))]
    chosen += [dice.choice(DEAD) for _ in range(dice.choice([0, 1, 1, 2]))]
    dice.shuffle(chosen)
    chosen.sort(key=lambda one: one in (a_first_process_that_starts_ranks, reused_pid, hidden_mates), reverse=True)
    for fill in chosen:
        fill(host)
    if host.init.name not in ("systemd", "tini", "process_api") or host.init.start > 100_000 or host.unseen:
        host.clear.clear()
    return host


MAYBE = ("recent_cpu", "recent_bytes", "recent_switches", "executable", "settings", "devices", "listens", "shared_memory", "writes_to", "stack")  # fmt: skip


def with_less_told(host: Host) -> Host:
    """Some facts of some processes can't be learned: that makes nobody guiltier."""
    for process in list(host.processes):
        if host.dice.random() < 0.2:
            host.change(process, **{host.dice.choice(MAYBE): Unknown("permission denied")})
            host.clear.clear()
    return host
