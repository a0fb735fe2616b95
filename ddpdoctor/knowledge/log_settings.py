"""The job's meeting place, where a log names it: what a look at a host needs, and its user's shell mostly doesn't have. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddpdoctor.facts.log import Log, Sighting
from ddpdoctor.knowledge import launchers
from ddpdoctor.knowledge.log_illnesses import check_of
from ddpdoctor.knowledge.log_verdict import verdict_of

ADDRESS, PORT = launchers.MASTER_ADDRESS[0], launchers.MASTER_PORT[0]


def settings_said(seen: Iterable[Sighting]) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT as the first of them names them: a port, and the host that it is on; a host alone may be anybody's."""
    words = next((one.words for one in seen if one.words.get("port")), {})
    named = {ADDRESS: words.get("host", "").strip(), PORT: words.get("port", "").strip()}
    return {name: value for name, value in named.items() if value}


def settings_to_add(log: Log, environ: Mapping[str, str]) -> dict[str, str]:
    """What the suspicions that hang on the network name, where the user's own settings name no meeting place at all."""
    if launchers.master_address(environ) or launchers.store_endpoint(environ):
        return {}
    if launchers.master_port(environ) is not None:
        return {}
    for one in verdict_of(log).suspects:
        check = check_of(one.slug)
        if check and "network" in check.groups and (said := settings_said(one.sightings)):
            return said
    return {}
