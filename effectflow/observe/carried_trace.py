"""The trace around a call that an executor sends to another process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class CarriedTrace:
    """Makes the span of the sender the current one in the process that runs the call.

    Without `opentelemetry-api` there, it does nothing: the trace has no spans of that process.

    Attributes:
        carrier: the position in the trace, as a propagator writes it.
    """

    def __init__(self, carrier: Mapping[str, str]) -> None:
        self.carrier = carrier
        self._token: Any = None

    def __enter__(self) -> None:
        try:
            from opentelemetry import context, propagate
        except ModuleNotFoundError:
            return
        self._token = context.attach(propagate.extract(self.carrier))

    def __exit__(self, *raised: object) -> None:
        if self._token is not None:
            from opentelemetry import context

            context.detach(self._token)
