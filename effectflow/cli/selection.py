"""Commands that act on runs: on those with the given ids, or on all that the options find."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console

from effectflow.checkpoint import CheckpointError, RunInfo, StoreUnavailable, find_run
from effectflow.checkpoint.journal_reader import run_not_found
from effectflow.cli.access import Access
from effectflow.cli.command import Answer, command
from effectflow.cli.filters import FILTERS, check_is_known, left_out, read_filters
from effectflow.cli.options import BadUse, ExitCode, LatestOption, check_choice, report
from effectflow.cli.render import age, counted, print_json, say, say_lines
from effectflow.cli.suggestions import message_of
from effectflow.observe.run_filters import MOST_COUNTED, Counted, RunFilters
from effectflow.observe.statuses import shown_status

RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN_ID]...", help="The ids of the runs, as `list` shows them."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be done.", rich_help_panel="Runs")
]
YesOption = Annotated[
    bool,
    typer.Option("--yes", help="Do not ask, however many runs it is.", rich_help_panel="Runs"),
]

MOST_UNASKED = 10
"""A command acts on this many runs without asking."""

_ActOnRun: TypeAlias = Callable[..., Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Selection:
    """The runs of a command.

    Attributes:
        run_ids: their ids, if the user gave them.
        filters: what finds them otherwise.
        problems: why some runs could not be looked at.
    """

    access: Access
    run_ids: Sequence[str]
    filters: RunFilters | None
    problems: list[CheckpointError]

    @staticmethod
    async def of(
        access: Access, run_ids: Sequence[str] | None, latest: bool, options: Mapping[str, Any]
    ) -> Selection:
        """Return what the arguments and the options of a command select.

        Raise BadUse if they select nothing, for ids beside filters, and for an unknown workflow.
        """
        given = {name: value for name, value in options.items() if value}
        if given and (run_ids or latest):
            raise BadUse(f"give either the ids of runs or filters such as --{next(iter(given))}")
        if not given:
            check_choice(run_id=run_ids or None, latest=latest, status=None)
            ids = [*dict.fromkeys(run_ids or ())] or [await access.chosen(None, latest)]
            return Selection(access, ids, None, [])
        filters = read_filters(**given)
        await check_is_known(access.store, filters.query.workflow)
        return Selection(access, (), filters, [])

    async def runs(self) -> AsyncIterator[RunInfo | str]:
        """Yield each run, newest first; only the id of one that the user gave."""
        if self.filters is None:
            for run_id in self.run_ids:
                yield run_id
            return
        found = self.filters.runs(self.access.checkpoints, self.problems, now=time.time())
        async for info in found:
            yield info

    async def confirm(self, verb: str, *, yes: bool) -> None:
        """Ask whether to act on so many runs, if they are more than 10. Raise BadUse if not."""
        if yes:
            return
        if self.filters is None:
            confirm(verb, Counted(len(self.run_ids), False))
            return
        confirm(verb, await self.filters.count(self.access.checkpoints, now=time.time()))


def confirm(verb: str, count: Counted) -> None:
    """Ask whether to act on so many runs, if they are more than 10. Raise BadUse if not."""
    if count.number <= MOST_UNASKED:
        return
    many = f"more than {MOST_COUNTED:,} runs" if count.is_bounded else counted(count.number, "run")
    if not sys.stdin.isatty():
        raise BadUse(f"this would {verb} {many}: add --yes, or look at them first with --dry-run")
    try:
        is_confirmed = typer.confirm(f"{verb.capitalize()} {many}?", err=True)
    except typer.Abort:
        is_confirmed = False
    if not is_confirmed:
        raise BadUse("nothing was changed")


def command_on_runs(
    app_option: Any, *, verb: str, keys: bool = True
) -> Callable[[_ActOnRun], Callable[..., None]]:
    """Make a command that acts on each selected run of an async function that acts on one.

    The function gets an Access and the id of the run; its other parameters are options. Its answer is
    printed at once. What it raises is reported, and the command continues with the next run.

    Parameters:
        verb: what it does to a run, such as "cancel".
    """

    def decorate(act: _ActOnRun) -> Callable[..., None]:
        _, _, *own = inspect.signature(act, eval_str=True).parameters.values()

        @wraps(act)
        async def act_on_runs(access: Access, **values: Any) -> Answer:
            options = {name: values.pop(name) for name in FILTERS}
            selection = await Selection.of(
                access, values.pop("run_ids"), values.pop("latest"), options
            )
            dry_run, yes = values.pop("dry_run"), values.pop("yes")
            if dry_run:
                return await show_selected(selection, verb)
            await selection.confirm(verb, yes=yes)
            code = ExitCode.DONE
            async for run in selection.runs():
                run_id = run if isinstance(run, str) else run.run_id
                code = max(code, await _act_on(access, run_id, act, values))
            return ended(selection, code)

        shared = {"access": (Access, Parameter.empty), "run_ids": (RunsArgument, None)}
        after = {
            "latest": (LatestOption, False),
            **{name: (annotation, None) for name, annotation in FILTERS.items()},
            "dry_run": (DryRunOption, False),
            "yes": (YesOption, False),
        }
        options = {each.name: (each.annotation, each.default) for each in own}
        # `command` reads which options the function has.
        act_on_runs.__signature__ = Signature(  # type: ignore[attr-defined]
            [
                Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for name, (annotation, default) in {**shared, **options, **after}.items()
            ]
        )
        return command(app_option, keys=keys)(act_on_runs)

    return decorate


async def _act_on(
    access: Access, run_id: str, act: _ActOnRun, options: Mapping[str, Any]
) -> ExitCode:
    """Act on a run, and print what came of it."""
    try:
        answer = await act(access, run_id, **options)
    except StoreUnavailable:
        # It is the same for the other runs.
        raise
    except Exception as error:
        return reported(access, run_id, error)
    if access.as_json:
        print_json(answer.data, on_one_line=True)
    else:
        say_lines(answer.lines)
    say_lines(answer.problems, Console(stderr=True))
    return answer.code


def reported(access: Access, run_id: str, error: Exception) -> ExitCode:
    """Print why a command could not act on a run. Raise what no command expects."""
    code = report(error)
    if code is None:
        raise error
    if access.as_json:
        print_json({"run_id": run_id, "error": message_of(error)}, on_one_line=True)
    return code


async def show_selected(selection: Selection, verb: str) -> Answer:
    """Print each run that a command would act on."""
    access, now, count, code = selection.access, time.time(), 0, ExitCode.DONE
    async for run in selection.runs():
        info = await find_run(access.store, run) if isinstance(run, str) else run
        if info is None:
            code = reported(access, str(run), await run_not_found(access.store, str(run)))
            continue
        count += 1
        show_one(access, info, verb, now)
    answer = ended(selection, code)
    return Answer(None, [would(verb, count)], answer.problems, answer.code)


def show_one(access: Access, run: RunInfo, verb: str, now: float) -> None:
    """Print a run that a command would act on at `now`, in seconds since the epoch."""
    status, workflow = shown_status(run, now), run.summary.workflow
    if access.as_json:
        tree = {"run_id": run.run_id, "workflow": workflow, "status": status, "would": verb}
        print_json(tree, on_one_line=True)
    else:
        say(f"{run.run_id}  {workflow}, {status}, updated {age(now - run.updated_at)}")


def would(verb: str, count: int) -> str:
    """Return what a command with `--dry-run` would have done."""
    return f"This would {verb} {counted(count, 'run')}."


def ended(selection: Selection, code: ExitCode) -> Answer:
    """Return the answer of a command that has printed what it did to each run."""
    problems = left_out(selection.problems)
    return Answer(None, (), problems, max(code, ExitCode.CHECKPOINT_ERROR) if problems else code)
