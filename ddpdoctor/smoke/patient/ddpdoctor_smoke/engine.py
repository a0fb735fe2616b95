"""torch's elastic engine, the one behind torchrun, with ranks that are forked from a server which has imported torch."""
# mypy: allow-untyped-defs, allow-untyped-calls, no-warn-return-any

import multiprocessing
import os
import sys

from ddpdoctor_smoke import orders
from ddpdoctor_smoke.doctor import Doctor, die_with_the_parent
from ddpdoctor_smoke.rank import prepare, run_rank, words_of

SERVER = "ddpdoctor_smoke.preload"
RENDEZVOUS_SECONDS = 60


def main():
    """Runs this host's ranks to their end. Exit code 0: all finished."""
    die_with_the_parent()
    order = orders.read(sys.argv[1])
    prepare()
    launched = order.get("launched")
    if launched is not None:
        run_rank(order)
        return
    doctor = Doctor(order.channel, "engine")
    doctor.take_output()
    try:
        doctor.say(stage="import")
        launch(order)
    except BaseException as error:
        doctor.say(failures=failures_of(error), error=words_of(error), missing=getattr(error, "name", None) or "")
        raise SystemExit(1) from None
    doctor.say(finished=True)


def launch(order):
    """Raises what torch's engine raises: ChildFailedError where a rank failed."""
    if start_method() == "forkserver":
        start_server()
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    alone = order.nnodes == 1 and not order.master
    settings = {
        "min_nodes": order.nnodes,
        "max_nodes": order.nnodes,
        "nproc_per_node": order.nproc,
        "run_id": "ddpdoctor",
        "rdzv_backend": "c10d" if alone else "static",
        "rdzv_endpoint": "127.0.0.1:0" if alone else "%s:%d" % (order.master, order.port),
        "rdzv_configs": {"timeout": RENDEZVOUS_SECONDS}
        if alone
        else {"rank": order.node_rank, "timeout": order.seconds},
        "max_restarts": 0,
        "monitor_interval": 0.1,
        "start_method": start_method(),
    }
    if alone:
        # Else the ranks would meet at the host's name, which may lead nowhere: that is `check`'s to say.
        settings["local_addr"] = "127.0.0.1"
    config = LaunchConfig(**{name: value for name, value in settings.items() if name in fields_of(LaunchConfig)})
    elastic_launch(config, run_rank)(order)


def fields_of(dataclass):
    return dataclass.__dataclass_fields__


def start_method():
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def start_server():
    """Starts the server early: it imports torch while this process does. Python before 3.13 tells it nothing of sys.path."""
    from multiprocessing import forkserver

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    before = os.environ.get("PYTHONPATH")
    if before is not None:
        os.environ["DDPDOCTOR_PYTHONPATH"] = before
    os.environ["PYTHONPATH"] = folder + (os.pathsep + before if before else "")
    try:
        multiprocessing.set_forkserver_preload([SERVER])
        forkserver.ensure_running()
    finally:
        os.environ.pop("DDPDOCTOR_PYTHONPATH", None)
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def failures_of(error):
    """Rank to exit code (negative: the signal's number), of the ranks that failed by themselves, as the engine saw it."""
    found = getattr(error, "failures", None)
    if not isinstance(found, dict):
        return {}
    return {str(rank): getattr(failure, "exitcode", None) for rank, failure in found.items()}
