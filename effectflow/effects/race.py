"""Races: the first effect to end, or the first to succeed, decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

from effectflow.effects import nodes
from effectflow.effects.arguments import check_effects, check_items
from effectflow.effects.effect import Effect
from effectflow.effects.errors import EmptyRace
from effectflow.effects.fork import Fork
from effectflow.effects.scope import Scope, supervised
from effectflow.effects.trails import TypedFailure, joined
from effectflow.effects.type_variables import (
    A1,
    A2,
    A3,
    A4,
    A5,
    A6,
    A7,
    A8,
    E1,
    E2,
    E3,
    E4,
    E5,
    E6,
    E7,
    E8,
)

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")


@overload
def race(e1: Effect[Env, E1, A1], /) -> Effect[Env, E1, A1]: ...
@overload
def race(e1: Effect[Env, E1, A1], e2: Effect[Env, E2, A2], /) -> Effect[Env, E1 | E2, A1 | A2]: ...
@overload
def race(
    e1: Effect[Env, E1, A1], e2: Effect[Env, E2, A2], e3: Effect[Env, E3, A3], /
) -> Effect[Env, E1 | E2 | E3, A1 | A2 | A3]: ...
@overload
def race(
    e1: Effect[Env, E1, A1],
    e2: Effect[Env, E2, A2],
    e3: Effect[Env, E3, A3],
    e4: Effect[Env, E4, A4],
    /,
) -> Effect[Env, E1 | E2 | E3 | E4, A1 | A2 | A3 | A4]: ...
@overload
def race(
    e1: Effect[Env, E1, A1],
    e2: Effect[Env, E2, A2],
    e3: Effect[Env, E3, A3],
    e4: Effect[Env, E4, A4],
    e5: Effect[Env, E5, A5],
    /,
) -> Effect[Env, E1 | E2 | E3 | E4 | E5, A1 | A2 | A3 | A4 | A5]: ...
@overload
def race(
    e1: Effect[Env, E1, A1],
    e2: Effect[Env, E2, A2],
    e3: Effect[Env, E3, A3],
    e4: Effect[Env, E4, A4],
    e5: Effect[Env, E5, A5],
    e6: Effect[Env, E6, A6],
    /,
) -> Effect[Env, E1 | E2 | E3 | E4 | E5 | E6, A1 | A2 | A3 | A4 | A5 | A6]: ...
@overload
def race(
    e1: Effect[Env, E1, A1],
    e2: Effect[Env, E2, A2],
    e3: Effect[Env, E3, A3],
    e4: Effect[Env, E4, A4],
    e5: Effect[Env, E5, A5],
    e6: Effect[Env, E6, A6],
    e7: Effect[Env, E7, A7],
    /,
) -> Effect[Env, E1 | E2 | E3 | E4 | E5 | E6 | E7, A1 | A2 | A3 | A4 | A5 | A6 | A7]: ...
@overload
def race(
    e1: Effect[Env, E1, A1],
    e2: Effect[Env, E2, A2],
    e3: Effect[Env, E3, A3],
    e4: Effect[Env, E4, A4],
    e5: Effect[Env, E5, A5],
    e6: Effect[Env, E6, A6],
    e7: Effect[Env, E7, A7],
    e8: Effect[Env, E8, A8],
    /,
) -> Effect[Env, E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8, A1 | A2 | A3 | A4 | A5 | A6 | A7 | A8]: ...
@overload
def race(effects: Iterable[Effect[Env, E, A]], /) -> Effect[Env, E | EmptyRace, A]: ...
@overload
def race(*effects: Effect[Env, E, A]) -> Effect[Env, E | EmptyRace, A]: ...
def race(*effects: Any) -> Effect[Any, Any, Any]:
    """Run the effects in parallel. The first one to end, in success or failure, decides.

    The others are cancelled, and their finalizers have run before the race ends. Effects that end without
    waiting win in their order, and those after the winner do not start. Among them is a parallel operator
    of effects that are known not to wait, such as `par(pure(1), from_fn(f))`, but no `par_traverse` and
    no `par` of bodies. In a durable run, the winner is recorded: a resume does not race again.

    Pass the effects one by one, as to `par`, or as one list or another iterable. It fails with EmptyRace
    if there are no effects. A defect of the first one to end is raised unchanged.

    Example:
        >>> from effectflow import pure, race, sleep
        >>> race(sleep(60).map(lambda _: "slow"), pure("quick")).run_sync(None)
        <Success: quick>
    """
    given: Any = effects
    if len(given) == 1 and not isinstance(given[0], Effect) and isinstance(given[0], Iterable):
        given = given[0]
    runners = list(given)
    if not runners:
        return nodes.Suspend(lambda _env, _scope: nodes.Fail(EmptyRace()), ("race", runners))
    return _race("race", runners, lambda _: True)


def first_success(effects: Iterable[Effect[Env, E, A]]) -> Effect[Env, list[E], A]:
    """Run the effects in parallel. The first one to succeed decides.

    The others are cancelled as in `race`. If none succeeds, it fails with all errors, in the order of
    the effects; without effects, with an empty list. A defect ends it immediately.
    """
    check_items("first_success", effects)
    return _race("first_success", list(effects), _is_success)


def _is_success(outcome: object) -> bool:
    return outcome.__class__ is not TypedFailure


class _FirstEnd:
    """The ends of runners of which one wins.

    Attributes:
        decides: whether an outcome wins.
        has_outcome: whether one has won.
    """

    def __init__(self, decides: Callable[[object], bool]) -> None:
        self.decides = decides
        self.outcomes: dict[int, object] = {}
        self.winner: int | None = None

    @property
    def has_outcome(self) -> bool:
        return self.winner is not None

    def take(self, position: int, outcome: object) -> bool:
        self.outcomes[position] = outcome
        if self.winner is not None or not self.decides(outcome):
            return False
        self.winner = position
        return True

    def outcome(self, operator: Fork) -> object:
        """Return the outcome of the winner, or the failures of all."""
        if operator.unfinished is not None:
            raise operator.unfinished
        if self.winner is not None:
            return operator.traced(self.outcomes[self.winner])
        operator.check_count(len(self.outcomes))
        in_order = [self.outcomes[position] for position in sorted(self.outcomes)]
        return joined([failed for failed in in_order if isinstance(failed, TypedFailure)])


def _race(
    name: str, runners: Sequence[Effect[Any, Any, Any]], decides: Callable[[object], bool]
) -> Effect[Any, Any, Any]:
    check_effects(name, *runners)
    depth = nodes.immediate_depth(runners)

    @supervised
    async def perform(env: Any, scope: Scope) -> object:
        ends = _FirstEnd(decides)
        operator = Fork(
            scope, name, runners, nodes.itself, env, ends, is_immediate=depth is not None
        )
        await operator.run()
        return ends.outcome(operator)

    return nodes.Perform(perform, (name, runners), depth)
