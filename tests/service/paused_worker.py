"""A worker process that a test pauses: `python -m tests.service.paused_worker STORE BACKEND LOG`.

Each step of its runs appends a line to the log when it begins and when it ends.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Never

import anyio

from effectflow import Checkpoints, Do, effect, step, workflow
from effectflow.service import App, Worker
from effectflow.stores import open_store

SECONDS_OF_LEASE = 1.5
STEPS = 4


@dataclass(frozen=True)
class Shop:
    checkpoints: Checkpoints
    log: Path

    def note(self, line: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{os.getpid()} {line}\n")


@step
@effect
async def work(shop: Shop, number: int) -> int:
    shop.note(f"begins {number}")
    await anyio.sleep(0.4)
    shop.note(f"ends {number}")
    return number


@workflow
def working(name: str) -> Do[Shop, Never, int]:
    total = 0
    for number in range(STEPS):
        total += yield from work(number)
    return total


def checkpoints(url: str) -> Checkpoints:
    return Checkpoints(open_store(url), lease_seconds=SECONDS_OF_LEASE)


async def main(url: str, log: Path) -> None:
    app = App[Shop](
        [working],
        environment=lambda checkpoints: Shop(checkpoints, log),
        checkpoints=checkpoints(url),
    )
    async with Worker(app):
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[3]), backend=sys.argv[2])
