"""The options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["STORE", "AppOption", "JsonOption", "RunArgument", "StoreOption"]

STORE = "sqlite:///effectflow.db"

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="EFFECTFLOW_STORE",
        help="The store of the runs, such as sqlite:///runs.db.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AppOption = Annotated[
    str | None,
    typer.Option("--app", help="The MODULE or MODULE:WORKFLOW that defines the run's workflow."),
]
RunArgument = Annotated[
    str, typer.Argument(help="The id of the run, as `effectflow list` shows it.")
]
