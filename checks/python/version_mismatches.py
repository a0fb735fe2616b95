"""Versions that don't fit each other, as an exception shows them by its kind and by whose code raised it. Pure.

What a script calls wrongly, its own line shows. What the code of one installed package asks of another one, and isn't there, no line of
the script explains: that package was written for another release of the other one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from sys import stdlib_module_names
from typing import Final

import msgspec

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.checks.python.version_changes import VersionChange, change_of
from ddpdoctor.facts.log import LogFrame, LoggedException
from ddpdoctor.knowledge.python_packages import PACKAGES
from ddpdoctor.logs.exceptions import is_of_library, package_of, short_name, with_slashes


class VersionMismatch(msgspec.Struct, frozen=True, kw_only=True):
    """Two things of different versions.

    sure: nothing of the script's can be the reason. packages: whose releases are to be looked at, as they are imported; asker, asked: the
    two of them of which either may be the older one; "" where that one isn't known, is the script, or there are no two sides. frame: the call that met
    it. sought: a name in that frame's file that tells which package it is of.
    """

    summary: str
    cause: str
    packages: tuple[str, ...]
    asker: str = ""
    asked: str = ""
    sure: bool = False
    frame: LogFrame | None = None
    sought: str = ""
    fixes: tuple[Fix, ...] = ()
    """Where another release of a package wouldn't help."""
    lacking: str = ""
    """The name that isn't there, as `version_changes` has it."""
    change: VersionChange | None = None
    """Which release took it away, or brought it."""


_PYTHON: Final = "Python"
_WRAPPERS: Final = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
"""What the model has that they wrap, they haven't."""
_SHADOWED: Final = compile_lazily(r"partially initialized|circular import|consider renaming|is not a package")
"""Python's words where a file of the script's has a package's name, or modules import each other."""


def mismatch_of(raised: LoggedException) -> VersionMismatch | None:
    """Tell which versions don't fit, where the exception shows that."""
    judge = _JUDGES.get(short_name(raised.exception))
    if not raised.frames or _SHADOWED.search(raised.message):
        return None
    found = _of_own_words(raised) or (judge(raised) if judge else None)
    change = change_of(found.lacking) if found else None
    return _of_change(found, change) if found and change else found


def _of_change(found: VersionMismatch, change: VersionChange) -> VersionMismatch:
    """Tell which side is too old, where it is known which release took away what is lacking, or brought it."""
    what, package = found.lacking.replace(")", "=...)"), change.package
    told = (
        f"which {package} {change.removed} has taken away: it was written for an older {package}"
        if change.removed
        else f"which {package} has since {change.added}: the installed one is older"
    )
    return msgspec.structs.replace(
        found,
        summary=f"{_called_by(found.asker)} uses {what}, {told}",
        cause=f"{package} has no {what} {'since' if change.removed else 'before'} {change.removed or change.added}."
        + (
            "" if found.sure else f" Unless a class, a file or a folder of your own has the name of one of {package}'s."
        ),
        packages=tuple(each for each in (found.asker, package) if each not in ("", _PYTHON, MODELS_CODE)),
        asked=package,
        change=change,
    )


MODELS_CODE: Final = "transformers_modules"
"""Code that a model's files bring along, as transformers keeps it."""


def _called_by(package: str) -> str:
    return "The model's own code" if package == MODELS_CODE else package or "The script"


_REMOVED: Final = compile_lazily(
    r"\b(?:was|were|has been|have been) removed (?:in|from|since) (?:the )?(?:[A-Za-z][\w-]{0,40} )?v?(?P<version>\d+(?:\.\d+)+)"
)


def _of_own_words(raised: LoggedException) -> VersionMismatch | None:
    """A package says itself that a release of its took away what is asked for."""
    package, found = package_of(raised.frames[-1].path), _REMOVED.search(raised.message)
    if not (package and found):
        return None
    asker = next((frame for frame in reversed(raised.frames) if package_of(frame.path) != package), raised.frames[-1])
    whose = package_of(asker.path)
    return VersionMismatch(
        summary=f"{_called_by(whose)} was written for {package} before {found['version']}: {raised.message}",
        cause=f"{package} says itself that it no longer has what is asked of it.",
        packages=(whose, package) if whose else (package,),
        asker=whose,
        asked=package,
        sure=True,
        frame=asker,
        change=VersionChange(package=package, removed=found["version"], instead="what its message names", source=""),
    )


