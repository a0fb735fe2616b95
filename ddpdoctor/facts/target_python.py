"""The target Python: the Python interpreter in which training runs."""

from __future__ import annotations

from typing import Annotated

from ddpdoctor.base.unknown import Facts, Maybe, Otherwise, Source


class TargetPython(Facts, frozen=True, kw_only=True, tag="patient"):
    """Answers of the interpreter about itself, or why it can't be asked.

    state: "ok", or "missing", "not-executable", "too-old", "not-python", "hangs", "dies".
    """

    python: Annotated[str, Source("--python, the active environment, our own, or PATH"), Otherwise("python")]
    """Path as it is to be typed in a command."""
    chosen_by: Annotated[str, Source("command line and environment"), Otherwise("not known")]
    """"--python", "VIRTUAL_ENV", "CONDA_PREFIX", "our own interpreter", "PATH"."""
    asked_as: Annotated[str, Source("owner of its files")] = ""
    """The user as whom root ran it; "" where it ran as who asked."""
    state: Annotated[str, Source("running it")] = "ok"
    detail: Annotated[str, Source("running it")] = ""
    """Where the state isn't ok: what it printed or how it ended."""
    version: Annotated[str, Source("sys.version_info"), Otherwise("")] = ""
    """"3.11.7"."""
    implementation: Annotated[str, Source("sys.implementation"), Otherwise("")] = ""
    prefix: Annotated[str, Source("sys.prefix"), Otherwise("")] = ""
    environment_kind: Annotated[str, Source("pyvenv.cfg, conda-meta"), Otherwise("")] = ""
    """"venv", "conda", "system"."""
    externally_managed: Annotated[bool, Source("EXTERNALLY-MANAGED marker"), Otherwise(False)] = False
    """True where plain pip install is refused (PEP 668)."""
    pip_version: Annotated[Maybe[str | None], Source("pip's metadata in the target Python")] = None
    """None: no pip there."""
    site_packages: Annotated[tuple[str, ...], Source("sys.path")] = ()
    user_site: Annotated[str, Source("site.USER_SITE")] = ""
    """The user's own site-packages where this interpreter looks there, else ""."""
    platform_tag: Annotated[str, Source("sys.platform, uname"), Otherwise("")] = ""
    """"linux-x86_64"."""
    libstdcxx_path: Annotated[Maybe[str | None], Source("the target Python's library search")] = None
    glibc_version: Annotated[Maybe[str | None], Source("confstr")] = None
