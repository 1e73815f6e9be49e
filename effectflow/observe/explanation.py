"""Why a run is where it is, and the commands that would move it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import Entry, Interrupted, Resumed, Started
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.journal_reader import Journal
from effectflow.checkpoint.order import Spans, ordered_path_of
from effectflow.checkpoint.run_info import RunInfo, RunStatus
from effectflow.checkpoint.step import StepInfo
from effectflow.checkpoint.store import store_errors
from effectflow.observe.operations import Operation
from effectflow.observe.recorded_run import RecordedRun, read_recorded
from effectflow.observe.workers import absence

_MOST_OF_A_KIND = 10


@dataclass(frozen=True, slots=True)
class Move:
    """A command that would move a run. Its text is ready to copy.

    Attributes:
        words: the command and its arguments. Words in capitals stand for what you choose.
        effect: what it does.
        module: what `--app` has to name, because the command needs the code of the workflow; or "".
    """

    words: tuple[str, ...]
    effect: str
    module: str = ""

    def __str__(self) -> str:
        """Return the command without the option that names the store."""
        app = ("--app", self.module) if self.module else ()
        return shlex.join(["effectflow", *self.words, *app])


@dataclass(frozen=True, slots=True)
class UnknownOutcome:
    """An at-most-once step that may or may not have happened, and the key that it has sent to others."""

    step: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a run is where it is. Times are in seconds since the epoch.

    Attributes:
        run_id, workflow: the run and its workflow.
        status: its status, as the store has it.
        reason: why it is there, in one sentence.
        since: since when: for a running run, since its process has it.
        is_held: whether a live process has it.
        owner: the process that has it, or had it last, such as "process 4711 on host"; or "".
        due_at: when a worker may take it; None if none may.
        is_due: whether it is due, and no process has it.
        open: the steps in progress and the waits, in the order in which they began.
        failing: the path of the step that the run has failed with; "" if it has not failed, or not with
            the failure of a step.
        error: what it has failed with, or why it is blocked.
        unknown: the steps whose outcome is unknown.
        dead_letters: the number of items of its jobs that were set aside.
        problem: the damage of its journal; None if that can be read. The other fields then tell of the
            entries before the damage.
        moves: the commands that would move it; for steps, signals and runs, those of the first ten.
    """

    run_id: str
    workflow: str
    status: RunStatus
    reason: str
    since: float
    is_held: bool
    owner: str
    due_at: float | None
    is_due: bool
    open: tuple[Operation, ...] = ()
    failing: str = ""
    error: str = ""
    unknown: tuple[UnknownOutcome, ...] = ()
    dead_letters: int = 0
    problem: CheckpointError | None = None
    moves: tuple[Move, ...] = ()

    def __str__(self) -> str:
        """Return it as text: what it is, why, and the commands."""
        return "\n".join([f"{self.run_id}: {self.reason}", *(f"  {one}" for one in self.moves)])


async def read_explanation(
    checkpoints: Checkpoints, run_id: str, now: float, pauses: Iterable[AnyPause] = ()
) -> Explanation:
    """Read a run and explain it. Raise RunNotFound, and CorruptCheckpoint if nothing of it is left.

    The parameters are those of `explain_run`.
    """
    async with checkpoints.store as store:
        run = await read_recorded(checkpoints, run_id)
        with store_errors(store, run_id):
            absent = await absence(store, run.info, now)
    return explain(run, now, pauses, absent)


def explain_run(
    info: RunInfo,
    entries: Sequence[Entry],
    now: float,
    problem: CheckpointError | None = None,
    pauses: Iterable[AnyPause] = (),
) -> Explanation:
    """Explain a run from its summary and its journal.

    Parameters:
        info: the run, as the store has it.
        entries: its entries; with a `problem`, those before the damage.
        now: the time, in seconds since the epoch.
        problem: why the rest of the journal cannot be read.
        pauses: the queues and workflows that are paused, as `Client.pauses` returns them.
    """
    # The digest of the newest entry explains nothing.
    return explain(RecordedRun(info, Journal(tuple(entries), b""), problem), now, pauses)