# --- calls ------------------------------------------------------------------------------------------------------------------


_ARGUMENTS: Final = compile_lazily(
    r"(?:class `\w{1,100}` in (?P<package>\w{1,60})/\S{1,300}: )?(?P<what>[\w.]+)\(\) (?:got an unexpected keyword argument(?: '(?P<keyword>\w+)')?|missing \d+ required (?:positional|keyword-only) arg"
    r"|takes (?:no|from|exactly|at (?:least|most)|\d).{0,60} given\b)"
)
_CALL: Final = compile_lazily(r"(?<![\w.])(?P<owner>(?:[\w.]{1,200}\.)?)(?P<name>\w{1,100})\(")
_HANDED_ON: Final = compile_lazily(r"[(,]\s*\*{1,2}[\w(]")
_CARRIER: Final = "torch/nn/modules/module.py"
"""Calls the forward() of a module with what the module was called with."""
_TORCH: Final = "torch"
"""It lies below all others, and calls what it was given."""
_INIT: Final = "__init__"


def _of_call(raised: LoggedException) -> VersionMismatch | None:
    found = _ARGUMENTS.match(raised.message)
    if found is None:
        return None
    what, keyword = found["what"], found["keyword"] or ""
    if found["package"]:
        return _from_a_file(what, keyword, found["package"], raised.frames[-1])
    passes = re.compile(rf"\b{keyword}\s*=(?!=)") if keyword else None
    frames = list(raised.frames)
    while frames and package_of(frames[-1].path) and _HANDED_ON.search(frames[-1].code):
        if passes and passes.search(frames[-1].code):
            break
        if _provider(_class_called(frames[-1].code), package_of(frames[-1].path)):
            break  # What it hands to a class of another package, it mostly has put together itself.
        frames.pop()
    inner = raised.frames[len(frames) :]
    caller = frames[-1] if frames else None
    package = package_of(caller.path) if caller else ""
    said_by_script = bool(passes and raised.own and passes.search(raised.own.code))
    lacking = f"{what.removesuffix(f'.{_INIT}').rpartition('.')[2]}({keyword})"
    if caller and not package and (by_script := _by_script(lacking, caller)):
        return by_script
    if caller is None or not package:
        return (
            None if said_by_script or not inner else _from_a_file(what, keyword, package_of(inner[-1].path), inner[-1])
        )
    own_choice, fits, imported = _called(what, caller.code)
    explicit = bool(passes and passes.search(caller.code))
    by_module = bool(inner) and with_slashes(inner[0].path).endswith(_CARRIER) and caller.code.endswith("(")
    sure = (
        own_choice
        and not inner
        and not said_by_script
        and (explicit or (_is_class(what, caller.code) and not _HANDED_ON.search(caller.code)))
    )
    if not sure and (package == _TORCH or not (explicit or fits or by_module)):
        return None
    shown = what.removesuffix(f".{_INIT}") if what != _INIT else _class_called(caller.code)
    short = shown.rpartition(".")[2]
    how = (
        f"an argument '{keyword}', which {short}() doesn't take" if keyword else f"other arguments than {short}() takes"
    )
    asked = _provider(imported, package, inner)
    method = what.rpartition(".")[2]
    overridden = (
        bool(keyword) and not asked and not inner and what != method != _INIT and f"self.{method}(" in caller.code
    )
    return VersionMismatch(
        summary=f"{package} calls {shown}() with {how}: {_unfit(package, asked)}",
        cause=f"The call stands in {package}'s own code, which was written for another release of {asked or f'the package that {shown}() is of'}."
        + (
            ""
            if sure
            else f" Unless it is a function or class of your own, which {package} calls: then that is to take these arguments."
        ),
        packages=(package, asked) if asked else _all_of(raised),
        asker=package,
        asked=asked,
        sure=sure,
        frame=caller,
        lacking=lacking,
        fixes=(
            Fix(
                f"Where {what}() is yours: let it take what {package} hands over",
                (f"def {method}(self, ..., {keyword}=None):   # in {what.rpartition('.')[0]}",),
            ),
            Fix(f"Where it is another package's: take the release of {package} that this one was made for"),
        )
        if overridden
        else (),
        sought=imported if fits or what.startswith(f"{imported}.") else "",
    )


