"""What all stores do with leases: refuse writers, and take over from dead processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from effectflow.checkpoint.errors import LeaseLost, RunBusy
from effectflow.checkpoint.lease import Lease, Owner

A = TypeVar("A")

_NO_FENCE = -1
"""A fencing number that no claim has."""


def check_free(held: Lease | None, *, now: float, claimant: str = "") -> None:
    """Raise RunBusy if a live owner other than the claimant holds the lease at `now`."""
    if held is not None and held.owner not in ("", claimant) and held.is_held(now):
        raise RunBusy(held.run_id, held.owner, held.expires_at - now)


def check_current(lease: Lease, held: Lease | None) -> None:
    """Raise LeaseLost unless this is the current lease of the run."""
    # FileStore may issue a fence twice, if the file with the newest was lost. Owners differ then.
    holder, fence = (held.owner, held.fence) if held is not None else ("", 0)
    if (fence, holder) != (lease.fence, lease.owner):
        reason = f"{holder} holds it" if holder else "its lease was released"
        raise LeaseLost(lease.run_id, reason)


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a run on a server, as an answer to a claim or a deletion.

    A server cannot tell whether the process of an owner lives. `expires_in` is in seconds.
    """

    owner: str
    fence: int
    expires_in: float


async def take_over_from_dead(run_id: str, ask: Callable[[int], Awaitable[A | Holder]]) -> A:
    """Return the answer to `ask`, and ask again if the holder of the run is dead.

    `ask` receives the fence of that dead holder, which the server then ignores, or at first a number
    that no claim has. Raise RunBusy if a live owner holds the run.
    """
    dead = _NO_FENCE
    while True:
        answer = await ask(dead)
        if not isinstance(answer, Holder):
            return answer
        owner = Owner.parse(answer.owner)
        if answer.fence == dead or owner is None or not owner.is_dead():
            raise RunBusy(run_id, answer.owner, answer.expires_in)
        dead = answer.fence
