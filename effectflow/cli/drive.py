"""Drive a run to its end in this process, and say how it ended."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import anyio
import orjson
from returns.result import Failure, Result
from rich.console import Console

from effectflow.checkpoint import (
    CheckpointError,
    HasCheckpoints,
    ResumePlan,
    RunBusy,
    RunCancelled,
    RunConflict,
    read_checkpoint,
)
from effectflow.checkpoint.values import plain_tree, to_tree
from effectflow.cli.access import Access
from effectflow.cli.app_loader import LoadedWorkflow
from effectflow.cli.command import Answer
from effectflow.cli.options import BadUse, ExitCode
from effectflow.cli.render import counted, fields_of, say, say_lines
from effectflow.cli.run_progress import RunProgress
from effectflow.cli.show_plan import recurrence
from effectflow.cli.suggestions import message_of, suggested
from effectflow.effects.debug import IS_DEBUG
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.tracebacks import hide_frames
from effectflow.machines import Machine
from effectflow.mapreduce import JobResult, TooManyFailures
from effectflow.service import StoppedBySignal, run_until_signal
from effectflow.service.environment import AnyWorkflow, BadEnvironment


@dataclass(frozen=True, slots=True)
class RunToDrive:
    """A run to drive.

    Attributes:
        run_id: its id.
        loaded: its workflow.
        access: where it is.
        effect: drives it. It fails with BadUse for an input that does not fit.
        title: what to say once it has begun.
    """

    run_id: str
    loaded: LoadedWorkflow
    access: Access
    effect: AnyEffect
    title: str = ""


_Status: TypeAlias = Literal[
    "completed", "waits", "failed", "cancelled", "interrupted", "refused", "checkpoint error"
]

_EXIT_CODES: dict[_Status, ExitCode] = {
    "completed": ExitCode.DONE,
    "waits": ExitCode.DONE,
    "failed": ExitCode.WORKFLOW_FAILED,
    "cancelled": ExitCode.WORKFLOW_FAILED,
    "interrupted": ExitCode.INTERRUPTED,
    "refused": ExitCode.CHECKPOINT_ERROR,
    "checkpoint error": ExitCode.CHECKPOINT_ERROR,
}


@dataclass(frozen=True, slots=True)
class _End:
    """How a run ended in this process. `--json` prints the fields.

    Attributes:
        output: its output; with `--json`, as plain data.
        recurs: the steps whose recorded failures end each resume of the run again.
        began_with: the step that a resumed run began with.
        steps_run, steps_skipped: how many steps were run, and how many were done before.
        resume_with: the command that resumes the run, unless that is of no use.
    """

    run_id: str
    status: _Status
    message: str | None = None
    output: object = None
    recurs: tuple[str, ...] = ()
    began_with: str | None = None
    steps_run: int = 0
    steps_skipped: int = 0
    resume_with: str | None = None


def drive(run: RunToDrive, *, leave_waiting: bool = False) -> Answer:
    """Drive a run to its end, or until a signal. Return how it ended.

    With `leave_waiting`, leave it once it only waits.

    Raise BadUse or BadEnvironment, before the run is touched, if it cannot be driven.
    """
    errors, progress = (
        Console(stderr=True),
        RunProgress(
            run.loaded.workflow,
            run.run_id,
            Console(stderr=run.access.as_json),
            title="" if run.access.as_json else run.title,
        ),
    )
    ends: list[_End | BadUse] = []

    async def main() -> None:
        known = run.access.checkpoints
        checkpoints = dataclasses.replace(known, observers=(*known.observers, progress))
        # A signal cancels only the run, so that the environment can close in an orderly way.
        async with run.loaded.opened_environment(checkpoints) as env:
            with progress.leave_at_rest() if leave_waiting else anyio.CancelScope() as leave:
                ends.append(await _ended(run, env, progress))
            if leave.cancelled_caught:
                ends.append(
                    _End(run.run_id, "waits", f"It waits for {progress.waits_for}, and is left.")
                )

    try:
        anyio.run(main)
    except BadEnvironment as error:
        if error.__cause__ is not None:
            say(_traceback(error.__cause__), errors)
        raise
    except Exception as error:
        say(_traceback(error), errors)
        if ends:
            say(
                "The environment failed to close, as shown above. The run had ended before.", errors
            )
        else:
            ends.append(_End(run.run_id, "failed", _DEFECT))
    [end] = ends
    if isinstance(end, BadUse):
        raise end
    can_be_resumed = end.status in ("interrupted", "failed", "waits") and not end.recurs
    end = dataclasses.replace(
        end,
        began_with=progress.began_with,
        steps_run=progress.completed,
        steps_skipped=progress.skipped,
        resume_with=suggested("resume", run.run_id) if can_be_resumed else None,
    )
    plain = _plain(end.output, run.loaded.workflow) if run.access.as_json else None
    return Answer(
        fields_of(end) | {"output": plain},
        _lines_of(end),
        code=_EXIT_CODES[end.status],
        is_on_one_line=True,
    )


def drive_all(runs: Iterable[tuple[str, Callable[[], RunToDrive]]], *, as_json: bool) -> Answer:
    """Drive runs one after another, until a signal, and say how each ended. Return the worst code.

    Leave a run once it only waits, so that the next one is reached.

    `runs` has the id of each run, and the function that makes the rest, which may raise BadUse,
    BadEnvironment or a CheckpointError.
    """
    codes, ends = {ExitCode.DONE}, list[object]()
    for run_id, make in runs:
        try:
            answer = drive(make(), leave_waiting=True)
        except (BadUse, BadEnvironment, CheckpointError) as error:
            is_of_store = isinstance(error, CheckpointError)
            codes.add(ExitCode.CHECKPOINT_ERROR if is_of_store else ExitCode.BAD_USE)
            ends.append({"run_id": run_id, "status": "not resumed", "message": message_of(error)})
            say(f"effectflow: {message_of(error)}", Console(stderr=True))
            continue
        codes.add(answer.code)
        ends.append(answer.data)
        if not as_json:
            say_lines(answer.lines)
        if answer.code == ExitCode.INTERRUPTED:
            break
    code = next(code for code in _WORST_FIRST if code in codes)
    return Answer(ends, [] if ends else ["No run can be resumed."], code=code)


_WORST_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.CHECKPOINT_ERROR,
    ExitCode.WORKFLOW_FAILED,
    ExitCode.BAD_USE,
    ExitCode.DONE,
)

_DEFECT = "The workflow ended in a defect, shown above."


async def _ended(run: RunToDrive, env: HasCheckpoints, progress: RunProgress) -> _End | BadUse:
    """Drive a run, and return how it ended. BadUse is not raised, as the environment might wrap it."""

    def stopping(signal: str) -> None:
        text = f"Stopping after {signal}. A second signal ends the process at once."
        say(text, progress.console)

    origin: str | None = None
    try:
        result: Result[Any, Any] = await run_until_signal(
            lambda: run.effect.run(env), on_signal=stopping
        )
    except StoppedBySignal as stop:
        return _End(run.run_id, "interrupted", f"Interrupted by {stop.signal_name}.")
    except Exception as defect:
        result, origin = Failure(defect), _traceback(defect)
    finally:
        progress.close()
    match result:
        case Failure(BadUse() as refused):
            return refused
        case Failure(RunCancelled() as error):
            return _End(run.run_id, "cancelled", message_of(error))
        case Failure(RunBusy() | RunConflict() as error):
            # Another one has the run or its id, and nothing is wrong with the checkpoint.
            return _End(run.run_id, "refused", message_of(error))
        case Failure(CheckpointError() as error):
            return _End(run.run_id, "checkpoint error", message_of(error))
        case Failure(error):
            recurs = await _recurring(run, env)
            if origin is not None and (progress.begun or not recurs):
                say(origin, Console(stderr=True))
                return _End(run.run_id, "failed", _DEFECT, recurs=recurs)
            text = str(error)
            if isinstance(error, Exception):
                notes = (f"\n  {note}" for note in getattr(error, "__notes__", ()))
                text = f"{type(error).__name__}: {error}{''.join(notes)}"
            happened = (
                "Nothing was executed. The recorded failure is"
                if recurs and not progress.begun
                else "The workflow failed:"
            )
            message = f"{happened} {text}{_dead_letters(run, isinstance(error, TooManyFailures))}"
            return _End(run.run_id, "failed", message, recurs=recurs)
        case _:
            output = result.unwrap()
            if not (progress.begun or progress.skipped):
                # The run may have been complete. Then it was not replayed.
                progress.skipped = len((await _plan_of(run, env)).skip)
            message = _dead_letters(run, _has_dead_letters(output)).strip()
            return _End(run.run_id, "completed", message or None, output)


def _traceback(error: BaseException) -> str:
    """Return the traceback of an exception without our frames, and how to see all."""
    hide_frames(error)
    lines = "".join(traceback.format_exception(error)).rstrip()
    return lines if IS_DEBUG else f"{lines}\n`python -X dev -m effectflow ...` shows all frames."


def _has_dead_letters(output: object) -> bool:
    return isinstance(output, JobResult) and bool(
        cast("JobResult[Any, Any, Any]", output).dead_letters
    )


def _dead_letters(run: RunToDrive, has_some: bool) -> str:
    see = suggested("dead-letters", run.run_id)
    return f"\nSome items failed and were set aside. See them with: {see}" if has_some else ""


async def _recurring(run: RunToDrive, env: HasCheckpoints) -> tuple[str, ...]:
    """Return the steps whose recorded failures end each resume of the run again, as its plan does."""
    try:
        async with env.checkpoints.store as store:
            checkpoint = await read_checkpoint(store, run.run_id, env.checkpoints.seal)
        # A plan replays the body, so it is made only if it can find such a failure.
        if checkpoint.finished is None or checkpoint.finished.retry:
            return ()
        plan = await _plan_of(run, env)
    except Exception:
        # The command has already reported why the run ended. This would only add what to do.
        return ()
    return () if plan.start or plan.waiting else plan.recurs


async def _plan_of(run: RunToDrive, env: HasCheckpoints) -> ResumePlan:
    """Return what a resume of the run would do; an empty plan if the run is gone."""
    planned: Result[ResumePlan, Any] = await run.loaded.workflow.plan(run.run_id).run(env)
    return planned.value_or(ResumePlan())


def _lines_of(end: _End) -> Iterable[str]:
    if end.message is not None:
        yield from end.message.split("\n")
    counts = f"{counted(end.steps_run, 'step')} run, {end.steps_skipped} skipped (done before)"
    yield f"Run {end.run_id}: {end.status}; {counts}."
    if end.output is not None:
        many = isinstance(end.output, list)
        for output in cast("list[object]", end.output) if many else [end.output]:
            yield from str(output).split("\n")
    for step in end.recurs:
        yield f"A resume {recurrence(step)}."
    if end.resume_with is not None:
        yield f"Resume it with: {end.resume_with}"


def _plain(output: object, workflow: AnyWorkflow) -> Any:
    """Return an output as plain JSON, or its `repr` if it has no encoding."""
    if isinstance(output, Machine):
        return orjson.loads(cast("Machine[Any]", output).to_json())
    try:
        return plain_tree(to_tree(output, types=workflow.blueprint.output_types))
    except CheckpointError:
        return repr(output)
