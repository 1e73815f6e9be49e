"""`Workflow`: a name, a definition, and a function from an input to an effect that runs durably."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from effectflow.checkpoint.checkpoints import Checkpoints, HasCheckpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.values import KnownTypes, digest_of, to_tree
from effectflow.effects import Effect
from effectflow.effects.interpreter import interpret
from effectflow.effects.nodes import Failed, Perform
from effectflow.effects.scope import Scope
from effectflow.workflows.blueprint import Blueprint
from effectflow.workflows.durable_scope import durable_scope
from effectflow.workflows.linear import chain, input_type, step_of
from effectflow.workflows.migrations import Migration, check_migrations, is_of_outermost_flow
from effectflow.workflows.structuring import structure_as

if TYPE_CHECKING:
    # The modules that drive runs are imported with the first run.
    from effectflow.checkpoint.plan import ResumePlan
    from effectflow.workflows.driver import Place, Reopen

__all__ = ["Workflow"]

Env = TypeVar("Env", contravariant=True)
E = TypeVar("E", covariant=True)
Input = TypeVar("Input", contravariant=True)
Out = TypeVar("Out", covariant=True)

Env2 = TypeVar("Env2", bound=HasCheckpoints)
E2 = TypeVar("E2")
Input2 = TypeVar("Input2")
Out2 = TypeVar("Out2")
S = TypeVar("S")


class Workflow(Generic[Env, E, Input, Out]):
    """Durable work, with one journal for each run. A run is started once, and resumed until complete.

    Create one with `@workflow` or `Workflow.of_steps`, or with the builders `StateMachine`,
    `StateGraph`, `MapReduce` and `Iterative`. Its methods return effects. Those that start, resume or
    plan runs need an environment with `checkpoints`.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint

    @staticmethod
    def of_steps(
        name: str,
        steps: Sequence[Callable[[S], Effect[Env2, E2, S]]],
        *,
        version: str = "1",
        migrations: Mapping[int, Migration] | None = None,
    ) -> Workflow[Env2, E2, S, S]:
        """Return a workflow that passes a state through a list of named durable steps.

        Parameters:
            name: the workflow's name.
            steps: functions from a state to an effect that yields the next state. A plain function
                becomes a step with its name; its annotations declare the classes of the state.
            version: change it when a code change matters to runs in progress.
            migrations: for each earlier version, a pure function from a state that it saved, as plain
                data, to that of the next version. It receives the input and the output of a run, and the
                outputs of these steps. Runs of those versions then continue, upgraded.

        Raises ValueError if there are no steps, two have one name, or a migration is missing.
        """
        parts = [step_of(part) for part in steps]
        names = [part.name for part in parts]
        if not names:
            raise ValueError(f"workflow {name!r} has no steps")
        twice = sorted({part for part in names if names.count(part) > 1})
        if twice:
            raise ValueError(f"workflow {name!r} has two steps named {', '.join(twice)}")
        check_migrations(name, version, migrations or {})
        types = KnownTypes.of(*(annotation for part in parts for annotation in part.annotations))
        definition = Definition(name, version, "standard", tuple(names))
        return Workflow(
            Blueprint(
                define=lambda: definition,
                body=lambda state: chain(parts, state),
                input_type=input_type(parts[0].step.function),
                input_types=types,
                output_types=types,
                migrations=migrations or {},
                gives_state=is_of_outermost_flow,
            )
        )

    @property
    def name(self) -> str:
        """The name of the workflow in stores and commands."""
        return self._blueprint.definition.name

    @property
    def version(self) -> str:
        """The version, as its author declared it."""
        return self._blueprint.definition.version

    @property
    def kind(self) -> str:
        """The builder that created it: "standard" for code and lists of steps, "machine", "graph",
        "mapreduce" or "iterative".
        """
        return self._blueprint.definition.kind

    @property
    def definition(self) -> Definition:
        """The name, version, kind and steps, as a resume compares them."""
        return self._blueprint.definition

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change when the definition does."""
        return self.definition.fingerprint

    @property
    def blueprint(self) -> Blueprint:
        """Everything that is needed to run it, for builders that embed it in another workflow."""
        return self._blueprint

    def body(self, input: Input) -> Effect[Env, E, Out]:
        """Return the work itself as an effect: durable within the run of another workflow, plain outside.

        Use it to embed a workflow in another one, or to run it without a store. Within a step of another
        workflow, its own steps are recorded, at paths below the path of that step.
        """
        return durable_scope(self._blueprint.body(input), ("body", self.name))

    def start(
        self: Workflow[Env2, E2, Input2, Out2],
        input: Input2,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
    ) -> Effect[Env2, E2 | CheckpointError, Out2]:
        """Run the workflow durably and yield its output.

        With the id of an existing run and the same input, that run continues. If it is complete, its
        recorded output is yielded, also while a complete run is continued (as by
        `MapReduce.retry_dead_letters`) until that succeeds.

        Parameters:
            input: the input of the body. It is durable before the body runs.
            run_id: the id of the run; a random one by default.
            context: plain data to keep with the run (tenant, user, trace id), for `run_context`. A
                nested run inherits the context of the outer run. A run that continues keeps its
                context.

        Fails with the workflow's own errors, with RunConflict if the id belongs to another workflow or
        input, with RunBusy if another process drives the run, and with the other CheckpointErrors.
        """

        async def perform(place: Place) -> Any:
            from effectflow.workflows.driver import new_run_id, start_run
            from effectflow.workflows.nested import run_nested

            async def drive(place: Place, run_id: str) -> Any:
                return await start_run(
                    place,
                    input,
                    run_id=run_id,
                    is_new=is_new,
                    context=place.scope.context if context is None else context,
                )

            if place.is_nested:
                is_new = False
                digest = self._input_digest(input)
                return await run_nested(place, run_id=run_id, input_digest=digest, drive=drive)
            # A new id for each run of this effect: run twice, it starts two runs.
            is_new = run_id is None
            return await drive(place, new_run_id(self.name) if run_id is None else run_id)

        return self._durably(perform, ("start", input))

    def call(
        self: Workflow[Env2, E2, Input2, Out2], input: Input2, *, run_id: str | None = None
    ) -> Effect[Env2, E2, Out2]:
        """Run the workflow as a nested run of the current durable run; see `start`.

        It fails only with the workflow's own errors. A CheckpointError of the nested run halts the outer
        run as well, and cannot be handled. A resume of the outer run continues both.

        Parameters:
            input: the input of the body.
            run_id: the id of the nested run; by default made from the outer run's id and the path, so
                that a resume finds it again.

        Outside a durable run it ends in a TypeError: use `start` there.
        """

        async def perform(place: Place) -> Any:
            if not place.is_nested:
                raise TypeError(
                    f"call() runs {self.name!r} within a durable run, and none is around: use start()"
                )
            return await interpret(self.start(input, run_id=run_id), place.env, place.scope)

        return self._durably(perform, ("call", input))

    def resume(
        self: Workflow[Env2, E2, Any, Out2], run_id: str, *, force: bool = False
    ) -> Effect[Env2, E2 | CheckpointError, Out2]:
        """Continue a run and yield its output.

        Completed steps are not run again. A complete run yields its recorded output.

        Parameters:
            run_id: the run.
            force: continue although the workflow changed, or although the outcome of an at-most-once
                step is unknown (the step then runs again).

        Fails with the workflow's own errors, with RunNotFound, RunBusy, DefinitionChanged,
        OutcomeUnknown, StepInputChanged, and the other CheckpointErrors.
        """

        return self._take_up(run_id, force=force)

    def _take_up(
        self, run_id: str, *, force: bool, reopen: Reopen | None = None
    ) -> Effect[Any, Any, Any]:
        async def perform(place: Place) -> Any:
            from effectflow.workflows.driver import resume_run
            from effectflow.workflows.nested import run_nested

            async def drive(place: Place, run_id: str) -> Any:
                return await resume_run(place, run_id=run_id, force=force, reopen=reopen)

            if place.is_nested:
                return await run_nested(place, run_id=run_id, input_digest="", drive=drive)
            return await drive(place, run_id)

        return self._durably(perform, ("resume", run_id))

    def plan(
        self: Workflow[Env2, Any, Any, Any], run_id: str, *, effects: bool = False
    ) -> Effect[Env2, CheckpointError, ResumePlan]:
        """Yield what `resume(run_id)` would do, without changing anything.

        It replays the run up to the next step of every flow. It runs bodies and synchronous effects
        between steps, but no steps, acquisitions, releases, finalizers or asynchronous effects. Recorded
        steps that it cannot reach without those are `unverified`.

        Parameters:
            run_id: the run.
            effects: run all effects between steps, including acquisitions and finalizers.

        Fails with RunNotFound, RunConflict or CorruptCheckpoint.
        """

        async def perform(place: Place) -> ResumePlan:
            from effectflow.workflows.driver import plan_run

            return await plan_run(place, run_id, effects=effects)

        return self._durably(perform, ("plan", run_id))

    def _input_digest(self, input: object) -> str:
        return digest_of(to_tree(input, path="input: $", types=self._blueprint.input_types))

    def _durably(
        self, perform: Callable[[Place], Awaitable[Any]], shown: tuple[object, ...]
    ) -> Effect[Any, Any, Any]:
        """Return an effect that performs this with the checkpoints of its environment."""

        async def run(env: Any, scope: Scope) -> Any:
            from effectflow.workflows.driver import Place

            checkpoints = getattr(env, "checkpoints", None)
            if not isinstance(checkpoints, Checkpoints):
                raise TypeError(
                    "a durable run needs an environment with an attribute `checkpoints`, such as "
                    f"Checkpoints(SqliteStore('runs.db')); this one is {type(env).__name__}"
                )
            place = Place(self._blueprint, checkpoints, env, scope)
            try:
                # A store that is not open is opened for this, and closed afterwards.
                async with checkpoints.store:
                    return await perform(place)
            except CheckpointError as error:
                if place.is_nested:
                    raise place.halt_around(error) from error
                return Failed(error)

        return Perform(run, (f"{self.name}.{shown[0]}", *shown[1:]))

    def structure_input(self, data: object) -> Any:
        """Return the input that plain data, such as parsed JSON, represents, as the type of the input.

        Raises ValueError if the data does not fit that type.
        """
        return structure_as(self._blueprint.input_type, data)

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r} version {self.version!r}>"
