"""`App`: the workflows of a service, their environment, and where it stores their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from effectflow.checkpoint import Checkpoints
from effectflow.checkpoint.store import Queue
from effectflow.effects.arguments import check_type, is_callable
from effectflow.effects.resources import Made
from effectflow.runs import Workflow
from effectflow.runs.environment import missing_in
from effectflow.runs.retention import Retention
from effectflow.service.environment import (
    AnyWorkflow,
    BadEnvironment,
    made_environment,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from effectflow.service.schedule import Schedule

Env = TypeVar("Env")


class App(Generic[Env]):
    """The workflows of a service, what makes their environment, and where it stores their runs.

    It starts nothing: pass it to a `Worker`, or to the commands with `--app module:app`.

    Attributes:
        workflows: the workflows by name.
        recorded: the same, also by their former names, under which old runs are recorded.
        environment: makes the environment.
        checkpoints: where and how to store the runs.
        schedules: what starts runs at certain times.
        retention: which ended runs its workers delete.
        queues: the queues with limits, by name.

    Example:
        >>> from dataclasses import dataclass
        >>> from effectflow import App, Checkpoints, Do, SqliteStore, sleep, workflow
        >>> @dataclass(frozen=True)
        ... class Shop:
        ...     checkpoints: Checkpoints
        >>> @workflow
        ... def remind(customer: str) -> Do[Shop, str, None]:
        ...     yield from sleep(86400)
        >>> app = App([remind], environment=Shop, checkpoints=Checkpoints(SqliteStore("runs.db")))
        >>> sorted(app.workflows)
        ['remind']
    """

    def __init__(
        self,
        workflows: Iterable[Workflow[Env, Any, Any, Any]],
        *,
        environment: Callable[[Checkpoints], Made[Env]],
        checkpoints: Checkpoints,
        schedules: Sequence[Schedule[Any]] = (),
        retention: Sequence[Retention] = (),
        queues: Sequence[Queue] = (),
    ) -> None:
        """Gather what a service needs.

        Parameters:
            workflows: the workflows that its workers drive, including spawned ones. If they ask for
                several protocols, tell pyright the environment: `App[Shop]([...], ...)`.
            environment: makes the environment from the checkpoints: a function, an async function, or one
                that returns a context manager or an async one. A worker calls it once, and closes the
                environment when it ends.
            checkpoints: where and how to store the runs.
            schedules: what starts runs at certain times.
            retention: rules by which its workers delete ended runs. A run is deleted if one of them does
                not keep it.
            queues: the limits of queues, and of workflows as queues, which its workers share. Give all
                apps on a store the same ones. A queue that is not among them has no limits.

        Raises ValueError for two workflows, schedules or queues with the same name, and for a schedule
        whose workflow is not among the workflows.
        """
        check_type(checkpoints, Checkpoints, "the checkpoints of an App are Checkpoints(store)")
        if not is_callable(environment):
            raise TypeError(
                "the environment of an App is a function that makes it from the checkpoints, not "
                f"{environment!r}: write environment=lambda checkpoints: ..."
            )
        self.workflows: Mapping[str, AnyWorkflow] = MappingProxyType(_by_name(workflows))
        self.recorded: Mapping[str, AnyWorkflow] = MappingProxyType(_by_alias(self.workflows))
        self.environment = environment
        self.checkpoints = checkpoints
        self.schedules: tuple[Schedule[Any], ...] = tuple(schedules)
        _check_schedules(self.schedules, self.workflows, checkpoints)
        self.retention: tuple[Retention, ...] = tuple(retention)
        for rule in self.retention:
            check_type(rule, Retention, "retention takes rules such as Retention(older_than=86400)")
        self.queues: Mapping[str, Queue] = MappingProxyType(_queues_by_name(queues))

    @asynccontextmanager
    async def opened_environment(
        self, checkpoints: Checkpoints | None = None
    ) -> AsyncGenerator[Env]:
        """Make the environment, and close it afterwards.

        Parameters:
            checkpoints: passed to the environment instead of the checkpoints of the app.

        Raises BadEnvironment if it cannot be made, or lacks what the annotation of a workflow asks for.
        """
        source = "`environment` of the App"
        given = self.checkpoints if checkpoints is None else checkpoints
        async with made_environment(self.environment, given, source) as environment:
            for workflow in self.workflows.values():
                missing = missing_in(environment, workflow.blueprint)
                if missing:
                    raise BadEnvironment(
                        f"workflow {workflow.name!r} needs an environment with {missing}: let "
                        f"`environment` of the App make one; it made {environment!r}"
                    )
            yield environment

    def __repr__(self) -> str:
        return f"<App of {', '.join(sorted(self.workflows)) or 'no workflows'}>"


def _by_name(workflows: Iterable[object]) -> dict[str, AnyWorkflow]:
    found: dict[str, AnyWorkflow] = {}
    given: object = workflows
    if isinstance(given, Workflow):
        raise TypeError(f"an App takes a list of workflows: write App([{given.name}], ...)")
    for workflow in workflows:
        if not isinstance(workflow, Workflow):
            raise TypeError(f"an App takes workflows, such as those of @workflow, not {workflow!r}")
        known = cast("AnyWorkflow", workflow)
        if known.name in found:
            raise ValueError(
                f"the App has two workflows named {known.name!r}, so a run could not tell "
                "which one it is of: give one of them another name"
            )
        found[known.name] = known
    return found


def _by_alias(workflows: Mapping[str, AnyWorkflow]) -> dict[str, AnyWorkflow]:
    """Return workflows by all of their names. Raise ValueError for a name of two of them."""
    found = dict(workflows)
    for workflow in workflows.values():
        for alias in workflow.aliases:
            if alias in found:
                raise ValueError(
                    f"{alias!r} is an alias of workflow {workflow.name!r} of the App, and a name of "
                    f"workflow {found[alias].name!r}, so a run could not tell which one it is of"
                )
            found[alias] = workflow
    return found


def _queues_by_name(queues: Sequence[Queue]) -> dict[str, Queue]:
    found: dict[str, Queue] = {}
    for queue in queues:
        check_type(queue, Queue, "the queues of an App are Queue(name, limit=...)")
        if queue.name in found:
            raise ValueError(
                f"the App has two queues named {queue.name!r}: give both limits to one"
            )
        found[queue.name] = queue
    return found


def _check_schedules(
    schedules: Sequence[Schedule[Any]],
    workflows: Mapping[str, AnyWorkflow],
    checkpoints: Checkpoints,
) -> None:
    names = [schedule.name for schedule in schedules]
    for schedule in schedules:
        if names.count(schedule.name) > 1:
            raise ValueError(f"the App has two schedules named {schedule.name!r}: give name=")
        if workflows.get(schedule.workflow.name) is not schedule.workflow:
            raise ValueError(
                f"schedule {schedule.name!r} starts workflow {schedule.workflow.name!r}, which is not "
                "among the workflows of the App: add it, so that a worker drives its runs"
            )
    if schedules and not checkpoints.preserve:
        raise ValueError(
            "schedules need Checkpoints(preserve=True): the run of a tick shows other workers that the "
            "tick was started"
        )
