"""`Machine`: the current state of a state machine and its history, as an immutable value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast, overload

from effectflow.workflows.machine._states import name_of

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
        created_at: when its first attempt began, aware, in UTC; None before that.
        updated_at: when its last attempt ended, aware, in UTC; None before that.
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


class Form(Protocol):
    """Writes the machines of one definition as JSON and as binary data."""

    def write_json(self, machine: Machine[Any]) -> str: ...

    def write_binary(self, machine: Machine[Any]) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Machine(Generic[S]):
    """A state machine at one moment. Immutable: a step returns another machine.

    Made by `StateMachine.begin`, `step`, `from_json` and `from_binary`.

    Attributes:
        initial: the state in which it began.
        current: the state in which it is.
        history: the transitions that it took, oldest first.
        metadata: its times and attempts.
        form: writes it as JSON and as binary data.
    """

    initial: S
    current: S
    history: History[S]
    metadata: MachineMetadata
    form: Form = field(repr=False, compare=False)

    def __str__(self) -> str:
        attempts = sum(self.metadata.total_attempts.values())
        taken = len(self.history)
        return f"at {name_of(self.current)}; transitions: {taken}, attempts: {attempts}"

    def to_json(self) -> str:
        """Return the machine as readable JSON, for `StateMachine.from_json`.

        Raises NotSerializable, with the path, for a state that could not be restored exactly.
        """
        return self.form.write_json(self)

    def to_binary(self) -> bytes:
        """Return the machine as compact binary data, for `StateMachine.from_binary`.

        Raises NotSerializable, as `to_json` does.
        """
        return self.form.write_binary(self)
