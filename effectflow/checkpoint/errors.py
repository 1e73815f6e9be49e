"""The errors of checkpointing.

::

    CheckpointError
    ├── RunNotFound          no run has this id
    ├── RunConflict          the id belongs to a run of another workflow or another input
    ├── RunBusy              another process drives the run
    ├── LeaseLost            the lease of the run is gone; nothing was written
    ├── DefinitionChanged    the workflow differs from the one that the run was started with
    ├── StepInputChanged     a recorded step is reached with other arguments
    ├── RunNotEnded          the run has not ended, so it has no result
    ├── RunCancelled         the run was cancelled and cannot continue
    ├── RunPaused            someone has paused the run while it was driven
    ├── RunEnded             the run is completed or cancelled, so it receives no messages
    ├── ChangeRejected       a run cannot be changed as someone asked
    ├── MailboxFull          too much waits in the mailbox of the run for another message
    ├── CompensationFailed   an undo failed, so the run waits for someone to resume it
    ├── CrashedTooOften      the run crashed its process again and again, so workers do not continue it
    ├── OutcomeUnknown       an at-most-once step would run again, although it may have happened
    ├── CorruptCheckpoint    stored data cannot be read
    ├── UnsupportedVersion   a newer effectflow wrote the data
    ├── NotSerializable      a value cannot be saved exactly as it is
    ├── SaveFailed           the store rejected or lost an entry
    └── StoreUnavailable     the store cannot be opened or reached

Each message says what happened, to which run and step: its `problem`; and what to do next: its `hint`, in
terms of the library. It has no control characters, even where it quotes stored text: people see it in
terminals and logs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from effectflow.effects.errors import Copyable


def printable(text: str, *, keep: str = "") -> str:
    r"""Return the text with every character escaped that `repr` would escape, such as `\x1b`.

    Stored text may contain control characters, which would change the terminal or hide other text.

    Parameters:
        keep: characters that are not escaped.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in text
    )


CLASS_CHANGED = (
    "If a class has changed, give its new fields defaults and keep its name, or give the workflow a new "
    "version and a migration (docs/durability.md). Otherwise, start a new run"
)
"""What to do if saved data is intact, and the code does not declare it."""


class CheckpointError(Copyable, Exception):
    """The base class of all errors of checkpointing.

    Attributes:
        problem: what happened.
        hint: what to do next, in whole sentences; "" if nothing can be done in general.
    """

    def __init__(self, problem: str = "", hint: str = "") -> None:
        self.problem = _without_stop(printable(problem, keep="\n\t"))
        self.hint = printable(hint, keep="\n\t")
        super().__init__(f"{self.problem}. {self.hint}" if hint else self.problem)


def _without_stop(text: str) -> str:
    """Return a text, often of another library, without the full stop at its end."""
    return text if text.endswith("..") else text.removesuffix(".")


_OR_BY_COMMAND = " (on the command line, --force)"
"""`show` prints the reason why a run is blocked as a worker, which may be a program, has recorded it."""


class RunNotFound(CheckpointError):
    """No run in the store has this id. `nearest` has similar ids."""

    def __init__(self, run_id: str, nearest: Sequence[str] = ()) -> None:
        self.run_id = run_id
        self.nearest: tuple[str, ...] = tuple(nearest)
        super().__init__(
            f"no run {run_id!r} in this store",
            f"Did you mean {' or '.join(repr(name) for name in self.nearest)}?"
            if self.nearest
            else "`store.find()` returns the runs of a store.",
        )


class RunConflict(CheckpointError):
    """The run id already belongs to a run of another workflow, or of another input."""

    def __init__(self, run_id: str, reason: str) -> None:
        self.run_id = run_id
        self.reason = reason
        super().__init__(
            f"the run id {run_id!r} belongs to another run: {reason}",
            "Choose another run id, or resume the existing run.",
        )


_OWNER = re.compile(r"pid (\d+) on ([^/ ]+)\S* \([^()]*\)")


def process_of(owner: str) -> str:
    """Return the holder of a lease as people know it, such as "process 4711 on host".

    A text of another form is returned as it is.
    """
    return _OWNER.sub(r"process \1 on \2", owner)


