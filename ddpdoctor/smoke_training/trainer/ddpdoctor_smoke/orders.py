"""Reads the order that ddpdoctor gives, a JSON object:

channel     name of the abstract unix socket where ddpdoctor listens
nproc       ranks on this host
nnodes      hosts
node_rank   this host, from 0
world_size  ranks of all hosts
master      where the store is; "" with one host: in the folder
port        the store's
backend     "nccl" or "gloo"
stages      names of the stages to run, in their order
seconds     what a stage may take; torch's own limit lies behind it, so that ddpdoctor speaks first
import_seconds  what the import of torch may take, and the rendezvous with ranks that ddpdoctor doesn't hear of
folder      an empty one of our own, for the store, a checkpoint and the engine's files; every host has another
launched    the rank that a launcher has given to this process; absent: the engine starts the ranks
gpus        for the stage "data parallel": over how many; absent elsewhere
duration    for the stage "burn-in": seconds; absent elsewhere
fault       for tests: {"rank", "stage", "kind"}, and more by kind
"""

import json


class TrainerOrder(dict):
    """The order, by attribute."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def alone(self):
        """Whether the engine starts all ranks, on this host: they meet in our folder, where nobody else reaches them."""
        return self.get("launched") is None and self.nnodes == 1 and not self.master

    def __reduce__(self):
        return TrainerOrder, (dict(self),)


def read(text):
    return TrainerOrder(json.loads(text))
