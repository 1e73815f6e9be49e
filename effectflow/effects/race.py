"""Races: the first effect to end, or the first to succeed, decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.errors import EmptyRace, Halt, log_hidden
from effectflow.effects.operators import Children, Operator
from effectflow.effects.scope import Scope

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")


def race(effects: Iterable[Effect[Env, E, A]]) -> Effect[Env, E | EmptyRace, A]:
    """Run the effects in parallel. The first one to end, in success or failure, decides.

    The others are cancelled, and their finalizers have run before the race ends. In a durable run, the
    winner is recorded: a resume does not race again.

    It fails with EmptyRace if there are no effects. A defect of the first one to end is raised
    unchanged.

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
    """Run the effects in parallel. The first one to succeed decides.

    The others are cancelled as in `race`. If none succeeds, it fails with all errors, in the order of
    the effects; without effects, with an empty list. A defect ends it immediately.
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
    """Return the deciding outcome, or the failure of all."""
    operator = Operator.begin(scope, name)
    try:
        if operator.decision is not None:
            return await _rerun(operator, runners, env)
        return await _Race(operator, runners, decides, env).run()
    finally:
        operator.end()


async def _rerun(operator: Operator, runners: Sequence[Effect[Any, Any, Any]], env: Any) -> Any:
    """Complete the finalizers of the losers. Return the outcome of the winner of an earlier life."""
    decision = operator.decision
    assert decision is not None
    won: int = decision.value
    if not decision.has_ended:
        for position, runner in enumerate(runners):
            if position != won and operator.branches.has_records(position):
                await operator.run_cancelled(runner, env, operator.branch(position))
    winner = operator.deciding_branch(won)
    return await operator.run_branch(runners[won], env, winner)


class _Race:
    """One run of a race. All runners start immediately."""

    def __init__(
        self,
        operator: Operator,
        runners: Sequence[Effect[Any, Any, Any]],
        decides: Callable[[Any], bool],
        env: Any,
    ) -> None:
        self.operator = operator
        self.runners = runners
        self.decides = decides
        self.env = env
        self.outcomes: dict[int, Any] = {}
        self.winner: int | None = None
        self.children = Children()

    async def run(self) -> Any:
        async with self.children:
            for position in range(len(self.runners)):
                self.children.start(self._run_one, position)
        if self.operator.unfinished is not None:
            raise self.operator.unfinished
        if self.winner is not None:
            self.children.raise_shielded_end()
            return self.outcomes[self.winner]
        await self.children.raise_bad_end()
        self.operator.branches.check_complete()
        return nodes.joined([self.outcomes[position] for position in sorted(self.outcomes)])

    async def _run_one(self, position: int) -> None:
        if self.operator.is_decided and not self.operator.branches.has_records(position):
            return
        scope = self.operator.branch(position)
        try:
            outcome = await self.operator.run_branch(self.runners[position], self.env, scope)
        except (Exception, Halt) as defect:
            if self.winner is not None:
                log_hidden(defect, "a loser failed after its race was decided")
            self._decide(position, failed=True)
            self.children.defects.append(defect)
            return
        self.outcomes[position] = outcome
        if not self.operator.is_decided and self.decides(outcome):
            self.winner = position
            self._decide(position, failed=not _is_success(outcome))

    def _decide(self, position: int, *, failed: bool) -> None:
        self.operator.decide(position, failed=failed)
        self.children.cancel()
