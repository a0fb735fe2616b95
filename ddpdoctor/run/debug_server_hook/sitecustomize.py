"""Starts torch's debug server in the ranks of `ddpdoctor run --debug-server PORT`, whose Pythons find this file by PYTHONPATH.

Runs in the target Python, of whatever release, at the start of each process of the command; it does nothing but for one that calls
torch's init_process_group. Whatever goes wrong here, the command goes on. The sitecustomize that would have been found without this
one is run as well.
"""

import os
import sys

PORT = "DDPDOCTOR_DEBUG_SERVER"
"""Setting: on which port rank 0's host is asked."""
SERVED = "DDPDOCTOR_DEBUG_SERVER_OF"
"""Setting: the pid of the rank for which this process serves the pages."""
C10D = "torch.distributed.distributed_c10d"
DEBUG = "torch.distributed.debug"
NEEDED = (("jinja2",), ("tabulate",), ("aiohttp", "requests"))
"""Modules with which rank 0 serves the pages: one of each."""
ANSWER_SECONDS = 10.0
"""So long the pages wait for a rank that doesn't answer; torch's own 60 try the patience of who asks."""
CONNECT_SECONDS = 5.0
POLL_SECONDS = 0.5


class NoServerError(Exception):
    """Why there is none, for the user."""


class Started:
    """Who has started the server in this process."""

    by_hook = False
    by_script = False
    told = False


class ChangingFinder:
    """Waits for a module to be imported, and puts another function in the place of one of its."""

    def __init__(self, name, function, change):
        self.name = name
        self.function = function
        self.change = change

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path) if finder is not self)
        spec = next(filter(None, found), None)
        loader = getattr(spec, "loader", None)
        if loader is not None and hasattr(loader, "exec_module"):
            run = loader.exec_module

            def run_and_change(module):
                run(module)
                try:
                    if self in sys.meta_path:
                        sys.meta_path.remove(self)
                    setattr(module, self.function, self.change(getattr(module, self.function), module))
                except Exception as error:
                    say(error)

            loader.exec_module = run_and_change
        return spec


def once(begin, debug):
    """Return start_debug_server, which does nothing where the hook has started it: torch raises at a second call, and the script can't
    know of the first."""
    import functools

    @functools.wraps(begin)
    def start_debug_server(*args, **kwargs):
        try:
            begin(*args, **kwargs)
        except Exception as error:
            if not Started.by_hook or "already started" not in str(error):
                raise
            tell_once(
                "torch's debug server runs already, by --debug-server: the script's start_debug_server() does nothing"
            )
        else:
            Started.by_script = True

    return start_debug_server


def wrapped(begin, c10d):
    """Return init_process_group, with the start of the server before it where the launcher has a store, else behind it."""
    import functools

    def init_process_group(*args, **kwargs):
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            start(c10d)
        begun = begin(*args, **kwargs)
        start(c10d)
        return begun

    # In a stack it is none of the user's own.
    init_process_group.__code__ = init_process_group.__code__.replace(co_filename="<ddpdoctor>")
    return functools.wraps(begin)(init_process_group)


def start(c10d):
    """Start the server, once: what a rank starts has its settings, and is none."""
    port = os.environ.pop(PORT, "")
    if not port:
        return
    if Started.by_script:
        tell_once("the script has started torch's debug server itself: ask it at the port that the script gives it")
        return
    given = set(os.environ)
    try:
        fill_in(c10d)
        serve(int(port))
    except Exception as error:
        say(error)
    finally:
        for name in set(os.environ) - given:
            del os.environ[name]


def fill_in(c10d):
    """Set what a launcher would have set, for the time of the start: torch's debug server reads it there.

    Raises:
        NoServerError: what nobody but a launcher knows is missing.
    """
    import socket

    if c10d.is_initialized():
        os.environ.setdefault("RANK", str(c10d.get_rank()))
        os.environ.setdefault("WORLD_SIZE", str(c10d.get_world_size()))
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise NoServerError("%s is not set, so its ranks can't find each other" % " and ".join(missing))
    store = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        # torch would wait for minutes.
        socket.create_connection(store, CONNECT_SECONDS).close()
    except OSError as error:
        raise NoServerError("no store listens at MASTER_ADDR:MASTER_PORT, %s:%d (%s)" % ((*store, error)))


