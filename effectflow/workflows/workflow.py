"""`Workflow`: a name, a definition, and a body from an input to an effect, run durably."""

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
    # What drives runs is imported with the first one.
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
    """Durable work: started once, resumed as often as it takes, with one journal for each run.

    Make one with `@workflow` or `Workflow.of_steps`, or as one of the builders `StateMachine`,
    `StateGraph`, `MapReduce` and `Iterative`. Its methods are effects; those that start, resume or plan
    runs need an environment with `checkpoints`.
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
        """A workflow that passes a state through a list of named steps, each durable.

        Parameters:
            name: the workflow's name.
            steps: functions from a state to an effect that yields the next one. A plain function is
                made a step of its own name; its annotations say what the state is made of.
            version: change it when a change of the code matters to runs that are under way.
            migrations: for each earlier version, a pure function from a state that it saved, as plain
                data, to that of the next version. It is given the input and the output of a run, and
                the outputs of these steps. Runs of those versions then go on, upgraded.

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
        """What the workflow is called in stores and commands."""
        return self._blueprint.definition.name

    @property
    def version(self) -> str:
        """The version that its author gave it."""
        return self._blueprint.definition.version

    @property
    def kind(self) -> str:
        """Which builder made it: "standard" for code and lists of steps, or else "machine", "graph",
        "mapreduce" or "iterative".
        """
        return self._blueprint.definition.kind

    @property
    def definition(self) -> Definition:
        """Name, version, kind and steps, as a resume compares them."""
        return self._blueprint.definition

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change when the definition does."""
        return self.definition.fingerprint

    @property
    def blueprint(self) -> Blueprint:
        """All that is needed to run it, for builders that make it part of another workflow."""
        return self._blueprint

    def body(self, input: Input) -> Effect[Env, E, Out]:
        """The work itself, as an effect: durable within the run of another workflow, plain outside.

        This is how a workflow becomes part of another one, and how it is run without any store. Within
        a step of another workflow its own steps are recorded, at paths within that step's.
        """
        return durable_scope(self._blueprint.body(input), ("body", self.name))

    def start(
        self: Workflow[Env2, E2, Input2, Out2],
        input: Input2,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
    ) -> Effect[Env2, E2 | CheckpointError, Out2]:
        """Run the workflow on an input, durably, and yield its output.

        With the id of a run that exists and has the same input, that run is continued; if it is
        complete, its recorded output is yielded. What a complete run gave is its answer here also while
        it is made to go on (as `MapReduce.retry_dead_letters` does), until that has succeeded.

        Parameters:
            input: what the body gets. It is saved before the body runs.
            run_id: names the run; made up if not given.
            context: plain data to keep with the run (tenant, user, trace id), for `run_context`; that
                of the run around this effect, if there is one, by default. A run that is continued
                keeps the context that it was started with.

        Fails with the workflow's own errors; with RunConflict if the id belongs to another workflow
        or input, RunBusy if another process drives the run, and the other CheckpointErrors.
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
            # Made up anew each time: one effect, run twice, starts two runs.
            is_new = run_id is None
            return await drive(place, new_run_id(self.name) if run_id is None else run_id)

        return self._durably(perform, ("start", input))

    def call(
        self: Workflow[Env2, E2, Input2, Out2], input: Input2, *, run_id: str | None = None
    ) -> Effect[Env2, E2, Out2]:
        """Run the workflow as a run within the durable run around it; see `start`.

        It fails with the workflow's own errors only. Trouble of its checkpoints is not a failure that a
        body could handle: it halts the run around as well, and a resume of that continues both.

        Parameters:
            input: what the body gets.
            run_id: names the run; made of the id of the run around and the path if not given, so that a
                resume finds it again.

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
        """Take up a run where it stood, and yield its output.

        Completed steps are not run again; of a complete run the recorded output is yielded.

        Parameters:
            run_id: the run.
            force: go on although the definition has changed, or although nobody knows whether an
                at-most-once step happened (it is then run again).

        Fails with the workflow's own errors; with RunNotFound, RunBusy, DefinitionChanged,
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
        """Yield what `resume(run_id)` would do. Changes nothing.

        It replays the run up to the next step of every flow. It runs bodies and synchronous effects
        between steps, but no step, acquisition, release, finalizer or asynchronous effect. Recorded steps
        that it cannot come to without those are `unverified`.

        Parameters:
            run_id: the run.
            effects: run those effects, too.

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
        """Return an effect that does this with the checkpoints of its environment."""

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
        """The input that plain data, such as parsed JSON, stands for: of the type that the body declares.

        Raises ValueError if the data does not fit that type.
        """
        return structure_as(self._blueprint.input_type, data)

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r} version {self.version!r}>"
