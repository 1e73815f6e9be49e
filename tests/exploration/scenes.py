"""The lives of a run that a test describes, one after another, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from effectflow import Checkpoints, Do, Effect, do, effect, step, workflow
from effectflow.stores import MemoryStore
from tests.exploration.lives import End, LifePlan, Lived, Storage, Subject, live
from tests.exploration.programs import Node
from tests.exploration.virtual_time import Backend
from tests.exploration.world import Broken, Letter, Life, World

AnyEffect = Effect[Any, Any, Any]


@dataclass(frozen=True)
class Env:
    """The environment of a scene.

    Attributes:
        done: how often each step has acted.
        broken: the steps that fail.
    """

    checkpoints: Checkpoints
    done: Counter[str]
    broken: set[str]
    life: Life

    def note(self, action: str) -> None:
        """Note that a step has acted, unless its process is dead."""
        if not self.life.is_dead:
            self.done[action] += 1


@dataclass
class Scene:
    """The lives of one run. The store takes no time, so everything happens at exact times.

    Attributes:
        backend: the event loop.
        broken: the steps that fail.
        letters: the messages that are sent to the run, in the order of their times.
        done: how often each step has acted.
        last: the last life.
    """

    backend: Backend
    broken: set[str] = field(default_factory=set[str])
    letters: Sequence[Letter] = ()
    done: Counter[str] = field(default_factory=Counter[str])
    last: Lived | None = None

    def __post_init__(self) -> None:
        self._storage = Storage(MemoryStore())
        self._world = World(Node("step", "none"), inbox=list(self.letters))

    @property
    def now(self) -> float:
        """The time, in seconds since the beginning of the scene."""
        return self._world.now

    def live(
        self, body: Callable[[], AnyEffect], *, cancel_at: float | None = None, **plan: Any
    ) -> End:
        """Live one life of the run. Return how it ended.

        Parameters:
            body: makes the body of the workflow, anew in each life.
            cancel_at: when somebody cancels the run.
            plan: the attributes of `LifePlan`.
        """

        @workflow(name="scene")
        def scene(_: str) -> Effect[Env, Broken, str]:
            return body()

        def environment(checkpoints: Checkpoints, life: Life) -> Env:
            return Env(checkpoints, self.done, self.broken, life)

        self.last = live(
            Subject(scene, environment),
            self._world,
            LifePlan(**plan),
            self._storage,
            backend=self.backend,
            cancel_at=cancel_at,
        )
        return self.last.end


def act(name: str, seconds: float = 0.0, *, cleanup: float = 0.0) -> AnyEffect:
    """Return a step that takes this time, and `cleanup` longer if it is cancelled. It yields its name."""

    @step(name=name)
    def acting() -> Effect[Env, Broken, str]:
        return _perform(name, seconds, cleanup)

    return acting()


@effect(errors=Broken)
async def _perform(env: Env, name: str, seconds: float, cleanup: float) -> str:
    try:
        await anyio.sleep(seconds)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            await anyio.sleep(cleanup)
        raise
    env.note(name)
    if name in env.broken:
        raise Broken(name)
    return name


@effect
async def locally(_: object, seconds: float) -> str:
    """Take some time between steps."""
    await anyio.sleep(seconds)
    return "done"


@do
def in_turn(*effects: AnyEffect) -> Do[Any, Any, Any]:
    """Run effects one after another. Yield what the last one yields."""
    found: Any = None
    for each in effects:
        found = yield from each
    return found
