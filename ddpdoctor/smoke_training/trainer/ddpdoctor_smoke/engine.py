"""torch's elastic engine, the one behind torchrun, with ranks that are forked from a server which has imported torch."""

import ctypes
import errno
import gc
import importlib
import multiprocessing
import os
import sys
from contextlib import suppress
from importlib.machinery import ExtensionFileLoader, SourceFileLoader

from ddpdoctor_smoke import orders
from ddpdoctor_smoke.rank import prepare, run_rank, words_of
from ddpdoctor_smoke.report_channel import ReportChannel, die_with_the_parent, report_children

FOR_ALL = ("torch", "torch.distributed")
FOR_RANKS = ("torch.nn.parallel", "torch.utils.data", "torch._dynamo")
"""DDP() imports the last by itself, since 2.0."""
ALONE = "ddpdoctor-alone"
"""The rendezvous of one host, by the name under which the engine finds it."""
LOOPBACK = "127.0.0.1"


def main(before):
    """Runs this host's ranks to their end. Exit code 0: all finished. before: the names of the modules that Python itself
    imports when it starts.

    Raises:
        SystemExit: it has failed.
    """
    die_with_the_parent()
    order = orders.read(sys.argv[1])
    order["hidden"] = hidden_modules(before)
    prepare()
    launched = order.get("launched")
    if launched is not None:
        run_rank(order)
        return
    channel = ReportChannel(order.channel, "engine")
    channel.take_output()
    try:
        channel.say(stage="import")
        import_all(FOR_ALL)
        leave_ranks_where_they_are()
        method = start_method()
        if method == "forkserver":
            start_server(channel)
        channel.end_when_unwatched()
        launch(order, method)
    except BaseException as error:
        channel.say(failures=failures_of(error), error=words_of(error) + where_there_is_no_room(error))
        raise SystemExit(1) from None
    channel.say(finished=True)


def hidden_modules(before):
    """Say what a script in this folder would import in place of modules of the library, as words. We have imported those modules
    from the library, so that `import torch` doesn't show it here."""
    if getattr(sys.flags, "safe_path", False):
        return ""
    for name in sorted(set(sys.modules) - before):
        loader = getattr(sys.modules[name], "__loader__", None)
        if "." in name or not isinstance(loader, (SourceFileLoader, ExtensionFileLoader)):
            continue  # Those that are built in or frozen into Python can't be hidden.
        for path in (name + ".py", os.path.join(name, "__init__.py")):
            if os.path.isfile(path):
                with suppress(OSError):
                    path = os.path.join(os.getcwd(), path)
                return "%s hides Python's own module %s from every script in this folder; rename it" % (path, name)
    return ""


def where_there_is_no_room(error):
    """The kernel doesn't say it."""
    if getattr(error, "errno", None) != errno.ENOSPC or getattr(error, "filename", None):
        return ""
    with suppress(OSError):
        if not os.statvfs("/dev/shm").f_bavail:
            return ": /dev/shm is full, where the semaphores of multiprocessing lie"
    return ""


def launch(order, method):
    """method: of multiprocessing, to start the ranks. Raises what torch's engine raises: ChildFailedError where a rank failed.

    Raises:
        RuntimeError: torch can't be used like this.
    """
    import torch.distributed

    if not torch.distributed.is_available():
        raise RuntimeError("this torch is built without torch.distributed")
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if order.alone:
        register_rendezvous_of_one_host()
    settings = {
        "min_nodes": order.nnodes,
        "max_nodes": order.nnodes,
        "nproc_per_node": order.nproc,
        "run_id": "ddpdoctor",
        "rdzv_backend": ALONE if order.alone else "static",
        "rdzv_endpoint": "" if order.alone else "%s:%d" % (order.master, order.port),
        "rdzv_configs": {"rank": order.node_rank, "timeout": order.import_seconds},
        "max_restarts": 0,
        "monitor_interval": 0.1,
        "start_method": method,
    }
    if order.alone:
        # Else it would look for the host's name, which may lead nowhere: that is `check`'s to say.
        settings["local_addr"] = LOOPBACK
    known = LaunchConfig.__dataclass_fields__
    config = LaunchConfig(**{name: value for name, value in settings.items() if name in known})
    elastic_launch(config, run_rank)(order)


