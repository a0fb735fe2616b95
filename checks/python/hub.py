"""What is fetched from the Hugging Face Hub before a training begins: models, tokenizers, data sets."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final, NamedTuple

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.log_traits import LogTraits
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.knowledge.python_commands import python_of
from ddpdoctor.logs.analyze.false_positives import trains_behind
from ddpdoctor.logs.analyze.sightings import word

MAX_NAME: Final = 100
"""Characters of a name that a summary has room for."""
_PATH: Final = compile_lazily(r"[/~.\\]|[A-Za-z]:[/\\]|[^/]+[/\\][^/]+[/\\]")
"""No repository is called so: it is a path of the host."""


class HubRepository(NamedTuple):
    """What was to be loaded; name: "" where the log doesn't tell it."""

    name: str
    is_dataset: bool

    @property
    def shown(self) -> str:
        """The name, where a summary has room for it."""
        return self.name if len(self.name) <= MAX_NAME else ""

    @property
    def is_path(self) -> bool:
        """Whether no repository can be called so."""
        return bool(_PATH.match(self.name))

    @property
    def repository(self) -> str:
        """As a command names it."""
        return shlex.quote(self.name) if self.name and not self.is_path else "NAME"

    @property
    def download(self) -> str:
        """The command that fetches it."""
        return f"hf download {'--repo-type dataset ' if self.is_dataset else ''}{self.repository}"

    @property
    def page(self) -> str:
        """Where it is on the Hub."""
        return f"https://huggingface.co/{'datasets/' if self.is_dataset else ''}{self.repository}"


def _was_done_without(one: SignMatch, log: Log) -> bool:
    """Whether the training goes on behind it: nobody needed that file, or the script took another one."""
    return trains_behind(one.line, log)


