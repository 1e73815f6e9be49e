"""What a check of a store is, and what checks need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Generic, TypeAlias, TypeVar

from effectflow.checkpoint import (
    CheckpointStore,
    Lease,
    Owner,
    RunStatus,
    RunSummary,
)

__all__ = [
    "Check",
    "MakeStore",
    "bodies_of",
    "check",
    "check_reopening",
    "checks_of",
    "claimed",
    "fails",
    "summary_of",
    "written",
]

X = TypeVar("X", bound=Exception)

MakeStore: TypeAlias = Callable[[], CheckpointStore]


class Check:
    """What any store must do: called with a function that makes the store, yet to be entered.

    `__name__` says it in words.
    """

    def __init__(self, name: str, work: Callable[[MakeStore], Awaitable[None]]) -> None:
        self.__name__ = name
        self._work = work

    def __repr__(self) -> str:
        return f"<check {self.__name__}>"

    async def __call__(self, make: MakeStore) -> None:
        """Raises AssertionError, or whatever the store raises, if it is not so."""
        await self._work(make)


def check(f: Callable[[CheckpointStore], Awaitable[None]]) -> Check:
    """A check of one open store."""

    async def work(make: MakeStore) -> None:
        async with make() as store:
            await f(store)

    return Check(f.__name__, work)


def check_reopening(f: Callable[[MakeStore], Awaitable[None]]) -> Check:
    """A check that opens and closes the store itself; for those that keep things."""

    async def work(make: MakeStore) -> None:
        if make().durability != "memory":
            await f(make)

    return Check(f.__name__, work)


def checks_of(module: ModuleType) -> list[Check]:
    """The checks of a module, in their order."""
    return [value for value in vars(module).values() if isinstance(value, Check)]


class _Caught(Generic[X]):
    error: X


@contextmanager
def fails(kind: type[X]) -> Generator[_Caught[X]]:
    """What is inside fails so."""
    caught = _Caught[X]()
    try:
        yield caught
    except kind as error:
        caught.error = error
    else:
        raise AssertionError(f"nothing failed where {kind.__name__} was expected")


def summary_of(
    status: RunStatus = RunStatus.RUNNING, *, workflow: str = "w", created_at: float = 0.0
) -> RunSummary:
    """What a store finds a run by, of a run that is going on."""
    return RunSummary(workflow, "standard", "1", status, created_at)


async def claimed(store: CheckpointStore, run_id: str = "r", seconds: float = 60) -> Lease:
    """The lease of a run, by an owner of its own."""
    return await store.claim(run_id, owner=str(Owner.new()), seconds=seconds)


async def written(store: CheckpointStore, run_id: str, *bodies: bytes) -> None:
    """A run with these entries, which nobody holds."""
    lease = await claimed(store, run_id)
    await store.append(lease, bodies, after=0, summary=summary_of(), release=True)


async def bodies_of(store: CheckpointStore, run_id: str = "r") -> list[bytes]:
    """What a run has, oldest first."""
    return [record.body for record in await store.read(run_id)]
