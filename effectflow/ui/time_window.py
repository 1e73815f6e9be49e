"""The part of the time of a run that a page shows, as a scale from 0 to 100 percent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from effectflow.ui.formatting import took

_STEPS = tuple(
    digit * unit
    for unit, digits in (
        *((10.0**exponent, (1, 2, 5)) for exponent in range(-6, 1)),
        (10.0, (1, 2, 3)),
        (60.0, (1, 2, 5, 10, 15, 30)),
        (3600.0, (1, 2, 3, 6, 12)),
        *((86400.0 * 10.0**exponent, (1, 2, 5)) for exponent in range(5)),
    )
    for digit in digits
)
"""The seconds between two marks on a scale: round numbers that people use."""


def rounded_up(seconds: float) -> float:
    """Return a duration that is a little longer, and stays the same while this one grows a little.

    So the picture of something that lasts changes only now and then.
    """
    unit = 10.0 ** math.floor(math.log10(max(seconds, 1.0)))
    return next(
        part * unit for part in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if part * unit >= seconds
    )


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A part of the time of a run. All times are in seconds since the epoch.

    Attributes:
        began, ended: the part that is shown.
        first, last: when the run began, and its end, or what the picture shows as the end while it lasts.
    """

    began: float
    ended: float
    first: float
    last: float

    @staticmethod
    def over(first: float, last: float, began: float | None, ended: float | None) -> TimeWindow:
        """Return the part from `began` to `ended`; by default all of it."""
        last = max(last, first + 0.001)
        began = first if began is None else min(max(began, first), last)
        ended = last if ended is None else min(max(ended, first), last)
        shortest = (last - first) / 1e6
        if ended - began < shortest:
            began, ended = first, last
        return TimeWindow(began, ended, first, last)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the time."""
        return (self.began, self.ended) == (self.first, self.last)

    def percent(self, at: float) -> float:
        """Return the place of a time on the scale: before it below 0, after it above 100."""
        return 100 * (at - self.began) / (self.ended - self.began)

    def zoomed(self, factor: float) -> dict[str, float]:
        """Return a part around the same middle that is this much as long, as the query of a link."""
        middle, half = (self.began + self.ended) / 2, (self.ended - self.began) / 2 * factor
        return self._query(middle - half, middle + half)

    def moved(self, share: float) -> dict[str, float]:
        """Return the part that comes later by this share of its length, as the query of a link."""
        by = (self.ended - self.began) * share
        by = min(max(by, self.first - self.began), self.last - self.ended)
        return self._query(self.began + by, self.ended + by)

    def _query(self, began: float, ended: float) -> dict[str, float]:
        return {
            "from": round(max(began, self.first), 6),
            "to": round(min(ended, self.last), 6),
        }

    def marks(self) -> Iterator[tuple[float, str]]:
        """Yield the places of round times since the beginning of the run, and their labels."""
        least = (self.ended - self.began) / 6
        step = next((one for one in _STEPS if one >= least), _STEPS[-1])
        number = math.ceil((self.began - self.first) / step)
        while (at := self.first + number * step) <= self.ended:
            yield self.percent(at), took(number * step)
            number += 1
