"""Burr with its async persisters of SQLite and PostgreSQL, as `compare.py` measures it.

Applications run side by side. On SQLite they share a connection, so that one commit may save steps of
several, and need less processor time than one after another with the sync persister.
"""

# Burr is in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from burr.core import Application, ApplicationBuilder, State, action, default, expr

from benchmarks.compared.measuring import (
    PADDING,
    Meter,
    is_postgres,
    main,
    measured_values,
    with_wal,
)


class Down(Exception):
    """The last action does not succeed yet."""


is_down = False
value: Any = None


@asynccontextmanager
async def persisting(url: str) -> AsyncGenerator[Any]:
    if is_postgres(url):
        import asyncpg
        from burr.integrations.persisters.b_asyncpg import AsyncPostgreSQLPersister

        async with asyncpg.create_pool(url) as pool:
            persister = AsyncPostgreSQLPersister(pool=pool)
            await persister.initialize()
            yield persister
    else:
        from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister

        path = url.removeprefix("sqlite:///")
        with_wal(path).close()
        async with AsyncSQLitePersister.from_values(db_path=path) as persister:
            await persister.initialize()
            yield persister


@action(reads=["n"], writes=["n"])
async def increment(state: State) -> State:
    return state.update(n=state["n"] + 1)


@action(reads=[], writes=["value"])
async def produce(state: State) -> State:
    return state.update(value=value)


@action(reads=[], writes=[])
async def end(state: State) -> State:
    if is_down:
        raise Down
    return state


async def counting(to: int, persister: Any, app_id: str) -> Any:
    """Run a new application to its end, or the one of this id from where it stopped."""
    app: Application = await (
        ApplicationBuilder()
        .with_actions(increment=increment, end=end)
        .with_transitions(
            ("increment", "increment", expr(f"n < {to}")), ("increment", "end", default)
        )
        .with_identifiers(app_id=app_id, partition_key="compare")
        .with_state_persister(persister)
        .initialize_from(
            persister,
            resume_at_next_action=True,
            default_state={"n": 0, "pad": PADDING},
            default_entrypoint="increment",
        )
        .abuild()
    )
    _, _, state = await app.arun(halt_after=["end"])
    return state["n"]


async def producing(persister: Any, app_id: str) -> None:
    app: Application = await (
        ApplicationBuilder()
        .with_actions(produce=produce, end=end)
        .with_transitions(("produce", "end"))
        .with_identifiers(app_id=app_id, partition_key="compare")
        .with_state_persister(persister)
        .initialize_from(
            persister,
            resume_at_next_action=True,
            default_state={},
            default_entrypoint="produce",
        )
        .abuild()
    )
    await app.arun(halt_after=["end"])


async def steps(meter: Meter, url: str, runs: int, steps: int) -> None:
    async with persisting(url) as persister:
        # The action at the end is one of the steps.
        await counting(2, persister, "first")
        with meter("steps"):
            await asyncio.gather(*(counting(steps - 1, persister, str(run)) for run in range(runs)))


async def resume(meter: Meter, url: str, steps: int) -> None:
    global is_down
    async with persisting(url) as persister:
        for to in (2, steps):
            is_down = True
            try:
                await counting(to, persister, f"to-{to}")
            except Down:
                is_down = False
            with meter("resume"):
                assert await counting(to, persister, f"to-{to}") == to


async def values(meter: Meter, url: str, values: Iterable[tuple[str, int]]) -> None:
    async with persisting(url) as persister:
        app_ids = iter(range(1_000))

        async def record(_kind: str, what: Any) -> Any:
            global is_down, value
            app_id, value, is_down = str(next(app_ids)), what, True
            try:
                await producing(persister, app_id)
            except Down:
                is_down = False
            return lambda: producing(persister, app_id)

        await measured_values(meter, record, values)


if __name__ == "__main__":
    main(steps=steps, resume=resume, values=values)
