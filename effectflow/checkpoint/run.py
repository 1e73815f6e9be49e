"""One life of a durable run: what its fibers share."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Never, TypeVar

from effectflow.checkpoint.causes import Held, void_with
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.endings import CutShort, Ending, FailedWith
from effectflow.checkpoint.entries import (
    BEGINNINGS,
    Completed,
    Entry,
    ErrorRecord,
    Failed,
    Interrupted,
    Ranges,
)
from effectflow.checkpoint.errors import (
    CLASS_CHANGED,
    CheckpointError,
    CorruptCheckpoint,
    NotSerializable,
)
from effectflow.checkpoint.failures import RecordedDefect, read_failure
from effectflow.checkpoint.integrity import LARGE
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.mailbox import Mailbox
from effectflow.checkpoint.observers import CheckpointEvent, StepSkipped, surrounding, tell
from effectflow.checkpoint.order import Order, in_ranges
from effectflow.checkpoint.ordered_fiber import Intent, OrderedFiber
from effectflow.checkpoint.plan import Planning
from effectflow.checkpoint.requests import Requests
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.stopping import Drain, Stopping
from effectflow.checkpoint.turns import Turns
from effectflow.checkpoint.values import (
    NOTHING_PASSED,
    KnownParts,
    KnownTypes,
    MalformedValue,
    Tree,
    from_tree,
    mismatch_of,
    of_type,
    short_plain,
    to_tree,
)
from effectflow.effects.clock import Clock, SystemClock
from effectflow.effects.errors import Halt, LeftToResume, Parked
from effectflow.effects.event_loop import raise_stop
from effectflow.effects.paths import is_within, steps_around
from effectflow.effects.scope import Scope, Undos
from effectflow.effects.trails import TypedFailure

A = TypeVar("A")

_ANNOTATE = (
    "A resume reads only values of the declared type: correct the annotation of the function that "
    "returns it, or the value"
)

_AT_ONCE = 0.001
"""In seconds."""

_BREATH = 0.02
"""The seconds after which a run that never waits lets other tasks run."""


class Run:
    """One life of a durable run.

    Attributes:
        run_id, workflow: the id of the run and the name of its workflow.
        writer: adds entries to the journal.
        types: the classes that may occur in outputs and errors of the workflow.
        planning: what a plan finds out, whose replay ends at the frontier and records nothing; None for a
            life.
        force: whether the run continues even if the workflow changed or an outcome is unknown.
        turns: the order of this life.
        root: the fiber of the body, which begins with the baton; see `begin`.
        opened_at: when this life began, in seconds since the epoch.
        last_completed: the path of the step that completed last.
        stopping: whether it is being stopped from outside.
        mailbox: the messages that were sent to the run.
        requests: what people ask of it in some of them.
        drain: asks the runs of a worker to begin nothing more; None outside of workers.
        ends_at_rest: how this life ends once nothing is in progress; it begins nothing more meanwhile.
            None if it goes on.
        spawned: the ids of the spawned runs that are cancelled with this one, by the entries that began
            them.
        observers: receive its events.
        surrounding: those of them that surround what lasts.
        cut_off: the path of the step that a stop of the run has cut off last; None before.
        known_entries: how many entries there were when the run was continued; 0 for a new one.
        has_begun: whether this life has begun anything.
        interrupted_at: the newest `Interrupted` entry of a step, or None.
        savable: the definitions of the steps whose outputs can be saved, by name.
        ending: how this life ends before its body does; None if it does not, or by a halt or a stop.
    """

    __slots__ = (
        "_breathed_at",
        "_held",
        "_held_so_far",
        "_known_parts",
        "_steps",
        "checkpoints",
        "clock",
        "context",
        "cut_off",
        "drain",
        "ending",
        "ends_at_rest",
        "force",
        "has_begun",
        "interrupted_at",
        "known_entries",
        "last_completed",
        "mailbox",
        "now",
        "observers",
        "opened_at",
        "planning",
        "requests",
        "root",
        "run_id",
        "savable",
        "spawned",
        "started_version",
        "stopping",
        "surrounding",
        "turns",
        "types",
        "workflow",
        "writer",
    )

    root: OrderedFiber

    def __init__(
        self,
        run_id: str,
        workflow: str,
        checkpoints: Checkpoints,
        *,
        writer: JournalWriter,
        order: Order,
        types: KnownTypes,
        clock: Clock,
        context: Mapping[str, object],
        started_version: str,
        known_entries: int = 0,
        force: bool = False,
        planning: Planning | None = None,
    ) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.checkpoints = checkpoints
        self.writer = writer
        self.types = types
        self.clock = clock
        self.context = MappingProxyType(dict(context))
        self.started_version = started_version
        self.known_entries = known_entries
        self.force = force
        self.planning = planning
        self.turns = Turns(self, order)
        self.stopping = Stopping(self.turns.stop)
        self.mailbox = Mailbox(run_id, checkpoints, writer, order.messages)
        self.requests = Requests(self)
        self.drain: Drain | None = None
        self.spawned = dict(order.spawned)
        self.last_completed: str | None = None
        # The system clock is read without creating a date.
        self.now = time.time if type(clock) is SystemClock else self._now
        self.opened_at = self.now()
        self.observers = () if planning is not None else checkpoints.observers
        self.surrounding = surrounding(self.observers) if self.observers else ()
        self.cut_off: str | None = None
        self.has_begun = False
        self.interrupted_at: int | None = None
        self.savable: dict[str, object] = {}
        self.ending: Ending | None = None
        self.ends_at_rest: Ending | None = None
        self._known_parts: dict[tuple[tuple[str, type], ...], KnownParts] = {}
        self._held: dict[str, list[Held]] = {}
        self._held_so_far = 0
        self._steps = 0
        self._breathed_at = time.monotonic()

    def next_life(self, order: Order) -> Run:
        """Return another life of the same run, which continues its journal."""
        life = Run(
            self.run_id,
            self.workflow,
            self.checkpoints,
            writer=self.writer,
            order=order,
            types=self.types,
            clock=self.clock,
            context=self.context,
            started_version=self.started_version,
            known_entries=self.known_entries,
            force=self.force,
        )
        life.drain = self.drain
        return life

    def begin(self, root: OrderedFiber) -> None:
        """Begin with the fiber of the body."""
        self.root = self.turns.holder = root

    # Entries.

    def add(self, entry: Entry, step: str) -> int:
        """Add an entry that happens now within a step, after what was held back and may have led to it.

        Return its number. `step` is the path of the innermost step; empty outside of steps.
        """
        if self._held:
            self._release_held(step)
        if not self.has_begun and isinstance(entry, BEGINNINGS):
            self.has_begun = True
        return self.writer.add(entry)

    def hold(self, entry: Entry, step: str) -> Held:
        """Hold an entry back until something else is added that it may have led to."""
        self._held_so_far += 1
        held = Held(entry, self._held_so_far)
        self._held.setdefault(step, []).append(held)
        return held

    def record(self, entry: Entry, step: str) -> int | Held:
        """Add an entry; hold it back within a step, and during the replay, which adds nothing."""
        return self.hold(entry, step) if step or not self.turns.is_live else self.add(entry, step)

    def end_step(self, entry: Completed | Failed | Interrupted) -> int:
        """Add the end of a step. What was held back within it is dropped. Return its number."""
        path, order = entry.step or "", self.turns.order
        if order.received or order.returned:
            is_last = not isinstance(entry, Failed) or entry.retry_at is None
            order.end_attempt(path, is_last=is_last)
        if self._held:
            for step in [step for step in self._held if step == path or is_within(step, path)]:
                del self._held[step]
            self._release_held(next(steps_around(path, self._held), ""))
        return self.writer.add(entry)

    def release_all_held(self) -> None:
        """Add everything that was held back, because the run is suspended within steps."""
        self._release(list(self._held))

    def _release_held(self, step: str) -> None:
        self._release(["", step, *steps_around(step, self._held)])

    def _release(self, steps: Iterable[str]) -> None:
        found = [held for step in steps for held in self._held.pop(step, ())]
        found.sort(key=lambda held: held.place)
        for held in found:
            held.number = self.writer.add(held.entry)

    # The replay.

    def read_failure(
        self, record: ErrorRecord, path: str, types: KnownTypes
    ) -> tuple[TypedFailure, NotSerializable | None]:
        """Return a recorded failure or defect, and why its error could not be rebuilt, if so."""
        try:
            return read_failure(record, path, types), None
        except NotSerializable as unreadable:
            return TypedFailure(RecordedDefect(record), record.trail), unreadable

    def notify_skipped(self, path: str, ended: Completed | Failed) -> None:
        """Tell the observers that a step has a recorded outcome."""
        if self.planning is not None:
            self.planning.skips(path, ended)
        if self.observers:
            has_failed = isinstance(ended, Failed)
            output = None if isinstance(ended, Failed) else ended.output
            self.notify(StepSkipped(self.run_id, path, output, has_failed))

    def is_out_of_breath(self) -> bool:
        """Return whether the steps of the run have not let other tasks run for long. Count them."""
        self._steps += 1
        if self._steps & 31:
            return False
        now = time.monotonic()
        is_due = now - self._breathed_at > _BREATH
        if is_due:
            self._breathed_at = now
        return is_due

    def retry(self) -> Ranges:
        """Return the entries that a resume of the run, which has failed, leaves out."""
        return in_ranges(void_with(self.root.open_failures()))

    def is_tried_again(self) -> bool:
        """Return whether a run that fails is tried again at once: a process died before it could end.

        Its failure is one of the known entries, and nothing has begun since.
        """
        found = self.root.open_failures()
        is_old = any(
            cause.is_retryable and cause.is_older_than(self.known_entries) for cause in found
        )
        return is_old and not self.has_begun

    def end_plan(self) -> None:
        """End a plan at the frontier."""
        planning, begun = self.planning, self.turns.order.begun
        assert planning is not None
        seen: list[Undos] = []
        for fiber in self.turns.frontier:
            undos = fiber.scope.undos
            while undos is not None and not any(undos is one for one in seen):
                seen.append(undos)
                planning.undos += [one.planned_name for one in reversed(undos)]
                undos = undos.around
            if fiber.intent is Intent.WAIT:
                planning.waits(fiber.place)
            elif fiber.intent is not Intent.END:
                planning.starts(fiber.place, has_begun=fiber.place in begun)
        self.end_fibers()

    # How this life ends.

    def halt(self, error: CheckpointError) -> Halt:
        """End this life with an error, so that nothing more begins. Return the exception to raise."""
        halt = self.writer.halt(error)
        self.end_fibers()
        return halt

    def halt_at(self, number: int, kind: str, path: str) -> Halt:
        """End this life because an entry makes no sense for its operation. Return what to raise.

        `kind` is the class of the entry with this number. Only the code of the workflow shows this, so
        `verify_run` does not find it.
        """
        reason = f"{kind} makes no sense for {path!r}"
        return self.halt(CorruptCheckpoint(self.run_id, reason, sequence=number, is_damaged=False))

    def fail(self, error: CheckpointError, fiber: OrderedFiber) -> Halt:
        """End the run as failed with this error, past every handler. Return the exception to raise."""
        self.root.failures = fiber.open_failures()
        for cause in self.root.failures:
            # What its step says about attempts does not count here.
            cause.is_retryable = True
        self.end_with(FailedWith(TypedFailure(error)))
        return LeftToResume(str(error))

    def cut_short(self, error: Exception) -> Halt:
        """End this life with an exception that no earlier life has met. The journal stays as it is."""
        self.end_with(CutShort(error))
        return Halt(error)

    def end_with(self, ending: Ending) -> None:
        """End this life in this way, unless another one came first."""
        self.ending = self.ending or ending
        self.end_fibers()

    def end_fibers(self) -> None:
        """Let all fibers end, because this life does."""
        self.stopping.begin()
        self.stopping.flows.cancel()

    def let_go(self) -> None:
        """Forget the parts that refer to this life, after its end: so it needs no garbage collector."""
        turns = self.turns
        turns.fibers.clear()
        turns.holder = turns.commits = self.writer.on_halt = None
        del self.turns, self.root, self.stopping, self.requests

    async def leave(self, scope: Scope) -> Never:
        """Raise what ends a fiber of a life that is being ended."""
        self.writer.check()
        if isinstance(self.ending, CutShort):
            raise Halt(self.ending.error)
        if self.planning is not None:
            raise Parked
        if scope.is_shielded:
            raise LeftToResume(
                repr(scope.fiber.place if isinstance(scope.fiber, OrderedFiber) else "")
            )
        await raise_stop()

    def interruption(self, reason: str) -> Interrupted | None:
        """Return the last entry of an interruption; None if a step recorded one as the last entry.

        Other steps may have ended after the interrupted one.
        """
        if self.interrupted_at == self.writer.length:
            return None
        in_progress = self.cut_off is not None
        step = self.cut_off if in_progress else self.last_completed
        return Interrupted(step, in_progress=in_progress, reason=reason, at=self.now())

    def end_at_rest(self, ending: Ending, *, at_once: bool = False) -> None:
        """Begin nothing more, and end this life once its steps in progress have ended."""
        if at_once:
            self.end_with(ending)
            return
        self.ends_at_rest = ending
        if self.turns.on_idle is None:
            self.turns.on_idle = self.rest
        if self.turns.is_idle:
            self.turns.on_idle()

    def rest(self) -> None:
        """End this life if it is to end at rest, and nothing is in progress."""
        if self.ends_at_rest is not None and self.turns.is_idle:
            self.end_with(self.ends_at_rest)

    # Values.

    def _now(self) -> float:
        """Return the time of the run's clock, in seconds since the epoch."""
        return self.clock.now().timestamp()

    def time_of_beginning(self) -> float:
        """Return the time of a step that begins now.

        If it begins at once after the newest entry, that is the time of this one, which is then not
        written again.
        """
        now, newest = self.now(), self.writer.time
        return newest if 0.0 <= now - newest < _AT_ONCE else now

    def time_after(self, seconds: float) -> float:
        """Return the time when this many seconds have passed, or the last one that can be recorded."""
        return min(self.now() + seconds, LATEST)

    def encode(self, value: Any, path: str, types: KnownTypes, annotation: object = None) -> Tree:
        """Return a value in its saved form. End this life if it cannot be saved, or is of another type.

        If the life has begun anything, the run has failed then: no worker repeats what was done before
        someone has corrected the code.
        """
        try:
            return self.saved_form(value, path, types, annotation)
        except NotSerializable as error:
            if not self.has_begun:
                raise self.halt(error) from error
            self.end_with(FailedWith(TypedFailure(error)))
            raise Halt(error) from error

    def saved_form(
        self, value: Any, path: str, types: KnownTypes, annotation: object = None
    ) -> Tree:
        """Return a value in its saved form. Raise NotSerializable for any that could not come back.

        Plain data is returned unchanged and written immediately, unless it is long, so that a thread
        writes it, or an observer could keep it.
        """
        mismatch = mismatch_of(value, annotation)
        if mismatch is not None:
            raise NotSerializable(f"{path}: ${mismatch[0]}", f"{mismatch[1]}. {_ANNOTATE}")
        if not self.observers:
            is_plain, tree = short_plain(value, LARGE)
            if is_plain:
                return tree
        return to_tree(value, path=f"{path}: $", types=self.checkpoints.known(types))

    def known_parts(self, types: KnownTypes) -> KnownParts:
        """Return the values of what recorded outputs of these types have in common."""
        # Steps may have other classes of the same names.
        return self._known_parts.setdefault(tuple(types.classes.items()), KnownParts())

    def decode(
        self,
        tree: Tree,
        path: str,
        types: KnownTypes,
        annotation: object = None,
        known: KnownParts | None = None,
    ) -> Any:
        """Return a saved value. Halt the run if it does not match the step's declaration.

        `known` is as in `from_tree`.
        """
        try:
            value = from_tree(
                tree, path=f"{path}: $", types=self.checkpoints.known(types), known=known
            )
            passed = NOTHING_PASSED if known is None else known.passed
            declared = None if self.force else annotation
            return of_type(value, declared, path=f"{path}: $", passed=passed)
        except MalformedValue as error:
            problem = f"the output of step {path!r} is not what the step declares: {error}"
            reason = f"{problem}. {CLASS_CHANGED}"
            raise self.halt(CorruptCheckpoint(self.run_id, reason)) from error

    def notify(self, event: CheckpointEvent) -> None:
        """Tell the observers."""
        tell(self.observers, event)
