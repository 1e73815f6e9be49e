"""The least code that does the essential work of a durable step (`benchmarks/floor.py`), on SQLite."""

from __future__ import annotations

import asyncio

from benchmarks.compared.measuring import Meter, main
from benchmarks.floor import SqliteRun, Writer, count, drive


async def steps(meter: Meter, url: str, runs: int, steps: int) -> None:
    writer = Writer(url.removeprefix("sqlite:///"))
    await drive(count(2), SqliteRun(writer, "first"))
    with meter("steps"):
        await asyncio.gather(
            *(drive(count(steps), SqliteRun(writer, str(run))) for run in range(runs))
        )


if __name__ == "__main__":
    main(steps=steps)