class RunBusy(CheckpointError):
    """Another process, or another task of this one, holds the lease of the run.

    `owner` holds it, and `expires_in` is the number of seconds until the lease expires. With `is_gone`,
    the owner ended the run, and the run was deleted.
    """

    def __init__(
        self, run_id: str, owner: str, expires_in: float, *, is_gone: bool = False
    ) -> None:
        self.run_id = run_id
        self.owner = owner
        self.expires_in = expires_in
        self.is_gone = is_gone
        if is_gone:
            super().__init__(
                f"run {run_id!r} existed when this start began, and was deleted before the start could "
                f"claim it: {process_of(owner)} may have completed it. Nothing was executed",
                "Start it again if it should be executed once more.",
            )
            return
        super().__init__(
            f"run {run_id!r} is being driven by {process_of(owner)}; its lease holds for another "
            f"{max(expires_in, 0):.0f} s and is renewed while that process lives",
            "Wait for it to end; or pause it, or stop that process, and try again.",
        )


class LeaseLost(CheckpointError):
    """The lease of the run is gone. The rejected entries were not written.

    `owner` holds the run now, if that is known.
    """

    def __init__(self, run_id: str, reason: str, *, owner: str = "") -> None:
        self.run_id = run_id
        self.reason = reason
        self.owner = owner
        super().__init__(
            f"run {run_id!r} does not belong to this process any more: {reason}. Nothing more was "
            "written",
            "That owner continues the run."
            if owner
            else "Resume the run, and it continues after the entries that the store has.",
        )


class DefinitionChanged(CheckpointError):
    """The workflow differs from the one that the run was started with.

    Attributes:
        added, removed, renamed: the declared steps that differ, renamed ones as pairs of names.
        recorded: the path of the recorded operation that the code does not reach in its place; "" if the
            definitions differ.
        reached: the paths that it reaches instead; none if it ends before.
        changes: all that differs, in words.
    """

    def __init__(
        self,
        run_id: str,
        workflow: str,
        *,
        added: Sequence[str] = (),
        removed: Sequence[str] = (),
        renamed: Sequence[tuple[str, str]] = (),
        detail: str = "",
        what: str | None = None,
        recorded: str = "",
        reached: Sequence[str] = (),
    ) -> None:
        """Create the error. `what` names saved data that does not belong to a run in a store."""
        self.run_id = run_id
        self.workflow = workflow
        self.recorded = recorded
        self.reached: tuple[str, ...] = tuple(reached)
        self.added: tuple[str, ...] = tuple(added)
        self.removed: tuple[str, ...] = tuple(removed)
        self.renamed: tuple[tuple[str, str], ...] = tuple(renamed)
        changes = [f"step {name!r} was added" for name in self.added]
        changes += [f"step {name!r} was removed" for name in self.removed]
        changes += [f"step {old!r} is now {new!r}" for old, new in self.renamed]
        if detail:
            changes.append(detail)
        self.changes: tuple[str, ...] = tuple(changes)
        by_command = _OR_BY_COMMAND if what is None else ""
        super().__init__(
            f"workflow {workflow!r} has changed since {what or f'run {run_id!r}'} was started: "
            f"{'; '.join(changes) or 'its fingerprint differs'}",
            f"{'Resume' if what is None else 'Read'} it with the code that it was started with, give the "
            f"workflow a version and a migration, or pass force=True{by_command} if the change does not "
            "matter to it.",
        )


class RunNotEnded(CheckpointError):
    """The run has not ended, so it has no result. `status` is its status, such as "interrupted"."""

    def __init__(self, run_id: str, status: str) -> None:
        self.run_id = run_id
        self.status = status
        super().__init__(
            f"run {run_id!r} has not ended: it is {status}, so it has no result",
            "Wait for the process that drives it, or resume it.",
        )


