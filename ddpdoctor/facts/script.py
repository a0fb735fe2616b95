"""What a training script does, as its source says: which calls it makes, on which ranks, in which loops, with which values.

The calls of libraries are what it is told by: a loader, a sampler, a save, a collective are calls that have a role. A value says where it
may come from; what could not be followed is an origin of its own, so that a rule can be silent for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Annotated

import msgspec

from ddpdoctor.base.findings import SourcePlace
from ddpdoctor.base.unknown import Facts, Source

SOURCE = "the script's source, read without running it"
ITEM = "[*]"
"""The text of an origin that is one item, turn by turn, of something that isn't the same for all ranks for sure."""


class Ranks(str, Enum):
    """Ranks that a condition lets through."""

    ZERO = "zero"
    """Rank 0 of all."""
    NOT_ZERO = "not-zero"
    """All but rank 0."""
    LOCAL_ZERO = "local-zero"
    """The first rank of each node."""
    NOT_LOCAL_ZERO = "not-local-zero"
    SOME = "some"
    """Some ranks, by their number; which ones doesn't matter."""
    DISTRIBUTED = "distributed"
    """All, in a distributed run."""
    NOT_DISTRIBUTED = "not-distributed"
    """The only one, where the run isn't distributed."""
    MAY_BE_SOME = "may-be-some"
    """It could not be followed what the condition asks: it may let through some ranks."""
    ALL = "all"
    """It asks for something that is the same for all ranks, or is no question of the rank: the epoch, an option."""


class NamedResult(msgspec.Struct, frozen=True):
    """What a result is called somewhere: a name, or an attribute or item of one. call: the number of the call whose result it may be."""

    name: str
    call: int


class Loop(msgspec.Struct, frozen=True, omit_defaults=True):
    """A loop.

    Args:
        number: sets it apart from others of the script.
        place: of it.
        variable: that it counts by, if that is a name.
        names: of the loaders and samplers, in the function in which it stands.
    """

    number: int
    place: SourcePlace
    variable: str = ""
    names: tuple[NamedResult, ...] = ()

    def name_of(self, call: LibraryCall) -> str:
        """What the result of a call is called there; "" if nothing."""
        return next((named.name for named in self.names if named.call == call.number), "")


class OriginKind(str, Enum):
    """Where a value comes from."""

    CONSTANT = "constant"
    CALL = "call"
    """The result of a call, or a part of it."""
    RANK = "rank"
    LOCAL_RANK = "local-rank"
    SPAWN_INDEX = "spawn-index"
    """Of mp.spawn's: the local rank, and on one node the rank."""
    WORLD_SIZE = "world-size"
    DEVICE_COUNT = "device-count"
    OPTION = "option"
    """Of the command line."""
    SETTING = "setting"
    """Of the environment."""
    MADE_OF = "made-of"
    """Of others: a sum, a text with values in it, a display."""
    LIBRARY = "library"
    """Something of a library that isn't the result of a call: a function, a class."""
    PROJECT = "project"
    """A function, class or object of the project's own."""
    UNKNOWN = "unknown"


