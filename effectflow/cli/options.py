"""The options that many commands take."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["STORE", "AppOption", "JsonOption", "RunArgument", "StoreOption"]

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="EFFECTFLOW_STORE",
        help="Where runs are kept, such as sqlite:///runs.db.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AppOption = Annotated[
    str | None, typer.Option("--app", help="The module, or MODULE:WORKFLOW, of the run's workflow.")
]
RunArgument = Annotated[str, typer.Argument(help="The run's id, as `effectflow list` shows it.")]

STORE = "sqlite:///effectflow.db"