_SHORT: Final = {"pl": "pytorch_lightning", "np": "numpy"}
"""As scripts call modules."""


def _by_script(lacking: str, caller: LogFrame) -> VersionMismatch | None:
    """An argument that the script gives to a package's class or function: one of which it is known, or that it calls by the package's name."""
    kind, keyword = lacking.rstrip(")").split("(")
    owner = next((call["owner"].partition(".")[0] for call in _CALL.finditer(caller.code) if call["name"] == kind), "")
    asked = _SHORT.get(owner, owner)
    if not keyword or not (change_of(lacking) or asked in PACKAGES):
        return None
    return VersionMismatch(
        summary=f"The script calls {kind}() with an argument '{keyword}', which the installed {asked} doesn't take: versions don't fit",
        cause=f"The script was written for another release of {asked}. Unless the argument is misspelt.",
        packages=(asked,),
        asked=asked,
        frame=caller,
        lacking=lacking,
    )


_CLASSES: Final = {
    "Accelerator": "accelerate", "AcceleratorState": "accelerate", "DataLoaderConfiguration": "accelerate", "PartialState": "accelerate",
    "FullyShardedDataParallelPlugin": "accelerate", "GradientAccumulationPlugin": "accelerate", "DeepSpeedPlugin": "accelerate",
    "HfApi": "huggingface_hub", "InferenceClient": "huggingface_hub", "LoraConfig": "peft", "PeftModel": "peft", "LoraModel": "peft",
    "DynamicCache": "transformers", "PreTrainedModel": "transformers", "PretrainedConfig": "transformers", "TrainingArguments": "transformers",
    "BitsAndBytesConfig": "transformers", "DataLoader": "torch", "DistributedDataParallel": "torch", "DeepSpeedEngine": "deepspeed",
}  # fmt: skip
"""Public classes that other packages call, by what they are imported from."""


def _provider(name: str, caller: str, inner: Sequence[LogFrame] = ()) -> str:
    """Name the package, another than the caller's, that a called class is of: by its own frame, or by the class; "" where that isn't known."""
    by_frame = (package_of(frame.path) for frame in inner)
    known = next((package for package in by_frame if package not in ("", _TORCH, caller)), _CLASSES.get(name, ""))
    return "" if known == caller else known


def _unfit(asker: str, asked: str) -> str:
    return f"{asker} and {asked} don't fit" if asked else "versions don't fit"


def _all_of(raised: LoggedException) -> tuple[str, ...]:
    """The packages that a traceback goes through, the innermost first."""
    return tuple(dict.fromkeys(package for frame in reversed(raised.frames) if (package := package_of(frame.path))))


def _called(what: str, code: str) -> tuple[bool, bool, str]:
    """(a function or class that the code names itself, it names that one at all, what a file imports to call it)."""
    class_or_function = what.removesuffix(_INIT).rstrip(".").rpartition(".")[2]
    calls = [
        call
        for call in _CALL.finditer(code)
        if call["name"] == class_or_function or (what == _INIT and call["name"][:1].isupper())
    ]
    by_super = what.endswith(_INIT) and f").{_INIT}(" in code
    own_choice = any(_is_own_choice(call["owner"], call["name"]) for call in calls)
    owner = next((call["owner"].partition(".")[0] for call in calls), "")
    kind = class_or_function if what.endswith(_INIT) else what.rpartition(".")[0].rpartition(".")[2]
    by_object = owner in ("self", "cls") or (bool(owner) and not own_choice)
    imported = kind or (_class_called(code) if what == _INIT else "" if by_object else owner or class_or_function)
    return own_choice, bool(calls) or by_super, "" if imported == _INIT else imported


