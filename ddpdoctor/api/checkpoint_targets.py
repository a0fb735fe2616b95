"""The files that `fix-checkpoint` is to handle, and where each new one goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ddpdoctor.api.errors import UsageError
from ddpdoctor.base.text import plural

if TYPE_CHECKING:
    from ddpdoctor.checkpoints.pickles.editing import EditOptions
    from ddpdoctor.report.reported_checkpoints import CheckpointOutcome


_ENDINGS = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".safetensors")


class Target(NamedTuple):
    """A file, and the new one that is to be made of it; None: it is changed in place. folder: one to be made for it."""

    path: Path
    out: Path | None = None
    folder: Path | None = None


def choose_targets(paths: Sequence[str], output: str | None, wishes: EditOptions) -> list[Target]:
    """One file goes to the file `output`, or into it where that is a folder; several go into the folder, in the same order
    of folders as they lie.

    Raises:
        UsageError: two would become the same new file, one new file is asked for of several, or the keys of shards
            would no longer be those in their index.
    """
    from ddpdoctor.checkpoints.named_paths import expand

    if output is None:
        files = expand(map(Path, paths))
        if wishes.strip_prefixes:
            _refuse_shards(files)
        return [Target(path) for path in files]
    found = [file for path in paths for file in _files(Path(path))]
    folder = Path(output)
    single = len(paths) == 1 and found[0][0] == Path(paths[0]) and not found[0][0].is_dir()
    if single and folder.exists() and found[0][0].exists() and folder.samefile(found[0][0]):
        raise UsageError(f"--output {output} is the file itself; without --output it is changed in place")
    if single and not folder.is_dir() and not output.endswith("/"):
        return [Target(found[0][0], folder)]
    if not folder.is_dir() and not output.endswith("/") and folder.name.endswith(_ENDINGS):
        # Sooner a file for all of them was meant than a folder with such a name.
        raise UsageError(
            f"--output {output} is a file's name, and {plural(len(found), 'new file')} may come of what was named: "
            "name a folder"
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output {output} is a file, and {len(found)} new ones are to be written: name a folder")
    return _in_folder(found, folder, wishes.to_safetensors)


def _refuse_shards(paths: Iterable[Path]) -> None:
    from ddpdoctor.checkpoints.shard_index_copies import index_of

    for path in paths:
        index = index_of(path)
        if index is not None:
            raise UsageError(
                f"{index} names the keys of {path.name}, too, and isn't changed in place: with -o FOLDER both are written anew"
            )


def make_folders(chosen: Sequence[Target]) -> None:
    """The folders of several new files. The folder of a single one has to be there, lest a slip of the pen make one.

    Raises:
        UsageError: one can't be made.
    """
    for folder in dict.fromkeys(target.folder for target in chosen if target.folder is not None):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"the folder {folder} can't be made: {error.strerror}") from error


def undo_targets(paths: Sequence[str]) -> list[Target]:
    """The files that were named, and of a folder those that have an undo file; itself, if none has."""
    found = [file for path in paths for file in _fixed_before(Path(path))]
    return [Target(path) for path in dict.fromkeys(found)]


def _fixed_before(path: Path) -> list[Path]:
    from ddpdoctor.checkpoints.writing.journal import SUFFIX

    if path.is_dir():
        return sorted(Path(str(file).removesuffix(SUFFIX)) for file in path.rglob(f"*{SUFFIX}")) or [path]
    files = [file for file, _ in _files(path)]
    return [file for file in files if Path(f"{file}{SUFFIX}").exists()] or files


def nothing_to_undo(path: Path) -> CheckpointOutcome | None:
    """Word what is to be said of a folder in which no file has an undo file; None for a file."""
    from ddpdoctor.checkpoints.writing.journal import SUFFIX
    from ddpdoctor.report.reported_checkpoints import Action, CheckpointOutcome

    if not path.is_dir():
        return None
    text = f"No file in it has an undo file (NAME{SUFFIX}), so there is nothing to undo"
    return CheckpointOutcome(path=str(path), action=Action.REFUSED, error=text)


def _in_folder(found: Sequence[tuple[Path, Path]], folder: Path, to_safetensors: bool) -> list[Target]:
    made: dict[Path, Path] = {}
    for path, name in found:
        out = folder / (name.with_suffix(".safetensors") if to_safetensors else name)
        if made.setdefault(out, path) != path:
            raise UsageError(f"{made[out]} and {path} would both become {out}: write them one after the other")
    return [Target(path, out, out.parent) for out, path in made.items()]


def _files(path: Path) -> Iterator[tuple[Path, Path]]:
    """Each file that the path means, and its name within the folder that was named."""
    from ddpdoctor.checkpoints.named_paths import expand

    folder = path if path.is_dir() else path.parent
    for file in expand([path]):
        yield file, file.relative_to(folder)
