"""Races: the first effect to end, or the first to succeed, decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

import anyio

from effectflow.effects import nodes
from effectflow.effects.arguments import check_effects, check_items
from effectflow.effects.child_tasks import Children, ImmediateChildren
from effectflow.effects.effect import Effect
from effectflow.effects.errors import EmptyRace, Halt, Parked
from effectflow.effects.interpreter import interpret_branch, interpret_cancelled
from effectflow.effects.scope import Decision, Operator, Scope, supervised
from effectflow.effects.trails import TypedFailure, joined, log_hidden

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
E1 = TypeVar("E1")
E2 = TypeVar("E2")
E3 = TypeVar("E3")
E4 = TypeVar("E4")
A1 = TypeVar("A1")
A2 = TypeVar("A2")
A3 = TypeVar("A3")
A4 = TypeVar("A4")


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


def _is_success(outcome: Any) -> bool:
    return outcome.__class__ is not TypedFailure


def _race(
    name: str, runners: Sequence[Effect[Any, Any, Any]], decides: Callable[[Any], bool]
) -> Effect[Any, Any, Any]:
    check_effects(name, *runners)
    depth = nodes.immediate_depth(runners)

    @supervised
    async def perform(env: Any, scope: Scope) -> Any:
        operator = Operator.begin(scope, name)
        children = Children(scope.flow.stop) if depth is None else ImmediateChildren()
        try:
            if operator.decision is not None:
                return await _run_again(operator, operator.decision, runners, env)
            return await _Race(operator, runners, decides, env, children).run()
        finally:
            operator.end()

    return nodes.Perform(perform, (name, runners), depth)


async def _run_again(
    operator: Operator, decision: Decision, runners: Sequence[Effect[Any, Any, Any]], env: Any
) -> Any:
    """Complete the finalizers of the losers. Return the outcome of the winner of an earlier life."""
    won: int = decision.value
    parked: Parked | None = None
    if not decision.has_ended:
        losers = [at for at in range(len(runners)) if at != won]
        try:
            for position in filter(operator.branches.has_records, losers):
                await interpret_cancelled(runners[position], env, operator.branch(position))
        except Parked as ended:
            # The plan also shows what the winner has done.
            parked = ended
    scope = operator.branch(won, has_decided=True)
    outcome = operator.traced(await interpret_branch(runners[won], env, scope))
    if parked is not None:
        raise parked
    return outcome


class _Race:
    """One run of a race, in the first life that decides it."""

    __slots__ = (
        "_positions",
        "children",
        "decides",
        "env",
        "operator",
        "outcomes",
        "runners",
        "winner",
    )

    def __init__(
        self,
        operator: Operator,
        runners: Sequence[Effect[Any, Any, Any]],
        decides: Callable[[Any], bool],
        env: Any,
        children: Children,
    ) -> None:
        self.operator = operator
        self.runners = runners
        self.decides = decides
        self.env = env
        self.children = children
        self.outcomes: dict[int, Any] = {}
        self.winner: int | None = None
        # Trio starts tasks in any order; the first of them runs the first effect.
        self._positions = iter(range(len(runners)))

    async def run(self) -> Any:
        """Return the deciding outcome, or the failure of all. All runners start immediately."""
        operator, children, outcomes = self.operator, self.children, self.outcomes
        async with children:
            for _ in self.runners:
                children.start(self._run_next)
        if operator.unfinished is not None:
            raise operator.unfinished
        if self.winner is not None:
            children.raise_shielded_end()
            return operator.traced(outcomes[self.winner])
        await children.raise_bad_end(operator)
        if len(outcomes) != len(self.runners):
            raise RuntimeError(
                f"{len(outcomes)} of {len(self.runners)} racers came back, and none was cancelled: "
                "children were lost, which is a bug of effectflow or of the event loop"
            )
        operator.branches.check_complete()
        return joined([outcomes[position] for position in sorted(outcomes)])

    async def _run_next(self) -> None:
        operator, position = self.operator, next(self._positions)
        if not operator.branches.has_records(position):
            if operator.is_decided:
                return
            # An outer operator may have decided.
            await anyio.lowlevel.checkpoint_if_cancelled()
        scope = operator.branch(position)
        try:
            outcome = await interpret_branch(self.runners[position], self.env, scope)
        except (Exception, Halt) as defect:
            if self.winner is not None:
                log_hidden(defect, "a loser failed after its race was decided")
            self._decide(position, failed=True)
            self.children.defects.append(defect)
            return
        self.outcomes[position] = outcome
        if not operator.is_decided and self.decides(outcome):
            self.winner = position
            self._decide(position, failed=not _is_success(outcome))

    def _decide(self, position: int, *, failed: bool) -> None:
        self.operator.decide(position, failed=failed)
        self.children.cancel()