def serve(port):
    """Call torch's own start_debug_server.

    Raises:
        NoServerError: it isn't there, or lacks something.
    """
    import importlib.util

    is_first = os.environ["RANK"] == "0"
    if importlib.util.find_spec("torch.distributed.debug") is None:
        if is_first:
            raise NoServerError("this torch has none; it came with torch 2.10")
        return
    settings = {"port": port}
    if is_first:
        lacking = [names[0] for names in NEEDED if not any(map(importlib.util.find_spec, names))]
        if lacking:
            words = sys.executable, " ".join(lacking)
            raise NoServerError("it needs more than torch in this Python: %s -m pip install %s" % words)
        check_port(port)
        settings.update(settings_of_pages())
    from torch.distributed.debug import start_debug_server

    with no_main_module():
        os.environ[SERVED] = str(os.getpid())
        start_debug_server(**settings)
    Started.by_hook, Started.by_script = True, False


def settings_of_pages():
    """Those of start_debug_server for rank 0, as far as this release knows them."""
    import inspect

    from torch.distributed.debug import start_debug_server

    known = inspect.signature(start_debug_server).parameters
    # Forked, what serves the pages would hold the rank's sockets and GPU when that has ended.
    wanted = {"start_method": "spawn", "fetch_timeout": ANSWER_SECONDS}
    return {name: wanted[name] for name in wanted if name in known}


def no_main_module():
    """Hide the script meanwhile: what is spawned would run it from its top."""
    import contextlib
    import types

    @contextlib.contextmanager
    def hidden():
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main

    return hidden()


def check_port(port):
    """Refuse one that is taken: what serves the pages would end with a traceback.

    Raises:
        NoServerError: it is.
    """
    import socket

    with socket.socket(socket.AF_INET6) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except OSError as error:
            raise NoServerError("port %d can't be listened on: %s" % (port, error.strerror))


def end_with(rank):
    """End this process, which serves the pages, when its rank ends, and let it say nothing in the command's output."""
    import logging
    import signal
    import threading
    import time

    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait():
        while os.getppid() == rank:
            time.sleep(POLL_SECONDS)
        os._exit(0)

    thread = threading.Thread(target=wait, name="ddpdoctor")
    thread.daemon = True
    thread.start()


def say(error):
    """Say in the command's output why there is no server."""
    of_rank = "" if os.environ.get("RANK", "0") == "0" else " in rank %s" % os.environ["RANK"]
    sys.stderr.write("ddpdoctor: no debug server%s: %s\n" % (of_rank, str(error) or type(error).__name__))
    sys.stderr.flush()


def tell_once(words):
    """Say that in rank 0."""
    if not Started.told and os.environ.get("RANK", "0") == "0":
        sys.stderr.write("ddpdoctor: %s\n" % words)
        sys.stderr.flush()
    Started.told = True


def prepare():
    """Do what this process is here for."""
    if os.environ.get(SERVED):
        # What counts the semaphores of multiprocessing has the setting, too, and outlives the rank to take them away.
        if any("spawn_main" in word for word in getattr(sys, "orig_argv", ())):
            end_with(int(os.environ[SERVED]))
    elif os.environ.get(PORT) and hasattr(sys, "implementation"):
        sys.meta_path.insert(0, ChangingFinder(C10D, "init_process_group", wrapped))
        sys.meta_path.insert(0, ChangingFinder(DEBUG, "start_debug_server", once))


def run_hidden():
    """Run the sitecustomize that this one hides.

    Raises:
        ImportError: it has raised that.
    """
    folder = os.path.dirname(__file__)
    sys.path[:] = [place for place in sys.path if place != folder]
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


try:
    prepare()
except Exception as error:
    say(error)
run_hidden()
