"""Pauses of queues, workflows and schedules: settings of the store that all workers follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias, cast

import orjson

from effectflow.checkpoint.store import ServiceStore
from effectflow.effects.arguments import check_text

PausedKind: TypeAlias = Literal["queue", "workflow", "schedule"]
"""What can be paused, besides a run."""

PAUSED_KINDS: tuple[PausedKind, ...] = ("queue", "workflow", "schedule")


@dataclass(frozen=True, slots=True)
class Pause:
    """A queue, a workflow or a schedule that is paused.

    Attributes:
        kind: what it is.
        name: its name.
        by: who paused it, such as "ann@host".
        at: when, in seconds since the epoch.
    """

    kind: PausedKind
    name: str
    by: str
    at: float


def named(**names: str | None) -> tuple[PausedKind, str]:
    """Return the kind and the name of the one that is given. Raise TypeError unless it is one."""
    given = [(kind, name) for kind, name in names.items() if name is not None]
    if len(given) != 1:
        raise TypeError(f"name one of {', '.join(f'{kind}=' for kind in PAUSED_KINDS)}")
    [(kind, name)] = given
    check_text(f"{kind}=", name)
    return cast("PausedKind", kind), name


async def save_pause(store: ServiceStore, pause: Pause) -> None:
    """Pause something, or note again who paused it."""
    name = _setting(pause.kind, pause.name)
    await store.save_setting(_PAUSED, name, orjson.dumps(asdict(pause)))


async def remove_pause(store: ServiceStore, kind: PausedKind, name: str, *, now: float) -> None:
    """Let something that is paused go on, from now on. `now` is in seconds since the epoch."""
    paused = _setting(kind, name)
    if kind == "schedule" and paused in await store.settings(_PAUSED):
        await store.save_setting(_UNPAUSED, paused, orjson.dumps(now))
    await store.save_setting(_PAUSED, paused, None)


async def unpaused_at(store: ServiceStore, schedule: str) -> float | None:
    """Return when a schedule was unpaused last, in seconds since the epoch, or None."""
    found = (await store.settings(_UNPAUSED)).get(_setting("schedule", schedule))
    return None if found is None else float(orjson.loads(found))


async def pauses_in(store: ServiceStore) -> list[Pause]:
    """Return what is paused, sorted by kind and name."""
    found = await store.settings(_PAUSED)
    return [Pause(**orjson.loads(value)) for _, value in sorted(found.items())]


def paused_names(kind: PausedKind, pauses: Iterable[Pause]) -> set[str]:
    """Return the names of what is paused of a kind."""
    return {one.name for one in pauses if one.kind == kind}


_PAUSED, _UNPAUSED = "paused", "unpaused"


def _setting(kind: PausedKind, name: str) -> str:
    return f"{kind}:{name}"