_GIVEN: Final = compile_lazily(
    r"(?:^|_)(?:fn|func|function|callback|hook|closure|transform|metrics?)$|^(?:compute|collate|on)_"
)
"""Names under which a package calls what it was given."""


def _is_own_choice(owner: str, name: str) -> bool:
    """Whether a package's code names a class or a function of some module, and no method of an object that it was given."""
    if name[:1].isupper():
        return not owner.startswith(("self.", "cls."))
    return not owner and not _GIVEN.search(name)


def _is_class(what: str, code: str) -> bool:
    return what.endswith(_INIT) and _class_called(code) != _INIT


def _class_called(code: str) -> str:
    return next((call["name"] for call in _CALL.finditer(code) if call["name"][:1].isupper()), _INIT)


def _from_a_file(what: str, keyword: str, package: str, frame: LogFrame) -> VersionMismatch | None:
    """An argument of a class that the script's line doesn't name, and a package hands on."""
    if not (keyword and what.endswith(_INIT)):
        return None
    shown = what.removesuffix(f".{_INIT}") if what != _INIT else "a class of its own"
    return VersionMismatch(
        summary=f"{package} builds {shown} with an argument '{keyword}', which {shown} doesn't take: {package} is of another version than what gives it that",
        cause=f"The script's line doesn't name '{keyword}': it mostly comes from a file (a configuration, an adapter) that a newer {package} wrote.",
        packages=(package,),
        frame=frame,
    )


# --- attributes -------------------------------------------------------------------------------------------------------------


_OF_MODULE: Final = compile_lazily(r"module '?(?P<module>\w[\w.]*)'? has no attribute '?(?P<name>\w+)'?")
_OF_TYPE: Final = compile_lazily(r"type object '(?P<kind>[A-Z]\w*)' has no attribute '(?P<name>\w+)'")
_OF_OBJECT: Final = compile_lazily(
    r"'(?!NoneType\b|Namespace\b)(?P<kind>_?[A-Z]\w*)' object has no attribute '(?P<name>\w+)'"
)
_OF_PICKLE: Final = compile_lazily(
    r"Can't get attribute '(?P<name>\w+)' on <module '(?P<module>(?!__)\w[\w.]*)' from '[^']*(?:site|dist)-packages/"
)
_GETTERS: Final = ("__getattr__", "__getattribute__")


def _of_attribute(raised: LoggedException) -> VersionMismatch | None:
    frames = list(raised.frames)
    while frames and frames[-1].function.rpartition(".")[2] in _GETTERS:
        frames.pop()
    if not frames:
        return None
    asker, package = frames[-1], package_of(frames[-1].path)
    if not package and is_of_library(asker.path):
        return None
    if raised.message == "module 'distutils' has no attribute 'version'":
        return _of_setuptools(asker)
    if found := _OF_PICKLE.match(raised.message):
        return _of_a_pickle(found["module"].partition(".")[0], f"{found['module']}.{found['name']}", asker)
    if found := _OF_MODULE.match(raised.message):
        known = {package_of(frame.path) for frame in raised.frames} | PACKAGES.keys()
        # What a setting names, and getattr() asks for, may be misspelt there.
        named, module = found["name"] in asker.code, found["module"]
        itself = "." in module or any(package_of(frame.path) == module for frame in raised.frames)
        what, top = f"{module}.{found['name']}", module.partition(".")[0]
        if any(not is_of_library(frame.path) and f"/{top}/" in f"/{frame.path}" for frame in raised.frames):
            return None  # It lies in the script's own folder.
        return _lacks(what, module, asker, package, known, itself=named and itself) if package or named else None
    if found := _OF_TYPE.match(raised.message):
        if not package and f"{found['kind']}.{found['name']}" not in asker.code:
            return None
    elif (found := _OF_OBJECT.match(raised.message)) and found["kind"] not in _WRAPPERS:
        # A class that lacks what is its own was not made to its end.
        unknown = package in ("", _TORCH) or not asker.code or f"self.{found['name']}" in asker.code
        if unknown and not change_of(f"{found['kind']}.{found['name']}"):
            return None
    else:
        return None
    kind, name = found["kind"], found["name"]
    asked = _provider(kind, package)
    own = f"Unless {kind} is a class of your own, which lacks it, or not the one that belongs there."
    return VersionMismatch(
        summary=f"{_called_by(package)} asks {kind} for {name}, which {kind} hasn't got: {_unfit(package or 'the script', asked)}",
        cause=f"{_called_by(package)} was written for another release of {asked or f'the package that {kind} is of'}. {own}",
        packages=tuple(each for each in (package, asked) if each) if asked or not package else _all_of(raised),
        asker=package,
        asked=asked,
        frame=asker,
        lacking=f"{kind}.{name}",
        sought=kind if f"{kind}." in asker.code else "",
    )


