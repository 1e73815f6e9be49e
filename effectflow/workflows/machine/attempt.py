"""One attempt at a transition: a durable step, and the machine after it.

What the step records is plain data, with the time at which the attempt ended. So a machine that is
resumed comes by the same times, attempts and delays as one that was never stopped::

    {"outcome": "moved", "state": ..., "began": ..., "ended": ...}
    {"outcome": "abort", "state": ..., "reason": ..., "began": ..., "ended": ...}
    {"outcome": "retry", "feedback": ..., "delay": ..., "began": ..., "ended": ...}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Never

from effectflow.checkpoint.durable_step import StepDefinition, StepInfo, info_of, reach_step
from effectflow.checkpoint.entries import Arguments
from effectflow.checkpoint.values import digest_of
from effectflow.effects import Clock, Effect, RetryPolicy
from effectflow.effects.nodes import AndThen, AnyEffect, Die, Fail, Map, Perform, Pure, Suspend
from effectflow.effects.scope import Scope
from effectflow.workflows.machine.errors import TransitionExhausted, UndeclaredState
from effectflow.workflows.machine.machine import Machine
from effectflow.workflows.machine.outcomes import Abort, Moved, Outcome, Retry
from effectflow.workflows.machine.recorded import machine_after, pending_of
from effectflow.workflows.machine.states import State, StateSet, name_of
from effectflow.workflows.machine.transition import Transition

__all__ = ["Attempt", "BoundTransition", "TransitionInfo", "transition_info"]


@dataclass(frozen=True, slots=True)
class BoundTransition:
    """A transition as one state machine takes it.

    Attributes:
        transition: as it was declared.
        step: the durable step that each attempt is.
        retry: how often and how soon it is attempted again.
        abort_to: the states that it may abort to.
    """

    transition: Transition[Any, Any, Any]
    step: StepDefinition
    retry: RetryPolicy
    abort_to: StateSet


@dataclass(frozen=True, slots=True)
class TransitionInfo(StepInfo):
    """Where the running action stands: its step, and what earlier attempts said.

    Attributes:
        transition: the transition's name.
        retries: how often it has asked for another attempt so far.
        feedback: what it said the last time; None in the first attempt.
    """

    transition: str
    retries: int
    feedback: str | None


def transition_info() -> Effect[object, Never, TransitionInfo]:
    """Yields the `TransitionInfo` of the action around it. Elsewhere it ends in a LookupError."""

    def look(scope: Scope) -> Effect[object, Never, TransitionInfo]:
        info = info_of(scope)
        if isinstance(info, TransitionInfo):
            return Pure(info)
        return Die(LookupError("transition_info() is known only in the action of a transition"))

    return Suspend(look, ("transition_info",))


class Attempt:
    """One attempt at a transition from where a machine stands. Made anew each time that it is run."""

    __slots__ = ("_began", "_bound", "_clock", "_machine", "_pending")

    _began: datetime
    _clock: Clock

    def __init__(self, bound: BoundTransition, machine: Machine[Any]) -> None:
        self._bound = bound
        self._machine = machine
        self._pending = pending_of(machine, bound.transition.name)

    def run(self, scope: Scope) -> AnyEffect:
        """The effect of the attempt, made when it is due; yields the machine after it."""
        if self._pending is None:
            return self._reach(scope)
        return AndThen(Perform(self._wait), lambda _: Suspend(self._reach))

    async def _wait(self, _env: object, scope: Scope) -> None:
        """Wait for what is left of the delay: in a run that is resumed, often nothing."""
        pending, updated_at = self._pending, self._machine.metadata.updated_at
        assert pending is not None
        assert updated_at is not None
        left = (pending.retry_at - scope.clock.now()).total_seconds()
        if left > 0:
            # The clock of another machine may have been ahead; nobody is to wait longer for that.
            delay = (pending.retry_at - updated_at).total_seconds()
            await scope.clock.sleep(min(left, delay))

    def _reach(self, scope: Scope) -> AnyEffect:
        act = Suspend(self._act)
        return Map(
            reach_step(scope, self._bound.step, act, self._describe, self._make_info), self._after
        )

    def _describe(self) -> Arguments:
        """The state as the argument of the step: a resume must not reach the step in another one."""
        state = self._machine.current
        return Arguments(digest_of(state, path="state"), f"({name_of(state)})")

    def _make_info(self, run_id: str, step: str, attempt: int) -> TransitionInfo:
        pending, name = self._pending, self._bound.transition.name
        if pending is None:
            return TransitionInfo(run_id, step, attempt, name, 0, None)
        return TransitionInfo(run_id, step, attempt, name, pending.attempts, pending.feedback)

    def _act(self, scope: Scope) -> AnyEffect:
        self._clock = scope.clock
        self._began = scope.clock.now()
        transition = self._bound.transition
        if transition.action is None:
            [target] = transition.target.atoms
            assert isinstance(target, State)
            return self._record(Moved(target.value))
        return AndThen(transition.action(self._machine.current), self._record)

    def _record(self, outcome: Outcome[Any]) -> AnyEffect:
        """What is recorded of an outcome; a failure if the retry policy allows no further attempt."""
        began, ended = self._began, self._clock.now()
        match outcome:
            case Moved(state):
                self._check_declared("Moved", state, self._bound.transition.target)
                return Pure({"outcome": "moved", "state": state, "began": began, "ended": ended})
            case Retry(str() as feedback):
                since = began if self._pending is None else self._pending.since
                elapsed = (ended - since).total_seconds()
                delay = self._bound.retry.next_delay(self._number - 1, elapsed)
                if delay is None:
                    return Fail(self._exhausted(feedback, elapsed))
                retry = {"outcome": "retry", "feedback": feedback, "delay": delay}
                return Pure({**retry, "began": began, "ended": ended})
            case Abort(str() as reason, state):
                self._check_declared("Abort", state, self._bound.abort_to)
                abort = {"outcome": "abort", "state": state, "reason": reason}
                return Pure({**abort, "began": began, "ended": ended})
            case _:
                raise TypeError(
                    f"the action of transition {self._name!r} gave {outcome!r}; it must give "
                    "Moved(state), Retry(feedback) or Abort(reason, state); feedback and reason are text"
                )

    def _check_declared(self, outcome: str, state: object, declared: StateSet) -> None:
        if state not in declared:
            raise UndeclaredState(self._name, outcome, declared, state)

    def _exhausted(self, feedback: str, elapsed: float) -> TransitionExhausted:
        state = self._machine.current
        return TransitionExhausted(self._name, state, feedback, self._number, elapsed)

    def _after(self, record: Mapping[str, Any]) -> Machine[Any]:
        """The machine after the attempt of which this was recorded, now or in an earlier life."""
        return machine_after(self._machine, self._name, record)

    @property
    def _name(self) -> str:
        return self._bound.transition.name

    @property
    def _number(self) -> int:
        """Which attempt at this transition in a row it is, from 1."""
        return 1 if self._pending is None else self._pending.attempts + 1
