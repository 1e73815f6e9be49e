"""A fiber as its run sees it: its place in the order, what it waits for, and how it may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from effectflow.checkpoint.causes import Cause, Held
from effectflow.effects.event_loop import Waiter
from effectflow.effects.fiber import Fiber
from effectflow.effects.paths import is_within
from effectflow.effects.scope import Operator, Scope


@dataclass(eq=False, slots=True)
class Rest:
    """What a fiber waits for. `until` is in seconds since the epoch. `look` ends the wait."""

    scope: Scope
    what: str
    until: float
    look: Callable[[], object] | None


class Intent(Enum):
    """What a fiber waits to do at the frontier.

    Attributes:
        BEGIN: begin something.
        WAIT: wait for a time, a message or another run.
        CONTINUE: execute a step that an earlier life has begun.
        END: end a step.
    """

    BEGIN = "begin"
    WAIT = "wait"
    CONTINUE = "continue"
    END = "end"

    @property
    def ends_later(self) -> bool:
        """Whether a cancellation ends it after the replay, as an event; otherwise in the same turn."""
        return self is Intent.CONTINUE or self is Intent.END


class OrderedFiber(Fiber):
    """What a run and its turns know of a fiber. `DurableFiber` adds what the fiber does.

    Attributes:
        parent: the fiber whose operator began it; None for the body of the run.
        branches: the fibers that its operators have begun and that have not ended; None without any.
        line: the path of the branch that it runs; empty for the body.
        step: the path of the innermost step that it is in; empty outside of steps.
        place: the path of what it does or waits for, for messages and for a cancellation of the run.
        failures: the failures that its present state comes from.
        fork, has_place: the operator whose branch it runs, and whether it may go on within the limit.
        waiter: what wakes it when it gets the baton.
        resting: the time, message or run that it waits for; None if it does not.
        scope: its position while it waits for its turn or for the end of the replay.
        intent: what it waits to do at the frontier.
    """

    __slots__ = (
        "branches",
        "failures",
        "fork",
        "has_place",
        "intent",
        "line",
        "parent",
        "place",
        "resting",
        "scope",
        "step",
        "waiter",
    )

    scope: Scope
    intent: Intent

    def __init__(self, parent: OrderedFiber | None) -> None:
        self.parent = parent
        self.branches: dict[OrderedFiber, None] | None = None
        self.line = "" if parent is None else parent.line
        self.step = "" if parent is None else parent.step
        self.place = ""
        self.failures: list[Cause] = []
        self.fork: Operator | None = None
        self.has_place = True
        self.waiter: Waiter | None = None
        self.resting: Rest | None = None

    def with_branches(self) -> Iterator[OrderedFiber]:
        """Yield this fiber and all fibers within it, as the program began them."""
        yield self
        for branch in self.branches or ():
            yield from branch.with_branches()

    def open_failures(self) -> list[Cause]:
        """Return the failures that its state comes from, and that nothing has let stand."""
        return [cause for cause in self.failures if not cause.stands] if self.failures else []

    def succeeds(self) -> None:
        """Forget what a step has come from that has completed. What stands may still be the end."""
        if self.failures:
            self.failures = [cause for cause in self.failures if cause.stands][-1:]

    def has_stood(self, error: object, within: str) -> bool:
        """Return whether this exception is the failure of a step within another one, and stands."""
        return isinstance(error, Exception) and any(
            cause.stands and cause.error is error and is_within(cause.step, within)
            for cause in self.failures
        )

    def follows(self, path: str, entry: int | Held) -> None:
        """Note an entry that followed from the failures of this fiber."""
        for cause in self.failures:
            cause.follow(path, entry)

    def adopt(self, operator: Operator) -> None:
        """Take over the failures with which an operator has cancelled this fiber."""
        for cause in operator.causes:
            if not cause.stands and cause not in self.failures:
                self.failures.append(cause)

    def unwinds(self, operator: Operator | None = None) -> None:
        if operator is not None:
            self.adopt(operator)
        if not self.open_failures():
            self.failures.append(Cause())
