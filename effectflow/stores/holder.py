"""Who holds a run on a server, which cannot tell whether its clients live."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from effectflow.checkpoint.errors import RunBusy
from effectflow.checkpoint.lease import Owner

__all__ = ["NO_FENCE", "Holder", "past_a_dead_holder"]

A = TypeVar("A")

NO_FENCE = -1
"""A number that no claim ever has."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a run, under which fence, and for how many seconds more."""

    owner: str
    fence: int
    expires_in: float

    def is_dead(self) -> bool:
        """Whether its process is known to have ended."""
        owner = Owner.parse(self.owner)
        return owner is not None and owner.is_dead()


async def past_a_dead_holder(run_id: str, ask: Callable[[int], Awaitable[A | Holder]]) -> A:
    """What `ask` gives, asked again if who holds the run is dead.

    It is given the fence of the dead holder, which counts for nothing; `NO_FENCE` at first.
    Fails with RunBusy while somebody else holds the run.
    """
    dead = NO_FENCE
    while True:
        answer = await ask(dead)
        if not isinstance(answer, Holder):
            return answer
        if answer.fence == dead or not answer.is_dead():
            raise RunBusy(run_id, answer.owner, answer.expires_in)
        dead = answer.fence
