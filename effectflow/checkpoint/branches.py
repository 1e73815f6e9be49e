"""The branches of the parallel operators of one life: which begin, and which wait for a place.

A replay begins all branches that earlier lives have begun, even if they are more than a limit allows.
At its end as many get a place as the limit allows, and the others wait until one of these has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from effectflow.checkpoint.baton import Baton
from effectflow.checkpoint.order import Order
from effectflow.checkpoint.ordered_fiber import OrderedFiber
from effectflow.effects.scope import Operator


class Branches:
    """The parallel operators whose branches have not all ended, and the branches that have begun."""

    __slots__ = (
        "_baton",
        "_begun",
        "_forks",
        "_order",
        "_without_place",
    )

    def __init__(self, baton: Baton, order: Order) -> None:
        self._baton = baton
        self._order = order
        self._forks: dict[str, Operator] = {}
        # A dict, because an empty set takes three times its memory.
        self._begun: dict[str, None] = {}
        # The branches without a place, by the paths of their operators.
        self._without_place: dict[str, deque[OrderedFiber]] = {}

    @property
    def forks(self) -> Collection[Operator]:
        """The operators."""
        return self._forks.values()

    def begin(self, fork: Operator, branch: str) -> None:
        """Note that a branch of an operator begins."""
        self._forks[fork.path] = fork
        self._begun[branch] = None

    def end(self, path: str) -> None:
        """Forget an operator whose branches have all ended."""
        self._forks.pop(path, None)
        self._without_place.pop(path, None)

    def begin_recorded(self, path: str, owner: OrderedFiber) -> bool:
        """Begin a recorded branch, even if others fill the limit. Return whether that is possible.

        `owner` is the fiber that should reach the path.
        """
        at = path.find("[")
        while at >= 0:
            fork = self._forks.get(path[:at])
            branch = path[: path.find("]", at) + 1]
            if fork is not None and branch not in self._begun:
                return fork.begin_more()
            at = path.find("[", at + 1)
        waiting = (fork for fork in self._forks.values() if fork.outer.fiber is owner)
        return any(fork.begin_more() for fork in waiting if fork.awaits_place)

    def give_places(self) -> None:
        """Give the places within each limit, first to the branches that earlier lives have begun."""
        for fork in self._forks.values():
            if fork.limit is not None:
                inside = [fiber for fiber in self._baton.fibers if fiber.fork is fork]
                if len(inside) > fork.limit:
                    inside.sort(key=lambda fiber: not self._has_entries(fiber.line))
                    self._without_place[fork.path] = deque(inside[fork.limit :])
                    for fiber in inside[fork.limit :]:
                        fiber.has_place = False

    def _has_entries(self, line: str) -> bool:
        """Return whether an earlier life has recorded anything in a branch."""
        return any(is_in(path, line) for path in self._order.places)

    def let_go_on(self, fiber: OrderedFiber) -> None:
        """Let a fiber run that may go on, once it has a place within all limits around it."""
        around = self.without_place(fiber)
        if around is None:
            self._baton.make_ready(fiber)
        else:
            assert around.fork is not None
            around.fork.pending[fiber] = None

    def awaits_place(self, fiber: OrderedFiber) -> bool:
        """Return whether a fiber waits for a place within a limit."""
        around = self.without_place(fiber) if self._without_place else None
        return around is not None and around.fork is not None and fiber in around.fork.pending

    def withdraw(self, fiber: OrderedFiber) -> None:
        """Let a fiber no longer wait for a place."""
        around = self.without_place(fiber)
        assert around is not None
        assert around.fork is not None
        del around.fork.pending[fiber]

    def without_place(self, fiber: OrderedFiber) -> OrderedFiber | None:
        """Return the fiber, or one around it, that must wait for a place within a limit; or None."""
        around: OrderedFiber | None = fiber
        while around is not None:
            if not around.has_place:
                return around
            around = around.parent
        return None

    def give_place(self, fork: Operator) -> None:
        """Let a branch go on that waited for its place within the limit, as another one has ended."""
        waiting = self._without_place.get(fork.path)
        while waiting:
            fiber = waiting.popleft()
            # Its branch may have ended.
            if fiber.fork is fork and not fiber.has_place:
                fiber.has_place = True
                pending, fork.pending = fork.pending, {}
                for one in pending:
                    self.let_go_on(one)
                return


def is_in(path: str, line: str) -> bool:
    """Return whether a path belongs to the fiber with this path."""
    return not line or path.startswith(f"{line}/")
