"""Check that a resume finds every completed item in the source again."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from effectflow.checkpoint.errors import StepInputChanged
from effectflow.checkpoint.live_run import LiveRun
from effectflow.checkpoint.past import Past
from effectflow.effects.scope import Scope, child_path

MAPPED = "mapped"
"""The step that ends the map phase: once it is complete, the number of items is known."""

_KEYS_SHOWN = 5
_LENGTH_SHOWN = 60


class ItemsDone:
    """The completed items of a job that the source has not yielded again so far.

    An item is complete if it is mapped or set aside. Without a run, and in a new one, there are none.
    """

    def __init__(self, scope: Scope) -> None:
        """Find the completed items of the job whose map phase comes next in this scope."""
        self._run = scope.recorder if isinstance(scope.recorder, LiveRun) else None
        self._path = scope.path_to_come("map")
        self._reached = 0
        self._left: dict[str, None] = {}
        if self._run is not None:
            ended = scope.path_to_come(MAPPED)
            self._left = dict.fromkeys(_flows_done(self._run.past, self._path, ended))

    def reach(self, key: str) -> None:
        """Note that the source has yielded the item with this key, and that its step begins."""
        self._reached += 1
        if self._left:
            self._left.pop(child_path(self._path, key), None)

    def check(self, count: int) -> None:
        """After the source is exhausted, halt the run if a completed item did not reappear.

        If some of the `count` items were skipped, the run has handled a failure of this job: it replays
        only those that led to the failure, and nothing is checked.
        """
        if not self._left or self._reached < count:
            return
        assert self._run is not None
        keys = [unquote(flow[len(self._path) + 1 : -1]) for flow in self._left]
        raise self._run.halt(
            StepInputChanged(
                self._run.run_id,
                self._path,
                f"(items {_shown(keys)})",
                f"({count} items, without {'it' if len(keys) == 1 else 'any of these'})",
            )
        )


def _flows_done(past: Past, path: str, ended: str) -> Iterator[str]:
    """Yield the flow of each completed item, in the order in which they began.

    Items after the end of the map phase come from a source that was refused because of them.
    """
    prefix = f"{path}["
    for step_path, step in past.steps.items():
        if step_path == ended and step.is_completed:
            return
        if step_path.startswith(prefix) and (step.is_completed or step.was_handled):
            end = step_path.index("]", len(prefix)) + 1
            # A step within an item does not complete the item.
            if "/" not in step_path[end + 1 :]:
                yield step_path[:end]


def _shown(keys: list[str]) -> str:
    """Return the first few keys, shortened."""
    shown = [
        repr(key if len(key) <= _LENGTH_SHOWN else f"{key[:_LENGTH_SHOWN]}...")
        for key in keys[:_KEYS_SHOWN]
    ]
    more = len(keys) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
