"""An observer that records events."""

from __future__ import annotations

from effectflow.checkpoint import CheckpointEvent, Entry, EntryAppended, StepSkipped


class RecordingObserver:
    """Records every event, in order. Pass it to `Checkpoints(observers=...)`."""

    def __init__(self) -> None:
        self.events: list[CheckpointEvent] = []

    def notify(self, event: CheckpointEvent) -> None:
        """Remember the event."""
        self.events.append(event)

    @property
    def entries(self) -> list[Entry]:
        """The entries that were appended."""
        return [event.entry for event in self.events if isinstance(event, EntryAppended)]

    @property
    def skipped(self) -> list[str]:
        """The steps that were reached and not run, because their outcome was recorded."""
        return [event.step for event in self.events if isinstance(event, StepSkipped)]