@log_check("hub-unavailable", severity=FAIL, owner=Owner.USER, log=LogTraits(refuted=_was_done_without))
def hub_unavailable(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A model, tokenizer or data set can't be had from the Hugging Face Hub.

    ## What breaks
    `from_pretrained()`, `load_dataset()` or `hf_hub_download()` ends each rank before the first step: "... is not a local folder and is
    not a valid model identifier", "Can't load tokenizer for ...", "You are trying to access a gated repo", "We couldn't connect to
    'https://huggingface.co' to load the files".

    ## Why
    What isn't a folder of the host is taken for a name on the Hub: a path that is mistyped, or that only another node has, ends in words
    on the Hub. Gated and private repositories want a token of somebody who was let in. Compute nodes often have no way to the
    Internet. And the Hub limits the requests of one address or user, of which many ranks make many.

    ## Fix
    Look at the path on the node itself; log in (`hf auth login`, or HF_TOKEN in the job's environment); or fetch all before the job
    (`hf download NAME`) into an HF_HOME that the nodes share, and let the job read it with `HF_HUB_OFFLINE=1`.
    """
    dataset = word(seen, "dataset")
    wanted = HubRepository(dataset or word(seen, "name"), is_dataset=bool(dataset))
    # The last word of a chain is often that of another cause: "We couldn't connect" where the Hub answered 429. All of it decides.
    if word(seen, "busy"):
        return _busy(wanted)
    if word(seen, "token") or word(seen, "gated"):
        return _gated(wanted, bad_token=bool(word(seen, "token")))
    if word(seen, "offline"):
        return _offline(wanted)
    if word(seen, "unreached"):
        return _unreached(wanted)
    return _wrong_name(log, seen, wanted)


def _busy(wanted: HubRepository) -> Finding:
    return Finding.of(
        "The Hugging Face Hub answers 429, Too Many Requests: it limits how much one address or user may ask for",
        Fix("Fetch it once before the job, into a cache that all nodes see", ("export HF_HOME=/path/on/shared/disk", wanted.download)),
        Fix("And let the ranks read only that: they ask the Hub for nothing then", ("export HF_HUB_OFFLINE=1",)),
        Fix("A user who is logged in may ask for more than an address without one", ("hf auth whoami", "hf auth login")),
        cause="Each rank asks for each file, be it only whether there is a newer one, and all nodes of a cluster may have one address on the Internet.",
    )  # fmt: skip


def _gated(wanted: HubRepository, *, bad_token: bool) -> Finding:
    return Finding.of(
        "The Hugging Face Hub doesn't know the job's token: it is mistyped, has expired, or was revoked"
        if bad_token
        else f"{wanted.shown or 'What is to be loaded'} is gated or private on the Hugging Face Hub, and the job has no token of somebody who was let in",
        Fix("See as whom the job is logged in, on the node and in the job's environment", ("hf auth whoami", 'test -n "$HF_TOKEN" && echo HF_TOKEN is set')),
        Fix(f"Ask for access at {wanted.page}, as that user; a fine-grained token must allow to read gated repositories, too"),
        Fix("Log in, or hand the token to the job: on every node, in containers as well", ("hf auth login", "export HF_TOKEN=TOKEN")),
        cause="A token lies in the home folder of who logged in ($HF_HOME/token), or is in HF_TOKEN: another user, a container, or a launcher that passes "
        "no environment on to other nodes has neither.",
    )  # fmt: skip


def _offline(wanted: HubRepository) -> Finding:
    return Finding.of(
        f"{wanted.shown or 'What is to be loaded'} isn't in the Hugging Face cache, and the job may not ask the Hub: it runs in offline mode",
        Fix("See what the job reads from, and what that has, on that node", ("env | grep -E '^(HF|TRANSFORMERS)_'", "hf cache ls   # before huggingface_hub 1.0: hf cache scan")),
        Fix("Fetch it into that cache first, where there is a way out, with the job's HF_HOME", (wanted.download,)),
        Fix("Or, where the node has a way to the Internet, let the job ask", ("unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE HF_DATASETS_OFFLINE",)),
        cause="HF_HUB_OFFLINE, or local_files_only=True in the script, allows only what was fetched before: into the same HF_HOME, of the same revision, "
        "with all of its files.",
    )  # fmt: skip


def _unreached(wanted: HubRepository) -> Finding:
    return Finding.of(
        f"This host has no way to the Hugging Face Hub, and {wanted.shown or 'what is to be loaded'} isn't in its cache",
        Fix("See from that host whether the Hub answers, and whether a proxy is set", ("curl -sSI https://huggingface.co | head -1", "env | grep -iE '_proxy|^HF_'")),
        Fix(
            "Or fetch it where there is a way out, into a cache that the node sees, too, and let the job read that",
            ("export HF_HOME=/path/on/shared/disk", f"{wanted.download}   # on a login node", "export HF_HUB_OFFLINE=1   # in the job"),
        ),
        Fix("Where the cluster has a proxy, or a mirror of the Hub, name it in the job", ("export HTTPS_PROXY=http://PROXY:PORT", "export HF_ENDPOINT=https://MIRROR")),
        cause="Its name isn't found, or nobody answers: compute nodes often have no way to the Internet, or only by a proxy. If it was meant as a path: that "
        "folder isn't there, else nobody had asked the Hub.",
        owner=Owner.NODE,
    )  # fmt: skip


def _wrong_name(log: Log, seen: Sequence[SignMatch], wanted: HubRepository) -> Finding:
    file, revision = word(seen, "file"), word(seen, "revision")
    if revision:
        return Finding.of(
            f"The Hugging Face Hub has no revision {revision} of what is to be loaded",
            Fix("See which branches and tags there are, and correct revision=... in the script", (f"git ls-remote {wanted.page}",)),
        )  # fmt: skip
    if file and wanted.shown:
        return Finding.of(
            f"{wanted.name} has no {file}",
            Fix(
                "See what it has" if wanted.is_path else f"See what it has; if that is no folder here: at {wanted.page}",
                (f"ls -la {shlex.quote(wanted.name)}",),
            ),
            Fix(
                "Hand over the folder that has the file: of a Trainer's output that is checkpoint-NUMBER; of adapters (adapter_config.json) load the base "
                "model first, and the adapter by PEFT; a state dict alone is no model, save by save_pretrained()"
            ),
            cause="It is there, and is no model of transformers, or only a part of one: another folder of it may be meant, or it was saved in another way, or cut short.",
        )  # fmt: skip
    if wanted.is_path:
        return Finding.of(
            f"{wanted.shown or 'The path that is to be loaded'} isn't there on this host, or lacks what is to be loaded",
            Fix("See on that host, as the job's user, which part of the path is missing", (f"namei {shlex.quote(wanted.name)}", f"ls -la {shlex.quote(wanted.name)}")),
            Fix("Correct it where it is set; a relative one counts from the folder in which the job was started; what lies on one node's own disk, bring to all of them"),
            cause="What isn't a folder of the host is taken for a name on the Hub, whence the words on repositories: it is mistyped, lies on another node only, isn't "
            "mounted in the container, or is relative to another folder.",
        )  # fmt: skip
    kind = "dataset" if wanted.is_dataset else "model"
    look = f'import huggingface_hub as h; print(h.{kind}_info("{wanted.name or "NAME"}").id)'
    return Finding.of(
        f"{wanted.shown or 'What is to be loaded'} is neither a folder here nor a name that the Hugging Face Hub shows to this job",
        Fix("See whether the Hub knows it, from that host", (f"{shlex.quote(python_of(log))} -c {shlex.quote(look)}",)),
        Fix("Correct the name: namespace/name, as on its page; a folder must be there on every node, and relative paths count from where the job was started"),
        Fix("If it is private, log in on the node, or hand the token to the job", ("hf auth whoami", "export HF_TOKEN=TOKEN")),
        cause="It is mistyped, was renamed or removed, is a folder that isn't there, or is private: of such the Hub says only that there is none. A folder of the same "
        "name in the working folder hides what the Hub has.",
    )  # fmt: skip
