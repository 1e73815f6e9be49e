"""Whether the code of a run repeats what an earlier life of the run has done, such as logging a line."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from effectflow.checkpoint.turns import Turns

_current: ContextVar[Turns | None] = ContextVar("current_turns", default=None)


@contextmanager
def life_of(turns: Turns) -> Generator[None]:
    """Let `replaying` tell about this life, in the block and in the tasks that it starts."""
    token = _current.set(turns)
    try:
        yield
    finally:
        _current.reset(token)


def replaying() -> bool:
    """Return whether the running code repeats what an earlier life of its run has done.

    A resume runs the code of a body again up to the operations that are not recorded; a plan does, too.
    Meanwhile this is True. It is False in a first life, and outside of runs. The code of a step that is
    recorded does not run again, so there it is False, unless the step was in progress and had begun steps
    of its own.

    Use it for what should be seen once, such as log lines, never to do something else in a replay.

    Example:
        >>> from effectflow.checkpoint import replaying
        >>> replaying()
        False
    """
    turns = _current.get()
    return turns is not None and turns.is_replaying


class ReplayFilter(logging.Filter):
    """Drops the log records that a replay repeats: `handler.addFilter(ReplayFilter())`.

    A line that a process logged just before its death may be logged again.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is new."""
        return super().filter(record) and not replaying()
