"""What a job does: read its items, map each, and reduce what that gives, group by group."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from effectflow.checkpoint.durable_step import StepDefinition, durable
from effectflow.checkpoint.entries import Arguments
from effectflow.checkpoint.values import digest_of
from effectflow.effects import Effect, pure
from effectflow.effects.nodes import Named, Suspend
from effectflow.effects.reduction import reduction_of
from effectflow.effects.scope import Scope
from effectflow.workflows.mapreduce.items_done import MAPPED, ItemsDone
from effectflow.workflows.mapreduce.mapping import MapPhase
from effectflow.workflows.mapreduce.reducing import ReducePhase
from effectflow.workflows.mapreduce.retrying import retries_asked_for

__all__ = ["JobBody"]

AnyEffect = Effect[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class JobBody:
    """The body of a job, from its input to the effect that yields its result.

    Attributes:
        job: the job's name.
        items: gives the items for an input, or an effect that yields them.
        key: names an item.
        mapping, reducing: what is done with items, and with groups.
        max_parallel: how many of both are worked on at once.
        fan_in: how many values make a group.
    """

    job: str
    items: Callable[[Any], Any]
    key: Callable[[Any], object]
    mapping: MapPhase
    reducing: ReducePhase
    max_parallel: int
    fan_in: int

    def __call__(self, input: Any) -> AnyEffect:
        def begin(scope: Scope) -> AnyEffect:
            retries = retries_asked_for(scope)
            source = self.items(input)
            if isinstance(source, Effect):
                listing = cast(AnyEffect, source)
                return listing.and_then(lambda found: self._work_through(found, retries))
            return self._work_through(source, retries)

        return Named(Suspend(begin), self.job, f"in job {self.job!r}")

    def _work_through(self, source: Any, retries: int) -> AnyEffect:
        if not isinstance(source, Iterable | AsyncIterable):
            raise TypeError(
                f"`items` of job {self.job!r} gave {source!r}: it gives an iterable, sync or "
                "async, or an effect that yields one"
            )
        items = cast("Iterable[Any]", source)
        return Suspend(lambda scope: self._map_and_reduce(items, retries, ItemsDone(scope)))

    def _map_and_reduce(self, items: Iterable[Any], retries: int, done: ItemsDone) -> AnyEffect:
        def part_of(item: Any) -> AnyEffect:
            key = self._key_of(item)
            done.reach(key)
            return self.mapping.part_of(key, item, retries)

        def end_map_phase(count: int) -> AnyEffect:
            done.check(count)
            return _note_the_number_of_items(count)

        return reduction_of(
            f"job {self.job!r}",
            items,
            part_of,
            self.reducing.part_of,
            limit=self.max_parallel,
            fan_in=self.fan_in,
            key=self._key_of,
            on_mapped=end_map_phase,
        ).and_then(self.reducing.result_of)

    def _key_of(self, item: object) -> str:
        """The key of an item, as text that every encoding can hold: names of files may be none."""
        key = str(self.key(item))
        return key if key.isascii() else key.encode("utf-8", "backslashreplace").decode()


def _note_the_number_of_items(count: int) -> AnyEffect:
    """A step that ends the map phase. A resume must find as many items."""
    return durable(_MAPPED, pure(count), lambda: Arguments(digest_of(count), f"({count} items)"))


_MAPPED = StepDefinition(MAPPED)
