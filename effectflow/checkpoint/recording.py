"""What a journal records of a run, by path: the data that a resume and a plan replay.

`replay.py` fills it from the entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from effectflow.checkpoint.entries import Arguments, ErrorRecord, SourceEnd
from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import Tree
from effectflow.checkpoint.values.exceptions import name_of_error
from effectflow.effects.errors import TimedOut
from effectflow.effects.paths import StepPath, flow_of

_TIMED_OUT = name_of_error(TimedOut)

_Kind: TypeAlias = Literal["step", "child", "wait", "published", "operator", "finalizer"]


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """A failed attempt of a step. `began` and `ended` are in seconds since the epoch."""

    error: ErrorRecord
    began: float
    ended: float


@dataclass(slots=True)
class RecordedStep:
    """The last attempt of a step.

    Attributes:
        attempts: its number, from 1.
        arguments: its arguments.
        ended: the sequence number of the entry that ended it; None if it was interrupted.
        is_completed: whether it succeeded, with `output`.
        error: the error of a failed attempt.
        retryable: whether a resume retries that failure.
        retry_at: when the step's own policy retries it.
        is_settled: whether the failure stands.
        spent: the number of attempts that do not count for the retry policy of the step: they were
            stopped from outside, or the run ended and was resumed after them.
        since: when the first attempt that counts began, in seconds since the epoch; None if none counts.
        began: when the last attempt began, in seconds since the epoch.
        failures: all failed attempts, oldest first. Defects are not among them.
        at_most_once: whether it is not executed again silently.
    """

    attempts: int
    arguments: Arguments | None = None
    ended: int | None = None
    is_completed: bool = False
    output: Tree = None
    error: ErrorRecord | None = None
    retryable: bool = True
    retry_at: float | None = None
    is_settled: bool = False
    spent: int = 0
    since: float | None = None
    began: float = 0.0
    failures: tuple[RecordedFailure, ...] = ()
    at_most_once: bool = False

    @property
    def is_unknown(self) -> bool:
        """Whether it may have happened and must not happen twice."""
        return self.at_most_once and self.may_have_happened

    @property
    def may_have_happened(self) -> bool:
        """Whether it may have acted: it succeeded, was interrupted, or was stopped by a timeout."""
        return self.error is None or self.error.type == _TIMED_OUT


@dataclass(slots=True)
class RecordedChild:
    """A nested or spawned run. The other attributes are as in `RecordedStep`.

    Attributes:
        begun: the entry that began it.
        input: the digest of its input.
        is_spawned: whether it is an independent run.
    """

    begun: int
    run_id: str
    input: str
    is_spawned: bool = False
    ended: int | None = None
    status: RunStatus | None = None
    output: Tree = None
    error: ErrorRecord | None = None
    is_settled: bool = False


@dataclass(slots=True)
class RecordedWait:
    """A wait.

    Attributes:
        sequence: the number of its entry.
        until: the time that it waits for, in seconds since the epoch; None without one.
        topic: the topic of the message that it waits for; empty without one.
        received: the entry of the message that it has received; None without one.
        value: the value of that message.
        child: the spawned run whose end it waits for, and that end if it is known; None without one.
    """

    sequence: int
    until: float | None
    topic: str = ""
    received: int | None = None
    value: Tree = None
    child: RecordedChild | None = None


@dataclass(slots=True)
class RecordedDecision:
    """A decision.

    Attributes:
        has_ended: whether the cancelled branches have ended.
        suppressed: the errors of their finalizers.
    """

    sequence: int
    value: Tree
    is_settled: bool = False
    has_ended: bool = False
    suppressed: tuple[ErrorRecord, ...] = ()


DEAD_LETTER = "dead_letter"
"""The name of the decision that sets an item aside."""


def is_dead_letter(path: str) -> bool:
    """Return whether a decision at this path sets an item aside."""
    return path.rpartition("/")[2].partition("#")[0] == DEAD_LETTER


@dataclass(slots=True)
class RecordedDeadLetter:
    """An item that was set aside because its last attempt failed.

    Attributes:
        sequence: the entry that records it.
        path: the path of that entry.
        content: the item, and how many items had failed by then.
        retry: the number of the reopening that retried it, or None.
        is_dropped: whether it no longer counts.
    """

    sequence: int
    path: str
    content: dict[str, Any]
    retry: int | None = None
    is_dropped: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it was neither retried nor dropped."""
        return self.retry is None and not self.is_dropped

    @property
    def flow(self) -> StepPath:
        """The branch of the item, such as `map[emma]`."""
        return StepPath(flow_of(self.path))

    @property
    def key(self) -> str:
        """The key of the item."""
        return self.flow.key or ""

    @property
    def item(self) -> Tree:
        """The item in its saved form."""
        return self.content["item"]

    @property
    def failed(self) -> int:
        """How many items of the job had failed by then."""
        return self.content["failed"]


