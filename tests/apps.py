"""The environment of tests: an app with checkpoints, and a world that notes actions and can fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from effectflow import Checkpoints, Effect, ask, effect, fail, pure, step
from effectflow.checkpoint import CheckpointStore
from effectflow.effects import Exit
from effectflow.stores import MemoryStore
from tests.sweeps import BACKENDS

both_backends = pytest.mark.parametrize("anyio_backend", BACKENDS)
"""For tests of what the event loop may change: cancellation, deadlines, tasks, and a smoke set."""


class Broken(Exception):
    """A typed failure of the tests. Its argument is the action that failed, such as `write#2`."""


class Crash(Exception):
    """A defect of the tests: an exception that nothing declares."""


@dataclass
class World:
    """The outside world: what was done in it, and which actions go wrong.

    An action is named as it was noted, which means every time, or with its count, such as `write#2`.

    Attributes:
        done: the actions, in order.
        failing: the actions that fail with Broken.
        crashing: the actions that raise Crash.
    """

    done: list[str] = field(default_factory=list[str])
    failing: set[str] = field(default_factory=set[str])
    crashing: set[str] = field(default_factory=set[str])

    def note(self, action: str) -> int:
        """Note an action and return how often it was done. Raise what the world was told to raise."""
        self.done.append(action)
        count = self.done.count(action)
        names = {action, f"{action}#{count}"}
        if names & self.crashing:
            raise Crash(f"{action}#{count}")
        if names & self.failing:
            raise Broken(f"{action}#{count}")
        return count

    @property
    def is_broken(self) -> bool:
        """Whether anything is to go wrong."""
        return bool(self.failing or self.crashing)

    def recover(self) -> None:
        """Let nothing fail from now on."""
        self.failing.clear()
        self.crashing.clear()


@dataclass(frozen=True)
class App:
    """An environment with checkpoints in memory, and a world."""

    checkpoints: Checkpoints = field(default_factory=lambda: Checkpoints(MemoryStore()))
    world: World = field(default_factory=World)


def app_on(store: CheckpointStore, *, failing: Iterable[str] = (), **options: Any) -> App:
    """Return an app on a store. `options` are those of Checkpoints."""
    return App(Checkpoints(store, **options), World(failing=set(failing)))


@effect(errors=Broken)
def note(app: App, action: str) -> int:
    """Note an action in the world of the app, and yield how often it was done. Fails with Broken."""
    return app.world.note(action)


@step
def last() -> Effect[App, str, None]:
    """Fail while the world is broken: the last step of runs that fail in their first life."""

    def look(app: App) -> Effect[object, str, None]:
        return fail("crash here") if app.world.is_broken else pure(None)

    return ask(App).and_then(look)


async def cut_off(running: Effect[Any, Any, Any], app: object) -> None:
    """Run an effect until all of it waits, and cancel it from outside."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run, app)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


class Told:
    """An observer of effects that writes down what it was told."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def began(self, name: str) -> None:
        self.log.append(f"{name} began")

    def ended(self, name: str, ended: Exit[Any, Any]) -> None:
        self.log.append(f"{name} ended: {type(ended).__name__}")
