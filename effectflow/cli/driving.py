"""Drive a run from the command line: progress, signals, the exit code, and what to do next."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from typing import Any, cast

import anyio
import orjson
from returns.result import Failure, Result
from rich.console import Console

from effectflow.checkpoint import CheckpointError, Checkpoints, Seal
from effectflow.checkpoint.values import KnownTypes, to_tree
from effectflow.cli.exits import ExitCode
from effectflow.cli.loading import LoadedWorkflow
from effectflow.cli.progress import RunProgress
from effectflow.effects import Effect
from effectflow.service import StoppedBySignal, run_until_signal
from effectflow.stores import open_store
from effectflow.workflows import Machine

__all__ = ["Drive", "drive"]


@dataclass(frozen=True, slots=True)
class Drive:
    """One run to drive.

    Attributes:
        loaded: the workflow and its environment.
        store: the URL of the store.
        seal: how entries are written and checked.
        effect: `start(...)` or `resume(...)` of the workflow.
        run_id: the run.
        resume_command: what to type to resume it.
        sized_by: the step whose output is the list of items, for progress.
        as_json: print one JSON object instead of sentences.
    """

    loaded: LoadedWorkflow
    store: str
    seal: Seal
    effect: Effect[Any, Any, Any]
    run_id: str
    resume_command: str
    sized_by: str | None = None
    as_json: bool = False


def drive(job: Drive) -> ExitCode:
    """Run it to its end, or to a signal; say what happened; give the exit code."""
    console = Console(stderr=job.as_json)
    progress = RunProgress(console, sized_by=job.sized_by)
    try:
        result = anyio.run(_drive, job, progress, console)
    except StoppedBySignal as stop:
        _say(job, console, progress, "interrupted", f"Interrupted by {stop.signal_name}.")
        return ExitCode.INTERRUPTED
    except CheckpointError as error:
        _say(job, console, progress, "checkpoint error", str(error))
        return ExitCode.CHECKPOINT_ERROR
    except Exception:
        traceback.print_exc(file=sys.stderr)
        _say(job, console, progress, "failed", "The workflow ended in a defect, shown above.")
        return ExitCode.WORKFLOW_FAILED
    return _report(job, console, progress, result)


async def _drive(job: Drive, progress: RunProgress, console: Console) -> Result[Any, Any]:
    def stopping(signal_name: str) -> None:
        _print(console, f"Stopping after {signal_name}; a second signal ends at once.")

    async with open_store(job.store) as store:
        checkpoints = Checkpoints(
            store, key=job.seal.key, encryption=job.seal.encryption, observers=(progress,)
        )
        # Outside of what a signal cancels, so that whatever it closes has the time to.
        async with job.loaded.opened_environment(checkpoints) as env:
            with progress:
                return await run_until_signal(lambda: job.effect.run(env), on_signal=stopping)


def _report(
    job: Drive, console: Console, progress: RunProgress, result: Result[Any, Any]
) -> ExitCode:
    if isinstance(result, Failure):
        error = result.failure()
        if isinstance(error, CheckpointError):
            _say(job, console, progress, "checkpoint error", str(error))
            return ExitCode.CHECKPOINT_ERROR
        text = f"The workflow failed: {type(error).__name__}: {error}"
        _say(job, console, progress, "failed", text)
        return ExitCode.WORKFLOW_FAILED
    _say(job, console, progress, "completed", "", output=result.unwrap())
    return ExitCode.DONE


def _say(
    job: Drive,
    console: Console,
    progress: RunProgress,
    status: str,
    text: str,
    *,
    output: object = None,
) -> None:
    may_resume = status in ("interrupted", "failed")
    if job.as_json:
        answer = {
            "run_id": job.run_id,
            "status": status,
            "steps_run": progress.completed,
            "steps_skipped": progress.skipped,
            "output": _shown(output),
            "message": text or None,
            "resume_with": job.resume_command if may_resume else None,
        }
        sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")
        sys.stdout.flush()
        return
    if text:
        _print(console, text)
    counts = f"{progress.completed} steps run, {progress.skipped} skipped (done before)"
    _print(console, f"Run {job.run_id}: {status}; {counts}.")
    if output is not None:
        lines = cast("list[object]", output) if isinstance(output, list) else [output]
        for line in lines:
            _print(console, str(line))
    if may_resume:
        _print(console, f"Resume it with: {job.resume_command}")


def _print(console: Console, text: str) -> None:
    """Text as it is: it may hold what rich would take for markup."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _shown(output: object) -> Any:
    """An output for `--json`: as it is saved where it is plain data, as text where it is not."""
    if isinstance(output, Machine):
        return orjson.loads(cast("Machine[Any]", output).to_json())
    try:
        return to_tree(output, types=KnownTypes.of(type(output)))
    except CheckpointError:
        return repr(output)