class RunCancelled(CheckpointError):
    """The run was cancelled, and its finalizers have run."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"run {run_id!r} was cancelled and its finalizers have run: it cannot continue",
            "To do the work again, rerun it, or start it under another run id.",
        )


class RunPaused(CheckpointError):
    """Someone (`by`) has paused the run while it was driven. Its steps in progress have ended."""

    def __init__(self, run_id: str, by: str) -> None:
        self.run_id = run_id
        self.by = by
        super().__init__(f"run {run_id!r} was paused by {by}", "Resume it to continue.")


class RunEnded(CheckpointError):
    """The run is completed or cancelled, so it receives no messages. `status` says which."""

    def __init__(self, run_id: str, status: str) -> None:
        self.run_id = run_id
        self.status = status
        super().__init__(
            f"run {run_id!r} is {status}, so it receives no messages and cannot be changed: nothing was "
            "sent or changed",
            "To do the work again, rerun it, or start it under another run id.",
        )


class ChangeRejected(CheckpointError):
    """A run cannot be changed as someone asked. Nothing was changed. `reason` says why."""

    def __init__(self, run_id: str, reason: str, hint: str) -> None:
        self.run_id = run_id
        self.reason = reason
        super().__init__(f"run {run_id!r} was not changed: {reason}", hint)


class MailboxFull(CheckpointError):
    """Too much waits in the mailbox of the run for another signal. Nothing was sent.

    `limit` is how many bytes a mailbox holds.
    """

    def __init__(self, run_id: str, limit: int) -> None:
        self.run_id = run_id
        self.limit = limit
        super().__init__(
            f"the signal does not fit into the mailbox of run {run_id!r}, which holds {limit:,} bytes of "
            "signals that the run has not received: nothing was sent",
            "Send it again once the run has received some. If it waits for none of them, cancel the run.",
        )


class CompensationFailed(CheckpointError):
    """An undo failed, after the retries of its step.

    Attributes:
        run_id: the run.
        reason: the error of the undo.
        left: the undos that are left, in their order. The first is the one that failed.
    """

    def __init__(self, run_id: str, reason: str, left: Sequence[str]) -> None:
        self.run_id = run_id
        self.reason = reason
        self.left: tuple[str, ...] = tuple(left)
        first, *others = self.left
        after = f", and after it {', '.join(others)}" if others else ""
        super().__init__(
            f"run {run_id!r} could not undo its work: the undo {first} failed with {reason}. It is left"
            f"{after}",
            "Correct the cause, then resume the run: it tries this undo again, and continues with the "
            "rest.",
        )


class CrashedTooOften(CheckpointError):
    """The processes of the run died again and again before the run got further."""

    def __init__(self, run_id: str, crashes: int, after: str) -> None:
        self.run_id = run_id
        self.crashes = crashes
        self.after = after
        super().__init__(
            f"{crashes} processes in a row ended while they drove run {run_id!r}, and none of them got "
            f"further than {after}: workers do not continue it",
            "Find out what ends the process (memory, a crash in native code), then resume the run.",
        )


class StepInputChanged(CheckpointError):
    """A recorded step was reached with other arguments."""

    def __init__(self, run_id: str, step: str, recorded: str, current: str) -> None:
        self.run_id = run_id
        self.step = step
        self.recorded = recorded
        self.current = current
        super().__init__(
            f"step {step!r} of run {run_id!r} completed with {recorded}, and is now called with "
            f"{current}. Its recorded output belongs to the earlier arguments",
            "Take what varies (time, chance, configuration, the items of a source) from now(), random(), "
            "uuid() or a step, or start a new run.",
        )


class OutcomeUnknown(CheckpointError):
    """An at-most-once step began, and its end is unknown: it was interrupted, or its executor lost it.

    If the executor lost it, `__cause__` is the ExecutorError. With `is_repeated`, retrying or dropping
    dead letters would have run the step again, although it may have happened.
    """

    def __init__(self, run_id: str, step: str, *, is_repeated: bool = False) -> None:
        self.run_id = run_id
        self.step = step
        self.is_repeated = is_repeated
        if is_repeated:
            super().__init__(
                f"step {step!r} of run {run_id!r} is marked at_most_once, has begun before, and would "
                "run again: it maps a dead letter, or came after its job. Nothing was changed",
                f"To run it again, pass force=True{_OR_BY_COMMAND}.",
            )
            return
        super().__init__(
            f"step {step!r} of run {run_id!r} is marked at_most_once, and was interrupted: it may or "
            "may not have happened",
            "Find out. If it happened, give its output with complete_step; if not, resume with force=True"
            f"{_OR_BY_COMMAND} to run it again.",
        )


class CorruptCheckpoint(CheckpointError):
    """The stored data of a run cannot be read. None of it was used.

    `sequence` is the number of the entry that cannot be read, and `intact` the number of entries before
    the damage, if they are known. `what` names saved data that does not belong to a run in a store.
    `is_damaged` is False if the data is intact but this program cannot read it: `reason` says why.
    """

    def __init__(
        self,
        run_id: str,
        reason: str,
        *,
        sequence: int | None = None,
        intact: int | None = None,
        what: str | None = None,
        is_damaged: bool = True,
    ) -> None:
        self.run_id = run_id
        self.reason = reason
        self.sequence = sequence
        self.is_damaged = is_damaged
        self.intact: int | None = sequence - 1 if sequence and is_damaged else intact
        where = f"entry {sequence} of run {run_id!r}" if sequence else f"run {run_id!r}"
        problem, hint = f"{what or where} cannot be read: {reason}", ""
        if self.intact is not None:
            problem += f". {_intact_entries(self.intact)}"
            hint = after_damage(
                f"`read_checkpoint(store, {run_id!r}, at={self.intact})`",
                f"`repair_run(store, {run_id!r})`",
                self.intact,
            )
        super().__init__(problem, hint)


def _intact_entries(intact: int) -> str:
    entries = {0: "None of its entries are", 1: "The 1 entry before that is"}
    before = entries.get(intact, f"The {intact} entries before that are")
    return f"{before} intact, and nothing was changed"


def after_damage(show: str, repair: str, intact: int) -> str:
    """Return what to do about a damaged run.

    Parameters:
        show: what shows the run as it was before the damage.
        repair: what repairs it.
        intact: the number of entries before the damage.
    """
    restore = (
        "Restore the run from a backup or an export, and a resume executes only what that does not "
        "have."
    )
    delete = (
        "Or delete the run (`store.delete`) and start it again: then every step is executed again."
    )
    if not intact:
        return f"{restore} {delete}"
    return (
        f"{show} shows the run as it was then. {restore} Or let {repair} cut it to its last intact "
        f"entry, keep the rest aside, and say which steps a resume executes again. {delete}"
    )


class UnsupportedVersion(CheckpointError):
    """A newer effectflow wrote the data, or one from before the first release."""

    def __init__(self, what: str, found: int, supported: int) -> None:
        self.found = found
        self.supported = supported
        if found > supported:
            reads, hint = f"up to {supported}", "Upgrade effectflow."
        else:
            reads = f"version {supported}"
            hint = (
                "It is from before the first release: end its runs with the effectflow that wrote them, "
                "or choose another place."
            )
        super().__init__(
            f"{what} has format version {found}, and this effectflow reads {reads}; nothing was changed",
            hint,
        )


class NotSerializable(CheckpointError):
    """A value cannot be saved so that exactly the same value comes back.

    `path` is the position in the value, such as `$.items[3].price`.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class SaveFailed(CheckpointError):
    """The store could not make something durable. What it made durable before still is.

    `what` is "entry", "run" for a new run, or "message". `is_unknown` tells whether it may have been
    written anyway: it was sent and not acknowledged, or written and not synced to disk.
    """

    def __init__(
        self,
        run_id: str,
        reason: str,
        *,
        is_unknown: bool = False,
        what: Literal["entry", "run", "message"] = "entry",
    ) -> None:
        self.run_id = run_id
        self.reason = reason
        self.is_unknown = is_unknown
        self.what = what
        outcome = "may or may not have been" if is_unknown else "could not be"
        because = _without_stop(reason)
        match what:
            case "entry":
                super().__init__(
                    f"a checkpoint of run {run_id!r} {outcome} saved: {because}. Every entry before it "
                    "is safe",
                    "Resume the run when the cause is fixed.",
                )
            case "run":
                super().__init__(
                    f"run {run_id!r} {outcome} created: {because}",
                    "Start it again when the cause is fixed.",
                )
            case "message":
                super().__init__(
                    f"a message for run {run_id!r} {outcome} saved: {because}",
                    "Send it again when the cause is fixed.",
                )


class StoreUnavailable(CheckpointError):
    """The store cannot be opened or reached. Nothing in it was changed."""

    def __init__(self, location: str, reason: str) -> None:
        self.location = location
        self.reason = reason
        super().__init__(f"{location}: {reason}")
