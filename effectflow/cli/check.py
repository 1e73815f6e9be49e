"""`effectflow check`: whether code fits the runs that it will have to continue."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from effectflow.cli.access import Access
from effectflow.cli.app_loader import app_of_runs, app_of_workflows
from effectflow.cli.command import Answer, command
from effectflow.cli.options import BadUse, ExitCode
from effectflow.cli.render import fields_of
from effectflow.service.app import App
from effectflow.service.check import check_runs


@command(None, must_exist=False)
def check(
    access: Access,
    code: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP",
            help="The App with the new code, such as shop.service:app; or a MODULE:WORKFLOW or a MODULE, "
            "whose runs are then checked.",
        ),
    ],
    journals: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Check exported runs in place of those in the store: a file of `export` or `archive`, "
            "or a folder of *.jsonl. Repeat it for several.",
        ),
    ] = None,
    workflow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Check only runs of this workflow. Repeat it for several."
        ),
    ] = None,
    effects: Annotated[
        bool,
        typer.Option(
            "--effects", help="Run the effects between steps, too, in an environment made for that."
        ),
    ] = False,
) -> Answer:
    """Replay all unfinished runs by the code of an App, and list those that it would not continue.

    It starts and changes nothing. `--store` names another store than that of the App. Exit with 4 if the
    code diverges from a run, if the App does not have its workflow, or if a check cannot tell.
    """
    app, workflows = app_of_runs(code), workflow
    if app is None:
        app = app_of_workflows(code, access.checkpoints)
        workflows = workflows or [*app.workflows]
    elif access.origin == "COMMANDLINE":
        app = _with_store_of(access, app)
    if not journals:
        replace(access, checkpoints=app.checkpoints).check_store()
    checking = partial(
        check_runs, app, journals=journals or None, workflows=workflows, effects=effects
    )
    try:
        checked = anyio.run(checking)
    except OSError as error:
        raise BadUse(f"cannot read {error.filename}: {error.strerror}") from error
    met = {one.workflow for one in checked.misfits}
    for name in workflow or ():
        if name not in app.recorded and name not in met:
            known = ", ".join(sorted(app.workflows)) or "none"
            raise BadUse(f"{code!r} has no workflow {name!r}, nor has a run here; it has: {known}")
    if journals and not checked.runs:
        raise BadUse(f"there are no exported runs in {', '.join(map(str, journals))}")
    return Answer(
        {
            "runs": checked.runs,
            "all_fit": checked.all_fit,
            "misfits": [fields_of(one) for one in checked.misfits],
        },
        checked.lines(),
        code=ExitCode.DONE if checked.all_fit else ExitCode.CHECKPOINT_ERROR,
    )


def _with_store_of(access: Access, app: App[Any]) -> App[Any]:
    """Return an App with its keys, codecs and the like, and the store and keys of the options."""
    given = access.checkpoints
    keys = {"key": given.key, "encryption": given.encryption}
    known = replace(
        app.checkpoints,
        store=given.store,
        **{name: key for name, key in keys.items() if key is not None},
    )
    return App(app.workflows.values(), environment=app.environment, checkpoints=known)
