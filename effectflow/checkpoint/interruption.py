"""The reason why a run is being stopped, for its `Interrupted` entry."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["StopRequest", "interruption_reason", "stop_request"]


@dataclass(slots=True)
class StopRequest:
    """A possible request to stop runs in progress. Its sender sets `reason`."""

    reason: str = "cancelled"


stop_request: ContextVar[StopRequest | None] = ContextVar("stop_request", default=None)
"""The request that covers the runs of this context, or None."""


def interruption_reason() -> str:
    """Return the reason for the `Interrupted` entries of this context: a signal, or "cancelled"."""
    request = stop_request.get()
    return "cancelled" if request is None else request.reason
