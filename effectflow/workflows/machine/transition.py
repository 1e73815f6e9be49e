"""`Transition`: one way from some states to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, Never, TypeVar, overload

from effectflow.effects import Effect, RetryPolicy
from effectflow.workflows.machine.outcomes import Outcome
from effectflow.workflows.machine.states import States, StateSet

__all__ = ["Transition"]

Env = TypeVar("Env", contravariant=True)
E = TypeVar("E", covariant=True)
S = TypeVar("S", covariant=True)

Env2 = TypeVar("Env2")
E2 = TypeVar("E2")
Source = TypeVar("Source")
Target = TypeVar("Target")


class Transition(Generic[Env, E, S]):
    """One way from some states to others, taken by a state machine that stands at one of the former.

    States are named by themselves, or by a class that stands for all of its instances, or by a set of
    either. So `source=Order` is any member of the Enum `Order`, and `source={Draft, Review}` any
    instance of these two classes. A frozenset names one state, itself.

    Parameters:
        name: what it is called: in the history, and as the durable step that each attempt is.
        source: the states that it leaves.
        target: the states that it leads to. The state that the action moves to must be one of them.
        action: what is done. It is given the state, and its effect yields `Moved(state)`,
            `Retry(feedback)` or `Abort(reason, state)`. Without one the machine just moves, so that
            `target` must be a single state.
        guard: a pure function of the state, which says whether the transition may be taken now.
        abort_to: the states that `Abort` may lead to; any final state if not given.
        retry: how often and how soon `Retry` is followed by another attempt; what the machine says if
            not given.
        at_most_once: after a crash in the middle of an attempt, a resume fails with OutcomeUnknown
            instead of attempting it again.

    Example:
        >>> from effectflow import Transition
        >>> Transition("publish", "draft", "public")
        Transition('publish', draft -> public)
    """

    __slots__ = ("abort_to", "action", "at_most_once", "guard", "name", "retry", "source", "target")

    # The last three differ only in how the source is named: mypy cannot tell these apart in a union.
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
        """The states that it names: those that it leaves, leads to, and aborts to."""
        named = (self.source, self.target)
        return named if self.abort_to is None else (*named, self.abort_to)

    def __str__(self) -> str:
        abort = "" if self.abort_to is None else f", abort to {self.abort_to}"
        return f"{self.name}: {self.source} -> {self.target}{abort}"

    def __repr__(self) -> str:
        return f"Transition({self.name!r}, {self.source} -> {self.target})"
