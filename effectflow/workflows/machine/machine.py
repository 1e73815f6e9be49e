"""`Machine`: where a state machine stands and what it has been through, as an immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from effectflow.workflows.machine.history import History
from effectflow.workflows.machine.states import name_of

__all__ = ["Form", "Machine", "MachineMetadata", "PendingRetry"]

S = TypeVar("S", covariant=True)


@dataclass(frozen=True, slots=True)
class PendingRetry:
    """A transition that asked for another attempt.

    Attributes:
        transition: its name.
        attempts: how many were made so far.
        feedback: what the last one said.
        since: when the first one began, aware, in UTC.
        retry_at: when the next one is due, aware, in UTC.
    """

    transition: str
    attempts: int
    feedback: str
    since: datetime
    retry_at: datetime


# A named tuple, since one is made at each step, and a frozen dataclass takes four times as long.
class MachineMetadata(NamedTuple):
    """What it took the machine to come to where it stands.

    Attributes:
        created_at: when its first attempt began, aware, in UTC; None before that.
        updated_at: when its last attempt ended, aware, in UTC; None before that.
        total_attempts: how often each transition was attempted, by name.
        pending: the transition that is to be attempted again; None if the last one was taken.
    """

    created_at: datetime | None
    updated_at: datetime | None
    total_attempts: Mapping[str, int]
    pending: PendingRetry | None

    @property
    def current_attempt(self) -> int:
        """How often the pending transition was attempted so far; 0 if there is none."""
        return self.pending.attempts if self.pending else 0


class Form(Protocol):
    """How the machines of one definition are written down."""

    def write_json(self, machine: Machine[Any]) -> str: ...

    def write_binary(self, machine: Machine[Any]) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Machine(Generic[S]):
    """A state machine at one moment. Stepping it gives another one; this one stays as it is.

    Made by `StateMachine.begin`, `step`, `from_json` and `from_binary`.

    Attributes:
        initial: the state that it began in.
        current: the state that it stands at.
        history: the transitions that were taken, oldest first.
        metadata: times, and attempts.
        form: how its definition writes it down.
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
        """The machine as JSON for people to read; `StateMachine.from_json` reads it back.

        Raises NotSerializable, with the path, for a state from which the same would not come back.
        """
        return self.form.write_json(self)

    def to_binary(self) -> bytes:
        """The machine in few bytes; `StateMachine.from_binary` reads it back.

        Raises NotSerializable, as `to_json` does.
        """
        return self.form.write_binary(self)
