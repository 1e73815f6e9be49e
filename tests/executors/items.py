"""The functions and items that the tests send to executors.

The workers import this module, and not those of the tests, which import much more.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Never

import anyio

from effectflow import Do, Effect, do, effect, sleep


@dataclass(frozen=True)
class Folder:
    """An environment that all processes share: a folder."""

    path: Path

    def write(self, line: object) -> None:
        with (self.path / "begun").open("a") as log:
            log.write(f"{line}\n")

    def lines(self) -> list[str]:
        log = self.path / "begun"
        return log.read_text().splitlines() if log.exists() else []

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def put(self, name: str) -> None:
        (self.path / name).touch()

    def begun(self) -> Counter[str]:
        """Return how often each item began."""
        return Counter(line.split()[0] for line in self.lines())

    def pid_of(self, item: object) -> int:
        """Return the process that began the item last."""
        return [int(line.split()[1]) for line in self.lines() if line.split()[0] == str(item)][-1]


@effect
def begin(folder: Folder, item: object) -> int:
    """Log the item and its process, and return the process."""
    folder.write(f"{item} {os.getpid()}")
    return os.getpid()


@effect
def wait_for(folder: Folder, name: str) -> None:
    """Keep the process busy until a file exists."""
    while not folder.has(name):
        time.sleep(0.005)


@do
def held(item: object) -> Do[Folder, Never, int]:
    """Begin, and keep the process busy until the file `go` exists."""
    pid = yield from begin(item)
    yield from wait_for("go")
    return pid


@do
def asleep(item: object) -> Do[Folder, Never, int]:
    """Begin, and sleep for a minute; log an interruption a little later."""
    pid = yield from begin(item)
    yield from a_minute().on_exit(ending(item))
    return pid


def a_minute() -> Effect[Folder, Never, None]:
    return sleep(60)


@do
def ending(item: object) -> Do[Folder, Never, None]:
    yield from sleep(0.05)
    yield from begin(f"{item}-ended")


@effect
def deadly(folder: Folder, item: object) -> Never:
    """Kill the process of the item."""
    folder.write(f"{item} {os.getpid()}")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("dead")


def begin_or_die(item: int) -> Effect[Folder, Never, int]:
    """Kill the process of item 2."""
    return deadly(item) if item == 2 else begin(item)


@effect
def meet(folder: Folder, item: int) -> int:
    """End when two items have begun, which takes two workers at once."""
    folder.write(f"{item} {os.getpid()}")
    while len(folder.lines()) < 2:
        time.sleep(0.005)
    return os.getpid()


class OutOfStock(Exception):
    """An error whose `__init__` takes other arguments than it passes on."""

    def __init__(self, item: str, left: int) -> None:
        self.item = item
        self.left = left
        super().__init__(f"{left} left of {item}")


@asynccontextmanager
async def opened(folder: Folder) -> AsyncGenerator[Folder]:
    """An environment that logs when it is entered and left."""
    await begin("entered").run(folder)
    yield folder
    await begin("left").run(folder)


@contextmanager
def opened_plainly(folder: Folder) -> Generator[Folder]:
    """The same as a plain context manager."""
    folder.write("entered")
    yield folder
    folder.write("left")


@asynccontextmanager
async def unclosable(folder: Folder) -> AsyncGenerator[Folder]:
    """An environment that takes a minute to leave."""
    yield folder
    folder.write(f"closing {os.getpid()}")
    await anyio.sleep(60)
