"""`Machine`: the current state of a state machine and its history, as an immutable value, and
the forms in which it is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import islice, pairwise
from types import NoneType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast, overload

import orjson

from effectflow.builders.machine._states import StateSet, name_of
from effectflow.builders.views import View, place_of_visit
from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.errors import CorruptCheckpoint, DefinitionChanged, UnsupportedVersion
from effectflow.checkpoint.values import (
    KnownTypes,
    Tree,
    dict_type,
    encode_compact,
    from_tree,
    of_type,
    render_tree,
    to_tree,
    tree_digest,
    write_json,
)
from effectflow.effects.paths import flow_of
from effectflow.runs.migrations import StateMigration, migrated

S = TypeVar("S", covariant=True)

_SHOWN = 20
"""The number of entries in the `repr` of a history."""


# One is made per step, and a frozen dataclass takes four times as long to make as a named tuple.
class HistoryEntry(NamedTuple, Generic[S]):
    """A transition that the machine took.

    Attributes:
        transition: its name.
        source: the state before.
        target: the state after.
        at: when, aware, in UTC.
        attempt: the number of the attempt that took it, from 1.
        abort_reason: why the action aborted; None if it succeeded.
    """

    transition: str
    source: S
    target: S
    at: datetime
    attempt: int
    abort_reason: str | None = None


class History(Sequence[HistoryEntry[S]]):
    """The transitions that a machine took, oldest first. Immutable: `appended` returns a longer history.

    A longer history shares the list of the one that it continues, and each sees the entries up to its
    length. So n steps cost O(n), where copying a tuple at each step would cost O(n²).
    """

    __slots__ = ("_entries", "_length")

    def __init__(self, entries: Iterable[HistoryEntry[S]] = ()) -> None:
        self._entries = list(entries)
        self._length = len(self._entries)

    def appended(self: History[Any], entry: HistoryEntry[Any]) -> History[Any]:
        """Return a history with one more entry."""
        entries, length = self._entries, self._length
        if len(entries) == length:
            entries.append(entry)
        if entries[length] is not entry:
            # Another history continued this one first, perhaps in another thread just now.
            entries = [*entries[:length], entry]
        longer = cast("History[Any]", History.__new__(History))
        longer._entries, longer._length = entries, length + 1
        return longer

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> HistoryEntry[S]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[HistoryEntry[S]]: ...
    def __getitem__(self, index: int | slice) -> HistoryEntry[S] | Sequence[HistoryEntry[S]]:
        if isinstance(index, slice):
            return tuple(self)[index]
        return self._entries[range(self._length)[index]]

    def __iter__(self) -> Iterator[HistoryEntry[S]]:
        return islice(self._entries, self._length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and tuple(self) == tuple(cast("History[Any]", other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        if len(self) <= _SHOWN:
            return f"History({list(self)!r})"
        return f"History(<{len(self) - _SHOWN:,} earlier>, {list(self)[-_SHOWN:]!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return History, (tuple(self),)


class PendingRetry(NamedTuple):
    """A transition whose last attempt ended in `Retry`.

    Attributes:
        transition: its name.
        attempts: the number of attempts so far.
        feedback: the feedback of the last attempt.
        since: when the first attempt began, aware, in UTC.
        retry_at: when the next attempt is due, aware, in UTC.
    """

    transition: str
    attempts: int
    feedback: str
    since: datetime
    retry_at: datetime


# A named tuple for the same reason as HistoryEntry.
class MachineMetadata(NamedTuple):
    """The times and attempts of a machine.

    Attributes:
        created_at: the time that `begin` was given, or when its first attempt began, aware, in UTC; None
            before that.
        updated_at: when its last attempt ended, aware, in UTC; before that as `created_at`.
        total_attempts: the number of attempts at each transition, by name.
        pending: the transition to attempt again; None if the last attempt took its transition.
    """

    created_at: datetime | None
    updated_at: datetime | None
    total_attempts: Mapping[str, int]
    pending: PendingRetry | None

    @property
    def current_attempt(self) -> int:
        """The number of attempts so far at the pending transition; 0 without one."""
        return self.pending.attempts if self.pending else 0


@dataclass(frozen=True, slots=True)
class Machine(Generic[S]):
    """A state machine at one moment. Immutable: a step returns another machine.

    Made by `StateMachine.begin`, `step`, `from_json` and `from_binary`.

    Attributes:
        initial: the state in which it began.
        current: the state in which it is.
        history: the transitions that it took, oldest first.
        metadata: its times and attempts.
        id: the id that `begin` was given. Without one, the first attempt sets it: to the id of the
            machine's run, or outside of runs to a random one. Empty before that.
        form: writes it as JSON and as binary data, and knows its transitions.
    """

    initial: S
    current: S
    history: History[S]
    metadata: MachineMetadata
    form: SavedForm = field(repr=False, compare=False)
    id: str = ""

    def __str__(self) -> str:
        attempts = sum(self.metadata.total_attempts.values())
        taken = len(self.history)
        return f"at {name_of(self.current)}; transitions: {taken}, attempts: {attempts}"

    def possible(self) -> tuple[str, ...]:
        """Return the names of the transitions that may happen now: guards allow them in this state.

        A step attempts the first of them. It is empty in a final state. Raises LookupError for a machine
        that was pickled, which leaves the code of its transitions behind.
        """
        return self.form.possible(self.current)

    def path(self) -> tuple[S, ...]:
        """Return the states that the machine was in, from the initial to the current one."""
        return (self.initial, *(entry.target for entry in self.history))

    def durations(self) -> tuple[timedelta, ...]:
        """Return how long the machine was in each state of `path`, except the current one.

        The first state counts from the beginning of the first attempt.
        """
        times = [self.metadata.created_at, *(entry.at for entry in self.history)]
        known = [at for at in times if at is not None]
        return tuple(after - before for before, after in pairwise(known))

    def to_json(self) -> str:
        """Return the machine as readable JSON, for `StateMachine.from_json`.

        Raises NotSerializable, with the path, for a state that could not be restored exactly.
        """
        return write_json(self.form.sealed(self), orjson.OPT_INDENT_2).decode()

    def to_binary(self) -> bytes:
        """Return the machine as compact binary data, for `StateMachine.from_binary`.

        Raises NotSerializable, as `to_json` does.
        """
        return encode_compact(self.form.sealed(self), dictionary=DICTIONARY)


MACHINE_FORMAT = 1
"""The version of the format of saved machines."""

DICTIONARY = (
    b"dfrom\x81e$enum\x82bto\xa1e$enum\x82batx 2026-01-01T00:00:00.000000+00:00gattempt\x01"
    b"labort_reason\xf6\xa6jtransitionjcreated_at\xf6jupdated_at\xf6ntotal_attempts\xa0gpending\xf6"
    b"\xa8gversion\x01hworkflowpworkflow_versiona1minitial_state\xa1e$enum\x82mcurrent_state\xa1e$enum"
    b"\x82ghistory\x80hmetadata\xa4jcreated_at\xf6jupdated_at\xf6ntotal_attempts\xa0gpending\xf6fdigestx@"
)
"""The preset compression dictionary of the binary form: the CBOR that all machines share. It is part of
the format and must not change."""

Data: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SavedForm:
    """Writes and reads the machines of one definition, and upgrades those of earlier versions.

    `possible` returns the transitions that may happen in a state. Pickled, it is left behind with the
    code of the transitions.
    """

    name: str
    version: str
    states: StateSet
    types: KnownTypes
    possible: Callable[[object], tuple[str, ...]]
    migrations: Mapping[int, StateMigration] = field(default_factory=dict[int, StateMigration])

    def __reduce__(self) -> tuple[Any, ...]:
        kept = (self.name, self.version, self.states, self.types, _unknown, self.migrations)
        return SavedForm, kept

    def write(self, machine: Machine[Any]) -> Data:
        """Return a machine as plain data, except its states."""
        return {
            "version": MACHINE_FORMAT,
            **({"id": machine.id} if machine.id else {}),
            "workflow": self.name,
            "workflow_version": self.version,
            "initial_state": machine.initial,
            "current_state": machine.current,
            "history": [_write(entry, _ENTRY) for entry in machine.history],
            "metadata": _write_metadata(machine.metadata),
        }

    def read(self, data: object) -> Machine[Any]:
        """Read what `write` returned. Raise TypeError or ValueError for any other data."""
        machine_id, parts = _id_of(data)
        *_, initial, current, history, metadata = _read(parts, _MACHINE)
        self.check_state(current)
        entries = History(HistoryEntry(*_read(entry, _ENTRY)) for entry in history)
        return Machine(initial, current, entries, _read_metadata(metadata), self, machine_id)

    def check_state(self, state: Any) -> Any:
        """Return a state of the definition. Raise ValueError for any other value."""
        if state not in self.states:
            raise ValueError(f"{name_of(state)} is not a state of {self.name!r}")
        return state

    def sealed(self, machine: Machine[Any]) -> dict[str, Tree]:
        """Return a machine in its saved form, with a digest."""
        tree = cast("dict[str, Tree]", to_tree(self.write(machine), types=self.types))
        return {**tree, "digest": tree_digest(tree)}

    def opened(self, decode: Callable[[bytes], Tree], data: bytes, *, force: bool) -> Machine[Any]:
        """Return the machine that `sealed` and an encoding wrote; see `StateMachine.from_json`."""
        try:
            tree = _unsealed(decode(data), self.name)
        except (TypeError, ValueError) as error:
            raise _corrupt(error) from error
        was = tree["workflow_version"]
        if was != self.version:
            tree, version = migrated(tree, was, self.migrations, "the saved machine")
            if version != self.version and not force:
                detail = f"its version was {was!r} and is {self.version!r}"
                raise DefinitionChanged("", self.name, detail=detail, what="the saved machine")
        try:
            data = from_tree(tree, types=self.types)
            machine = self.read(data)
            of_type(data, machine_type(self.states))
            return machine
        except (TypeError, ValueError) as error:
            raise _corrupt(error) from error


def _unknown(state: object) -> tuple[str, ...]:
    raise LookupError(
        "a machine that was pickled does not know its transitions: pass it on as `to_json()`, and read "
        "it with `from_json` of its StateMachine"
    )


def _unsealed(tree: Tree, name: str) -> Data:
    """Return the content of sealed data. Raise ValueError unless it is an intact machine of this name."""
    version = tree.get("version") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(version, int):
        raise ValueError("it is not a saved machine")
    if version > MACHINE_FORMAT:
        raise UnsupportedVersion("the saved machine", version, MACHINE_FORMAT)
    content: Data = {**tree}
    if content.pop("digest", None) != tree_digest(content):
        raise ValueError("its digest does not match its content")
    _read(_id_of(content)[1], _MACHINE)
    if content["workflow"] != name:
        raise ValueError(f"it is a machine of {content['workflow']!r}, not of {name!r}")
    return content


def _corrupt(error: Exception) -> CorruptCheckpoint:
    return CorruptCheckpoint("", str(error), what="the saved machine")


_Fields: TypeAlias = Mapping[str, tuple[type[Any], ...]]
"""The fields of a part of a saved machine, in the order of its attributes, and their types."""

_MACHINE: _Fields = {
    "version": (int,),
    "workflow": (str,),
    "workflow_version": (str,),
    "initial_state": (object,),
    "current_state": (object,),
    "history": (list,),
    "metadata": (dict,),
}
_ENTRY: _Fields = {
    "transition": (str,),
    "from": (object,),
    "to": (object,),
    "at": (datetime,),
    "attempt": (int,),
    "abort_reason": (str, NoneType),
}
_METADATA: _Fields = {
    "created_at": (datetime, NoneType),
    "updated_at": (datetime, NoneType),
    "total_attempts": (dict,),
    "pending": (dict, NoneType),
}
_PENDING: _Fields = {
    "transition": (str,),
    "attempts": (int,),
    "feedback": (str,),
    "since": (datetime,),
    "retry_at": (datetime,),
}


def machine_type(states: StateSet) -> Any:
    """Return the annotation of what `SavedForm.write` returns.

    A state of the past may have been removed from the definition since, so only its class is checked.
    """
    entry = dict_type("entry", {"from": states.classes, "to": states.classes})
    return dict_type(
        "machine",
        {
            "version": int,
            "workflow": str,
            "initial_state": states.classes,
            "current_state": states.annotation,
            "history": list[entry],
            "metadata": dict[str, Any],
        },
    )


def _id_of(data: object) -> tuple[str, object]:
    """Return the id in the data of a machine, empty without one, and the other parts."""
    parts = cast("Data", data if isinstance(data, dict) else {})
    if "id" not in parts:
        return "", cast("object", data)
    [machine_id] = _read({"id": parts["id"]}, {"id": (str,)})
    return machine_id, {name: part for name, part in parts.items() if name != "id"}


def _write_metadata(metadata: MachineMetadata) -> Data:
    pending = metadata.pending and _write(metadata.pending, _PENDING)
    return {**_write(metadata, _METADATA), "pending": pending}


def _read_metadata(data: object) -> MachineMetadata:
    created_at, updated_at, attempts, pending = _read(data, _METADATA)
    _read(attempts, dict.fromkeys(attempts, (int,)))
    pending = None if pending is None else PendingRetry(*_read(pending, _PENDING))
    return MachineMetadata(created_at, updated_at, attempts, pending)


def _write(part: Iterable[Any], fields: _Fields) -> Data:
    """Return a part as plain data, except its states."""
    return {
        name: value.isoformat() if datetime in kinds and value is not None else value
        for (name, kinds), value in zip(fields.items(), part, strict=True)
    }


def _read(data: object, fields: _Fields) -> list[Any]:
    """Return the values of a map with exactly these fields. Raise an error for any other data."""
    values = cast("Data", data if isinstance(data, dict) else {})
    if values.keys() != fields.keys():
        raise ValueError(f"it must have exactly the parts {', '.join(fields)}")
    return [_read_value(name, values[name], kinds) for name, kinds in fields.items()]


def _read_value(name: str, value: Any, kinds: tuple[type[Any], ...]) -> Any:
    found = datetime.fromisoformat(value) if datetime in kinds and type(value) is str else value
    if not isinstance(found, kinds) or (int in kinds and isinstance(found, bool)):
        raise TypeError(f"its {name} is {name_of(value)}")
    if datetime in kinds and found is not None and found.tzinfo is None:
        raise ValueError(f"the time {value!r} has no time zone")
    return found


def _state_row(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    match state_of(checkpoint):
        case {"$enum": [_, str(member)]}:
            yield "state", member
        case state:
            yield "state", render_tree(state)


VIEW = View(place=partial(place_of_visit, "transition"), rows=_state_row)


def state_of(checkpoint: Checkpoint) -> Tree:
    """Return the state of a run of a machine, in its saved form."""
    for step in reversed(checkpoint.completed_steps):
        # Steps within an attempt do not move the machine, and a retry does not either.
        if not flow_of(step.step) and isinstance(step.output, dict) and "state" in step.output:
            return step.output["state"]
    begun = checkpoint.initial_state
    return begun.get("current_state", begun) if isinstance(begun, dict) else begun


def over_states(migration: StateMigration) -> StateMigration:
    """Apply a migration of states to all that machines save: records, whole machines, single states."""

    def migrate(saved: Any) -> Any:
        match saved:
            case {"outcome": _, "state": state}:
                return {**saved, "state": migration(state)}
            case {"outcome": "retry"}:
                return saved
            case {"initial_state": initial, "current_state": current, "history": list()}:
                return {
                    **saved,
                    "initial_state": migration(initial),
                    "current_state": migration(current),
                    "history": [
                        {**entry, "from": migration(entry["from"]), "to": migration(entry["to"])}
                        for entry in saved["history"]
                    ],
                }
            case _:
                return migration(saved)

    return migrate