def _lacks(
    what: str, module: str, asker: LogFrame, package: str, known: set[str], *, itself: bool = True
) -> VersionMismatch | None:
    """Judge that a module lacks something. known: packages that are surely installed ones. itself: it is that very package, and no folder of its name."""
    other = module.partition(".")[0]
    if module == "__main__":
        return None
    if other == package:
        return VersionMismatch(
            summary=f"{package} doesn't find its own {what}: files of two releases are mixed, or a part of it isn't installed",
            cause=f"One file of {package} asks for what another one hasn't got: an update that was broken off, or two installations of it.",
            packages=(package,),
            frame=asker,
        )
    of_python = other in stdlib_module_names
    if not package and not of_python and other not in known:
        return None
    whose = _called_by(package)
    name = _PYTHON if of_python else other
    hidden = f" Unless the name is misspelt, or a file or folder of yours that is called {other} hides it."
    return VersionMismatch(
        summary=f"{whose} asks for {what}, which the installed {name} doesn't have: versions don't fit",
        cause=f"{whose} was written for another release of {name}."
        + ("" if package and itself and not of_python else hidden),
        packages=tuple(each for each in (package, "" if of_python else other) if each),
        asker=package,
        asked=name,
        sure=bool(package) and itself and not of_python,
        frame=asker,
        lacking=what,
    )


# --- imports ----------------------------------------------------------------------------------------------------------------


_CANNOT: Final = compile_lazily(
    r"cannot import name '?(?P<name>\w+)'?(?: from '(?P<module>[\w.]+)')?(?: \((?P<path>/[^)]*|[A-Z]:[^)]*)\))?"
)
_UNPICKLES: Final = compile_lazily(r"(?i)pickle\.loads?\(|unpickler")
_FROM: Final = compile_lazily(r"from (?P<module>\w[\w.]*) import ")
_NO_MODULE: Final = compile_lazily(r"No module named '?(?P<module>\w+(?:\.\w+)+)'?$")
_PYTHONS: Final = compile_lazily(r"/lib(?:64)?/python\d[\d.]*/(?!(?:site|dist)-packages/)")


def _of_setuptools(asker: LogFrame) -> VersionMismatch:
    """Tell of the distutils that setuptools puts in the place of Python's, and that loads none of its modules by itself."""
    return VersionMismatch(
        summary="The installed setuptools is newer than what asks for distutils.version: mostly torch.utils.tensorboard before torch 1.11",
        cause="setuptools brings a distutils of its own since release 60, in which a module must be imported before it is used.",
        packages=("setuptools",),
        frame=asker,
        sure=True,
        fixes=(
            Fix("Take an older setuptools", ("python -m pip install 'setuptools<59.6'",)),
            Fix("Or a newer torch, from 1.11 on"),
        ),
    )


def _of_a_pickle(package: str, what: str, reader: LogFrame) -> VersionMismatch:
    return VersionMismatch(
        summary=f"A file that is read here was written with another release of {package}: it asks for {what}, which this one hasn't got",
        cause=f"A pickle names the modules that it needs. Another release of {package}, mostly a newer one, wrote that file, mostly a cache or a checkpoint; "
        "a file that can be made anew may as well be deleted.",
        packages=(package,),
        frame=reader,
    )


