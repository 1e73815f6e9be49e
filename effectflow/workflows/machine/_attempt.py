"""One attempt at a transition: a durable step that records its outcome.

The record is plain data and includes the times of the attempt. So a resumed machine has the same times,
attempts and delays as one that was never interrupted::

    {"outcome": "moved", "state": ..., "began": ..., "ended": ...}
    {"outcome": "abort", "state": ..., "reason": ..., "began": ..., "ended": ...}
    {"outcome": "retry", "feedback": ..., "delay": ..., "began": ..., "ended": ...}
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Never

from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.run_info import StepInfo, info_of
from effectflow.checkpoint.step import StepDefinition, durable
from effectflow.checkpoint.values import digest_of
from effectflow.effects import Effect, RetryExhausted, RetryPolicy
from effectflow.effects.nodes import AndThen, AnyEffect, Die, Fail, Perform, Pure, Suspend
from effectflow.effects.scope import Scope
from effectflow.workflows.machine._machine import Machine
from effectflow.workflows.machine._replay import pending_of
from effectflow.workflows.machine._states import State, StateSet, name_of
from effectflow.workflows.machine._transition import Abort, Moved, Outcome, Retry, Transition


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


class UndeclaredState(Exception):
    """An action yielded a state that its transition does not declare: a defect of the code.

    Attributes:
        transition: the name of the transition.
        outcome: `Moved` or `Abort`.
        declared: the states that the transition declares for this outcome.
        actual: the state that the action yielded.
    """

    def __init__(self, transition: str, outcome: str, declared: StateSet, actual: object) -> None:
        self.transition = transition
        self.outcome = outcome
        self.declared = declared
        self.actual = actual
        super().__init__(
            f"the action of transition {transition!r} yielded {outcome} with state {name_of(actual)}, "
            f"but the transition declares {declared}"
        )


@dataclass(frozen=True, slots=True)
class BoundTransition:
    """A transition with the defaults of its state machine.

    Attributes:
        transition: the declaration.
        step: the durable step of each attempt.
        retry: the number and the delays of attempts after `Retry`.
        abort_to: the states that `Abort` may lead to.
    """

    transition: Transition[Any, Any, Any]
    step: StepDefinition
    retry: RetryPolicy
    abort_to: StateSet


@dataclass(frozen=True, slots=True)
class TransitionInfo(StepInfo):
    """The step of the running action, and the feedback of earlier attempts.

    Attributes:
        transition: the transition's name.
        retries: how often the action has ended in `Retry` so far.
        feedback: the feedback of the last attempt; None in the first.
    """

    transition: str
    retries: int
    feedback: str | None


def transition_info() -> Effect[object, Never, TransitionInfo]:
    """Yield the `TransitionInfo` of the action around it. Elsewhere it ends in a LookupError."""

    def look(scope: Scope) -> Effect[object, Never, TransitionInfo]:
        info = info_of(scope)
        if isinstance(info, TransitionInfo):
            return Pure(info)
        return Die(LookupError("transition_info() works only in the action of a transition"))

    return Suspend(look, ("transition_info",))


class Attempt:
    """One attempt at a transition of a machine."""

    __slots__ = ("_bound", "_machine", "_name", "_pending")

    def __init__(self, bound: BoundTransition, machine: Machine[Any]) -> None:
        self._bound = bound
        self._name = bound.transition.name
        self._machine = machine
        self._pending = pending_of(machine, self._name)

    def run(self) -> AnyEffect:
        """Wait until the attempt is due, run it as a durable step, and yield its record."""
        act = Suspend(self._act)
        step = durable(self._bound.step, act, self._describe, self._make_info)
        return step if self._pending is None else AndThen(Perform(self._wait), lambda _: step)

    async def _wait(self, _env: object, scope: Scope) -> None:
        """Wait for the rest of the delay: in a resumed run, often nothing."""
        pending, updated_at = self._pending, self._machine.metadata.updated_at
        assert pending is not None
        assert updated_at is not None
        left = (pending.retry_at - scope.clock.now()).total_seconds()
        if left > 0:
            # At most the whole delay, in case the clock of the recording host was ahead.
            delay = (pending.retry_at - updated_at).total_seconds()
            seconds, flow = min(left, delay), scope.flow
            if isinstance(flow, DurableFlow):
                await flow.run.sleep(flow.path_to_come(self._name), seconds, scope)
            else:
                await scope.clock.sleep(seconds)

    def _describe(self) -> tuple[str, str]:
        """Describe the state as the argument: a resume must reach the step in the same state."""
        state = self._machine.current
        return digest_of(state, path="state"), f"({name_of(state)})"

    def _make_info(self, run_id: str, step: str, attempt: int) -> TransitionInfo:
        pending = self._pending
        retries, feedback = (0, None) if pending is None else (pending.attempts, pending.feedback)
        return TransitionInfo(run_id, step, attempt, self._name, retries, feedback)

    def _act(self, scope: Scope) -> AnyEffect:
        clock, began = scope.clock, scope.clock.now()
        transition = self._bound.transition
        if transition.action is None:
            [target] = transition.target.atoms
            assert isinstance(target, State)
            return self._record(Moved(target.value), began, clock.now())
        acted = transition.action(self._machine.current)
        return AndThen(acted, lambda outcome: self._record(outcome, began, clock.now()))

    def _record(self, outcome: Outcome[Any], began: datetime, ended: datetime) -> AnyEffect:
        """Yield the record of an outcome, or fail if the retry policy allows no further attempt."""
        times = {"began": began, "ended": ended}
        match outcome:
            case Moved(state):
                self._check_declared("Moved", state, self._bound.transition.target)
                return Pure({"outcome": "moved", "state": state, **times})
            case Retry(str() as feedback):
                pending = self._pending
                made, since = (0, began) if pending is None else (pending.attempts, pending.since)
                elapsed = (ended - since).total_seconds()
                delay = self._bound.retry.next_delay(made, elapsed)
                if delay is None:
                    state = self._machine.current
                    return Fail(TransitionExhausted(self._name, state, feedback, made + 1, elapsed))
                return Pure({"outcome": "retry", "feedback": feedback, "delay": delay, **times})
            case Abort(str() as reason, state):
                self._check_declared("Abort", state, self._bound.abort_to)
                return Pure({"outcome": "abort", "state": state, "reason": reason, **times})
            case _:
                raise TypeError(
                    f"the action of transition {self._name!r} must yield Moved(state), Retry(feedback) "
                    f"or Abort(reason, state), with feedback and reason as text, not {outcome!r}"
                )

    def _check_declared(self, outcome: str, state: object, declared: StateSet) -> None:
        if state not in declared:
            raise UndeclaredState(self._name, outcome, declared, state)
