"""A durable run that this process drives: what its flows and their steps share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from effectflow.checkpoint.branches import DurableBranches
from effectflow.checkpoint.cancellation import Cancellation
from effectflow.checkpoint.changes import woken_by
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import (
    CancelRequested,
    ErrorRecord,
    Interrupted,
    Resumed,
    Signalled,
)
from effectflow.checkpoint.errors import CLASS_CHANGED, CorruptCheckpoint, NotSerializable
from effectflow.checkpoint.failures import read_failure
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.mailbox import Mailbox
from effectflow.checkpoint.observers import CheckpointEvent, tell
from effectflow.checkpoint.recording import Recording
from effectflow.checkpoint.replay import compressed
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.settling import UnsettledFailures
from effectflow.checkpoint.step_execution import StepExecution
from effectflow.checkpoint.stopping import Stopping
from effectflow.checkpoint.store import CANCEL, Message
from effectflow.checkpoint.suspension import Activity, Drain
from effectflow.checkpoint.values import (
    KnownTypes,
    MalformedValue,
    Tree,
    from_tree,
    mismatch_of,
    of_type,
    plain_json,
    to_tree,
)
from effectflow.effects.clock import Clock, SystemClock
from effectflow.effects.errors import Parked
from effectflow.effects.scope import Operator, Scope
from effectflow.effects.trails import TypedFailure

A = TypeVar("A")

_ANNOTATE = (
    "A resume reads only values of the declared type: correct the annotation of the function that "
    "returns it, or the value"
)


class Around(Protocol):
    """The outer run of a nested run, and the flow that reached the nested run."""

    @property
    def run(self) -> Run: ...

    @property
    def is_shielded(self) -> bool:
        """Whether it is in an acquisition or a finalizer, which no cancellation reaches."""
        ...

    @property
    def is_in_step(self) -> bool:
        """Whether it is in the body of a step, whose next attempt may replace the nested run."""
        ...

    @property
    def is_pinned(self) -> bool:
        """Whether it is in a step of an outer run that a suspension must not cut off."""
        ...

    async def begin_cancellation(self) -> None:
        """Settle the decision of the outer run that cancels the nested run."""
        ...

    def open_gate(self) -> None:
        """Let cancellations through to the nested run, which protects its own replay from now on."""
        ...


class Run:
    """One life of a durable run.

    Attributes:
        run_id, workflow: the id of the run and the name of its workflow.
        recording: what earlier lives recorded.
        writer: adds entries to the journal.
        types: the classes that may occur in outputs and errors of the workflow.
        records: whether anything is recorded; False in a plan.
        execution: the class that executes its steps.
        force: whether the run continues even if the workflow changed or an outcome is unknown.
        around: the outer run of a nested run, or None.
        outer_operators: the operators of the outer run that may cancel this one.
        cancelled_at: the entry with which an operator of the outer run cancelled this one, or None.
        last_completed: the path of the step that completed last.
        failures: the failures that nothing has settled.
        stopping: whether it is being stopped from outside.
        activity: the flows that are busy, and what the others wait for; shared with the outer run.
        mailbox: the messages that were sent to the run.
        cancellation: the operator around the body that decides when a message requests a cancellation;
            None if the run does not look for such messages.
        drain: asks the runs of a worker to begin nothing more; None outside of workers.
        spawned: the ids of the spawned runs that are cancelled with this one, by the entries that began
            them.
        observers: receive its events.
        cut_off: the paths of the steps that a stop of the run has cut off, in order of time.
        interrupted_at: the newest `Interrupted` entry of a step, or None.
        savable: the definitions of the steps whose outputs can be saved, by name.
    """

    records = True
    execution = StepExecution

    def __init__(
        self,
        run_id: str,
        workflow: str,
        checkpoints: Checkpoints,
        *,
        writer: JournalWriter,
        recording: Recording,
        types: KnownTypes,
        clock: Clock,
        context: Mapping[str, object],
        started_version: str,
        force: bool = False,
        around: Around | None = None,
        outer_operators: tuple[Operator, ...] = (),
    ) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.checkpoints = checkpoints
        self.writer = writer
        self.recording = recording
        self.types = types
        self.clock = clock
        self.context = MappingProxyType(dict(context))
        self.started_version = started_version
        self.force = force
        self.around = around
        self.outer_operators = outer_operators
        self.stopping = Stopping(None if around is None else around.run.stopping, outer_operators)
        self.activity = Activity() if around is None else around.run.activity
        self.mailbox = Mailbox(run_id, checkpoints, writer)
        self.cancellation: Cancellation | None = None
        self.drain: Drain | None = None if around is None else around.run.drain
        self.spawned = dict(recording.spawned)
        self.last_completed: str | None = None
        # The system clock is read without creating a date.
        self.now = time.time if type(clock) is SystemClock else self._now
        self.cancelled_at = None if around is None else recording.cancelled_at
        self.observers = checkpoints.observers
        self.failures = UnsettledFailures(writer)
        self.cut_off: dict[str, None] = {}
        self.interrupted_at: int | None = None
        self.savable: dict[str, Any] = {}

    @property
    def is_shielded(self) -> bool:
        """Whether it is in an acquisition or a finalizer of an outer run."""
        return self.around is not None and self.around.is_shielded

    @property
    def is_pinned(self) -> bool:
        """Whether it is in a step of an outer run that a suspension must not cut off."""
        return self.around is not None and self.around.is_pinned

    @property
    def may_record(self) -> bool:
        """Whether decisions and waits are recorded: not in a plan, nor while the run is being stopped."""
        return self.records and not self.stopping.has_begun

    def replay_failure(self, record: ErrorRecord, path: str, types: KnownTypes) -> TypedFailure:
        """Return a recorded failure, or raise a recorded defect. Halt the run if it cannot be rebuilt."""
        try:
            failure = read_failure(record, path, types)
        except NotSerializable as unreadable:
            raise self.writer.halt(unreadable) from unreadable
        failure = self.replayed_failure(path, failure)
        if record.is_defect:
            raise failure.error
        return failure

    def park(self, flow: DurableFlow, parked: Parked) -> None:
        """Note that a flow of a plan has ended."""

    def replayed_failure(self, path: str, failure: TypedFailure) -> TypedFailure:
        """Return a recorded failure that is replayed. A plan notes where it comes from."""
        return failure

    # Cancellation by an outer run.

    def entry_of(self, cause: Operator) -> int | None:
        """Return the entry of the decision that cancelled the source of a finalizer."""
        branches = cause.branches
        if not isinstance(branches, DurableBranches):
            return None
        return branches.sequence if branches.outer.run is self else self.cancelled_at

    async def cancel_if_decided(self) -> None:
        """Record that a decision of an outer run cancelled this run, if one did.

        First, the outer run settles the decision durably if its resume could not use a cancelled run.
        """
        if self.stopping.has_begun or self.cancelled_at is not None:
            return
        for operator in self.outer_operators:
            if operator.cancels() and isinstance(operator.branches, DurableBranches):
                # A run that was interrupted between its steps is the first to notice the deadline.
                operator.expire()
                await self._cancel(operator.branches)
                return

    async def _cancel(self, branches: DurableBranches) -> None:
        assert self.around is not None
        await self.around.begin_cancellation()
        # Another finalizer may have recorded it in the meantime.
        if self.cancelled_at is None:
            reason = f"{branches.path!r} of {branches.outer.run.run_id!r}"
            self.cancelled_at = self.writer.add(CancelRequested(self.now(), reason))

    # Messages.

    async def next_message(self, flow: DurableFlow, scope: Scope, path: str, topic: str) -> Message:
        """Wait for the first message about a topic, and leave it in the mailbox.

        Parameters:
            flow: the flow that waits.
            scope: the position of the wait.
            path: the path of the wait.
            topic: the topic.
        """
        if (message := self.mailbox.first(topic)) is not None:
            return message
        async with woken_by(self.checkpoints.store, self.run_id) as woken:
            while True:
                await self.look_for_messages()
                message = self.mailbox.first(topic)
                if message is not None:
                    return message
                with self.rest(flow, scope, topic.replace(":", " ", 1), look=woken.set):
                    await woken.wait()

    def take_message(self, path: str, message: Message, value: Tree) -> int:
        """Record that a wait has received a message. Return the number of the entry."""
        self.mailbox.take(message)
        return self.writer.add(Signalled(path, message.topic, message.key, value, self.now()))

    async def look_for_messages(self) -> None:
        """Read the new messages. One of them may cancel the run."""
        await self.mailbox.refresh()
        request = self.mailbox.first(CANCEL)
        if request is None or self.cancellation is None:
            return
        # The next life finds the request, too.
        if not self.stopping.has_begun and self.writer.halted is None:
            self.mailbox.take(request)
            self.cancellation.request()

    def decode_message(self, tree: Tree, path: str, decode: Callable[[Tree], A]) -> A:
        """Return the value of a message. Halt the run if it is not what the wait declares."""
        try:
            return decode(tree)
        except MalformedValue as error:
            reason = f"the message that {path!r} receives is not what the signal declares: {error}"
            raise self.writer.halt(CorruptCheckpoint(self.run_id, reason)) from error

    def interruption(self, reason: str) -> Interrupted | None:
        """Return the last entry of an interruption; None if a step recorded one as the last entry.

        Other steps may have ended after the interrupted one.
        """
        if self.interrupted_at == self.writer.length:
            return None
        step, in_progress = self.last_completed, False
        if self.cut_off:
            step, in_progress = next(reversed(self.cut_off)), True
        return Interrupted(step, in_progress=in_progress, reason=reason, at=self.now())

    # Common parts.

    @contextmanager
    def rest(
        self,
        flow: DurableFlow,
        scope: Scope,
        what: str,
        until: float = math.inf,
        look: Callable[[], object] | None = None,
    ) -> Generator[None]:
        """Count a flow as resting while the block runs; the other parameters are as in `Activity.rest`.

        In an acquisition or a finalizer, which no cancellation reaches, a stop of the run ends the block.
        """
        is_shielded = scope.is_shielded or self.is_shielded
        ending = self.stopping.ends_wait(what) if is_shielded else nullcontext()
        with self.activity.rest(what, until, look, is_pinned=flow.is_pinned), ending:
            yield

    def leave_behind(self, sequences: Iterable[int]) -> None:
        """Record that the run continues without recorded entries, as `force` allows.

        If the changed workflow reaches one of these operations later, its recorded result stands.
        """
        chosen = sorted(sequences)
        ranges = compressed(chosen, chosen)
        self.writer.add(Resumed(self.writer.lease.owner, self.now(), abandoned=ranges))
        self.recording.leave_behind(ranges)

    def _now(self) -> float:
        """Return the time of the run's clock, in seconds since the epoch."""
        return self.clock.now().timestamp()

    def time_after(self, seconds: float) -> float:
        """Return the time when this many seconds have passed, or the last one that can be recorded."""
        return min(self.now() + seconds, LATEST)

    async def sleep(self, path: str, seconds: float, scope: Scope) -> None:
        """Wait within a flow."""
        await scope.clock.sleep(seconds)

    def encode(self, value: Any, path: str, types: KnownTypes, annotation: object = None) -> Tree:
        """Return a value in its saved form. Halt the run if it cannot be saved, or is of another type.

        Plain data is returned unchanged and written immediately, unless an observer could keep it.
        """
        mismatch = mismatch_of(value, annotation)
        if mismatch is not None:
            refused = NotSerializable(f"{path}: ${mismatch[0]}", f"{mismatch[1]}. {_ANNOTATE}")
            raise self.writer.halt(refused)
        if not self.observers and plain_json(value) is not None:
            return value
        try:
            return to_tree(value, path=f"{path}: $", types=self.checkpoints.known(types))
        except NotSerializable as error:
            raise self.writer.halt(error) from error

    def decode(self, tree: Tree, path: str, types: KnownTypes, annotation: object = None) -> Any:
        """Return a saved value. Halt the run if it does not match the step's declaration."""
        try:
            value = from_tree(tree, path=f"{path}: $", types=self.checkpoints.known(types))
            return of_type(value, None if self.force else annotation, path=f"{path}: $")
        except MalformedValue as error:
            problem = f"the output of step {path!r} is not what the step declares: {error}"
            reason = f"{problem}. {CLASS_CHANGED}"
            raise self.writer.halt(CorruptCheckpoint(self.run_id, reason)) from error

    def notify(self, event: CheckpointEvent) -> None:
        """Tell the observers."""
        tell(self.observers, event)
