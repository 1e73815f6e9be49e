"""Races: the first effect to end, or the first to succeed, decides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import anyio
from returns.maybe import Maybe

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.errors import EmptyRace, Halt
from effectflow.effects.event_loop import is_being_cancelled
from effectflow.effects.interpreter import interpret
from effectflow.effects.scope import Operator, Scope

__all__ = ["first_success", "race"]

logger = logging.getLogger(__name__)

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")


def race(effects: Iterable[Effect[Env, E, A]]) -> Effect[Env, E | EmptyRace, A]:
    """Runs the effects side by side; the first to end, well or badly, decides.

    The others are cancelled, and their finalizers have run before the race ends. In a durable run the
    winner is recorded: a resumed run does not race again.

    Fails with EmptyRace if there are no effects. A defect of the first to end is raised as itself.

    Example:
        >>> from effectflow import pure, race, sleep
        >>> race([sleep(60).map(lambda _: "slow"), pure("quick")]).run_sync(None)
        <Success: quick>
    """
    runners = list(effects)

    async def perform(env: Any, scope: Scope) -> Any:
        if not runners:
            return nodes.Failed(EmptyRace())
        return await _run("race", runners, lambda _: True, env, scope)

    return nodes.Perform(perform, ("race", runners))


def first_success(effects: Iterable[Effect[Env, E, A]]) -> Effect[Env, list[E], A]:
    """Runs the effects side by side; the first to succeed decides.

    The others are cancelled as in `race`. If none succeeds, it fails with every error, in the order of
    the effects; with an empty list if there are no effects. A defect ends it at once.
    """
    runners = list(effects)

    async def perform(env: Any, scope: Scope) -> Any:
        return await _run("first_success", runners, _is_success, env, scope)

    return nodes.Perform(perform, ("first_success", runners))


def _is_success(outcome: Any) -> bool:
    return outcome.__class__ is not nodes.Failed


async def _run(
    name: str,
    runners: Sequence[Effect[Any, Any, Any]],
    decides: Callable[[Any], bool],
    env: Any,
    scope: Scope,
) -> Any:
    """The outcome that decided, or the failure of all."""
    path = scope.next_path(name)
    recorder = scope.decisions
    known: Maybe[Any] = Maybe.empty if recorder is None else recorder.recall(path)
    outcomes: dict[int, Any] = {}
    raised: list[BaseException] = []
    winner: int | None = None
    has_cancelled = False
    operator = Operator(lambda: has_cancelled)
    inside = scope.under(operator)

    def cancel() -> None:
        nonlocal has_cancelled
        has_cancelled = has_cancelled or not is_being_cancelled()
        tasks.cancel_scope.cancel()

    async def run(position: int) -> None:
        nonlocal winner
        try:
            outcome = await interpret(runners[position], env, inside.child(path, position))
        except (Exception, Halt) as defect:
            if winner is not None:
                logger.exception("a race was decided, and then a loser of it failed")
            raised.append(defect)
            cancel()
            return
        outcomes[position] = outcome
        if winner is None and not raised and decides(outcome):
            winner = position
            cancel()

    def record(*, is_to_stand: bool) -> None:
        if recorder is None or winner is None or known is not Maybe.empty:
            return
        if _is_success(outcomes[winner]) or (is_to_stand and not operator.is_final):
            recorder.record(path, winner)
        else:
            operator.record_failure(recorder, path, path, winner)

    try:
        async with anyio.create_task_group() as tasks:
            for position in known.map(lambda position: [position]).value_or(range(len(runners))):
                tasks.start_soon(run, position)
    except anyio.get_cancelled_exc_class():
        if operator.has_ended_flows:
            # The run is stopped while the losers were ending. Their finalizers have run.
            record(is_to_stand=True)
        raise
    if winner is None and raised:
        raise raised[0]
    if winner is None:
        return nodes.joined([outcomes[position] for position in sorted(outcomes)])
    record(is_to_stand=False)
    return outcomes[winner]
