"""Distributions in the target Python, as its interpreter finds them."""

from __future__ import annotations

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.packages import Package, Packages
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.target_python.asking import ask_interpreter


def probe(context: Context) -> Packages | Unknown:
    found = ask_interpreter(context, "packages", "reading the target Python's packages")
    if isinstance(found, Unknown):
        return found
    return Packages(installed=msgspec.convert(found, tuple[Package, ...]))
