"""The job's meeting place and interface, as a log names them. They go before those of the shell, which are of whatever it ran last. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.log import SignMatch
from ddpdoctor.facts.network import Network, Resolution
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge import launchers
from ddpdoctor.logs.analyze.suspects import Suspect

ADDRESS, PORT = launchers.MASTER_ADDRESS[0], launchers.MASTER_PORT[0]
MEETING = (*launchers.MASTER_ADDRESS, *launchers.MASTER_PORT, launchers.ENDPOINT, launchers.BACKEND)
OF_LOG = "the log"


def settings_said(seen: Iterable[SignMatch], catalogue: Catalogue) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT as the first of them names them: a port, and the host that it is on; a host alone may be anybody's.
    Else the interface that was asked for."""
    seen = tuple(seen)
    words = next((match.words for match in seen if match.words.get("port")), {})
    named = {ADDRESS: words.get("host", "").strip(), PORT: words.get("port", "").strip()}
    for match in seen:
        check = catalogue.get(match.slug)
        if not words and check and check.log.setting:
            named.setdefault(check.log.setting, match.words.get("name", "").strip())
    return {name: value for name, value in named.items() if value}


def settings_of(suspects: Iterable[Suspect], environ: Mapping[str, str], catalogue: Catalogue) -> dict[str, str]:
    """Return the settings with which a host is looked at: what the suspicions that hang on the network name. "" is a
    setting to be left out: a log that names a meeting place names all of it."""
    for suspect in suspects:
        check = catalogue.get(suspect.slug)
        if check and "network" in check.groups and (said := settings_said(suspect.sightings, catalogue)):
            return {} if _is_said(said, environ) else {**dict.fromkeys(_left_out(said), ""), **said}
    return {}


def _left_out(said: Mapping[str, str]) -> tuple[str, ...]:
    return MEETING if PORT in said else ()


def _is_said(said: Mapping[str, str], settings: launchers.Settings) -> bool:
    """Whether those settings name the same place, or interface."""
    if any(settings.get(name, "") != value for name, value in said.items() if name not in MEETING):
        return False
    endpoint = launchers.split_endpoint(launchers.store_endpoint(settings))
    master = launchers.master_address(settings), launchers.master_port(settings)
    places = (host for host, port in (endpoint, master) if str(port) == said.get(PORT))
    return PORT not in said or any(said.get(ADDRESS, host) == host for host in places)


def as_the_log_names(snapshot: Snapshot, seen: Iterable[SignMatch], catalogue: Catalogue) -> Snapshot:
    """Keep the facts of a host as far as they are of what these words name: another port's tell nothing."""
    said, environment, network = settings_said(seen, catalogue), snapshot.environment, snapshot.network
    if not said or (not isinstance(environment, Unknown) and _is_said(said, environment)):
        return snapshot
    if not isinstance(environment, Unknown):
        kept = [setting for setting in environment.settings if setting.name not in {*said, *_left_out(said)}]
        own = [Setting(name, value, OF_LOG) for name, value in said.items()]
        environment = msgspec.structs.replace(environment, settings=(*own, *kept))
    if PORT in said and not isinstance(network, Unknown):
        network = _of_port(network, int(said[PORT]), said.get(ADDRESS, ""))
    return msgspec.structs.replace(snapshot, environment=environment, network=network)


def _of_port(network: Network, port: int, host: str) -> Network:
    looked = port in network.wanted_ports
    unseen = Unknown(
        f"port {port}, which the log names, wasn't looked at; only {listed(map(str, network.wanted_ports))}"
    )
    taken, listeners = network.taken_ports, network.listeners
    if isinstance(taken, tuple):
        taken = tuple(used for used in taken if used == port)
    if isinstance(listeners, tuple):
        listeners = tuple(listener for listener in listeners if listener.port == port)
    return msgspec.structs.replace(
        network,
        master=_resolved(network, host),
        rendezvous=None,
        interface_to_master=None,
        master_route_error="",
        wanted_ports=(port,),
        taken_ports=taken if looked else unseen,
        listeners=listeners if looked else unseen,
        forbidden_ports=tuple(forbidden_port for forbidden_port in network.forbidden_ports if forbidden_port == port),
    )


def _resolved(network: Network, host: str) -> Maybe[Resolution | None]:
    if not host:
        return None
    known = [endpoint for endpoint in (network.master, network.rendezvous) if isinstance(endpoint, Resolution)]
    unseen = Unknown(f"{host}, which the log names, wasn't looked at from here")
    return next((resolution for resolution in known if host in (resolution.name, *resolution.addresses)), unseen)


def looked_at(snapshot: Snapshot, seen: Iterable[SignMatch], catalogue: Catalogue) -> str:
    """Say what a look at a host showed of the place that these words name: "port 29512 is free there now"; "" where
    they name none, or nothing of it was looked at."""
    said, network = settings_said(seen, catalogue), snapshot.network
    if PORT not in said or isinstance(network, Unknown):
        return ""
    host = said.get(ADDRESS, "")
    if not host:
        looked = int(said[PORT]) in network.wanted_ports and isinstance(network.taken_ports, tuple)
        return "" if not looked else f"port {said[PORT]} is {'taken' if network.taken_ports else 'free'} there now"
    master = network.master
    if not isinstance(master, Resolution):
        return ""
    if not master.addresses:
        return f"there {host} doesn't resolve: {master.error}"
    way = network.master_route_error or "there is a route"
    return f"from there {host} is {listed(master.addresses, 2)}, to which {way}; whether anybody listens at port {said[PORT]} wasn't tried"
