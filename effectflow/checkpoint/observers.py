"""Observers and the events of runs that they receive."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from effectflow.checkpoint.entries import Entry
from effectflow.checkpoint.values import Tree
from effectflow.effects.paths import StepPath

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointEvent:
    """What an observer receives. Builders of workflows add events of their own."""


@dataclass(frozen=True, slots=True)
class EntryAppended(CheckpointEvent):
    """An entry was added to a run's journal."""

    run_id: str
    entry: Entry


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class CheckpointSaved(_AtEntry):
    """The journal of a run is durable up to its entry number `entries`.

    Attributes:
        reason: why, if `save_now` requested the save.
    """

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointLoaded(_AtEntry):
    """A run was found in the store, with this many `entries`."""


@dataclass(frozen=True, slots=True)
class RunResumed(CheckpointEvent):
    """A run is resumed.

    Attributes:
        run_id: the run.
        step: the step that is executed first, if that is known before the replay: the newest one that had
            begun and not ended, or failed; in a list of steps, the next one. Otherwise None.
    """

    run_id: str
    step: str | None


@dataclass(frozen=True, slots=True)
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


def tell(observers: Iterable[Observer], event: CheckpointEvent) -> None:
    """Pass an event to all observers."""
    for observer in observers:
        try:
            observer.notify(event)
        except Exception:
            # Without its values, which may be secrets.
            logger.exception("an observer failed on %s", type(event).__name__)
