"""A script that fetches something over the network, and whose server doesn't answer: no mistake of the script's. Pure."""

from __future__ import annotations

import re
from typing import Final

from ddpdoctor.base.findings import Fix
from ddpdoctor.facts.log import LoggedException

_CLIENTS: Final = re.compile(
    r"(?:^|/)(?:urllib/request\.py|http/client\.py|ftplib\.py|(?:urllib3|requests|httpx|httpcore|aiohttp|huggingface_hub|botocore|gcsfs|s3fs)/.{0,300}\.py)$"
)
"""What fetches: not torch's store, nor sockets of the script's own."""
_UNREACHED: Final = re.compile(
    r"Connection (?:refused|reset by peer|timed out|aborted)|[Nn]ame or service not known|[Nn]ame resolution|nodename nor servname"
    r"|No address associated with hostname|Network is unreachable|No route to host|[Tt]imed out|Max retries exceeded|[Cc]an(?:no|')t connect"
    r"|[Cc]ouldn't connect|Remote end closed connection|CERTIFICATE_VERIFY_FAILED|Tunnel connection failed|All connection attempts failed"
)
WHY: Final = (
    "A server that the script asks over the network doesn't answer: its name isn't found, nobody listens there, or a firewall or a "
    "missing proxy is between. Compute nodes often have no way to the Internet."
)
FIXES: Final = (
    Fix("See from that host whether the server answers, and whether a proxy is set", ("env | grep -i _proxy", "curl -sSI URL")),
    Fix(
        "Or fetch it before the job, on a node that has a way out, and let the job read it from disk; for Hugging Face's Hub",
        ("export HF_HUB_OFFLINE=1",),
    ),
)  # fmt: skip


def server_unreached(raised: LoggedException) -> bool:
    """Whether the exception says that a server of the script's can't be reached."""
    by_client = any(_CLIENTS.search(frame.path.replace("\\", "/")) for frame in raised.frames)
    return by_client and bool(_UNREACHED.search(f"{raised.exception}: {raised.message}"))
