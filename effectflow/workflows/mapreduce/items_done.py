"""The items that earlier lives of a run have done, all of which a resume must find in the source."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from effectflow.checkpoint.errors import StepInputChanged
from effectflow.checkpoint.live_run import LiveRun
from effectflow.checkpoint.past import Past
from effectflow.effects.scope import Scope, child_path

__all__ = ["MAPPED", "ItemsDone"]

MAPPED = "mapped"
"""The step that ends the map phase: once it has completed, the items of a job are known."""

_KEYS_SHOWN = 5
_LENGTH_SHOWN = 60


class ItemsDone:
    """The items of one job that its run has done, ticked off as the source gives them again.

    An item is done if it is mapped or set aside. Of a run that begins, and without one, there are none.
    """

    def __init__(self, scope: Scope) -> None:
        """Look at the past of the job whose map phase comes next in this scope."""
        self._run = scope.recorder if isinstance(scope.recorder, LiveRun) else None
        self._path = scope.path_to_come("map")
        self._reached = 0
        self._left: dict[str, None] = {}
        if self._run is not None:
            ended = scope.path_to_come(MAPPED)
            self._left = dict.fromkeys(_flows_done(self._run.past, self._path, ended))

    def reach(self, key: str) -> None:
        """The source has given the item of this key, and it is worked on."""
        self._reached += 1
        if self._left:
            self._left.pop(child_path(self._path, key), None)

    def check(self, count: int) -> None:
        """Once the source has given all of its items, so many: end the run if one that is done is gone.

        Not where some were left out: then the run has handled a failure of this job, to which the others
        led, and comes to it again.
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
    """The flow of each item that is done, in the order in which they were begun.

    What comes after the end of the map phase was given by a source that was refused for it.
    """
    prefix = f"{path}["
    for step_path, step in past.steps.items():
        if step_path == ended and step.is_completed:
            return
        if step_path.startswith(prefix) and (step.is_completed or step.was_handled):
            end = step_path.index("]", len(prefix)) + 1
            # A step that an item is made of says nothing of the item.
            if "/" not in step_path[end + 1 :]:
                yield step_path[:end]


def _shown(keys: list[str]) -> str:
    """The first of them, however many and however long they are."""
    shown = [repr(_shortened(key)) for key in keys[:_KEYS_SHOWN]]
    more = len(keys) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _shortened(key: str) -> str:
    return key if len(key) <= _LENGTH_SHOWN else f"{key[:_LENGTH_SHOWN]}..."
