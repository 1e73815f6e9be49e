"""Choose a transition, attempt it in a durable step, and make the next machine of its outcome.

The record of an attempt is plain data and includes its times. So a resumed machine has the same times,
attempts and delays as one that was never interrupted::

    {"outcome": "moved", "state": ..., "began": ..., "ended": ...}
    {"outcome": "abort", "state": ..., "reason": ..., "began": ..., "ended": ...}
    {"outcome": "retry", "feedback": ..., "delay": ..., "began": ..., "ended": ...}

The record of the first attempt also has the "id" of a machine that began without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, Never, NotRequired, TypeAlias
from uuid import uuid4

from returns.result import Success

from effectflow.builders.events import Reporter, path_of, with_reporter
from effectflow.builders.machine._chart import Chart
from effectflow.builders.machine._events import TransitionEnded, TransitionStarted
from effectflow.builders.machine._machine import (
    HistoryEntry,
    Machine,
    MachineMetadata,
    PendingRetry,
)
from effectflow.builders.machine._states import State, StateSet, name_of
from effectflow.builders.machine._transition import (
    Abort,
    Moved,
    NoTransition,
    Outcome,
    Retry,
    Transition,
    TransitionExhausted,
    UndeclaredState,
)
from effectflow.checkpoint.durable_fiber import DurableFiber
from effectflow.checkpoint.step import StepDefinition, StepInfo, durable, info_of
from effectflow.checkpoint.values import ValueOptions, dict_type, digest_of, union_of
from effectflow.effects import Effect, Exit, Interruption, RetryPolicy
from effectflow.effects.nodes import AndThen, AnyEffect, Die, Fail, Perform, Pure, Suspend
from effectflow.effects.scope import Scope


@dataclass(frozen=True, slots=True)
class BoundTransition:
    """A transition with the durable step of its attempts, and the defaults of its state machine."""

    transition: Transition[Any, Any, Any]
    step: StepDefinition
    retry: RetryPolicy
    abort_to: StateSet

    @property
    def name(self) -> str:
        """The transition's name."""
        return self.transition.name


_Candidates: TypeAlias = tuple[BoundTransition, ...] | None
"""The transitions that leave a state, in their declared order; None if the state is final."""

_UNNAMED: Final[Any] = object()
"""Stands for the transitions of a state that no definition names singly."""


class TransitionTable:
    """The transitions of a machine by the state that they leave, so that no others are considered."""

    def __init__(self, chart: Chart, retry: RetryPolicy) -> None:
        self.transitions = tuple(
            BoundTransition(
                transition,
                StepDefinition(
                    transition.name,
                    step_types,
                    at_most_once=transition.at_most_once,
                    output=_record_type(transition.target, abort_to),
                ),
                transition.retry or retry,
                abort_to,
            )
            for transition, step_types in zip(chart.transitions, chart.step_types, strict=True)
            for abort_to in [chart.final if transition.abort_to is None else transition.abort_to]
        )
        self._final = chart.final
        self._of_state: dict[tuple[type[Any], Any], _Candidates] = {
            atom: self._leaving(atom.value)
            for atom in chart.declared.atoms
            if isinstance(atom, State)
        }
        self._kinds = {kind for kind, _ in self._of_state}
        self._of_class: dict[type[Any], _Candidates] = {}

    def is_final(self, state: object) -> bool:
        """Return whether the state is final."""
        return self._candidates(state) is None

    def record_type(self, transition: str) -> object:
        """Return the annotation of the records of a transition; None if the definition has none."""
        named = (bound for bound in self.transitions if bound.name == transition)
        return next((bound.step.output for bound in named), None)

    def choose(self, state: object) -> BoundTransition | NoTransition | None:
        """Return the first transition that leaves this state and whose guard allows it.

        Return NoTransition if there is none, and None if the state is final.
        """
        candidates = self._candidates(state)
        if candidates is None:
            return None
        violations: dict[str, tuple[str, ...]] = {}
        for bound in candidates:
            violated = bound.transition.violations(state)
            if not violated:
                return bound
            if bound.transition.checks is not None:
                violations[bound.name] = violated
        return NoTransition(state, [bound.name for bound in candidates], violations)

    def possible(self, state: object) -> tuple[str, ...]:
        """Return the names of the transitions that leave this state and whose guards allow it."""
        candidates = self._candidates(state) or ()
        return tuple(bound.name for bound in candidates if not bound.transition.violations(state))

    def _candidates(self, state: object) -> _Candidates:
        kind = type(state)
        if kind in self._kinds:
            named = self._of_state.get((kind, state), _UNNAMED)
            if named is not _UNNAMED:
                return named
        # A state that no definition names singly is distinguished by its class alone.
        if kind not in self._of_class:
            self._of_class[kind] = self._leaving(state)
        return self._of_class[kind]

    def _leaving(self, state: object) -> _Candidates:
        if state in self._final:
            return None
        return tuple(bound for bound in self.transitions if state in bound.transition.source)


