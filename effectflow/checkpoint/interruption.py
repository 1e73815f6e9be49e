"""Why a run is being stopped, so that its `Interrupted` entry can say so."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["StopRequest", "interruption_reason", "stop_request"]


@dataclass(slots=True)
class StopRequest:
    """A request to stop runs. `reason` is "cancelled" or the name of a signal."""

    reason: str = "cancelled"


stop_request: ContextVar[StopRequest | None] = ContextVar("stop_request", default=None)
"""The request that covers the runs of this context, if anything can ask them to stop."""


def interruption_reason() -> str:
    """What the `Interrupted` entries of this context say: a signal's name, or "cancelled"."""
    request = stop_request.get()
    return "cancelled" if request is None else request.reason
