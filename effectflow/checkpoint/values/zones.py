"""The time zones that are not told by their offset alone, and the names that they are saved under."""

from __future__ import annotations

import sys
from datetime import datetime, time, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

__all__ = ["OF_PYDANTIC", "name_of_zone", "zone_named"]

OF_PYDANTIC = "pydantic"
"""What stands in place of a name for zones of the class that pydantic makes of an offset in text."""


def name_of_zone(zone: tzinfo | None) -> str | None:
    """The name that a zone is saved under; None if it has none."""
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone.key if _stands_for(zone.key, zone) else None
    # What is not imported has made no zone.
    pydantic: Any = sys.modules.get("pydantic_core")
    return OF_PYDANTIC if pydantic is not None and isinstance(zone, pydantic.TzInfo) else None


def _stands_for(name: str, zone: ZoneInfo) -> bool:
    """Whether a zone is the one that its name stands for: one read from a file may have any name."""
    try:
        return ZoneInfo(name) is zone
    except (ZoneInfoNotFoundError, ValueError):
        return False


def zone_named(name: str, moment: datetime | time) -> tzinfo:
    """The zone that `name_of_zone` gave this name, at a moment that still has its plain offset.

    Raises ValueError or LookupError if there is none.
    """
    if name != OF_PYDANTIC:
        return ZoneInfo(name)
    try:
        from pydantic_core import TzInfo
    except ImportError as missing:
        raise ValueError(f"its time zone is one of pydantic's: {missing}") from missing
    offset = moment.utcoffset()
    if offset is None:
        raise ValueError("it has no offset")
    zone = TzInfo(round(offset.total_seconds()))
    if zone.utcoffset(None) != offset:
        raise ValueError(f"pydantic has no zone of {offset}")
    return zone
