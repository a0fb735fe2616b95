"""`ddpdoctor run`: a command under supervision. Standard library only, for what handles its output and its signals.

Three processes, of which none needs another for the output to go on:

- the supervisor (`supervisor`) is what the user started: the command's parent, which passes signals on and ends as the command did;
- the relay (`relay`, `relay_client`) carries the output, and keeps a bounded copy of it in memory that all three share; if it is killed, the supervisor
  starts another, which goes on with the byte where the first one stopped;
- the diagnosis (`diagnosis`, `diagnosis_process`), for the seconds that it takes.

Output that goes to a regular file isn't touched: the command writes into it itself, and the diagnosis reads it there.
"""

__all__ = [
    "added_settings",
    "debug_server",
    "diagnosis",
    "output_file",
    "supervisor",
]
