"""Find the workflow and the environment that a command names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from effectflow.checkpoint import Checkpoints
from effectflow.workflows import Workflow

__all__ = [
    "BadUse",
    "LoadedWorkflow",
    "PlainEnvironment",
    "load_workflow",
    "load_workflow_named",
    "read_input",
]

AnyWorkflow = Workflow[Any, Any, Any, Any]


class BadUse(Exception):
    """The command was given something that it cannot work with. The message says what to do."""


@dataclass(frozen=True, slots=True)
class PlainEnvironment:
    """The environment of a workflow whose module has no `environment` function of its own."""

    checkpoints: Checkpoints


@dataclass(frozen=True, slots=True)
class LoadedWorkflow:
    """A workflow, and the function that makes its environment around the checkpoints."""

    workflow: AnyWorkflow
    environment: Callable[[Checkpoints], Any]

    @asynccontextmanager
    async def opened_environment(self, checkpoints: Checkpoints) -> AsyncGenerator[Any]:
        """The environment, for as long as it is wanted.

        One that has to be closed again, as an executor has, is made by an async context manager, which
        is entered, and left.
        """
        made = self.environment(checkpoints)
        if isinstance(made, AbstractAsyncContextManager):
            async with cast("AbstractAsyncContextManager[Any]", made) as environment:
                yield environment
        else:
            yield made


def load_workflow(reference: str) -> LoadedWorkflow:
    """The workflow that `MODULE:NAME` means."""
    module_name, _, name = reference.partition(":")
    if not name:
        raise BadUse(f"{reference!r} should be MODULE:WORKFLOW, such as shop.orders:checkout")
    module = _import(module_name)
    found = _workflows_of(module).get(name)
    if found is None:
        known = ", ".join(sorted(_workflows_of(module))) or "none"
        raise BadUse(f"module {module_name!r} has no workflow {name!r}; it has: {known}")
    return LoadedWorkflow(found, _environment_of(module))


def load_workflow_named(app: str, name: str) -> LoadedWorkflow:
    """The workflow that a run belongs to by name, in the module, or `MODULE:WORKFLOW`, that was given."""
    if ":" in app:
        return load_workflow(app)
    module = _import(app)
    for found in _workflows_of(module).values():
        if found.name == name:
            return LoadedWorkflow(found, _environment_of(module))
    known = ", ".join(sorted(found.name for found in _workflows_of(module).values())) or "none"
    raise BadUse(f"module {app!r} has no workflow named {name!r}; it has: {known}")


def read_input(text: str) -> Any:
    """The JSON in `text`, or in the file that `@path` names."""
    if text.startswith("@"):
        try:
            source: bytes = Path(text[1:]).read_bytes()
        except OSError as error:
            raise BadUse(f"the input file {text[1:]!r} cannot be read: {error.strerror}") from error
    else:
        source = text.encode()
    try:
        return orjson.loads(source)
    except orjson.JSONDecodeError as error:
        excerpt = error.doc[max(0, error.pos - 20) : error.pos + 20]
        raise BadUse(
            f"the input is no JSON: {error.msg} at line {error.lineno}, column {error.colno}, "
            f"near {excerpt!r}"
        ) from error


def _import(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise BadUse(
            f"module {name!r} cannot be imported: {type(error).__name__}: {error}. "
            "It is looked for in the current folder and among the installed packages."
        ) from error


def _workflows_of(module: Any) -> dict[str, AnyWorkflow]:
    members = {name: getattr(module, name) for name in dir(module)}
    return {name: part for name, part in members.items() if isinstance(part, Workflow)}


def _environment_of(module: Any) -> Callable[[Checkpoints], Any]:
    return getattr(module, "environment", PlainEnvironment)