@dataclass(frozen=True, slots=True)
class TransitionInfo(StepInfo):
    """The step of the running action, and the feedback of earlier attempts.

    Each attempt of a transition is a step of its own. `attempt` counts the attempts of this step, so it
    is greater than 1 only if a resume repeats them. The number of the transition's attempt, as in the
    history of the machine, is `retries + 1`.

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

    def look(_env: object, scope: Scope) -> Effect[object, Never, TransitionInfo]:
        info = info_of(scope)
        if isinstance(info, TransitionInfo):
            return Pure(info)
        return Die(LookupError("transition_info() works only in the action of a transition"))

    return Suspend(look, ("transition_info",))


@dataclass(slots=True)
class Attempt:
    """One attempt at a transition of a machine, and what earlier attempts left to do."""

    bound: BoundTransition
    machine: Machine[Any]
    pending: PendingRetry | None

    def run(self) -> AnyEffect:
        """Wait until the attempt is due, run it as a durable step, and yield its record."""
        act = with_reporter(self._reported)
        step = durable(self.bound.step, act, self._describe, self._make_info)
        return step if self.pending is None else AndThen(Perform(self._wait), lambda _: step)

    async def _wait(self, _env: object, scope: Scope) -> None:
        """Wait for the rest of the delay: in a resumed run, often nothing."""
        pending, updated_at = self.pending, self.machine.metadata.updated_at
        assert pending is not None
        assert updated_at is not None
        # At most the whole delay, in case the clock of the recording host was ahead.
        delay = (pending.retry_at - updated_at).total_seconds()
        await scope.fiber.sleep_until(scope, pending.retry_at.timestamp(), delay)

    def _describe(self, options: ValueOptions, *_: object) -> tuple[str, str]:
        """Describe the state as the argument: a resume must reach the step in the same state."""
        state = self.machine.current
        return digest_of(state, path="state", options=options), f"({name_of(state)})"

    def _make_info(self, run_id: str, step: str, attempt: int) -> TransitionInfo:
        pending = self.pending
        retries, feedback = (0, None) if pending is None else (pending.attempts, pending.feedback)
        return TransitionInfo(run_id, step, attempt, self.bound.name, retries, feedback)

    def _reported(self, reporter: Reporter | None, scope: Scope) -> AnyEffect:
        """Return the work of the attempt. Report its beginning and its end."""
        if reporter is None:
            return self._act(None, scope)
        machine, name = self.machine, self.bound.name
        number = 1 if self.pending is None else self.pending.attempts + 1
        count = machine.metadata.total_attempts.get(name, 0) + 1
        path, source = path_of(scope, name, count), name_of(machine.current)
        place = (reporter.run_id, machine.form.name, name, source, number, path)
        began, ended = TransitionStarted(*place), partial(_ended, place)
        return reporter.around(Suspend(self._act), began, ended)

    def _act(self, _env: object, scope: Scope) -> AnyEffect:
        clock, began = scope.clock, scope.clock.now()
        transition = self.bound.transition
        named = {} if self.machine.id else {"id": self._new_id(scope)}

        def record(outcome: Outcome[Any]) -> AnyEffect:
            return self._record(outcome, began, clock.now(), named)

        if transition.action is None:
            [target] = transition.target.atoms
            assert isinstance(target, State)
            return record(Moved(target.value))
        return AndThen(transition.action(self.machine.current), record)

    def _new_id(self, scope: Scope) -> str:
        """Return the id of the machine's own run; within another run, one that the run makes again."""
        fiber, info = scope.fiber, info_of(scope)
        if not isinstance(fiber, DurableFiber) or info is None:
            return str(uuid4())
        is_own = fiber.run.workflow == self.machine.form.name
        return fiber.run.run_id if is_own else info.idempotency_key

    def _record(
        self, outcome: Outcome[Any], began: datetime, ended: datetime, named: Mapping[str, str]
    ) -> AnyEffect:
        """Yield the record of an outcome, or fail if the retry policy allows no further attempt."""
        match outcome:
            case Moved(state):
                self._check_declared("Moved", state, self.bound.transition.target)
                record = {"outcome": "moved", "state": state}
            case Retry(str() as feedback):
                pending = self.pending
                made, since = (0, began) if pending is None else (pending.attempts, pending.since)
                elapsed = (ended - since).total_seconds()
                delay = self.bound.retry.next_delay(made, elapsed)
                if delay is None:
                    state = self.machine.current
                    name = self.bound.name
                    return Fail(TransitionExhausted(name, state, feedback, made + 1, elapsed))
                record = {"outcome": "retry", "feedback": feedback, "delay": delay}
            case Abort(str() as reason, state):
                self._check_declared("Abort", state, self.bound.abort_to)
                record = {"outcome": "abort", "state": state, "reason": reason}
            case _:
                raise TypeError(
                    f"the action of transition {self.bound.name!r} must yield Moved(state), "
                    "Retry(feedback) or Abort(reason, state), with feedback and reason as text, "
                    f"not {outcome!r}"
                )
        return Pure({**record, "began": began, "ended": ended, **named})

    def _check_declared(self, outcome: str, state: object, declared: StateSet) -> None:
        if state not in declared:
            raise UndeclaredState(self.bound.name, outcome, declared, state)


