"""Where in a run an effect stands: its path, the clock, who records, who listens.

A scope belongs to one sequential flow. Parallel operators give each of their children a scope of its
own, so that the path of a step never depends on scheduling.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

from returns.maybe import Maybe

from effectflow.effects.clock import Clock, SystemClock
from effectflow.effects.observer import EffectObserver

__all__ = [
    "Operator",
    "Recorder",
    "Scope",
    "Sink",
    "child_path",
    "observe",
    "root_scope",
    "step_path",
]

A = TypeVar("A")

_NO_CONTEXT: Mapping[str, object] = MappingProxyType({})

_ESCAPES = str.maketrans(
    {"%": "%25", "[": "%5B", "]": "%5D", "\n": "%0A"}
    # Halves of surrogate pairs, which the names of files may have, and which no encoding can hold.
    | {chr(code): f"%{code:X}" for code in range(0xD800, 0xE000)}
)

Sink: TypeAlias = Callable[[object], Awaitable[None]]
"""Takes the events that effects emit, one at a time; the emitter waits for it."""


class Recorder(Protocol):
    """Remembers what an effect saw of the outside world, so that a resumed run sees it again."""

    def recall(self, path: str) -> Maybe[Any]:
        """What was recorded at this path, if anything was."""
        ...

    def record(self, path: str, value: object, *, is_failure: bool = False) -> None:
        """Remember this for the next time that the run comes by.

        What led to a failure is remembered only once the run has handled that and gone on: a failure
        that ended the run is to be tried again.
        """
        ...


class Operator:
    """What the flows within an operator know of its cancelling them.

    Parameters:
        has_cancelled: tells whether it has.

    Attributes:
        is_final: whether a finalizer of what it has cancelled came to a step. That may have undone what
            the flow was to go on from, so that nothing in there is to be tried again.
    """

    __slots__ = ("_has_cancelled", "_is_late", "is_final")

    def __init__(self, has_cancelled: Callable[[], bool]) -> None:
        self.is_final = False
        self._has_cancelled = has_cancelled
        self._is_late = False

    @property
    def has_ended_flows(self) -> bool:
        """Whether its flows end because it has cancelled them."""
        return not self._is_late and self._has_cancelled()

    def come_late(self) -> None:
        """Its flows are being stopped already: a timeout, say, may yet strike while they end."""
        self._is_late = True

    def record_failure(self, recorder: Recorder, place: str, path: str, value: object) -> None:
        """Record at `path` how the operator at `place` failed. A resume may retry what is not final."""
        recorder.record(path, value, is_failure=True)
        if self.is_final:
            # What is recorded beside an operator settles what failed in it. No name has such a path.
            recorder.record(f"{place}#final", True)


class Scope:
    """The place of one sequential flow within a run.

    Attributes:
        path: the scopes around this flow, as text; empty at the root.
        clock: tells the time.
        recorder: the durable run around this flow, if there is one.
        step: what is known of the step whose body this flow is part of, or None between steps.
        sink: takes the events that are emitted; None if nobody listens.
        observer: is told of named effects, if there is one.
        finalizer_deadline: seconds that each finalizer may take; None for no limit.
        context: what the caller attached to the run around this flow; empty outside of runs.
        is_stopping: whether this is a finalizer in a durable run that is interrupted from outside. The
            run goes on in a resume, which comes to the finalizer at its place: here it begins no step.
    """

    __slots__ = (
        "_ended_by",
        "_occurrences",
        "_operators",
        "clock",
        "context",
        "finalizer_deadline",
        "is_stopping",
        "observer",
        "path",
        "recorder",
        "sink",
        "step",
    )

    def __init__(
        self,
        path: str,
        clock: Clock,
        *,
        recorder: Recorder | None = None,
        step: object = None,
        sink: Sink | None = None,
        observer: EffectObserver | None = None,
        finalizer_deadline: float | None = None,
        context: Mapping[str, object] = _NO_CONTEXT,
    ) -> None:
        self.path = path
        self.clock = clock
        self.recorder = recorder
        self.step = step
        self.sink = sink
        self.observer = observer
        self.finalizer_deadline = finalizer_deadline
        self.context = context
        self.is_stopping = False
        self._operators: tuple[Operator, ...] = ()
        self._ended_by: tuple[Operator, ...] = ()
        self._occurrences: dict[str, int] = {}

    @property
    def decisions(self) -> Recorder | None:
        """Where the operators of this flow record what they decide; None within steps.

        None as well in a run that is stopping: its flows were left somewhere on their way, so that a
        resume would find at another place what is recorded here.
        """
        return self.recorder if self.step is None and not self.is_stopping else None

    def next_path(self, name: str) -> str:
        """The path of the next occurrence of `name` here: `name`, then `name#2`, `name#3`, ..."""
        count = self._occurrences.get(name, 0) + 1
        self._occurrences[name] = count
        return step_path(self.path, name, count)

    def path_to_come(self, name: str) -> str:
        """The path that the next occurrence of `name` here is going to have."""
        return step_path(self.path, name, self._occurrences.get(name, 0) + 1)

    def child(self, path: str, key: object) -> Scope:
        """The scope of one child of the parallel operator at `path`.

        Without a recorder nobody reads paths, and the child shares this scope.
        """
        if self.recorder is None:
            return self
        return self._derived(child_path(path, key), self.step)

    def within(self, path: str) -> Scope:
        """The scope of what the operator at `path` may leave out in a resumed run."""
        return self if self.recorder is None else self._derived(path, self.step)

    def under(self, operator: Operator) -> Scope:
        """The same flow, within an operator that may cancel it.

        Whoever cancels flows of a run has to say so here, as the run goes on then. A cancellation that
        nobody here has asked for interrupts the whole run.
        """
        if self.recorder is None:
            return self
        scope = self._same_flow()
        scope._operators = (*self._operators, operator)
        return scope

    def finalizing(self) -> Scope:
        """The scope of a finalizer that a cancellation of this flow has come to."""
        if self.recorder is None or self.is_stopping:
            return self
        scope = self._same_flow()
        scope._ended_by = tuple(each for each in self._operators if each.has_ended_flows)
        if not scope._ended_by:
            for operator in self._operators:
                operator.come_late()
            scope.is_stopping = True
        return scope

    def come_to_step(self) -> None:
        """A step, or another run, comes next here: in a finalizer, what has ended its flow is final."""
        for operator in self._ended_by:
            operator.is_final = True

    def inside_step(self, path: str, step: object) -> Scope:
        """The scope of the body of the step at `path`, of which `step` tells more."""
        return self._derived(path, step)

    def inside_run(self, recorder: Recorder, context: Mapping[str, object]) -> Scope:
        """The scope of the body of a durable run."""
        scope = self._derived("", None)
        scope.recorder = recorder
        scope.context = context
        # What cancels something in the run around this one interrupts the whole of this one.
        scope._operators = scope._ended_by = ()
        return scope

    def between_steps(self) -> Scope:
        """The same flow, made of steps of its own: its operators record what they decide."""
        scope = self._same_flow()
        scope.step = None
        return scope

    def with_sink(self, sink: Sink | None) -> Scope:
        """The same flow, with another listener."""
        scope = self._same_flow()
        scope.sink = sink
        return scope

    def _same_flow(self) -> Scope:
        scope = self._derived(self.path, self.step)
        scope._occurrences = self._occurrences
        return scope

    def _derived(self, path: str, step: object) -> Scope:
        scope = Scope(
            path,
            self.clock,
            recorder=self.recorder,
            step=step,
            sink=self.sink,
            observer=self.observer,
            finalizer_deadline=self.finalizer_deadline,
            context=self.context,
        )
        scope.is_stopping = self.is_stopping
        scope._operators = self._operators
        scope._ended_by = self._ended_by
        return scope


def step_path(flow: str, name: str, occurrence: int) -> str:
    """The path of the so many-th occurrence of `name` in a flow, from 1.

    Example:
        >>> step_path("", "review", 1), step_path("par[0]", "review", 2)
        ('review', 'par[0]/review#2')
    """
    segment = name if occurrence == 1 else f"{name}#{occurrence}"
    return f"{flow}/{segment}" if flow else segment


def child_path(path: str, key: object) -> str:
    """The path of the flow of one child of the parallel operator at `path`.

    Example:
        >>> child_path("par_traverse", "cap"), child_path("par_traverse", "a[0]")
        ('par_traverse[cap]', 'par_traverse[a%5B0%5D]')
    """
    return f"{path}[{str(key).translate(_ESCAPES)}]"


def root_scope(
    clock: Clock | None = None,
    *,
    observer: EffectObserver | None = None,
    finalizer_deadline: float | None = None,
    context: Mapping[str, object] = _NO_CONTEXT,
) -> Scope:
    """The scope that a run begins in."""
    return Scope(
        "",
        clock or _SYSTEM,
        observer=observer,
        finalizer_deadline=finalizer_deadline,
        context=context,
    )


def observe(scope: Scope, name: str, take: Callable[[], A]) -> A:
    """What `take` gives; in a durable run, between steps, what it gave the first time."""
    recorder = scope.decisions
    if recorder is None:
        return take()
    path = scope.next_path(name)
    known: Maybe[A] = recorder.recall(path)
    if known is not Maybe.empty:
        return known.unwrap()
    value = take()
    recorder.record(path, value)
    return value


_SYSTEM = SystemClock()
