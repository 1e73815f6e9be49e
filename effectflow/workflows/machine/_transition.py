"""`Transition`: from some states to others, and the three outcomes of its action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Never, TypeAlias, TypeVar, overload

from effectflow.effects import Effect, RetryPolicy
from effectflow.workflows.machine._states import States, StateSet

Env = TypeVar("Env", contravariant=True)
E = TypeVar("E", covariant=True)
S = TypeVar("S", covariant=True)
T = TypeVar("T")

Env2 = TypeVar("Env2")
E2 = TypeVar("E2")
Source = TypeVar("Source")
Target = TypeVar("Target")


@dataclass(frozen=True, slots=True)
class Moved(Generic[S]):
    """The action succeeded: the machine is now in `state`, a target of the transition."""

    state: S


@dataclass(frozen=True, slots=True)
class Retry:
    """Not yet: the machine stays in its state, and attempts the same transition again.

    `feedback` says why. The next attempt can read it with `transition_info()`.
    """

    feedback: str


@dataclass(frozen=True, slots=True)
class Abort(Generic[S]):
    """The action cannot succeed: the machine is now in `state`, and its history keeps the `reason`."""

    reason: str
    state: S


Outcome: TypeAlias = Moved[T] | Retry | Abort[T]
"""The outcome of an action: `Outcome[Order]` is `Moved[Order] | Retry | Abort[Order]`."""


class Transition(Generic[Env, E, S]):
    """A transition that a state machine takes from some states to others.

    `source`, `target` and `abort_to` take a state, a class, which means all of its instances, or a set of
    either. So `source=Order` is any member of the Enum `Order`, and `source={Draft, Review}` any instance
    of these two classes. A frozenset is a state itself.

    Parameters:
        name: its name in the history, and the name of the durable step of each attempt.
        source: the states that it leaves.
        target: the states that it leads to, one of which the action must move to.
        action: called with the state; its effect yields `Moved(state)`, `Retry(feedback)` or
            `Abort(reason, state)`. Without an action the machine just moves, and `target` must be a
            single state.
        guard: called with the state; False forbids the transition. Pure.
        abort_to: the states that `Abort` may lead to; any final state by default.
        retry: the number and the delays of attempts after `Retry`; the machine's policy by default.
        at_most_once: after a crash during an attempt, a resume fails with OutcomeUnknown instead of
            repeating it.

    Example:
        >>> from effectflow import Transition
        >>> Transition("publish", "draft", "public")
        Transition('publish', draft -> public)
    """

    __slots__ = ("abort_to", "action", "at_most_once", "guard", "name", "retry", "source", "target")

    # The last three differ in the form of the source only: in a union, mypy cannot distinguish them.
    @overload
    def __init__(
        self: Transition[Env2, E2, Source | Target],
        name: str,
        source: States[Source],
        target: States[Target],
        action: Callable[[Source], Effect[Env2, E2, Outcome[Target]]],
        guard: Callable[[Source], bool] | None = None,
        *,
        abort_to: States[Target] | None = None,
        retry: RetryPolicy | None = None,
        at_most_once: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: Transition[object, Never, Source | Target],
        name: str,
        source: type[Source] | set[type[Source]],
        target: Target,
        action: None = None,
        guard: Callable[[Source], bool] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Transition[object, Never, Source | Target],
        name: str,
        source: set[Source],
        target: Target,
        action: None = None,
        guard: Callable[[Source], bool] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Transition[object, Never, Source | Target],
        name: str,
        source: Source,
        target: Target,
        action: None = None,
        guard: Callable[[Source], bool] | None = None,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        source: object,
        target: object,
        action: Callable[[Any], Effect[Any, Any, Outcome[Any]]] | None = None,
        guard: Callable[[Any], bool] | None = None,
        *,
        abort_to: object = None,
        retry: RetryPolicy | None = None,
        at_most_once: bool = False,
    ) -> None:
        self.name: Final = name
        self.source: Final = StateSet.named(source)
        self.target: Final = StateSet.named(target)
        self.action: Final = action
        self.guard: Final = guard
        self.abort_to: Final = None if abort_to is None else StateSet.named(abort_to)
        self.retry: Final = retry
        self.at_most_once: Final = at_most_once

    @property
    def states(self) -> tuple[StateSet, ...]:
        """All states that it names: sources, targets, and those that it aborts to."""
        named = (self.source, self.target)
        return named if self.abort_to is None else (*named, self.abort_to)

    def __str__(self) -> str:
        abort = "" if self.abort_to is None else f", abort to {self.abort_to}"
        return f"{self.name}: {self.source} -> {self.target}{abort}"

    def __repr__(self) -> str:
        return f"Transition({self.name!r}, {self.source} -> {self.target})"
