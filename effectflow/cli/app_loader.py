"""Load the App, workflow or signal that a command names, and the environment of a workflow."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, cast

from effectflow.checkpoint import Checkpoints
from effectflow.cli.options import BadUse
from effectflow.runs import Workflow
from effectflow.runs.environment import needs_of
from effectflow.service.app import App
from effectflow.service.environment import (
    AnyWorkflow,
    BadEnvironment,
    made_environment,
)
from effectflow.service.signal import Signal


@dataclass(frozen=True, slots=True)
class LoadedWorkflow:
    """A workflow, and what makes its environment.

    Attributes:
        workflow: the workflow.
        opened_environment: makes its environment, and closes it afterwards. It raises BadEnvironment if
            the environment cannot be made.
        found_at: the `MODULE:APP` of the App that has the workflow; "" without one.
    """

    workflow: AnyWorkflow
    opened_environment: Callable[[Checkpoints], AbstractAsyncContextManager[Any]]
    found_at: str = ""

    @property
    def to_start(self) -> AnyWorkflow:
        """The workflow. Its new runs record the App, which the commands suggest to users."""
        if not self.found_at:
            return self.workflow
        return Workflow(replace(self.workflow.blueprint, module=self.found_at))


@dataclass(frozen=True, slots=True)
class PlainEnvironment:
    """The environment of a workflow whose module defines no `environment` function."""

    checkpoints: Checkpoints

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the environment has only checkpoints, not {name!r}: define a function "
            "`environment(checkpoints)`, which returns it, in the module of the workflow"
        )


def demo_workflow() -> LoadedWorkflow:
    """Return the workflow of `effectflow demo`."""
    from effectflow.cli import census

    return _in_module(census.census.name, {census.census.name: census.census}, census)


def is_demo(workflow_name: str, module: str) -> bool:
    """Return whether `effectflow demo` started the run."""
    return (workflow_name, module) == ("census", "effectflow.cli.census")


def load_app(reference: str) -> App[Any]:
    """Return the App at `MODULE:NAME`. Raise BadUse if there is none."""
    app = find_app(reference)
    if app is None:
        module = reference.partition(":")[0]
        apps = [f"{module}:{name}" for name in sorted(_members(_import(module), App))]
        ways = f"try {' or '.join(apps)}" if apps else "give the MODULE:NAME of one"
        raise BadUse(f"{reference!r} is not an App: {ways}")
    return app


def find_app(reference: str) -> App[Any] | None:
    """Return the App at `MODULE:NAME`; None if that is a module, or a workflow in it.

    Raise BadUse if the module cannot be imported, or has neither an App nor a workflow of this name.
    """
    if ":" not in reference:
        _import(reference)
        return None
    found = _member(reference, "App or workflow", App, Workflow)
    return cast("App[Any]", found) if isinstance(found, App) else None


def app_of_runs(reference: str) -> App[Any] | None:
    """Return the App at `MODULE:NAME`, which says where its runs are; None if the module has no App.

    Raise BadUse if the module has one, and `reference` does not name it: its runs are in its own store.
    """
    app = find_app(reference)
    if app is None and _members(_import(reference.partition(":")[0]), App):
        return load_app(reference)
    return app


def app_of_workflows(reference: str, checkpoints: Checkpoints) -> App[Any]:
    """Return an App of the workflow at `MODULE:NAME`, or of those of a module, with these checkpoints.

    Raise BadUse if there are none, and BadEnvironment if the module does not make what they need.
    """
    module_name, _, name = reference.partition(":")
    module = _import(module_name)
    workflows = (
        [load_workflow(reference).workflow] if name else [*_members(module, Workflow).values()]
    )
    if not workflows:
        raise BadUse(f"module {module_name!r} has no workflow")
    make = _environment_of(module, *workflows)
    return App(dict.fromkeys(workflows), environment=make, checkpoints=checkpoints)


def load_signal(reference: str, app: str | None) -> Signal[Any]:
    """Return the signal at `MODULE:VARIABLE`; or of this name, from the modules that `--app` names.

    Raise BadUse if there is none, or if the modules have several of this name.
    """
    if reference.partition(":")[2]:
        return _member(reference, "signal", Signal)
    if app is None:
        raise BadUse(
            f"--app says where signal {reference!r} is defined; or give MODULE:VARIABLE, such as "
            "shop.orders:approval"
        )
    modules = [app.partition(":")[0]]
    if service := find_app(app):
        modules += [each.blueprint.module for each in service.workflows.values()]
    found = {
        id(signal): (signal, f"{module}:{variable}")
        for module in dict.fromkeys(modules)
        if module
        for variable, signal in _members(_import(module), Signal).items()
    }
    matching = [(signal, at) for signal, at in found.values() if signal.name == reference]
    if len(matching) == 1:
        return matching[0][0]
    if matching:
        raise BadUse(
            f"several signals have the name {reference!r}: give one of "
            f"{_listed(at for _, at in matching)}"
        )
    names = _listed({signal.name for signal, _ in found.values()})
    raise BadUse(
        f"no module of the workflows of {app!r} has a signal {reference!r}; they have: {names}. "
        "MODULE:VARIABLE names one in another module"
    )


def load_workflow(reference: str) -> LoadedWorkflow:
    """Return the workflow at `MODULE:NAME`.

    Raise BadUse if there is none, and BadEnvironment if the module does not make what it needs.
    """
    found = find_workflow(reference)
    module_name, _, name = reference.partition(":")
    return _in_module(name, {name: found}, _import(module_name))


def find_workflow(reference: str) -> AnyWorkflow:
    """Return the workflow at `MODULE:NAME`. Raise BadUse if there is none."""
    module_name, _, name = reference.partition(":")
    if not (module_name and name):
        raise BadUse(f"{reference!r} should be MODULE:WORKFLOW, such as shop.orders:checkout")
    if isinstance(getattr(_import(module_name), name, None), App):
        raise BadUse(
            f"{reference!r} is an App: give the name of its workflow, and --app {reference}"
        )
    return cast("AnyWorkflow", _member(reference, "workflow", Workflow))


def workflow_named(name: str, app: str) -> LoadedWorkflow:
    """Return the workflow of this name that the option `--app` brings.

    Raise BadUse if there is none, and BadEnvironment if the module does not make what it needs.
    """
    service = find_app(app)
    if service is not None:
        if name not in service.recorded:
            known = _listed(service.workflows)
            if (own := name.rpartition(":")[2]) in service.workflows:
                raise BadUse(f"with the App {app!r}, give only the name of its workflow: {own}")
            raise BadUse(f"the App {app!r} has no workflow {name!r}; it has: {known}")
        return LoadedWorkflow(service.recorded[name], service.opened_environment, app)
    if ":" in app:
        return load_workflow(app)
    module = _import(app)
    members = _members(module, Workflow).values()
    workflows = {name: found for found in members for name in found.blueprint.names}
    return _in_module(name, workflows, module)


def workflow_of_run(
    run_id: str, workflow_name: str, app: str | None, module: str
) -> LoadedWorkflow:
    """Return the workflow of a run, given its recorded name and the option `--app`.

    Without `--app`, find only the demo: a module name from a store is shown, but never imported.
    """
    if app is not None:
        loaded = workflow_named(workflow_name, app)
        if workflow_name not in loaded.workflow.blueprint.names:
            found = loaded.workflow.name
            raise BadUse(
                f"run {run_id!r} is of workflow {workflow_name!r}, and {app!r} is workflow {found!r}: "
                f"{app_hint(module)}"
            )
        return loaded
    if is_demo(workflow_name, module):
        return demo_workflow()
    raise BadUse(f"run {run_id!r} is of workflow {workflow_name!r}: {app_hint(module)}")


def workflow_names(app: str) -> frozenset[str] | None:
    """Return the names of the workflows that the option `--app` brings. Return None for a module."""
    service = find_app(app)
    if service is not None:
        return frozenset(service.recorded)
    return frozenset(load_workflow(app).workflow.blueprint.names) if ":" in app else None


def app_hint(module: str) -> str:
    """Return which `--app` to try, given the module that the run recorded."""
    return f"try --app {shlex.quote(module)}" if module else "add --app MODULE"


def _in_module(
    name: str, workflows: Mapping[str, AnyWorkflow], module: ModuleType
) -> LoadedWorkflow:
    """Return one of the workflows of a module, with the environment that the module makes.

    Raise BadUse if there is none of this name, and BadEnvironment if it needs an environment and no
    function makes it.
    """
    if name not in workflows:
        apps = [f"{module.__name__}:{one}" for one in sorted(_members(module, App))]
        known = _listed(workflows) + (
            f". To use an App, name it: {' or '.join(apps)}" if apps else ""
        )
        raise BadUse(f"module {module.__name__!r} has no workflow {name!r}; it has: {known}")
    source = f"`environment(checkpoints)` of module {module.__name__!r}"
    make = _environment_of(module, workflows[name])
    return LoadedWorkflow(
        workflows[name], lambda checkpoints: made_environment(make, checkpoints, source)
    )


def _environment_of(module: ModuleType, *workflows: AnyWorkflow) -> Any:
    """Return what makes the environment of workflows of a module. Raise BadEnvironment for lack of it."""
    make: Any = getattr(module, "environment", None)
    if callable(make):
        return make
    for workflow in workflows:
        names, declared = needs_of(workflow.blueprint)
        if names:
            raise BadEnvironment(
                f"module {module.__name__!r} has no function `environment(checkpoints)`, and workflow "
                f"{workflow.name!r} needs an environment with {', '.join(sorted(names))} "
                f"({declared}). Define the function in that module, and let it return the environment; "
                "or give the MODULE:APP of an App that has the workflow"
            )
    return PlainEnvironment


def _member(reference: str, what: str, *kinds: type) -> Any:
    """Return the object of one of these kinds at `MODULE:NAME`. Raise BadUse if there is none."""
    module_name, _, name = reference.partition(":")
    module = _import(module_name)
    found = getattr(module, name, None)
    if isinstance(found, kinds):
        return found
    known = _listed(name for kind in kinds for name in _members(module, kind))
    raise BadUse(f"module {module_name!r} has no {what} {name!r}; it has: {known}")


def _members(module: ModuleType, kind: type) -> dict[str, Any]:
    """Return what a module defines of this kind, without evaluating anything that is lazy."""
    # Not `isinstance`, which asks a proxy for its `__class__`.
    return {name: found for name, found in vars(module).items() if issubclass(type(found), kind)}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _import(name: str) -> ModuleType:
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