def explain(
    run: RecordedRun, now: float, pauses: Iterable[AnyPause] = (), absent: str = ""
) -> Explanation:
    """Explain a run that was read.

    Parameters:
        absent: that no worker may take it, as `absence` or `full_queue` returns it.

    The other parameters are those of `explain_run`.
    """
    summary = run.info.summary
    names = {"queue": summary.queue_name, "workflow": summary.workflow}
    stopped = [one for one in pauses if names.get(one.kind) == one.name]
    return _Explainer(run, now, stopped, absent).explain()


class AnyPause(Protocol):
    """A queue, a workflow or a schedule that is paused: see `Client.pauses`."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def by(self) -> str: ...


class _Explainer:
    def __init__(
        self, run: RecordedRun, now: float, stopped: Sequence[AnyPause], absent: str
    ) -> None:
        self.stopped = stopped
        self.absent = absent
        self.info = info = run.info
        self.entries = run.entries
        self.now = now
        self.problem = run.problem
        self.status = info.summary.status
        self.is_held = info.is_held(now)
        self.checkpoint = run.checkpoint
        operations = run.operations
        self.open = tuple(one for one in operations if one.is_open)
        self.failing = self._failing_step(operations)
        unknown = [one for one in operations if one.is_unknown]
        if self.is_held or self.status.has_ended:
            # What a live process has begun is in progress.
            unknown = []
        self.unknown = tuple(
            UnknownOutcome(one.path, StepInfo(info.run_id, one.path, 1).idempotency_key)
            for one in unknown
        )
        self.dead_letters = len(run.dead_letters)

    def explain(self) -> Explanation:
        info, details, due_at = self.info, self.info.summary.details, self.info.summary.due_at
        finished = self.checkpoint.finished
        error = details.blocked or details.error
        if finished is not None and finished.error is not None:
            error = f"{finished.error.type}: {finished.error.message}"
        return Explanation(
            info.run_id,
            info.summary.workflow,
            self.status,
            self._reason(),
            self._since(),
            self.is_held,
            info.process,
            due_at,
            self._is_due,
            self.open,
            self.failing,
            error,
            self.unknown,
            self.dead_letters,
            self.problem,
            tuple(self._moves()),
        )

    @property
    def _is_due(self) -> bool:
        due_at = self.info.summary.due_at
        return due_at is not None and due_at <= self.now and not self.is_held

    def _since(self) -> float:
        if self.status is RunStatus.RUNNING and self.is_held:
            lives = [one.at for one in self.entries if isinstance(one, Started | Resumed)]
            return lives[-1]
        return self.info.updated_at

    def _failing_step(self, operations: Sequence[Operation]) -> str:
        """Return the step with whose failure the run has failed."""
        finished = self.checkpoint.finished
        if finished is None or finished.error is None:
            return ""
        retried = Spans(finished.retry)
        causes = [
            ordered_path_of(entry)
            for number, entry in enumerate(self.entries, 1)
            if number in retried
        ]
        failed = {one.path: one for one in operations if one.state == "failed"}
        for path in causes:
            if path in failed:
                return path
        for path, one in reversed(failed.items()):
            error = one.newest.error
            if error is not None and (error.type, error.message) == (
                finished.error.type,
                finished.error.message,
            ):
                return path
        return ""

    def _reason(self) -> str:
        if self.problem is not None:
            return "Its journal is damaged, so nothing continues it."
        details, finished = self.info.summary.details, self.checkpoint.finished
        match self.status:
            case RunStatus.PENDING:
                queue = self.info.summary.queue
                return self._due(f"It has not begun{f', in queue {queue!r}' if queue else ''}")
            case RunStatus.RUNNING if self.is_held:
                return f"The {self.info.process} drives it."
            case RunStatus.RUNNING:
                known = f" ({self.info.process})" if self.info.process else ""
                return self._due(f"The process that drove it{known} has died")
            case RunStatus.SUSPENDED:
                waits = f"It waits for {details.waits_for or 'another worker'}"
                return f"{waits}." if self.info.summary.due_at is None else self._due(waits)
            case RunStatus.INTERRUPTED:
                return self._due(f"It was stopped{_because(self.checkpoint)}")
            case RunStatus.PAUSED:
                by = "" if self.checkpoint.paused is None else f" by {self.checkpoint.paused.by}"
                return f"It was paused{by}, and no worker continues it before someone unpauses it."
            case RunStatus.BLOCKED:
                return self._due("The last process could not continue it")
            case RunStatus.FAILED:
                again = finished is not None and bool(finished.retry)
                return "It has failed" + (
                    "; a retry tries again what has failed."
                    if again
                    else ". Its failure stands: a retry ends with it again."
                )
            case RunStatus.CANCELLED:
                return "It was cancelled, and its finalizers have run."
            case RunStatus.COMPLETED if self.dead_letters:
                letters = "dead letter" if self.dead_letters == 1 else "dead letters"
                return f"It is complete, with {self.dead_letters} {letters}."
            case RunStatus.COMPLETED:
                return "It is complete."

    def _due(self, what: str) -> str:
        due_at = self.info.summary.due_at
        if due_at is None:
            return f"{what}, and no worker continues it by itself."
        if due_at > self.now:
            return f"{what}."
        if self.stopped:
            names = " and ".join(f"{one.kind} {one.name!r}" for one in self.stopped)
            return f"{what}. It is due, and no worker takes it before {names} is unpaused."
        if self.absent:
            return f"{what}. It is due, but {self.absent}."
        return f"{what}. It is due, and continues as soon as a worker takes it."

    def _moves(self) -> Iterator[Move]:
        run_id, module = self.info.run_id, self.checkpoint.module
        if self.problem is not None:
            intact = str(len(self.entries))
            yield Move(("show", run_id, "--at", intact), "shows it before the damage")
            yield Move(("repair", run_id), "cuts it to its last intact entry, and asks first")
            return
        for one in self.stopped:
            words = ("pauses", "--unpause", f"{one.kind}:{one.name}")
            yield Move(words, f"lets workers take its runs; {one.by} has paused it")
        if self.dead_letters:
            words = ("dead-letters", run_id, "--retry")
            yield Move(words, "maps the items again that have failed", module)
        if self.status.has_ended:
            yield Move(("rerun", run_id), "begins a new run with the same input", module)
            return
        topics = (one.what for one in self.open if one.what.startswith("signal "))
        for topic in islice(dict.fromkeys(topics), _MOST_OF_A_KIND):
            name = topic.removeprefix("signal ")
            words = ("send", run_id, name if module else f"MODULE:{name}", "JSON")
            yield Move(words, "sends the value that it waits for", module)
        children = dict.fromkeys(one.child for one in self.open if one.child)
        for child in islice(children, _MOST_OF_A_KIND):
            yield Move(("explain", child), "explains the run that it waits for")
        if self.status is RunStatus.PAUSED:
            yield Move(("unpause", run_id), "lets the next worker continue it when it is due")
        elif self.status is not RunStatus.FAILED:
            yield Move(("pause", run_id), "lets nothing continue it until someone unpauses it")
        if not self.is_held:
            yield from self._moves_of_stuck(run_id, module)
        yield Move(("cancel", run_id), "undoes its work and ends it")

    def _moves_of_stuck(self, run_id: str, module: str) -> Iterator[Move]:
        force = ("--force",) if self.unknown else ()
        how = ", and runs the steps of unknown outcome again" if force else ""
        is_stuck = self.status in (RunStatus.FAILED, RunStatus.BLOCKED, RunStatus.INTERRUPTED)
        if is_stuck and not self._is_due and not force:
            yield Move(("retry", run_id), "lets the next worker try it again")
        steps = dict.fromkeys([one.step for one in self.unknown[:_MOST_OF_A_KIND]])
        if self.failing:
            steps[self.failing] = None
        for step in steps:
            words = ("complete-step", run_id, step, "JSON")
            yield Move(words, "gives the step this output, without executing it", module)
            words = ("fail-step", run_id, step, "MESSAGE")
            yield Move(words, "lets the step fail, and the code handle that", module)
        if self.failing:
            words = ("fork", run_id, "--at", self.failing)
            yield Move(words, "makes a new run that executes the step again", module)
        yield Move(("resume", run_id, *force), f"continues it in this process{how}", module)


def _because(checkpoint: Checkpoint) -> str:
    state = checkpoint.state
    reason = state.reason if isinstance(state, Interrupted) else ""
    return f" ({reason})" if reason else ""
