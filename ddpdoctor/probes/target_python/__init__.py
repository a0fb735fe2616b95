"""Asks the target Python's interpreter what it is. What it says serves the probes of packages, torch and libraries too."""

from __future__ import annotations

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.library_search import targets_libstdcxx
from ddpdoctor.probes.run_as import code_of, identity_for
from ddpdoctor.probes.target_python.asking import ask, maybe, why_silent

__all__ = [
    "asking",
    "choice",
]


def probe(context: Context) -> TargetPython | Unknown:
    answer = ask(context, "interpreter")
    if answer.state == "not-run":
        return why_silent(answer)
    if answer.state != "ok":
        silent = why_silent(answer)
        return TargetPython(
            python=context.python,
            chosen_by=context.chosen_by,
            state=answer.state,
            detail=answer.detail,
            pip_version=silent,
            libstdcxx_path=silent,
            glibc_version=silent,
        )
    told = answer.told
    return TargetPython(
        python=context.python,
        chosen_by=context.chosen_by,
        asked_as=identity.name if (identity := identity_for(code_of(context.python))) else "",
        version=told["version"],
        implementation=told["implementation"],
        prefix=told["prefix"],
        environment_kind=told["environment_kind"],
        externally_managed=told["externally_managed"],
        pip_version=maybe(told, "pip_version", "looking for pip"),
        site_packages=tuple(told["site_packages"]),
        user_site=told["user_site"],
        platform_tag=told["platform_tag"],
        libstdcxx_path=targets_libstdcxx(context, told["base_prefix"]),
        glibc_version=maybe(told, "glibc_version", "asking for the C library's version"),
    )