def _record_type(target: StateSet, abort_to: StateSet) -> Any:
    """Return the annotation of the record of an attempt."""
    common: dict[str, Any] = {"began": datetime, "ended": datetime, "id": NotRequired[str]}
    moved = {"outcome": Literal["moved"], "state": target.annotation, **common}
    abort = {"outcome": Literal["abort"], "state": abort_to.annotation, "reason": str, **common}
    retry = {"outcome": Literal["retry"], "feedback": str, "delay": float, **common}
    named = {"moved": moved, "abort": abort, "retry": retry}
    return union_of(dict_type(name, fields) for name, fields in named.items())


def _ended(
    place: tuple[str | None, str, str, str, int, str], ended: Exit[Any, Any]
) -> TransitionEnded:
    """Return the event of the end of an attempt, whose value is its record."""
    match ended:
        case Success(record):
            outcome: Any = record["outcome"]
            target = name_of(record["state"]) if "state" in record else None
            return TransitionEnded(*place, outcome, target)
        case Interruption():
            return TransitionEnded(*place, "interrupted")
        case _:
            return TransitionEnded(*place, "failed")


def pending_of(machine: Machine[Any], transition: str) -> PendingRetry | None:
    """Return what earlier attempts at this transition left to do; None if the next is the first."""
    pending = machine.metadata.pending
    return pending if pending is not None and pending.transition == transition else None


def machine_after(
    machine: Machine[Any], transition: str, record: Mapping[str, Any]
) -> Machine[Any]:
    """Return the machine after an attempt, from the record of the attempt. Pure."""
    pending, before, ended = pending_of(machine, transition), machine.metadata, record["ended"]
    number = 1 if pending is None else pending.attempts + 1
    machine_id, created_at = (
        machine.id or record.get("id", ""),
        before.created_at or record["began"],
    )
    attempts = {
        **before.total_attempts,
        transition: before.total_attempts.get(transition, 0) + 1,
    }
    if record["outcome"] == "retry":
        since = record["began"] if pending is None else pending.since
        retry_at = ended + timedelta(seconds=record["delay"])
        again = PendingRetry(transition, number, record["feedback"], since, retry_at)
        metadata = MachineMetadata(created_at, ended, attempts, again)
        return replace(machine, metadata=metadata, id=machine_id)
    state, reason = record["state"], record.get("reason")
    entry = HistoryEntry(transition, machine.current, state, ended, number, reason)
    metadata = MachineMetadata(created_at, ended, attempts, None)
    history = machine.history.appended(entry)
    return Machine(machine.initial, state, history, metadata, machine.form, machine_id)
