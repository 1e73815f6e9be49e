"""Load the workflow that a command names, and the environment that its module makes."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effectflow.checkpoint import Checkpoints
from effectflow.cli import census
from effectflow.cli.options import BadUse
from effectflow.service.environment import (
    AnyWorkflow,
    BadEnvironment,
    PlainEnvironment,
    needs_of,
    opened_environment,
)
from effectflow.workflows import Workflow


@dataclass(frozen=True, slots=True)
class LoadedWorkflow:
    """A workflow, and what makes its environment.

    Attributes:
        workflow: the workflow.
        module: its module.
        environment: makes its environment; None if the module defines none.
    """

    workflow: AnyWorkflow
    module: str
    environment: Callable[[Checkpoints], Any] | None

    @asynccontextmanager
    async def opened_environment(self, checkpoints: Checkpoints) -> AsyncGenerator[Any]:
        """Make the environment: await an async function, and enter and leave a context manager.

        Raise BadEnvironment if it cannot be made.
        """
        if self.environment is None:
            yield PlainEnvironment(checkpoints)
            return
        source = f"`environment(checkpoints)` of module {self.module!r}"
        async with opened_environment(self.environment, checkpoints, source) as opened:
            yield opened

    def check_environment(self) -> None:
        """Raise BadEnvironment if there is no function that makes the environment, and one is needed."""
        names, declared = needs_of(self.workflow)
        if self.environment is None and names:
            raise BadEnvironment(
                f"module {self.module!r} has no function `environment(checkpoints)`, and workflow "
                f"{self.workflow.name!r} needs an environment with {', '.join(sorted(names))} "
                f"({declared}). Define the function in that module, and let it return the environment"
            )


def demo_workflow() -> LoadedWorkflow:
    """Return the workflow of `effectflow demo`."""
    return LoadedWorkflow(census.census, census.__name__, census.environment)


def load_workflow(reference: str) -> LoadedWorkflow:
    """Return the workflow at `MODULE:NAME`.

    Raise BadUse if there is none, and BadEnvironment if the module does not make what it needs.
    """
    module_name, _, name = reference.partition(":")
    if not (module_name and name):
        raise BadUse(f"{reference!r} should be MODULE:WORKFLOW, such as shop.orders:checkout")
    module = _import(module_name)
    return _pick(name, _workflows_of(module), module)


def workflow_of_run(
    run_id: str, workflow_name: str, app: str | None, module: str
) -> LoadedWorkflow:
    """Return the workflow of a run, given its recorded name and the option `--app`.

    Without `--app` only the demo is found: a `module` that a store holds is shown, and never imported.
    """
    if app is None:
        if is_demo(workflow_name, module):
            return demo_workflow()
        raise BadUse(f"run {run_id!r} is of workflow {workflow_name!r}: {app_hint(module)}")
    if ":" in app:
        return load_workflow(app)
    imported = _import(app)
    workflows = {found.name: found for found in _workflows_of(imported).values()}
    return _pick(workflow_name, workflows, imported)


def is_demo(workflow_name: str, module: str) -> bool:
    """Return whether a run is one of `effectflow demo`."""
    return (workflow_name, module) == (census.census.name, census.__name__)


def app_hint(module: str) -> str:
    """Return which `--app` to try, given the module that a run has recorded."""
    return f"try --app {shlex.quote(module)}" if module else "add --app MODULE"


def _workflows_of(module: Any) -> dict[str, AnyWorkflow]:
    members = {name: getattr(module, name) for name in dir(module)}
    return {name: member for name, member in members.items() if isinstance(member, Workflow)}


def _pick(name: str, workflows: Mapping[str, AnyWorkflow], module: Any) -> LoadedWorkflow:
    if name not in workflows:
        known = ", ".join(sorted(workflows)) or "none"
        raise BadUse(f"module {module.__name__!r} has no workflow {name!r}; it has: {known}")
    function = getattr(module, "environment", None)
    environment = function if callable(function) else None
    loaded = LoadedWorkflow(workflows[name], module.__name__, environment)
    loaded.check_environment()
    return loaded


def _import(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    named = "give the name of a module, such as shop.orders for the file shop/orders.py"
    if not all(part.isidentifier() for part in name.split(".")):
        raise BadUse(f"{name!r} cannot be imported: {named}")
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        hint = f". Without .py: {named}" if name.endswith(".py") else ""
        raise BadUse(
            f"cannot import module {name!r} from the current folder or the installed packages: "
            f"{type(error).__name__}: {error}{hint}"
        ) from error
