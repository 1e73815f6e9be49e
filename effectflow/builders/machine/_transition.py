"""`Transition`: from some states to others, the three outcomes of its action, and what may go wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, Never, TypeAlias, TypeVar, cast, overload

from effectflow.builders.machine._states import States, StateSet, name_of
from effectflow.effects import Effect, RetryExhausted, RetryPolicy
from effectflow.effects.errors import Copyable
from effectflow.runs.step_loop import condition_holds

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


Guard: TypeAlias = Callable[[T], bool] | Mapping[str, Callable[[T], bool]]
"""What allows a transition: a pure function of the state, or several, by the names of what they check."""


_Checks: TypeAlias = Mapping[str, Callable[[Any], bool]]


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
        guard: called with the state; False forbids the transition. Pure. Several checks are a mapping
            from what each checks to its function: `{"it has an address": has_address, ...}`. All of them
            are called, and `NoTransition` lists all that returned False.
        abort_to: the states that `Abort` may lead to; any final state by default.
        retry: the number and the delays of attempts after `Retry`; the machine's policy by default.
        at_most_once: after a crash during an attempt, a resume fails with OutcomeUnknown instead of
            repeating it.

    Example:
        >>> from effectflow.machines import Transition
        >>> Transition("publish", "draft", "public")
        Transition('publish', draft -> public)
    """

    __slots__ = (
        "abort_to",
        "action",
        "at_most_once",
        "checks",
        "guard",
        "name",
        "retry",
        "source",
        "target",
    )

    # The last three differ in the form of the source only: in a union, mypy cannot distinguish them.
    @overload
    def __init__(
        self: Transition[Env2, E2, Source | Target],
        name: str,
        source: States[Source],
        target: States[Target],
        action: Callable[[Source], Effect[Env2, E2, Outcome[Target]]],
        guard: Guard[Source] | None = None,
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
        guard: Guard[Source] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Transition[object, Never, Source | Target],
        name: str,
        source: set[Source],
        target: Target,
        action: None = None,
        guard: Guard[Source] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Transition[object, Never, Source | Target],
        name: str,
        source: Source,
        target: Target,
        action: None = None,
        guard: Guard[Source] | None = None,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        source: object,
        target: object,
        action: Callable[[Any], Effect[Any, Any, Outcome[Any]]] | None = None,
        guard: Guard[Any] | None = None,
        *,
        abort_to: object = None,
        retry: RetryPolicy | None = None,
        at_most_once: bool = False,
    ) -> None:
        self.name: Final = name
        self.source: Final = StateSet.named(source)
        self.target: Final = StateSet.named(target)
        self.action: Final = action
        is_single = not isinstance(guard, Mapping)
        self.guard: Final = guard if is_single else None
        self.checks: Final = None if is_single else cast("_Checks", guard)
        self.abort_to: Final = None if abort_to is None else StateSet.named(abort_to)
        self.retry: Final = retry
        self.at_most_once: Final = at_most_once

    @property
    def is_guarded(self) -> bool:
        """Whether its guard, or one of several checks, may forbid it."""
        return self.guard is not None or self.checks is not None

    @property
    def states(self) -> tuple[StateSet, ...]:
        """All states that it names: sources, targets, and those that it aborts to."""
        named = (self.source, self.target)
        return named if self.abort_to is None else (*named, self.abort_to)

    def violations(self, state: object) -> tuple[str, ...]:
        """Return the checks of the guard that forbid the transition in this state; empty if none does.

        A guard that is a single function has the name "guard".
        """
        if self.checks is not None:
            return tuple(
                name
                for name, check in self.checks.items()
                if not condition_holds(
                    check, state, f"the check {name!r} of transition {self.name!r}"
                )
            )
        if self.guard is None or condition_holds(
            self.guard, state, f"the guard of transition {self.name!r}"
        ):
            return ()
        return ("guard",)

    def __str__(self) -> str:
        abort = "" if self.abort_to is None else f", abort to {self.abort_to}"
        return f"{self.name}: {self.source} -> {self.target}{abort}"

    def __repr__(self) -> str:
        return f"Transition({self.name!r}, {self.source} -> {self.target})"


class NoTransition(Copyable, Exception):
    """The machine is in a state that is not final, and no transition can be taken.

    Attributes:
        state: the current state.
        refused: the transitions that leave this state, whose guards all returned False.
        violations: for each of them whose guard has several checks, all that returned False.
    """

    __module__ = "effectflow.machines"

    def __init__(
        self,
        state: object,
        refused: Sequence[str],
        violations: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self.state = state
        self.refused: tuple[str, ...] = tuple(refused)
        self.violations: dict[str, tuple[str, ...]] = {
            name: tuple(checks) for name, checks in violations.items()
        }
        single = ", ".join(repr(name) for name in self.refused if name not in violations)
        reasons = [f"the guards of {single} returned False"] if single else []
        reasons += [
            f"{name!r} is refused, because these checks returned False: {', '.join(checks)}"
            for name, checks in self.violations.items()
        ]
        reason = "; ".join(reasons) or "none is declared"
        super().__init__(f"no transition can be taken from state {name_of(state)}: {reason}")


class TransitionExhausted(RetryExhausted[str]):
    """`Retry` came more often than the retry policy of its transition allows.

    The machine is as it was before the last attempt. Stepping it again, or resuming its run, repeats that
    attempt.

    Attributes:
        transition: its name.
        state: the current state.
        error: the feedback of the last attempt.
        attempts: the number of attempts.
        elapsed: seconds from the beginning of the first attempt to the end of the last.
    """

    __module__ = "effectflow.machines"

    def __init__(
        self, transition: str, state: object, feedback: str, attempts: int, elapsed: float
    ) -> None:
        super().__init__(feedback, attempts, elapsed)
        self.transition = transition
        self.state = state
        message = (
            f"transition {transition!r} from state {name_of(state)} was attempted {attempts} times "
            f"in {elapsed:.1f} s, and its policy allows no further attempt; last feedback: {feedback}"
        )
        self.args = (message,)

    def __str__(self) -> str:
        return str(self.args[0])


class UndeclaredState(Copyable, Exception):
    """An action yielded a state that its transition does not declare: a defect of the code.

    Attributes:
        transition: the name of the transition.
        outcome: `Moved` or `Abort`.
        declared: the states that the transition declares for this outcome.
        actual: the state that the action yielded.
    """

    __module__ = "effectflow.machines"

    def __init__(self, transition: str, outcome: str, declared: StateSet, actual: object) -> None:
        self.transition = transition
        self.outcome = outcome
        self.declared = declared
        self.actual = actual
        super().__init__(
            f"the action of transition {transition!r} yielded {outcome} with state {name_of(actual)}, "
            f"but the transition declares {declared}"
        )
