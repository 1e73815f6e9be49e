"""Check whether code fits the runs that it will have to continue: those of a store, or exported ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio.lowlevel

from effectflow.checkpoint import (
    CheckpointError,
    Checkpoints,
    CorruptCheckpoint,
    DefinitionChanged,
    ExportedRun,
    NotSerializable,
    OutcomeUnknown,
    ResumePlan,
    RunNotFound,
    RunQuery,
    RunStatus,
    StepInputChanged,
    StoreUnavailable,
    import_run,
    read_exported,
)
from effectflow.checkpoint.errors import CLASS_CHANGED
from effectflow.checkpoint.values import safe_repr
from effectflow.effects.clock import SystemClock
from effectflow.effects.scope import Scope
from effectflow.runs.plan import plan_run
from effectflow.runs.stored_run import Place
from effectflow.service.app import App
from effectflow.service.environment import AnyWorkflow
from effectflow.stores._archive import lines_of, open_export

_UNFINISHED = frozenset(status for status in RunStatus if not status.has_ended)

_PAGE = 100
"""The runs to find at once. Each is read, replayed and forgotten before the next one."""

Verdict: TypeAlias = Literal["diverging", "unverified", "unknown"]
"""Why a run does not pass: the code diverges from what is recorded, a check cannot tell, or the App does
not have its workflow."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """Runs that do not pass a check for the same reason.

    Attributes:
        verdict: see `Verdict`.
        workflow: the workflow of the runs.
        reason: why, in words. Where runs differ in values, it has those of the first one.
        recorded: the recorded operation that the code does not reach in its place; "" if that is not the
            reason. Keys of branches and numbers of occurrences are left out, in which runs differ.
        reached: what the code reaches instead.
        run_ids: the runs.
    """

    verdict: Verdict
    workflow: str
    reason: str
    recorded: str = ""
    reached: tuple[str, ...] = ()
    run_ids: list[str] = field(default_factory=list[str])

    @property
    def group(self) -> tuple[object, ...]:
        """What is the same for all of its runs, whose values and keys differ."""
        reason = re.sub(r"'[^']*'|\[[^\]]*\]|\d+", "", self.reason)
        told_by = (self.recorded, self.reached) if self.recorded else reason
        return self.verdict, self.workflow, told_by


@dataclass(slots=True)
class Checked:
    """The answer to a check.

    Attributes:
        runs: how many runs were checked.
        misfits: those that do not pass, by reason.
    """

    runs: int = 0
    misfits: list[Misfit] = field(default_factory=list[Misfit])

    @property
    def all_fit(self) -> bool:
        """Whether all runs passed."""
        return not self.misfits

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, most: int = 5) -> Iterator[str]:
        """Yield each misfit as text, with the ids of at most so many runs; then the counts."""
        counts = Counter[str]()
        for one in self.misfits:
            count, shown = len(one.run_ids), ", ".join(one.run_ids[:most])
            counts[one.verdict] += count
            yield f"{one.workflow}: {one.reason} ({_runs(count)} {one.verdict})"
            yield f"  {shown}{f' and {count - most} more' if count > most else ''}"
        told = "".join(f", {count} {verdict}" for verdict, count in counts.items())
        yield f"{_runs(self.runs)} checked: {self.runs - counts.total()} fitting{told}"

    def add(self, run_id: str, misfit: Misfit | None) -> None:
        """Count a run, which passed if there is no misfit."""
        self.runs += 1
        if misfit is None:
            return
        known = next((one for one in self.misfits if one.group == misfit.group), None)
        if known is None:
            self.misfits.append(known := misfit)
        known.run_ids.append(run_id)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


async def check_runs(
    app: App[Any],
    *,
    journals: Path | str | Iterable[Path | str] | None = None,
    checkpoints: Checkpoints | None = None,
    workflows: Collection[str] | None = None,
    effects: bool = False,
) -> Checked:
    """Replay the unfinished runs of a store by the code of an App, and return those that it does not fit.

    Nothing is started, claimed or changed. As in a `plan`, only bodies and synchronous effects between
    steps are run: no steps, acquisitions, finalizers or asynchronous effects. A run is `unverified` if
    its replay cannot go on without those, or if it cannot be read.

    A run that passes may still need a decision, such as one whose outcome is unknown.

    Parameters:
        app: the App with the new code.
        journals: exported runs to check in place of those in the store: files of `effectflow export`, or
            folders of `*.jsonl`. What complete runs have recorded is checked as well.
        checkpoints: where the runs are; by default where the App has them.
        workflows: check only runs of these, also under former names; None for all.
        effects: run all effects between steps. Pass an App whose environment is made for tests.

    Raises BadEnvironment, StoreUnavailable, and CorruptCheckpoint for a file that is no export.

    Example:
        A test in which exported runs of production have to fit the code::

            @pytest.mark.anyio
            async def test_old_runs_continue() -> None:
                checked = await check_runs(app, journals="tests/journals")
                assert checked.all_fit, checked
    """
    known = app.checkpoints if checkpoints is None else checkpoints
    if journals is not None:
        from effectflow.stores import MemoryStore

        known = replace(known, store=MemoryStore())
    checked = Checked()
    async with known.store, app.opened_environment(known) as env:
        check = _Check(app, known, env, effects)
        names = None if workflows is None else _all_names(app, workflows)
        found = check.stored(names) if journals is None else check.exported(journals, names)
        async for run_id, misfit in found:
            checked.add(run_id, misfit)
            await anyio.lowlevel.checkpoint()
    return checked


def _all_names(app: App[Any], workflows: Collection[str]) -> frozenset[str]:
    """Return the names under which the runs of these workflows are recorded."""
    known = (app.workflows[name].blueprint.names for name in workflows if name in app.workflows)
    return frozenset(workflows).union(*known)


_Found: TypeAlias = AsyncGenerator[tuple[str, Misfit | None]]


@dataclass(frozen=True, slots=True)
class _Check:
    """One check of the runs of these checkpoints. The attributes are the parameters of `check_runs`."""

    app: App[Any]
    checkpoints: Checkpoints
    env: Any
    effects: bool

    async def stored(self, workflows: Collection[str] | None) -> _Found:
        """Yield the unfinished runs of the store, and why they do not pass."""
        store = self.checkpoints.store
        for name in [None] if workflows is None else sorted(workflows):
            query = RunQuery(workflow=name, statuses=_UNFINISHED, limit=_PAGE)
            while page := await store.find(query):
                for info in page:
                    try:
                        yield info.run_id, await self.verdict(info.run_id, info.summary.workflow)
                    except RunNotFound:
                        # It has ended and was deleted meanwhile.
                        continue
                query = replace(query, after=page[-1].place)
        for run_id in await store.damaged_runs():
            yield run_id, Misfit("unverified", "?", "it cannot be read: see `effectflow verify`")

    async def exported(
        self, journals: Path | str | Iterable[Path | str], workflows: Collection[str] | None
    ) -> _Found:
        """Yield the runs of files, and why they do not pass."""
        store, given = self.checkpoints.store, journals
        for file in _files([given] if isinstance(given, str | Path) else given):
            with open_export(file) as lines:
                for run in read_exported(lines_of(lines, file)):
                    workflow = run.summary.workflow
                    if workflows is not None and workflow not in workflows:
                        continue
                    await import_run(store, _unfinished(run))
                    yield run.run_id, await self.verdict(run.run_id, workflow)
                    await store.delete(run.run_id)

    async def verdict(self, run_id: str, name: str) -> Misfit | None:
        """Return why a run does not pass; None if it does."""
        workflow = self.app.recorded.get(name)
        if workflow is None:
            known = ", ".join(sorted(self.app.workflows)) or "none"
            return Misfit("unknown", name, f"the App has no such workflow; it has: {known}")
        try:
            plan = await self._plan(workflow, run_id)
        except (RunNotFound, StoreUnavailable):
            raise
        except CheckpointError as error:
            is_changed = isinstance(error, CorruptCheckpoint) and not error.is_damaged
            if is_changed or isinstance(error, NotSerializable):
                return _diverging(name, error)
            return Misfit("unverified", name, error.problem.replace(f"run {run_id!r}", "it"))
        except Exception as raised:
            reason = f"the code raises {type(raised).__name__}: {safe_repr(raised)}"
            return Misfit("diverging", name, reason)
        if plan.problem is not None and not isinstance(plan.problem, OutcomeUnknown | RunNotFound):
            return _diverging(name, plan.problem)
        if plan.unverified:
            first = plan.unverified[0]
            return Misfit("unverified", name, f"{_general(first.step)!r}: {first.reason}")
        return None

    async def _plan(self, workflow: AnyWorkflow, run_id: str) -> ResumePlan:
        place = Place.of(workflow.blueprint, self.checkpoints, self.env, Scope(SystemClock()))
        return await plan_run(place, run_id, effects=self.effects, is_check=True)


def _diverging(workflow: str, problem: CheckpointError) -> Misfit:
    """Return a misfit with the operations that are recorded and reached."""
    match problem:
        case DefinitionChanged(recorded=str(recorded)) if recorded:
            was, now = _general(recorded), tuple(sorted({*map(_general, problem.reached)}))
            instead = f"{', '.join(map(repr, now))} is reached" if now else "the run ends before it"
            reason = f"{was!r} is recorded, and now {instead}"
            return Misfit("diverging", workflow, reason, was, now)
        case DefinitionChanged():
            return Misfit("diverging", workflow, "; ".join(problem.changes))
        case StepInputChanged():
            step = _general(problem.step)
            reason = f"{step!r} is recorded with {problem.recorded}, and now has {problem.current}"
            return Misfit("diverging", workflow, reason, step, (step,))
        case CorruptCheckpoint():
            reason = problem.reason.removesuffix(f". {CLASS_CHANGED}")
            return Misfit("diverging", workflow, reason)
        case _:
            return Misfit("diverging", workflow, problem.problem)


def _general(path: str) -> str:
    """Return a path without what differs between runs: keys of branches, and numbers of occurrences."""
    return re.sub(r"\[[^\]]*\]|#\d+", lambda found: "[]" if found[0][0] == "[" else "", path)


def _files(places: Iterable[Path | str]) -> Iterator[Path]:
    """Yield the files that are given, and those of folders."""
    for place in map(Path, places):
        yield from sorted(place.rglob("*.jsonl")) if place.is_dir() else [place]


def _unfinished(run: ExportedRun) -> ExportedRun:
    """Return a run as it was before its end, so that a replay takes what it has recorded."""
    if not run.summary.status.has_ended:
        return run
    summary = replace(run.summary, status=RunStatus.INTERRUPTED)
    return replace(run, bodies=run.bodies[:-1], summary=summary)
