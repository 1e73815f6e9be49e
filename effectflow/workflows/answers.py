"""What functions of a definition answer at once: guards, conditions, choices."""

from __future__ import annotations

import inspect
from typing import TypeVar

from effectflow.effects import Effect

__all__ = ["answered"]

T = TypeVar("T")


def answered(answer: T, whose: str) -> T:
    """The answer of a function that must not do anything to come by it.

    An effect or an awaitable is none: as an object it counts as true, and nobody would notice that it was
    never run.

    Parameters:
        answer: what the function gave.
        whose: the function, such as `the guard of transition 'charge'`.

    Raises TypeError for an effect or an awaitable.
    """
    if isinstance(answer, bool):
        # Nearly always, and asked at each step: the look at what else it may be takes much longer.
        return answer
    kind = _kind_of(answer)
    if kind is None:
        return answer
    raise TypeError(
        f"{whose} gave {kind}, and it must give its answer at once, from the state alone; what has to be "
        "done to know the answer belongs before it, with what it gave in the state"
    )


def _kind_of(answer: object) -> str | None:
    if isinstance(answer, Effect):
        return "an effect"
    if inspect.iscoroutine(answer):
        # Otherwise Python warns that nobody has awaited it.
        answer.close()
    return "an awaitable" if inspect.isawaitable(answer) else None
