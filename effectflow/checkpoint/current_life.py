"""The life of a run that the running code belongs to, and whether it repeats what an earlier one did."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from effectflow.checkpoint.turns import Turns

current_life: ContextVar[Turns | None] = ContextVar("current_life", default=None)
"""The turns of the life whose code runs in this context; None outside of runs."""


class life_of:  # noqa: N801, used like a function in `with`
    """Make this the current life, in the block and in the tasks that it starts."""

    __slots__ = ("_token", "_turns")

    _token: Token[Turns | None]

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def __enter__(self) -> None:
        self._token = current_life.set(self._turns)

    def __exit__(self, *_: object) -> None:
        current_life.reset(self._token)


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
    turns = current_life.get()
    return turns is not None and turns.is_replaying
