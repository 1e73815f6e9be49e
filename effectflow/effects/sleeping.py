"""Waiting that a resumed run does not begin anew."""

from __future__ import annotations

from datetime import datetime, timedelta

from effectflow.effects.scope import Scope, observe

__all__ = ["sleep_until_recorded"]


async def sleep_until_recorded(scope: Scope, name: str, seconds: float) -> None:
    """Sleep; in a durable run, between steps, only until the time that was recorded at first."""
    if scope.decisions is None:
        await scope.clock.sleep(seconds)
        return
    wake_at = observe(scope, name, lambda: _after(scope.clock.now(), seconds))
    left = (wake_at - scope.clock.now()).total_seconds()
    # Another machine's clock may be ahead; nobody is to wait longer for that.
    await scope.clock.sleep(min(max(0.0, left), seconds))


def _after(time: datetime, seconds: float) -> datetime:
    try:
        return time + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=time.tzinfo)
