"""Continue after errors of a store: log the first one, and retry with growing delays."""

from __future__ import annotations

import logging

from effectflow.effects import RetryPolicy

logger = logging.getLogger(__name__)

_POLICY = RetryPolicy.exponential(0.2).with_max_delay(10.0).with_jitter(0.5)


class Outage:
    """The time from an error of a store to the next success.

    The log names `who`, which works with the store.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._errors = 0
        self._delays = _POLICY.delays()

    @property
    def has_begun(self) -> bool:
        """Whether the last attempt failed."""
        return self._errors > 0

    def begin(self, error: Exception) -> float:
        """Note an error. Return the seconds to wait before the next attempt."""
        if not self._errors:
            logger.warning("%s failed, and keeps trying: %r", self._who, error)
        self._errors += 1
        return next(self._delays)

    def end(self) -> None:
        """Note that the store works."""
        if self._errors:
            logger.warning("%s works again after %d errors", self._who, self._errors)
            self._errors = 0
            self._delays = _POLICY.delays()
