"""Load the workflow that a command names, and the environment that its module makes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from effectflow.checkpoint import Checkpoints
from effectflow.cli import census
from effectflow.cli.options import BadUse
from effectflow.workflows import Workflow

AnyWorkflow = Workflow[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class PlainEnvironment:
    """The environment of a workflow whose module defines no `environment` function."""

    checkpoints: Checkpoints


@dataclass(frozen=True, slots=True)
class LoadedWorkflow:
    """A workflow, and the function that makes its environment from the checkpoints."""

    workflow: AnyWorkflow
    environment: Callable[[Checkpoints], Any]

    @asynccontextmanager
    async def opened_environment(self, checkpoints: Checkpoints) -> AsyncGenerator[Any]:
        """Make the environment; enter and leave it if it is an async context manager."""
        made = self.environment(checkpoints)
        if isinstance(made, AbstractAsyncContextManager):
            async with cast("AbstractAsyncContextManager[Any]", made) as environment:
                yield environment
        else:
            yield made


def demo_workflow() -> LoadedWorkflow:
    """Return the workflow of `effectflow demo`."""
    return LoadedWorkflow(census.census, census.environment)


def load_workflow(reference: str) -> LoadedWorkflow:
    """Return the workflow at `MODULE:NAME`. Raise BadUse if there is none."""
    module_name, _, name = reference.partition(":")
    if not name:
        raise BadUse(f"{reference!r} should be MODULE:WORKFLOW, such as shop.orders:checkout")
    module = _import(module_name)
    return _pick(name, _workflows_of(module), module)


def workflow_of_run(workflow_name: str, app: str | None) -> LoadedWorkflow:
    """Return the workflow of a run, given its recorded name and the option `--app`.

    Without `--app` only the demo is found: a name that a store holds is never imported.
    """
    if app is None:
        if workflow_name == census.census.name:
            return demo_workflow()
        raise BadUse(f"the run belongs to workflow {workflow_name!r}: add --app MODULE")
    if ":" in app:
        return load_workflow(app)
    module = _import(app)
    workflows = {found.name: found for found in _workflows_of(module).values()}
    return _pick(workflow_name, workflows, module)


def _workflows_of(module: Any) -> dict[str, AnyWorkflow]:
    members = {name: getattr(module, name) for name in dir(module)}
    return {name: member for name, member in members.items() if isinstance(member, Workflow)}


def _pick(name: str, workflows: Mapping[str, AnyWorkflow], module: Any) -> LoadedWorkflow:
    if name not in workflows:
        known = ", ".join(sorted(workflows)) or "none"
        raise BadUse(f"module {module.__name__!r} has no workflow {name!r}; it has: {known}")
    return LoadedWorkflow(workflows[name], getattr(module, "environment", PlainEnvironment))


def _import(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise BadUse(
            f"cannot import module {name!r} from the current folder or the installed packages: "
            f"{type(error).__name__}: {error}"
        ) from error