_MADE_FOR: Final = compile_lazily(r"(?P<folder>.*/lib(?:64)?/python(?P<version>\d+\.\d+))/(?:site|dist)-packages/")


def _of_two_pythons(raised: LoggedException) -> VersionMismatch | None:
    """Tell that packages which were made for one Python are imported by another one, which finds none of their compiled parts."""
    found = [made for frame in raised.frames if (made := _MADE_FOR.match(with_slashes(frame.path)))]
    if len({made["version"] for made in found}) < 2:
        return None
    first, last = found[0], found[-1]
    return VersionMismatch(
        summary=f"Python {first['version']} takes packages that were made for Python {last['version']}, from {last['folder']}",
        cause="Compiled parts of packages are made for one Python each. PYTHONPATH, which a loaded module may have set, or a folder that the script adds to "
        "sys.path, leads to the packages of another one.",
        packages=(),
        sure=True,
        frame=raised.frames[-1],
        fixes=(
            Fix(
                "Leave that folder out, and install what is then missing in the job's own environment; this shows where modules are looked for",
                ("module purge", "unset PYTHONPATH", "python -c 'import sys; print(sys.executable, *sys.path)'"),
            ),
        ),
    )


def _of_import(raised: LoggedException) -> VersionMismatch | None:
    if two := _of_two_pythons(raised):
        return two
    importer = next(
        (frame for frame in reversed(raised.frames) if package_of(frame.path) or not is_of_library(frame.path)), None
    )
    if importer is None:
        return None
    package = package_of(importer.path)
    if found := _NO_MODULE.match(raised.message):
        module = found["module"]
        top, _, rest = module.partition(".")
        if _UNPICKLES.search(raised.frames[-1].code) and top in PACKAGES:
            return _of_a_pickle(top, module, importer)
        # A folder of that name would lack the part above, too.
        itself = top in PACKAGES and module not in PACKAGES and ("." in rest or top == _TORCH)
        return _lacks(module, module, importer, package, set(PACKAGES), itself=itself)
    found = _CANNOT.match(raised.message)
    if found is None:
        return None
    told = _FROM.match(importer.code)
    module = found["module"] or (told["module"] if told else "")
    if not module:
        return None
    what, path = f"{module}.{found['name']}", with_slashes(found["path"] or "")
    other = package_of(path)
    if not path or other or _PYTHONS.search(path):
        return _lacks(what, module, importer, package, {other, *PACKAGES}, itself=bool(path))
    return _of_source_trees(what, module, path, importer, package)


def _of_source_trees(what: str, module: str, path: str, importer: LogFrame, package: str) -> VersionMismatch | None:
    """Judge what a module that isn't installed lacks: it is of a source tree, or a folder of the script's own."""
    tree = path.partition(f"/{module.replace('.', '/')}")[0]
    if not tree or with_slashes(importer.path).startswith(f"{tree}/") or not importer.path.startswith("/"):
        return None
    other = module.partition(".")[0]
    return VersionMismatch(
        summary=f"{tree} has no {what}, which {package or 'other code'} asks of it: versions don't fit",
        cause=f"{package or importer.path} was written for another release of {other} than the one that lies in {tree}; or what lies there is "
        "something else of that name, which hides the package that is meant.",
        packages=tuple(each for each in (package, other) if each),
        asker=package,
        asked=other,
        frame=importer,
    )


# --- files ------------------------------------------------------------------------------------------------------------------


def _of_key(raised: LoggedException) -> VersionMismatch | None:
    """The kinds of models that a release knows are the keys of a table."""
    if not with_slashes(raised.frames[-1].path).endswith("transformers/models/auto/configuration_auto.py"):
        return None
    return VersionMismatch(
        summary=f"transformers knows no model of type {raised.message}: most likely it is older than the model",
        cause="The model's config.json names its type, and the installed transformers has none of that name.",
        packages=("transformers",),
    )


_JUDGES: Final[dict[str, Callable[[LoggedException], VersionMismatch | None]]] = {
    "TypeError": _of_call,
    "AttributeError": _of_attribute,
    "ImportError": _of_import,
    "ModuleNotFoundError": _of_import,
    "KeyError": _of_key,
}