class Role(str, Enum):
    """What a call is in a training. ddpdoctor/scripts/library_calls.json says which have which."""

    OPTION = "option"
    """The definition of an option of the command line."""
    OPTIONS = "options"
    """The options, parsed."""
    SETTINGS = "settings"
    """The settings of a file, or an object that holds settings."""
    PROCESS_GROUP = "process-group"
    """The process group is formed."""
    SPAWN = "spawn"
    """Processes are started."""
    WRAP = "wrap"
    """The model is wrapped so that its gradients are those of all ranks."""
    SHARD = "shard"
    """The model is wrapped so that each rank holds a part of it."""
    DATA_PARALLEL = "one-process-for-all-gpus"
    ENGINE = "engine"
    """A framework's object that does the distributed work from then on."""
    PREPARE = "prepare"
    """A framework takes over a loader or model."""
    SAMPLER = "sampler"
    """Gives each rank its share of the data."""
    OTHER_SAMPLER = "other-sampler"
    """Knows no ranks."""
    BATCH_SAMPLER = "batch-sampler"
    """Makes batches of what another gives."""
    LOADER = "loader"
    SET_EPOCH = "set-epoch"
    SAVE = "save"
    """Writes a file or folder, by whoever calls it."""
    COLLECTIVE_SAVE = "collective-save"
    """Writes one, and all ranks must call it."""
    CHANGE_FOLDER = "change-folder"
    """Relative paths are in that folder from then on."""
    LOAD = "load"
    LOAD_STATE = "load-state"
    STATE = "state"
    """A state dict is taken."""
    COLLECTIVE = "collective"
    """All ranks must call it."""
    SET_DEVICE = "set-device"
    DEVICE = "device"
    MOVE = "move"
    """Something is brought to a device."""
    FORWARD = "forward"
    """A wrapped model is called."""
    BACKWARD = "backward"
    STEP = "step"
    SEED = "seed"
    GENERATOR = "generator"
    NO_SYNC = "no-sync"
    DOWNLOAD = "download"
    """Fetches a file and writes it, by whoever calls it."""
    DATA_SET = "data-set"
    """A data set that fetches its files if it is told so."""
    LOGGER = "logger"
    HALF = "half"
    """The kind of a model's numbers is changed."""
    REQUIRES_GRAD = "requires-grad"
    """Parameters are frozen or set free."""
    NEW_PARAMETERS = "new-parameters"
    """A module gets more of them."""
    LEAVE = "leave"
    """A loop is left, by some ranks or perhaps by some: no call, but told of as one."""
    YIELD = "yield"
    """A generator gives out what it has, in a loop: no call, but told of as one."""


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the places that a value may come from.

    Args:
        kind: of the place.
        text: the constant as Python writes it; the option's or setting's name; the operator of what is made of others, "f" for a text.
        call: the number of the call whose result it is.
        part: what of the result: "" for all of it, else "['model']", ".module".
        parts: the values that it is made of.
    """

    kind: OriginKind
    text: str = ""
    call: int = -1
    part: str = ""
    parts: tuple[Value, ...] = ()


class Value(msgspec.Struct, frozen=True):
    """A value by all that it may be. text: as the source writes it."""

    origins: tuple[Origin, ...] = ()
    text: str = ""

    @property
    def is_followed(self) -> bool:
        """Whether all that it may be is known."""
        return not self.may_be(OriginKind.UNKNOWN)

    def may_be(self, *kinds: OriginKind) -> bool:
        """Whether it may come from such a place."""
        return any(origin.kind in kinds for origin in self.origins)

    def is_constant(self, *texts: str) -> bool:
        """Whether it can't be anything but one of these constants, as Python writes them."""
        return bool(self.origins) and all(
            origin.kind is OriginKind.CONSTANT and origin.text in texts for origin in self.origins
        )

    def flattened(self) -> Iterator[Origin]:
        """Yield all origins, and those of which they are made."""
        for origin in self.origins:
            yield origin
            for part in origin.parts:
                yield from part.flattened()


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A condition under which something happens.

    Args:
        ranks: it lets through.
        place: of the test.
        by_leaving: the others have left before, by return, break, continue, raise or an exit.
        test: that is asked.
        is_negated: it happens where the test doesn't hold.
    """

    ranks: Ranks
    place: SourcePlace
    by_leaving: bool = False
    test: Value = Value()
    is_negated: bool = False


class Argument(msgspec.Struct, frozen=True):
    """An argument of a call. name: "0", "1" for those without one; "*" and "**" for what is unpacked there."""

    name: str
    value: Value


class Escape(msgspec.Struct, frozen=True):
    """A call that was handed a value, and could not be followed: what it does with it nobody knows."""

    name: str
    place: SourcePlace


class Iteration(msgspec.Struct, frozen=True):
    """A loop over the result of a call.

    Args:
        place: of the loop, or of the call that gives out the items.
        loops: in which it stands.
        conditions: under which it runs.
        is_reached: as that of a call.
    """

    place: SourcePlace
    loops: tuple[Loop, ...] = ()
    conditions: tuple[Condition, ...] = ()
    is_reached: bool = True


class Statement(msgspec.Struct, frozen=True):
    """A statement that is no block of others.

    Args:
        place: where it begins.
        lines: as they stand in the file; the first from where it begins.
    """

    place: SourcePlace
    lines: tuple[str, ...]


class SetAttribute(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attribute of a call's result that the script sets.

    Args:
        name: of it, ".require_backward_grad_sync".
        value: that it gets.
        place: where it is set.
        before: the number that the next call after it has.
        loops: in which it is set.
    """

    name: str
    value: Value
    place: SourcePlace
    before: int
    loops: tuple[Loop, ...] = ()


class LibraryCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of a library's function or method, once for each way on which the script comes to it.

    Args:
        number: by which values name it.
        name: in full, wherever it was imported from: "torch.distributed.barrier". Of a method, that of the object's call and behind "()."
            its own: "torch.utils.data.DataLoader().set_epoch"; "?.backward" where the object could not be followed.
        roles: what it is in a training, by ddpdoctor/scripts/library_calls.json.
        arguments: of it.
        receiver: the object whose method it is.
        conditions: under which it happens, the outermost first; those of its callers are among them.
        loops: in which it happens, the outermost first; those of its callers are among them.
        within: names of the context managers around it.
        callers: places from which the script comes there, the outermost first.
        conditions_at_callers: how many of the conditions hold at each of these places.
        statement: in which it stands; None where that is a block, long, or holds a text of several lines.
        is_reached: the script itself comes there; else it is in a function of which nobody knows who calls it.
        escapes: of the result.
        iterations: of the result.
        set_attributes: of the result, that the script sets.
    """

    number: int
    name: str
    place: SourcePlace
    roles: tuple[Role, ...] = ()
    arguments: tuple[Argument, ...] = ()
    receiver: Value | None = None
    conditions: tuple[Condition, ...] = ()
    loops: tuple[Loop, ...] = ()
    within: tuple[str, ...] = ()
    callers: tuple[SourcePlace, ...] = ()
    conditions_at_callers: tuple[int, ...] = ()
    statement: Statement | None = None
    is_reached: bool = True
    escapes: tuple[Escape, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    set_attributes: tuple[SetAttribute, ...] = ()

    def argument(self, name: str, position: int | None = None) -> Value | None:
        """The value of an argument, by its name or its position; None where it isn't given."""
        for argument in self.arguments:
            if argument.name == name or (position is not None and argument.name == str(position)):
                return argument.value
        return None

    @property
    def unpacks(self) -> bool:
        """Whether some of its arguments could not be followed: *args, **kwargs."""
        return any(argument.name in ("*", "**") for argument in self.arguments)

    @property
    def method(self) -> str:
        """The last part of its name."""
        return self.name.rpartition(".")[2]


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of the environment that the script writes."""

    name: str
    value: Value
    place: SourcePlace
    conditions: tuple[Condition, ...] = ()
    is_default: bool = False
    """Only where it isn't set: setdefault, or under `not in os.environ`."""
    is_reached: bool = True
    """As that of a call."""


class UseOfFramework(msgspec.Struct, frozen=True):
    """An import of something that does a part of the work of distributed training itself."""

    name: str
    """As ddpdoctor/scripts/frameworks.json calls it: "accelerate"."""
    does: tuple[str, ...]
    """What nobody has to do who uses it: "set-epoch", "sampler", "set-device" ..."""
    place: SourcePlace


class ImportedName(msgspec.Struct, frozen=True):
    """A name by which a file knows something of a library: "dist" for "torch.distributed"."""

    file: str
    name: str
    stands_for: str


class IgnoreComment(msgspec.Struct, frozen=True):
    """A comment `# ddpdoctor: ignore[slug]`.

    Args:
        file: in which it stands.
        line: of which it speaks.
        slugs: that it names; none where it speaks of all.
    """

    file: str
    line: int
    slugs: tuple[str, ...] = ()


class SourceFile(msgspec.Struct, frozen=True):
    """A file of the project that was read. problem: why it could not be; "" where it could."""

    path: str
    problem: str = ""


class Script(Facts, frozen=True):
    """A file of Python source as its reader follows it, through the files of the same project that it imports; without a path where none was
    named."""

    path: str = ""
    files: Annotated[tuple[SourceFile, ...], Source(SOURCE)] = ()
    calls: Annotated[tuple[LibraryCall, ...], Source(SOURCE)] = ()
    """Those that have a role, in the order in which the script comes to them; a call's number is its place here."""
    settings: Annotated[tuple[Assignment, ...], Source(SOURCE)] = ()
    frameworks: Annotated[tuple[UseOfFramework, ...], Source(SOURCE)] = ()
    read_settings: Annotated[tuple[str, ...], Source(SOURCE)] = ()
    """Names of the environment variables that it reads."""
    imported_names: Annotated[tuple[ImportedName, ...], Source(SOURCE)] = ()
    """Of the files in which the calls stand."""
    ignored: tuple[IgnoreComment, ...] = ()
    unfollowed: Annotated[tuple[str, ...], Source(SOURCE)] = ()
    """Methods that tell a sampler the epoch, in lines to which it doesn't come."""
    asks_for_first_rank: bool = False
    """Somewhere it asks for the first rank, of all or of a node."""
    is_cut_short: bool = False
    """It is too large to be followed to its end."""

    def with_role(self, *roles: Role) -> Iterator[LibraryCall]:
        """Yield the calls that have one of these roles, in the order in which the script comes to them."""
        return (call for call in self.calls if not set(roles).isdisjoint(call.roles))

    def made_by(self, value: Value | None, *roles: Role) -> Iterator[LibraryCall]:
        """Yield the calls of these roles whose result the value may be."""
        for origin in value.origins if value else ():
            call = self.call(origin.call)
            if call is not None and not set(roles).isdisjoint(call.roles):
                yield call

    def call(self, number: int) -> LibraryCall | None:
        """The call of that number, if there is one."""
        return self.calls[number] if 0 <= number < len(self.calls) else None

    def does(self, work: str) -> bool:
        """Whether a framework that it uses does that."""
        return any(work in framework.does for framework in self.frameworks)

    @property
    def problem(self) -> str:
        """Why it could not be read; "" where it could."""
        return next((file.problem for file in self.files if file.path == self.path), "")
