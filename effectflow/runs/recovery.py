"""Drive a run that a worker has claimed because it was due."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import anyio

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.endings import (
    Cancelled,
    CarriedOn,
    CutShort,
    Ending,
    FailedWith,
    Halted,
    PausedBy,
    Raised,
    Returned,
    Suspension,
)
from effectflow.checkpoint.entries import BeforeStep, Entry, Resumed
from effectflow.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    CrashedTooOften,
    LeaseLost,
    RunNotFound,
)
from effectflow.checkpoint.lease import Owner
from effectflow.checkpoint.messages import open_message
from effectflow.checkpoint.run_info import RunStatus
from effectflow.checkpoint.store import CANCEL, Taken, service_of, store_errors
from effectflow.effects.clock import Clock
from effectflow.effects.errors import Halt
from effectflow.effects.event_loop import is_cancellation
from effectflow.effects.interpreter import interpret
from effectflow.effects.nodes import AnyEffect, Perform
from effectflow.effects.scope import Scope
from effectflow.runs.blueprint import Blueprint
from effectflow.runs.claim import SECONDS_AFTER_OUTAGE, Claim, without_text
from effectflow.runs.driven_runs import shows_progress
from effectflow.runs.driver import (
    Service,
    continue_run,
    record_failure,
)
from effectflow.runs.stored_run import Place, read_run
from effectflow.runs.workflow import Workflow

logger = logging.getLogger(__name__)

_DEATHS_SIDE_BY_SIDE = 2
"""After this many deaths of processes in a row, a run is driven alone, so that it hurts no other run, and
none hurts it. Not after the first death: most processes do not die of a run."""

LEAST_CRASHES = _DEATHS_SIDE_BY_SIDE + 1
"""The least value of `max_crashes`: the process that died last drove the run alone."""


async def recover_run(
    workflow: Workflow[Any, Any, Any, Any],
    taken: Taken,
    owner: Owner,
    *,
    env: Any,
    checkpoints: Checkpoints,
    service: Service,
    clock: Clock,
) -> bool:
    """Drive a claimed run until it ends, is suspended, or is stopped, and release it.

    How it ended is in its journal. A run that cannot be continued by this program is blocked, and the
    reason is kept with it. A worker, perhaps of another program, tries it again a minute later. If only
    the store failed, it is tried again after a second, or once the store is back. A run of a version that
    this worker does not take is left as blocked before it is read: then this returns False. A run that
    exits, as by `sys.exit()`, fails with a defect, and its worker continues.

    Parameters:
        owner: the owner of the lease of `taken`.
    """
    what = f"run {taken.lease.run_id!r} of {workflow.name!r}"
    place = Place.of(_contained(workflow.blueprint), checkpoints, env, Scope(clock))
    claim = Claim.of(place, taken, owner)
    logger.info("%s is taken, %s", what, taken.info.summary.status, extra=claim.log_fields)
    async with claim:
        try:
            if not await _is_wanted(claim, taken):
                return True
            version = taken.info.summary.details.version
            misfit = service.misfit(workflow.blueprint, version, taken.lease.run_id)
            if misfit is not None:
                logger.info(
                    "%s is left to other workers: %s", what, misfit.problem, extra=claim.log_fields
                )
                await claim.leave(misfit)
                return False
            found = await read_run(place, taken.lease.run_id, taken.first)
            if found is None:
                raise RunNotFound(taken.lease.run_id)
            deaths, after = deaths_in_a_row(found.journal.entries) if claim.was_left else (0, "")
            if deaths >= service.max_crashes:
                error = CrashedTooOften(claim.run_id, deaths, after)
                await record_failure(claim, found, error)
                logger.warning("run %r has failed: %s", claim.run_id, error, extra=claim.log_fields)
                return True
            if deaths >= _DEATHS_SIDE_BY_SIDE:
                service = replace(service, is_alone=True)
                logger.warning(
                    "run %r is driven alone until it gets further than %s: %d processes in a row ended "
                    "while they drove it",
                    *(claim.run_id, after, deaths),
                    extra=claim.log_fields,
                )
            ending = await continue_run(claim, found, service=service)
        except BaseException as raised:
            if _passes(raised):
                raise
            # The life has not even begun: a migration raised this, for example.
            await _block(claim, raised)
        else:
            await _report(claim, ending)
        finally:
            _log_end(what, claim)
    return True


async def _is_wanted(claim: Claim, taken: Taken) -> bool:
    """Return whether to continue a run. Only a cancellation wakes a paused or failed one.

    If no message is one, because it was sent without the keys of the run, leave the run as it was.
    """
    summary, checkpoints = taken.info.summary, claim.place.checkpoints
    if summary.status not in (RunStatus.PAUSED, RunStatus.FAILED):
        return True
    store = service_of(checkpoints.store, "a worker")
    with store_errors(store, claim.run_id):
        messages = await store.mailbox(claim.run_id)
    for message in messages:
        if message.topic == CANCEL:
            try:
                open_message(checkpoints.seal, claim.run_id, message)
            except CorruptCheckpoint as error:
                logger.warning("a message is not received: %s", error, extra=claim.log_fields)
            else:
                return True
    seen = max((message.number for message in messages), default=0)
    await claim.put_back(replace(summary, due_at=None), seen=seen)
    return False


async def _report(claim: Claim, ending: Ending) -> None:
    """Log how a life has ended. Block the run if it cannot be continued here."""
    run_id, is_secret, fields = claim.run_id, claim.is_secret, claim.log_fields
    match ending:
        case Halted(error) | CutShort(error):
            await _block(claim, error)
        case FailedWith(failure):
            error = failure.error
            shown = without_text(error) if is_secret else repr(error)
            logger.warning("run %r has failed: %s", run_id, shown, extra=fields)
        case Raised(error):
            # It is in the journal, where people look for it.
            shown = without_text(error) if is_secret else repr(error)
            trace = None if is_secret else error
            logger.warning(
                "run %r has failed with a defect: %s",
                run_id,
                shown,
                exc_info=trace,
                extra=fields,
            )
        case Returned() | Cancelled() | Suspension() | PausedBy() | CarriedOn():
            pass


def _log_end(what: str, claim: Claim) -> None:
    summary = claim.summary
    assert summary is not None
    waits_for = summary.details.waits_for
    status = RunStatus.BLOCKED if claim.is_blocked else summary.status
    waiting = f", waits for {waits_for}" if waits_for else ""
    logger.info("%s is released, %s%s", what, status, waiting, extra=claim.log_fields)


def _contained(blueprint: Blueprint) -> Blueprint:
    """Return a blueprint whose runs end in a defect if their code exits. Their worker has other runs."""

    async def perform(make: Callable[[], AnyEffect], env: Any, scope: Scope) -> Any:
        try:
            return await interpret(make(), env, scope)
        except BaseException as raised:
            if isinstance(raised, Exception) or _passes(raised):
                raise
            raise RuntimeError(
                f"the run raised {raised!r}, which does not end its worker: let a step fail instead"
            ) from raised

    def body(input: Any) -> AnyEffect:
        shown = (blueprint.definition.name,)
        return Perform(partial(perform, partial(blueprint.body, input)), shown)

    return replace(blueprint, body=body)


_ENDS_OF_PROCESSES = (KeyboardInterrupt, GeneratorExit, Halt)


def _passes(raised: BaseException) -> bool:
    """Return whether an exception ends more than a run: a cancellation, Ctrl-C, a closed event loop."""
    if isinstance(raised, BaseExceptionGroup):
        return any(map(_passes, cast("BaseExceptionGroup[BaseException]", raised).exceptions))
    return is_cancellation(raised) or isinstance(raised, _ENDS_OF_PROCESSES)


async def _block(claim: Claim, error: BaseException) -> None:
    if isinstance(error, LeaseLost):
        # Its owner decides what becomes of it.
        logger.warning(
            "run %r was left: %s", claim.run_id, claim.reason_of(error), extra=claim.log_fields
        )
        return
    is_shown = isinstance(error, CheckpointError) or claim.is_secret
    logger.warning(
        "run %r is blocked: %s",
        claim.run_id,
        claim.reason_of(error),
        exc_info=None if is_shown else error,
        extra=claim.log_fields,
    )
    if not await claim.block(error):
        # It is due at once when it is released, and the store may reject it again at once.
        await anyio.sleep(SECONDS_AFTER_OUTAGE)


def deaths_in_a_row(entries: Iterable[Entry]) -> tuple[int, str]:
    """Return how many processes have died since a run last got further, and how far it got.

    Pure. The last process has died, too. Lives that ended because the run does not fit the program do not
    count.
    """
    deaths, after = 1, "its beginning"
    for entry in entries:
        if isinstance(entry, Resumed):
            deaths += entry.after_crash
        elif shows_progress(entry):
            deaths = 1
        if isinstance(entry, BeforeStep):
            after = f"step {entry.step!r}"
    return deaths, after
