"""Distributions in the target Python, as its interpreter finds them."""

from __future__ import annotations

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.packages import Package, Packages
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.target_python.asking import ask, maybe, why_silent


def probe(context: Context) -> Packages | Unknown:
    answer = ask(context, "interpreter")
    if answer.state != "ok":
        return why_silent(answer)
    found = maybe(answer.told, "packages", "reading the target Python's packages")
    if isinstance(found, Unknown):
        return found
    return Packages(installed=msgspec.convert(found, tuple[Package, ...]))
