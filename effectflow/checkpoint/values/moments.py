"""Datetimes and times of day as text, with their time zones, and back."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, time, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from effectflow.checkpoint.values.walk import Fault

_PYDANTIC = "pydantic"
"""The name of the zones of the class that pydantic makes of an offset in text."""


def encode_moment(value: datetime | time) -> str | list[Any]:
    """Return a datetime or time of day as text, or as a list of text, name of its zone, and fold."""
    zone, text = value.tzinfo, value.isoformat()
    if (zone is UTC or zone is None) and not value.fold:
        return text
    # A zone of pydantic exists only if pydantic is imported.
    pydantic: Any = sys.modules.get("pydantic_core")
    if pydantic is not None and isinstance(zone, pydantic.TzInfo):
        return [text, _PYDANTIC, value.fold]
    if isinstance(zone, ZoneInfo) and _is_named(zone):
        return [value.replace(tzinfo=None).isoformat(), zone.key, value.fold]
    if zone is not None and repr(type(value).fromisoformat(text).tzinfo) != repr(zone):
        raise Fault(
            f"its time zone {zone!r} is neither a plain offset nor what ZoneInfo gives for a name"
        )
    return [text, None, value.fold] if value.fold else text


def _is_named(zone: ZoneInfo) -> bool:
    """Return whether a zone is the one that its name means. A zone read from a file may have any name."""
    try:
        return bool(zone.key) and ZoneInfo(zone.key) is zone
    except (ZoneInfoNotFoundError, ValueError):
        return False


def decode_moment(cls: type[datetime] | type[time], content: Any) -> datetime | time:
    """Return the datetime or time of day that `encode_moment` has written."""
    text, name, fold = (content, None, 0) if isinstance(content, str) else content
    moment = cls.fromisoformat(text).replace(fold=fold)
    if name is None:
        return moment
    return moment.replace(tzinfo=_pydantic_zone(moment) if name == _PYDANTIC else ZoneInfo(name))


def _pydantic_zone(moment: datetime | time) -> tzinfo:
    from pydantic_core import TzInfo

    offset = moment.utcoffset()
    if offset is None or offset.microseconds:
        raise Fault(f"pydantic has no zone for {moment}")
    return TzInfo(int(offset.total_seconds()))
