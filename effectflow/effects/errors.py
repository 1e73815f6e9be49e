"""What `run_or_raise` raises, and what ends a run past every handler."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["EffectError", "Halt"]

E = TypeVar("E")


class EffectError(Exception, Generic[E]):
    """A typed failure that is no exception itself, as `run_or_raise` raises it.

    `error` is the failure.
    """

    def __init__(self, error: E) -> None:
        self.error = error
        super().__init__(f"the effect failed with {error!r}")


class Halt(BaseException):
    """Ends everything that runs, finalizers apart.

    Like a cancellation it is no `Exception`, so that no body can catch it by accident and go on
    from a state that nobody recorded. `reason` is the error that whoever raised it reports.
    """

    def __init__(self, reason: Exception) -> None:
        self.reason = reason
        super().__init__(str(reason))
