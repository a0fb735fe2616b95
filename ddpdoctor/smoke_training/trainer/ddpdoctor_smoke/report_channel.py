"""Reports to ddpdoctor: one message a packet, and all that this process prints."""

import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

MAX_MESSAGE_BYTES = 3500
"""Bytes of a message."""

REAPER_SECONDS = 2.0
"""For the reaper, once ddpdoctor is gone, to see what this process holds, and to end it."""

PR_SET_PDEATHSIG = 1


class ReportChannel:
    """One process's two connections to ddpdoctor: for messages, and for what it prints.

    who: "engine", "server" (of which the ranks are forked), or the rank. A message is a JSON object; its "at" is
    time.monotonic(), the same for all processes of a host, and never set back.
    """

    def __init__(self, channel, who):
        self.lock = threading.Lock()
        self.is_end_wanted = False
        """Whether ddpdoctor has asked to end what would go on for long: it says so by a word of its own, of whatever letters."""
        self.messages = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.messages.connect("\0" + channel)
        self.say(who=who, pid=os.getpid())
        self.who = who
        self.channel = channel

    def say(self, **message):
        """Send one message, cut to what a packet holds."""
        for name, value in message.items():
            if isinstance(value, str) and len(value) > MAX_MESSAGE_BYTES // 3:
                message[name] = value[: MAX_MESSAGE_BYTES // 3]
        with self.lock:
            message["at"] = time.monotonic()
            packet = json.dumps(message).encode("ascii")
            try:
                self.messages.send(packet[: MAX_MESSAGE_BYTES * 12])
            except OSError:
                end_unwatched()

    def take_output(self):
        """Send all that this process prints from now on to ddpdoctor, which knows whose it is, also what C++ prints."""
        output = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        output.connect("\0" + self.channel + "-output")
        output.sendall(json.dumps({"who": self.who, "pid": os.getpid()}).encode("ascii") + b"\n")
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        output.close()
        # A crash, or ddpdoctor's question where this process is, is answered by every thread's stack, whatever holds the GIL.
        faulthandler.enable(2)
        faulthandler.register(signal.SIGUSR1, 2, all_threads=True, chain=False)

    def end_when_unwatched(self):
        """End this process as soon as nothing listens any more. It has a thread for that."""
        threading.Thread(target=self._wait_for_its_end, daemon=True).start()

    def _wait_for_its_end(self):
        with suppress(OSError):
            while self.messages.recv(1):
                self.is_end_wanted = True
        end_unwatched()


def end_unwatched():
    """End this process, since nothing listens any more: no rank goes on unwatched."""
    time.sleep(REAPER_SECONDS)
    os._exit(1)


def report_children(channel):
    """Report from now on how each child of this process ends, as soon as it is waited for. The engine would tell
    of the first one that failed, and only when it has ended all the others."""
    usual = os.waitpid

    def waitpid(pid, options):
        found, status = usual(pid, options)
        if found:
            channel.say(ended=found, status=-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
        return found, status

    def forget():
        os.waitpid = usual
        channel.messages.close()

    os.waitpid = waitpid
    os.register_at_fork(after_in_child=forget)


def die_with_the_parent(parent=None):
    """Let the kernel end this process with its parent, even if that gets SIGKILL. parent: its pid, where this was just forked."""
    parent = parent or os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
