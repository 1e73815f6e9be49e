"""An environment in which items can fail, and a job, for the tests of map-reduce."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from anyio.lowlevel import checkpoint

from effectflow import Checkpoints, Effect, effect, fail, pure
from effectflow.checkpoint import CheckpointStore
from effectflow.mapreduce import MapReduce


class Broken(Exception):
    """The error of an item. `times` shows that attributes are restored as well."""

    def __init__(self, item: int, *, times: int) -> None:
        self.times = times
        super().__init__(f"item {item}")


@dataclass
class World:
    """What was done, and how often each item still fails."""

    mapped: list[int] = field(default_factory=list[int])
    reduced: list[list[str]] = field(default_factory=list[list[str]])
    failures_left: Counter[int] = field(default_factory=Counter[int])

    def break_items(self, *items: int, times: int = 1_000_000) -> None:
        for item in items:
            self.failures_left[item] = times

    def repair(self, *items: int) -> None:
        for item in items or list(self.failures_left):
            del self.failures_left[item]

    def forget(self) -> None:
        self.mapped.clear()
        self.reduced.clear()


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    world: World = field(default_factory=World)


def app_around(store: CheckpointStore, world: World | None = None, **options: Any) -> App:
    return App(Checkpoints(store, **options), world or World())


@effect(errors=Broken)
async def spell(app: App, number: int) -> str:
    world = app.world
    world.mapped.append(number)
    await checkpoint()
    if world.failures_left[number] > 0:
        world.failures_left[number] -= 1
        raise Broken(number, times=world.mapped.count(number))
    return str(number)


def join(words: list[str]) -> Effect[App, str, str]:
    return pure(" ".join(words))


@effect
def join_and_note(app: App, words: list[str]) -> str:
    app.world.reduced.append(words)
    return " ".join(words)


def up_to(count: int) -> range:
    return range(count)


def spelling(**options: Any) -> MapReduce[App, Any, Any, Any]:
    """A job whose value lists the numbers below its input, in order."""
    given: dict[str, Any] = {
        "items": up_to,
        "map": spell,
        "reduce": join_and_note,
        "key": str,
        "limit": 3,
        "fan_in": 3,
    }
    return MapReduce("spelling", **(given | options))


@dataclass
class Source:
    """Items that a test changes, of a job whose reduction may be told to fail."""

    items: list[int]
    is_broken: bool = False

    def job(self, **options: Any) -> MapReduce[App, Any, Any, Any]:
        """Return a job over the items that reduces them in one group."""
        given: dict[str, Any] = {"items": self.read, "limit": 1, "fan_in": 32}
        return spelling(**(given | options))

    def read(self, _: object) -> list[int]:
        return list(self.items)

    def reduce(self, words: list[str]) -> Effect[App, str, str]:
        return fail("no") if self.is_broken else pure(" ".join(words))

    async def stopped_at(self, store: CheckpointStore, item: int, **options: Any) -> App:
        """Run the job until it fails at an item, and return its app, in which it does not fail."""
        app = app_around(store)
        app.world.break_items(item)
        await self.job(**options).start(None, run_id="r").run(app)
        app.world.repair()
        return app


def spelled(count: int, *, without: tuple[int, ...] = ()) -> str:
    return " ".join(str(number) for number in range(count) if number not in without)


def setting_aside(**options: Any) -> MapReduce[App, Any, Any, Any]:
    """Return a job that sets failed items aside."""
    return spelling(on_item_failure="dead_letter", **options)
