"""Where in a run an effect stands: its path, the clock, and who records what it observes.

A scope belongs to one sequential flow. Parallel operators give each of their children a scope of its
own, so that the path of a step never depends on scheduling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from effectflow.effects.clock import Clock, SystemClock

__all__ = ["Recorder", "Scope", "root_scope"]

A = TypeVar("A")

_ESCAPES = str.maketrans({"%": "%25", "[": "%5B", "]": "%5D", "\n": "%0A"})


class Recorder(Protocol):
    """Remembers what an effect saw of the outside world, so that a resumed run sees it again."""

    def record(self, scope: Scope, name: str, take: Callable[[], A]) -> A:
        """What was recorded under this name in this scope, or else what `take` gives now."""
        ...


class Scope:
    """The place of one sequential flow within a run.

    Attributes:
        path: the scopes around this flow, as text; empty at the root.
        clock: tells the time.
        recorder: the durable run around this flow, if there is one.
        step: what is known of the step whose body this flow is part of, or None between steps.
    """

    __slots__ = ("_occurrences", "clock", "path", "recorder", "step")

    def __init__(
        self,
        path: str,
        clock: Clock,
        *,
        recorder: Recorder | None = None,
        step: object = None,
    ) -> None:
        self.path = path
        self.clock = clock
        self.recorder = recorder
        self.step = step
        self._occurrences: dict[str, int] = {}

    def next_path(self, name: str) -> str:
        """The path of the next occurrence of `name` here: `name`, then `name#2`, `name#3`, ..."""
        count = self._occurrences.get(name, 0) + 1
        self._occurrences[name] = count
        segment = name if count == 1 else f"{name}#{count}"
        return f"{self.path}/{segment}" if self.path else segment

    def child(self, path: str, key: object) -> Scope:
        """The scope of one child of the parallel operator at `path`.

        Without a recorder nobody reads paths, and the child shares this scope.
        """
        if self.recorder is None:
            return self
        keyed = f"{path}[{str(key).translate(_ESCAPES)}]"
        return Scope(keyed, self.clock, recorder=self.recorder, step=self.step)

    def inside_step(self, path: str, step: object) -> Scope:
        """The scope of the body of the step at `path`, of which `step` tells more."""
        return Scope(path, self.clock, recorder=self.recorder, step=step)


def root_scope(clock: Clock | None = None) -> Scope:
    """The scope that a run begins in."""
    return Scope("", clock or _SYSTEM)


_SYSTEM = SystemClock()