@dataclass(frozen=True, slots=True)
class Item:
    """An operation, operator or finalizer that a flow reached: its first entry and its path."""

    sequence: int
    path: str
    kind: _Kind


@dataclass(slots=True)
class RecordedFlow:
    """What one flow reached, in order. `item` is the digest of the item of a branch without a key."""

    items: list[Item] = field(default_factory=lambda: [])
    item: str | None = None


class Recording:
    """Everything that a journal records of a run.

    Attributes:
        steps, children, waits, decisions: by path.
        source_ends: the ends of the sources of finalizers, by the path of the finalizer.
        flows: what each flow reached, by its path.
        branches: the flows of each operator, by its path.
        places: the paths of everything that a flow reached.
        left_behind: the paths that a changed workflow need not reach.
        dead_letters: the items that were set aside, by the path of the entry that records it.
        reopenings: how often dead letters were retried or dropped.
        reopened_at: the entry of the last reopening, if the run has not ended since; otherwise None.
        repeated: the at-most-once steps that may have happened, and that the last reopening repeats.
        former_children: the runs within this one that other ones may replace, oldest first, by path
            and id: a reopening repeats them, or another attempt of the step around them.
        spawned: the ids of the spawned runs that are cancelled with this one, by the entries that began
            them.
        cancelled_at: the entry that requested the cancellation of the run, or None.
        decided_within: the paths of the decisions within a step, by its path.
    """

    def __init__(self) -> None:
        self.steps: dict[str, RecordedStep] = {}
        self.children: dict[str, RecordedChild] = {}
        self.waits: dict[str, RecordedWait] = {}
        self.decisions: dict[str, RecordedDecision] = {}
        self.source_ends: dict[str, SourceEnd] = {}
        self.flows: dict[str, RecordedFlow] = {}
        self.branches: dict[str, list[str]] = {}
        self.places: set[str] = set()
        self.left_behind: set[str] = set()
        self.dead_letters: dict[str, RecordedDeadLetter] = {}
        self.reopenings = 0
        self.reopened_at: int | None = None
        self.repeated: list[str] = []
        self.former_children: dict[str, dict[str, RecordedChild]] = {}
        self.spawned: dict[int, str] = {}
        self.cancelled_at: int | None = None
        self.decided_within: dict[str, list[str]] = {}

    @property
    def open_dead_letters(self) -> list[RecordedDeadLetter]:
        """The dead letters that were neither retried nor dropped, in the order of the journal."""
        return [letter for letter in self.dead_letters.values() if letter.is_open]

    @property
    def has_lasting_failures(self) -> bool:
        """Whether a resume gets a recorded failure again instead of retrying what failed."""
        return (
            any(
                step.error and (step.is_settled or not step.retryable)
                for step in self.steps.values()
            )
            or any(child.error and child.is_settled for child in self.children.values())
            or any(end.error for end in self.source_ends.values())
        )

    def failures_of(self, letter: RecordedDeadLetter) -> list[RecordedFailure]:
        """Return all failed attempts of the item of a dead letter, oldest first."""
        flow = letter.flow
        reached = [item.path for item in self.flows[flow].items if item.kind == "step"]
        return [failure for path in reached for failure in self.steps[path].failures]

    def steps_of(self, item: Item) -> Iterator[str]:
        """Yield the path of a step or nested run, or of those within an operator or finalizer."""
        if item.kind in ("step", "child"):
            yield item.path
            return
        for name in (item.path, *self.branches.get(item.path, ())):
            if name in self.flows:
                for inner in self.flows[name].items:
                    yield from self.steps_of(inner)

    def forget(self, paths: set[str]) -> None:
        """Forget everything that is recorded at these paths and below them."""
        by_path: tuple[dict[str, Any], ...] = (
            self.steps,
            self.children,
            self.waits,
            self.decisions,
            self.source_ends,
            self.flows,
            self.branches,
            self.dead_letters,
        )
        for recorded in by_path:
            for path in [path for path in recorded if is_below(path, paths)]:
                del recorded[path]
        self.places = {path for path in self.places if not is_below(path, paths)}

    def add(
        self, sequence: int, path: str, kind: _Kind, digest: str | None = None, step: str = ""
    ) -> None:
        """Add what a flow reached and everything around it up to a step, unless it is known."""
        if path in self.places:
            return
        self.places.add(path)
        name = flow_of(path)
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = RecordedFlow()
            self._add_around(sequence, name, step)
        flow.items.append(Item(sequence, path, kind))
        if digest is not None and flow.item is None:
            flow.item = digest

    def _add_around(self, sequence: int, flow: str, step: str) -> None:
        """Add the operator or finalizer that a flow is part of. The body of a step has none."""
        operator = flow
        if flow.endswith("]"):
            operator = flow[: flow.rfind("[")]
            self.branches.setdefault(operator, []).append(flow)
        if operator and operator != step and operator not in self.steps:
            kind = "finalizer" if operator in self.source_ends else "operator"
            self.add(sequence, operator, kind, step=step)

    def add_received(self, path: str, wait: RecordedWait, step: str) -> None:
        """Add a wait within a step that has received its message: the next attempt receives it, too."""
        self.add(wait.sequence, path, "wait", step=step)
        self.waits[path] = wait

    def has_within(self, step: str) -> bool:
        """Return whether anything is recorded inside a step."""
        return step in self.flows or step in self.decided_within

    def begin_anew(self, step: str) -> None:
        """Forget what an attempt of a step did, because its retry policy begins it anew.

        Except for the messages that it received: the next attempt receives them, too.
        """
        received: list[tuple[str, RecordedWait]] = []
        names = [step]
        while names:
            name = names.pop()
            for path in self.decided_within.pop(name, ()):
                self.decisions.pop(path, None)
                self.dead_letters.pop(path, None)
            flow = self.flows.pop(name, None)
            for item in () if flow is None else flow.items:
                path = item.path
                names += [path, *self.branches.pop(path, ())]
                self.places.discard(path)
                self.steps.pop(path, None)
                self.source_ends.pop(path, None)
                child, wait = self.children.pop(path, None), self.waits.pop(path, None)
                if child is not None:
                    self.add_former_child(path, child)
                if wait is not None and wait.received is not None:
                    received.append((path, wait))
        for path, wait in received:
            self.add_received(path, wait, step)

    def replace_child(self, path: str, run_id: str, input: str) -> None:
        """Let another nested run take the place of one that was cancelled."""
        self.children.pop(path, None)
        cancelled = RecordedChild(0, run_id, input, status=RunStatus.CANCELLED)
        self.add_former_child(path, cancelled)

    def add_former_child(self, path: str, child: RecordedChild) -> None:
        """Add a run within this one that another one may replace."""
        self.former_children.setdefault(path, {})[child.run_id] = child

    def leave_behind(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Let flows skip what they reached in these ranges of entries."""
        for first, last in ranges:
            for flow in self.flows.values():
                gone = [item for item in flow.items if first <= item.sequence <= last]
                if gone:
                    self.left_behind.update(item.path for item in gone)
                    flow.items = [item for item in flow.items if item not in gone]


def is_below(path: str, paths: set[str]) -> bool:
    """Return whether one of these paths is this path, or encloses it."""
    while path:
        if path in paths or StepPath(path).operator in paths:
            return True
        path = flow_of(path)
    return False
