"""Load the App or workflow that a command names, and its environment."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from effectflow.checkpoint import Checkpoints
from effectflow.cli import census
from effectflow.cli.options import BadUse
from effectflow.service.app import App
from effectflow.service.environment import (
    AnyWorkflow,
    BadEnvironment,
    PlainEnvironment,
    needs_of,
    opened_environment,
)
from effectflow.service.signal import Signal
from effectflow.workflows import Workflow


@dataclass(frozen=True, slots=True)
class LoadedWorkflow:
    """A workflow, and what makes its environment.

    Attributes:
        workflow: the workflow.
        module: the module that was imported.
        environment: makes its environment; None if the module defines none.
        app: the App that has the workflow, and makes its environment; None without one.
        found_at: where the App was found: `MODULE:APP`.
    """

    workflow: AnyWorkflow
    module: str
    environment: Callable[[Checkpoints], Any] | None = None
    app: App[Any] | None = None
    found_at: str = ""

    @property
    def to_start(self) -> AnyWorkflow:
        """The workflow. Its new runs record the App, which the commands suggest to users."""
        if self.app is None:
            return self.workflow
        return Workflow(replace(self.workflow.blueprint, module=self.found_at))

    @asynccontextmanager
    async def opened_environment(self, checkpoints: Checkpoints) -> AsyncGenerator[Any]:
        """Make the environment: await an async function, and enter and leave a context manager.

        Raise BadEnvironment if it cannot be made.
        """
        if self.app is not None:
            async with self.app.opened_environment(checkpoints) as opened:
                yield opened
            return
        if self.environment is None:
            yield PlainEnvironment(checkpoints)
            return
        source = f"`environment(checkpoints)` of module {self.module!r}"
        async with opened_environment(self.environment, checkpoints, source) as opened:
            yield opened

    def check_environment(self) -> None:
        """Raise BadEnvironment if the workflow needs an environment and no function makes it."""
        names, declared = needs_of(self.workflow)
        if self.environment is None and names:
            raise BadEnvironment(
                f"module {self.module!r} has no function `environment(checkpoints)`, and workflow "
                f"{self.workflow.name!r} needs an environment with {', '.join(sorted(names))} "
                f"({declared}). Define the function in that module, and let it return the environment; "
                "or give the MODULE:APP of an App that has the workflow"
            )


def demo_workflow() -> LoadedWorkflow:
    """Return the workflow of `effectflow demo`."""
    return LoadedWorkflow(census.census, census.__name__, census.environment)


def load_app(reference: str) -> App[Any]:
    """Return the App at `MODULE:NAME`. Raise BadUse if there is none."""
    app = find_app(reference)
    if app is None:
        raise BadUse(
            f"{reference!r} is not an App: give the MODULE:NAME of one, such as shop.service:app"
        )
    return app


def app_of_runs(reference: str) -> App[Any] | None:
    """Return the App at `MODULE:NAME`, which says where its runs are; None if the module has no App.

    Raise BadUse if the module has one, and `reference` does not name it: its runs are in its own store.
    """
    app = find_app(reference)
    if app is None and _members(_import(reference.partition(":")[0]), App):
        return load_app(reference)
    return app


def find_app(reference: str) -> App[Any] | None:
    """Return the App at `MODULE:NAME`; None if that is a module, or a workflow in it.

    Raise BadUse if the module cannot be imported, or has neither an App nor a workflow of this name.
    """
    module_name, _, name = reference.partition(":")
    module = _import(module_name)
    if not name:
        return None
    found = getattr(module, name, None)
    if isinstance(found, App):
        return cast("App[Any]", found)
    if not isinstance(found, Workflow):
        known = ", ".join(sorted({**_members(module, App), **_members(module, Workflow)})) or "none"
        raise BadUse(f"module {module_name!r} has no App or workflow {name!r}; it has: {known}")
    return None


def load_signal(reference: str) -> Signal[Any]:
    """Return the signal at `MODULE:NAME`. Raise BadUse if there is none."""
    module_name, _, name = reference.partition(":")
    if not name:
        raise BadUse(f"{reference!r} should be MODULE:SIGNAL, such as shop.orders:approval")
    module = _import(module_name)
    found = getattr(module, name, None)
    if not isinstance(found, Signal):
        known = ", ".join(sorted(_members(module, Signal))) or "none"
        raise BadUse(f"module {module_name!r} has no signal {name!r}; it has: {known}")
    return cast("Signal[Any]", found)


def load_workflow(reference: str) -> LoadedWorkflow:
    """Return the workflow at `MODULE:NAME`.

    Raise BadUse if there is none, and BadEnvironment if the module does not make what it needs.
    """
    module_name, _, name = reference.partition(":")
    if not (module_name and name):
        raise BadUse(f"{reference!r} should be MODULE:WORKFLOW, such as shop.orders:checkout")
    module = _import(module_name)
    found = getattr(module, name, None)
    if isinstance(found, App):
        raise BadUse(
            f"{reference!r} is an App: give the name of its workflow, and --app {reference}"
        )
    if isinstance(found, Workflow):
        return _pick(name, {name: cast("AnyWorkflow", found)}, module)
    return _pick(name, _members(module, Workflow), module)


def workflow_named(name: str, app: str) -> LoadedWorkflow:
    """Return the workflow of this name that the option `--app` brings.

    Raise BadUse if there is none, and BadEnvironment if the module does not make what it needs.
    """
    service = find_app(app)
    if service is not None:
        if name not in service.workflows:
            known = ", ".join(sorted(service.workflows)) or "none"
            raise BadUse(f"the App {app!r} has no workflow {name!r}; it has: {known}")
        module_name = app.partition(":")[0]
        return LoadedWorkflow(service.workflows[name], module_name, app=service, found_at=app)
    if ":" in app:
        return load_workflow(app)
    imported = _import(app)
    workflows = {found.name: found for found in _members(imported, Workflow).values()}
    return _pick(name, workflows, imported)


def workflow_of_run(
    run_id: str, workflow_name: str, app: str | None, module: str
) -> LoadedWorkflow:
    """Return the workflow of a run, given its recorded name and the option `--app`.

    Without `--app`, find only the demo: a module name from a store is shown, but never imported.
    """
    if app is None:
        if is_demo(workflow_name, module):
            return demo_workflow()
        raise BadUse(f"run {run_id!r} is of workflow {workflow_name!r}: {app_hint(module)}")
    return workflow_named(workflow_name, app)


def workflow_names(app: str) -> frozenset[str] | None:
    """Return the names of the workflows that the option `--app` brings. Return None for a module."""
    service = find_app(app)
    if service is not None:
        return frozenset(service.workflows)
    return frozenset({load_workflow(app).workflow.name}) if ":" in app else None


def is_demo(workflow_name: str, module: str) -> bool:
    """Return whether `effectflow demo` started the run."""
    return (workflow_name, module) == (census.census.name, census.__name__)


def app_hint(module: str) -> str:
    """Return which `--app` to try, given the module that the run recorded."""
    return f"try --app {shlex.quote(module)}" if module else "add --app MODULE"


def _members(module: ModuleType, kind: type) -> dict[str, Any]:
    """Return what a module defines of this kind, without evaluating anything that is lazy."""
    # Not `isinstance`, which asks a proxy for its `__class__`.
    return {name: found for name, found in vars(module).items() if issubclass(type(found), kind)}


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
