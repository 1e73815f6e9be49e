"""Observers and the events of runs that they receive."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from effectflow.checkpoint.entries import Entry
from effectflow.checkpoint.run_info import RunStatus
from effectflow.checkpoint.schema import frozen
from effectflow.checkpoint.values import Tree
from effectflow.effects.paths import StepPath

logger = logging.getLogger(__name__)


class CheckpointEvent:
    """What an observer receives. Builders of workflows add events of their own."""

    __slots__ = ()


@frozen
class EntryAppended(CheckpointEvent):
    """An entry was added to a run's journal."""

    run_id: str
    entry: Entry


@frozen
class StepSkipped(CheckpointEvent):
    """A step with a recorded outcome was reached and not run.

    Attributes:
        run_id: the run.
        step: the path of the step.
        output: its output in its saved form; None if it failed.
        has_failed: whether the recorded outcome is a failure.
    """

    run_id: str
    step: str
    output: Tree
    has_failed: bool = False


@frozen
class _AtEntry(CheckpointEvent):
    """A run after one of its entries.

    Attributes:
        entries: the number of entries up to that one.
        step: the path of the newest step in these entries; None before the first one.
    """

    run_id: str
    entries: int
    step: str | None

    @property
    def node(self) -> str | None:
        """The name of the step, or of the outermost step around it."""
        if self.step is None:
            return None
        return StepPath(StepPath(self.step).segments[0]).name


@frozen
class CheckpointSaved(_AtEntry):
    """The journal of a run is durable up to its entry number `entries`.

    Attributes:
        reason: why, if `save_now` requested the save.
        seconds: how long the store took; 0 for the creation of a run.
    """

    reason: str | None = None
    seconds: float = field(default=0.0, compare=False)


@frozen
class CheckpointLoaded(_AtEntry):
    """A run was found in the store, with this many `entries`."""


@frozen
class RunResumed(CheckpointEvent):
    """A run is resumed.

    Attributes:
        run_id: the run.
        step: the step that is executed first, if that is known before the replay: the newest one that had
            begun and not ended, or failed; in a list of steps, the next one. Otherwise None.
    """

    run_id: str
    step: str | None


@frozen
class LifeBegan(CheckpointEvent):
    """This process begins to drive a run: a new one, or one that it resumes. It lasts until `LifeEnded`.

    Attributes:
        run_id, workflow: the run, and the name of its workflow.
        context: the context of the run.
        before: what observers kept with the life before; empty for the first one.
        worker: the process, as in `RunInfo.lease`; empty for a new run, which nobody else can hold.
        waited: the seconds since the run was due, if a worker has taken it and the life before has ended
            in order; otherwise None.
        after_crash: whether the process of the life before has died.
        is_secret: whether the entries of the run are encrypted, so that nothing may show its values.
    """

    run_id: str
    workflow: str
    context: Mapping[str, object]
    before: Mapping[str, str]
    worker: str = ""
    waited: float | None = None
    after_crash: bool = False
    is_secret: bool = False


@frozen
class LifeEnded(CheckpointEvent):
    """This process drives a run no longer.

    Attributes:
        status: the status of the run. It is still `RUNNING` if its end could not be saved, for example
            because the lease was lost.
    """

    run_id: str
    workflow: str
    status: RunStatus


@frozen
class RunBlocked(CheckpointEvent):
    """A run cannot be continued here, for the reason that its summary has. Workers try it again."""

    run_id: str
    workflow: str


@frozen
class AttemptBegan(CheckpointEvent):
    """An attempt of a step is executed, or goes on in another life. Only passed to `around`.

    Attributes:
        step, name: the path of the step, and its name.
        attempt: the number of the attempt, from 1.
    """

    run_id: str
    step: str
    name: str
    attempt: int


@frozen
class RunWaits(CheckpointEvent):
    """A fiber of a run waits, in this life. Another message for the run may repeat this.

    Attributes:
        what: what for, in words: "a time", "a retry", "signal approval" or "run 'order-7'".
        until: when it continues by itself, in seconds since the epoch; None if it does not.
    """

    run_id: str
    what: str
    until: float | None


class Observer(Protocol):
    """Receives the events of runs. An exception that it raises is logged and otherwise ignored."""

    def notify(self, event: CheckpointEvent) -> None:
        """Receive an event. It is called in the task of the run, so it must be fast."""
        ...


Lasting: TypeAlias = LifeBegan | AttemptBegan | RunWaits
"""The events of what lasts for some time."""


@runtime_checkable
class SurroundingObserver(Observer, Protocol):
    """An observer that also surrounds what lasts, such as with the span of a trace.

    As with `notify`, an exception is logged and otherwise ignored.
    """

    def context_of(
        self, run_id: str, workflow: str, context: Mapping[str, object]
    ) -> Mapping[str, str]:
        """Return what to add to the context of a run that this process is about to create."""
        ...

    def around(self, event: Lasting) -> AbstractContextManager[Mapping[str, str] | None]:
        """Return what surrounds the code that an event is about. It is entered in the task of that code.

        What it yields for a `LifeBegan` is kept with the life: `LifeBegan.before` of the next one.
        """
        ...


def surrounding(observers: Iterable[Observer]) -> tuple[SurroundingObserver, ...]:
    """Return the observers that surround what lasts."""
    return tuple(one for one in observers if isinstance(one, SurroundingObserver))


class Surroundings:
    """What observers put around something that lasts. Entering it returns what they keep with it."""

    __slots__ = ("_entered", "_event", "_observers")

    def __init__(self, observers: Iterable[SurroundingObserver], event: Lasting) -> None:
        self._observers = observers
        self._event = event
        self._entered: list[AbstractContextManager[object]] = []

    def __enter__(self) -> Mapping[str, str]:
        kept: dict[str, str] = {}
        for observer in self._observers:
            try:
                around = observer.around(self._event)
                kept.update(around.__enter__() or {})
            except Exception:
                _log_failure(self._event)
            else:
                self._entered.append(around)
        return kept

    def __exit__(self, *raised: Any) -> None:
        while self._entered:
            try:
                self._entered.pop().__exit__(*raised)
            except Exception:
                _log_failure(self._event)


NOT_OBSERVED = nullcontext[Mapping[str, str]]({})
"""What surrounds something that nobody observes."""


def with_context(
    observers: Iterable[Observer], run_id: str, workflow: str, context: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the context of a run to create, with what observers add to it."""
    for observer in surrounding(observers):
        try:
            context = {**context, **observer.context_of(run_id, workflow, context)}
        except Exception:
            logger.exception("an observer failed on the context of run %r", run_id)
    return context


def tell(observers: Iterable[Observer], event: CheckpointEvent) -> None:
    """Pass an event to all observers."""
    for observer in observers:
        try:
            observer.notify(event)
        except Exception:
            _log_failure(event)


def _log_failure(event: CheckpointEvent) -> None:
    # Without its values, which may be secrets.
    logger.exception("an observer failed on %s", type(event).__name__)