def register_rendezvous_of_one_host():
    """One engine has nobody to meet: its store stays within this process, and the ranks' lies in our folder. torch's own
    rendezvous of one host, "c10d", opens a store to the network and unpickles what others write there."""
    import torch.distributed
    from torch.distributed.elastic import rendezvous

    class OfOneHost(rendezvous.RendezvousHandler):
        def __init__(self, parameters):
            self.run_id = parameters.run_id

        def get_backend(self):
            return ALONE

        def get_run_id(self):
            return self.run_id

        def next_rendezvous(self):
            store, node_rank, nnodes = torch.distributed.HashStore(), 0, 1  # type: ignore[attr-defined]
            if not hasattr(rendezvous, "RendezvousInfo"):  # Since 2.4.
                return store, node_rank, nnodes
            nowhere = rendezvous.RendezvousStoreInfo(LOOPBACK, 0)
            return rendezvous.RendezvousInfo(store, node_rank, nnodes, nowhere)

        def num_nodes_waiting(self):
            return 0

        def is_closed(self):
            return False

        def set_closed(self):
            pass

        def shutdown(self):
            return True

    rendezvous.rendezvous_handler_registry.register(ALONE, OfOneHost)


def start_method():
    """The way to start ranks: forked, unless something that Python or torch loads by itself has initialised CUDA here."""
    can_fork = "forkserver" in multiprocessing.get_all_start_methods()
    return "forkserver" if can_fork and not cuda_is_initialised() else "spawn"


def cuda_is_initialised():
    """Whether this process has: a fork of it can't use CUDA. Asking initialises nothing, and loads nothing."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return True
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        # Before cuInit(), by whomever, it fails: CUDA_ERROR_NOT_INITIALIZED.
        return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0
    return False


def leave_ranks_where_they_are():
    """They inherit our working folder, where a training script would be, too. multiprocessing has each of them enter it once
    more by its name, which fails where this user may not look into it, though torchrun trains there."""
    from multiprocessing import spawn

    usual = spawn.get_preparation_data

    def get_preparation_data(*arguments):
        data = usual(*arguments)
        data.pop("dir", None)
        return data

    spawn.get_preparation_data = get_preparation_data


def start_server(channel):
    """Makes a copy of this process, which has imported torch just now, the server that ranks are forked from: started the
    usual way it would import torch once more. It must happen before there are threads. What only ranks need is imported
    there, while this process goes on."""
    from multiprocessing import forkserver, resource_tracker, util

    engine = os.getpid()

    def fork(path, arguments, descriptors):
        pid = os.fork()
        if pid:
            return pid
        try:
            channel.messages.close()
            die_with_the_parent(engine)
            report_children(ReportChannel(channel.channel, "server"))
            import_all(FOR_RANKS)
            exec(arguments[-1], {})
        finally:
            os._exit(1)

    resource_tracker.ensure_running()
    # Python 3.9.0 to 3.9.15, 3.10.0 to 3.10.8 and 3.11.0 have the server listen where every user can connect, and it unpickles
    # and runs what it is sent (CVE-2022-42919). The others, and these with this, have it listen in our folder.
    util.abstract_sockets_supported = False  # type: ignore[misc]
    usual, util.spawnv_passfds = util.spawnv_passfds, fork
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = usual


def import_all(modules):
    """Import modules as far as they are there; what is missing, the ranks will miss. Nothing is thrown away meanwhile, so that looking for
    garbage would only take time; and what is there need not be looked at again, nor be copied for it in each rank."""
    gc.disable()
    for module in modules:
        with suppress(Exception):
            importlib.import_module(module)
    gc.freeze()
    gc.enable()


def failures_of(error):
    """Rank to exit code (negative: the signal's number), of the ranks that failed by themselves, as the engine saw it."""
    found = getattr(error, "failures", None)
    if not isinstance(found, dict):
        return {}
    return {str(rank): getattr(failure, "exitcode", None) for rank, failure in found.items()}
