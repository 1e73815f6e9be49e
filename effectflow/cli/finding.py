"""The workflow that a run belongs to."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from effectflow.checkpoint import Checkpoints, RunInfo
from effectflow.cli.census.metrics import FileMetrics, measure
from effectflow.cli.census.pipeline import census
from effectflow.cli.exits import ExitCode
from effectflow.cli.loading import LoadedWorkflow, load_workflow_named
from effectflow.cli.opening import bad_use, fail

__all__ = ["demo_workflow", "workflow_named", "workflow_of"]


@dataclasses.dataclass(frozen=True)
class DemoEnvironment:
    """The environment of `demo`: checkpoints, and the real way to measure a file."""

    checkpoints: Checkpoints

    def measure(self, folder: Path, name: str) -> FileMetrics:
        return measure(folder, name)


def demo_workflow() -> LoadedWorkflow:
    """The demonstration's own."""
    return LoadedWorkflow(census, DemoEnvironment)


def workflow_of(info: RunInfo, app: str | None) -> LoadedWorkflow:
    """That of a run which a store knows; `app` says where it is."""
    return workflow_named(info.summary.workflow, app)


def workflow_named(name: str, app: str | None) -> LoadedWorkflow:
    """The workflow of a run: from `--app`, or the demonstration's own. Stored names are not imported."""
    if app is None and name == census.name:
        return demo_workflow()
    if app is None:
        fail(
            ExitCode.BAD_USE,
            f"this is a run of workflow {name!r}: say where it is with --app MODULE",
        )
    with bad_use():
        return load_workflow_named(app, name)
