"""One loop for all workflows that pick a step by their state: machines, graphs, rounds and step lists."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from effectflow.checkpoint.schema import frozen
from effectflow.effects.arguments import unfinished_kind
from effectflow.effects.nodes import AnyEffect, Fail, FromGenerator, Map, Pure, Suspend
from effectflow.effects.trails import add_note

S = TypeVar("S")
T = TypeVar("T")


@frozen
class Next(Generic[S]):
    """Run a durable step, and continue with the state that its output leads to.

    Attributes:
        effect: the durable step.
        then: makes the next state of the output. Pure.
    """

    effect: AnyEffect
    then: Callable[[Any], S]


@dataclass(frozen=True, slots=True)
class Done:
    """The workflow is complete and yields `value`."""

    value: Any


@dataclass(frozen=True, slots=True)
class Stuck:
    """The workflow cannot continue and fails with `error`, whose trail says where."""

    error: object
    trail: tuple[str, ...] = ()


Pick: TypeAlias = Callable[[S], Next[S] | Done | Stuck]
"""Decides by the state alone what comes next. Pure: every resume decides again."""


def advance(pick: Pick[S], state: S, shown: tuple[object, ...]) -> AnyEffect:
    """Return the effect that runs one picked step after another, and yields the value of `Done`.

    It takes constant stack and memory, however many steps are picked.

    Parameters:
        pick: decides what comes next.
        state: where to begin.
        shown: what the user called to get the effect, for `repr`: a name and its arguments.
    """
    return Suspend(lambda _env, _scope: FromGenerator(_advance, (pick, state)), shown)


def _advance(pick: Pick[S], state: S) -> Generator[AnyEffect, Any, Any]:
    # A loop that yields each step, so that nothing nests or grows.
    while isinstance(picked := pick(state), Next):
        state = picked.then((yield picked.effect))
    return (yield _end(picked))


def advance_once(pick: Pick[S], state: S, shown: tuple[object, ...]) -> AnyEffect:
    """Return the effect that runs one step and yields the state after it, or ends as `advance` does."""

    def begin(*_: object) -> AnyEffect:
        picked = pick(state)
        return Map(picked.effect, picked.then) if isinstance(picked, Next) else _end(picked)

    return Suspend(begin, shown)


def _end(picked: Done | Stuck) -> AnyEffect:
    return Pure(picked.value) if isinstance(picked, Done) else Fail(picked.error, picked.trail)


def condition_holds(condition: Callable[[S], object], state: S, name: str) -> bool:
    """Return whether a pure condition, such as a guard, holds for a state. Errors name it."""
    try:
        result = condition(state)
    except Exception as defect:
        add_note(defect, f"in {name}")
        raise
    return bool(pure_result(result, name))


def pure_result(result: T, function: str) -> T:
    """Return the result of a function that must be pure. `function` names it in the error.

    Raises TypeError for an effect or an awaitable: it would count as true, and would never run.
    """
    if isinstance(result, bool):
        # The usual case, at every step. The checks below are much slower.
        return result
    kind = unfinished_kind(result)
    if kind is None:
        return result
    raise TypeError(
        f"{function} returned {kind}, but it must be a pure function of the state: run the effect in an "
        "earlier step, and keep its result in the state"
    )
