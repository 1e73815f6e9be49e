"""The place of a flow among the operations that earlier lives recorded of it."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from effectflow.checkpoint.errors import DefinitionChanged
from effectflow.checkpoint.recording import Item
from effectflow.effects.scope import Scope

if TYPE_CHECKING:
    from effectflow.checkpoint.run import Run


class Cursor:
    """Moves through the recorded operations of a flow, up to its frontier.

    Attributes:
        position: how many of the operations the flow has passed.
    """

    __slots__ = (
        "_entered",
        "_gate",
        "_gate_limit",
        "_is_ordered",
        "_items",
        "_path",
        "_run",
        "_unreached",
        "position",
    )

    def __init__(self, run: Run, path: str, items: Sequence[Item], *, is_ordered: bool) -> None:
        """Begin before the first of the operations.

        Parameters:
            path: the path of the flow.
            is_ordered: whether the flow must reach the operations in order.
        """
        self.position = 0
        self._run = run
        self._path = path
        self._items = items
        self._is_ordered = is_ordered
        # Only for a flow that may reach them in any order.
        self._unreached = {} if is_ordered else {item.path: item.sequence for item in items}
        # The finalizers whose sources this life has begun.
        self._entered: set[str] = set()
        self._gate: anyio.CancelScope | None = None
        self._gate_limit = math.inf

    def reach(self, path: str, scope: Scope) -> bool:
        """Reach an operation. Return whether it is recorded.

        Halts the run with DefinitionChanged if something else is recorded here.
        """
        run, limit = self._run, scope.limit
        if not self._is_ordered:
            return self._reach_in_any_order(path, limit)
        if path in run.recording.left_behind:
            # It may be reached again, in any order.
            if not self.has_ahead(limit):
                self._open_gate()
            return True
        while self.has_ahead(limit):
            item = self._items[self.position]
            if item.path == path:
                self.position += 1
                self._open_gate_at_frontier()
                return True
            if item.kind == "finalizer":
                # This life reaches the finalizer in another way, or not at all.
                self.position += 1
            elif run.force:
                self._leave_behind(path)
            else:
                raise run.writer.halt(self._diverged(item.path, path))
        self._open_gate()
        return False

    def _reach_in_any_order(self, path: str, limit: float) -> bool:
        """Reach an operation, and pass those at the current position that were reached before."""
        sequence = self._unreached.pop(path, math.inf)
        if sequence < limit:
            while self._has_passed_next(sequence):
                self.position += 1
            self._open_gate_at_frontier()
        else:
            self._open_gate()
        return path in self._run.recording.places

    def _has_passed_next(self, sequence: float) -> bool:
        """Return whether to pass the next operation, now that the one with this entry is reached."""
        if self.position == len(self._items):
            return False
        item = self._items[self.position]
        # This life may reach an earlier finalizer in another way, or not at all.
        is_skipped = item.kind == "finalizer" and item.sequence < sequence
        return is_skipped or item.path not in self._unreached

    def pass_operator(self, path: str, limit: float) -> None:
        """Pass a recorded operator. Steps of the flow may have been recorded before its first branch."""
        if not self._is_ordered:
            self._reach_in_any_order(path, limit)
            return
        items = self._items
        for number in range(self.position, len(items)):
            if items[number].path == path:
                if number == self.position:
                    self.position += 1
                else:
                    self._items = [*items[:number], *items[number + 1 :]]
                break
        if not self.has_ahead(limit):
            self._open_gate()

    def enter_finalizer(self, path: str) -> None:
        """Note that the source of a finalizer begins, so that the finalizer runs from here on."""
        if self._gate is not None:
            self._entered.add(path)
            self._open_gate_at_frontier()

    def pass_finalizer(self, path: str) -> None:
        """Pass a recorded finalizer and the recorded operations before it."""
        paths = [item.path for item in self._items[self.position :]]
        if path in paths:
            self.position += paths.index(path) + 1
            self._open_gate_at_frontier()

    def steps_ahead(self) -> list[str]:
        """Return the paths of the recorded steps and nested runs that the flow has not reached."""
        ahead = self._items[self.position :]
        return [path for item in ahead for path in self._run.recording.steps_of(item)]

    def end(self, limit: float) -> None:
        """Halt the run if the flow ended before it reached its recorded operations before the limit."""
        run = self._run
        if not self._is_ordered:
            return
        left = [
            item
            for item in self._items[self.position :]
            if item.kind != "finalizer" and item.sequence < limit
        ]
        if left and run.force:
            self.position = len(self._items)
            run.leave_behind([item.sequence for item in left])
        elif left:
            raise run.writer.halt(self._diverged(left[0].path, None))

    def has_ahead(self, limit: float) -> bool:
        """Return whether there are recorded operations ahead that count here."""
        items, position = self._items, self.position
        return position < len(items) and items[position].sequence < limit

    def has_others_ahead(self, path: str, sequence: int, limit: float) -> bool:
        """Return whether other operations than this one are recorded, and follow its entry.

        Parameters:
            path, sequence: the path and the entry of the operation.
            limit: as in `Scope`.
        """
        if self._is_ordered:
            return self.has_ahead(limit)
        return any(sequence < item.sequence < limit and item.path != path for item in self._items)

    def _leave_behind(self, path: str) -> None:
        """Skip the recorded operations before this one, or all of them if this one is not recorded."""
        items = self._items
        paths = [item.path for item in items[self.position :]]
        end = self.position + paths.index(path) if path in paths else len(items)
        self._run.leave_behind([item.sequence for item in items[self.position : end]])
        self.position = end

    def _diverged(self, recorded: str, found: str | None) -> DefinitionChanged:
        run, path = self._run, self._path
        where = f"at operation {self.position + 1} of " + (
            f"branch {path!r}" if path else "the body"
        )
        if found is None:
            detail = f"{where} the run reached {recorded!r}, and now it ends before that"
        else:
            detail = f"{where} the run reached {recorded!r}, and now it reaches {found!r}"
        return DefinitionChanged(run.run_id, run.workflow, detail=detail)

    # While the flow must reach more, it cannot be cancelled.

    @contextmanager
    def gated(self, limit: float) -> Generator[None]:
        """Let no cancellation into the block before the flow has reached what is recorded."""
        if not self._must_pass(limit):
            yield
            return
        self._gate_limit = limit
        with self._run.stopping.gated() as self._gate:
            yield

    def _must_pass(self, limit: float) -> bool:
        """Return whether the flow must reach recorded operations before it may be cancelled."""
        return any(self._is_needed(item, limit) for item in self._items[self.position :])

    def _is_needed(self, item: Item, limit: float) -> bool:
        """Return whether the flow must reach an operation before it may be cancelled.

        What is recorded after the limit was recorded by finalizers. They complete only if the flow enters
        their sources again, and the operators around them.
        """
        if (
            item.kind == "finalizer"
            and self._run.recording.source_ends[item.path].kind == "cancelled"
        ):
            return item.path not in self._entered
        return item.sequence < limit or item.kind == "operator"

    def _open_gate_at_frontier(self) -> None:
        # The limit of the branch: an acquisition within it has none, as it is shielded.
        if self._gate is not None and not self._must_pass(self._gate_limit):
            self._open_gate()

    def _open_gate(self) -> None:
        """Let cancellations through, because all recorded operations were reached."""
        if self._gate is not None:
            self._gate.shield = False
            self._gate = None
