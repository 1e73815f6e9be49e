"""`Workflow`: a name, a definition, and a function from an input to an effect that runs durably."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, overload

from effectflow.checkpoint.checkpoints import Checkpoints, HasCheckpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.step import StepDefinition, durable
from effectflow.checkpoint.values import encode_arguments
from effectflow.effects import Effect, suspend
from effectflow.effects.arguments import START_A_WORKFLOW, mark_as_effectful
from effectflow.effects.fiber import PLAIN
from effectflow.effects.nodes import Options, Perform, Suspend
from effectflow.effects.paths import as_name
from effectflow.effects.scope import Scope
from effectflow.effects.trails import TypedFailure
from effectflow.runs.blueprint import KEPT, Blueprint, unchanged
from effectflow.runs.migrations import Migration
from effectflow.runs.run_ids import check_new_run_id
from effectflow.runs.step_list import blueprint_of_steps

if TYPE_CHECKING:
    # The modules that drive runs are imported with the first run.
    from effectflow.checkpoint.checkpoint import Checkpoint
    from effectflow.checkpoint.plan import ResumePlan
    from effectflow.runs.reopening import Reopening
    from effectflow.runs.stored_run import Place

Env = TypeVar("Env", contravariant=True)
E = TypeVar("E", covariant=True)
Input = TypeVar("Input", contravariant=True)
Out = TypeVar("Out", covariant=True)

Env2 = TypeVar("Env2", bound=HasCheckpoints)
E2 = TypeVar("E2")
Input2 = TypeVar("Input2")
Out2 = TypeVar("Out2")
S = TypeVar("S")


@cache
def _runs():  # typed by inference, as a module
    """Return the module that drives runs. An import statement in each run would take longer."""
    from effectflow.runs import start

    return start


class Workflow(Generic[Env, E, Input, Out]):
    """Durable work, with one journal for each run. A run is started once, and resumed until complete.

    Create one with `@workflow` or `Workflow.of_steps`, or with the builders `StateMachine`,
    `StateGraph`, `MapReduce` and `Iterative`. Its methods return effects. Those that start, resume or
    plan runs need an environment with `checkpoints`.
    """

    def __init__(self, blueprint: Blueprint, again: Callable[[], Blueprint] | None = None) -> None:
        self._blueprint = blueprint
        self._again = again
        mark_as_effectful(self, "workflow")

    @property
    def blueprint(self) -> Blueprint:
        """Everything that is needed to run it, for builders that embed it in another workflow."""
        if self._again is not None:
            known = self._blueprint
            if not (known.input_types.is_whole and known.output_types.is_whole):
                # Names that follow in the module exist when it is used.
                self._blueprint = replace(self._again(), module=known.module)
        return self._blueprint

    # Steps that need nothing come first, as in the overloads of `@workflow`.
    @overload
    @staticmethod
    def of_steps(
        name: str,
        steps: Sequence[Callable[[S], Effect[HasCheckpoints, E2, S]]],
        *,
        aliases: Sequence[str] = (),
        version: str = "1",
        migrations: Mapping[int, Migration] | None = None,
    ) -> Workflow[HasCheckpoints, E2, S, S]: ...
    @overload
    @staticmethod
    def of_steps(
        name: str,
        steps: Sequence[Callable[[S], Effect[Env2, E2, S]]],
        *,
        aliases: Sequence[str] = (),
        version: str = "1",
        migrations: Mapping[int, Migration] | None = None,
    ) -> Workflow[Env2, E2, S, S]: ...
    @staticmethod
    def of_steps(
        name: str,
        steps: Sequence[Callable[[S], Effect[Env2, E2, S]]],
        *,
        aliases: Sequence[str] = (),
        version: str = "1",
        migrations: Mapping[int, Migration] | None = None,
    ) -> Workflow[Env2, E2, S, S]:
        """Return a workflow that passes a state through a list of named durable steps.

        Parameters:
            name: the workflow's name.
            steps: functions from a state to an effect that yields the next state. A plain function
                becomes a step with its name; its annotations declare the classes of the state.
            aliases: the former names of a renamed workflow, the oldest first. It continues their runs.
            version: change it when a code change matters to runs in progress.
            migrations: for each earlier version, a pure function from a state that it saved, as plain
                data, to that of the next version. It receives the input and the output of a run, and the
                outputs of these steps. Runs of those versions then continue, upgraded.

        Raises ValueError if there are no steps, two have one name, or a migration is missing.
        """
        return Workflow(blueprint_of_steps(name, steps, version, migrations or {}, aliases))

    @property
    def name(self) -> str:
        """The name of the workflow in stores and commands."""
        return self.definition.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """The former names of the workflow, whose runs it continues."""
        return self.blueprint.aliases

    @property
    def version(self) -> str:
        """The version, as its author declared it."""
        return self.definition.version

    @property
    def kind(self) -> str:
        """The builder that created it: "standard" for code and lists of steps, "machine", "graph",
        "mapreduce" or "iterative".
        """
        return self.definition.kind

    @property
    def definition(self) -> Definition:
        """The name, version, kind and steps, as a resume compares them."""
        return self.blueprint.definition

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change when the definition does."""
        return self.definition.fingerprint

    def body(self, input: Input) -> Effect[Env, E, Out]:
        """Return the work itself as an effect: durable within the run of another workflow, plain outside.

        Use it to embed a workflow in another one, or to run it without a store. Within a step of another
        workflow, its own steps are recorded, at paths below the path of that step.
        """
        blueprint = self.blueprint
        saved = blueprint.save_input(input)
        work = Suspend(lambda _env, _scope: blueprint.body(saved), (f"{self.name}.body", saved))
        return work if blueprint.read_output is unchanged else work.map(blueprint.read_output)

    @overload
    def start(
        self: Workflow[Env2, E2, None, Out2],
        input: None = None,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        retry_failed: bool = True,
    ) -> Effect[Env2, E2 | CheckpointError, Out2]: ...
    @overload
    def start(
        self: Workflow[Env2, E2, Input2, Out2],
        input: Input2,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        retry_failed: bool = True,
    ) -> Effect[Env2, E2 | CheckpointError, Out2]: ...
    def start(
        self: Workflow[Env2, E2, Any, Out2],
        input: Any = None,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        retry_failed: bool = True,
    ) -> Effect[Env2, E2 | CheckpointError, Out2]:
        """Run the workflow durably and yield its output.

        With the id of an existing run and the same input, that run continues, even if it has failed. If
        it is complete, its recorded output is yielded, also while a complete run is continued (as by
        `retry_dead_letters`) until that succeeds.

        Parameters:
            input: the input of the body. It is durable before the body runs.
            run_id: the id of the run; a random one by default.
            context: plain data to keep with the run (tenant, user, trace id), for `run_context`. A run
                that continues keeps its context.
            retry_failed: whether a run that has failed continues. If not, it ends as it is recorded;
                see `result`.

        Fails with the workflow's own errors, with RunConflict if the id belongs to another workflow or
        input, with RunBusy if another process drives the run, and with the other CheckpointErrors. The
        trail of a failure, and the notes of an exception, name the run.

        Raises ValueError for an id that is empty, blank or has control characters, such as line breaks.
        """
        check_new_run_id(run_id)
        saved = self.blueprint.save_input(input)

        def perform(place: Place) -> Awaitable[Any]:
            return _runs().start_run(
                place, saved, run_id=run_id, context=context, retry_failed=retry_failed
            )

        shown = ("start", saved, Options(run_id=run_id, context=context))
        return self._durably(perform, shown, gives_output=True)

    @overload
    def call(
        self: Workflow[Env2, E2, None, Out2], input: None = None
    ) -> Effect[Env2, E2, Out2]: ...
    @overload
    def call(self: Workflow[Env2, E2, Input2, Out2], input: Input2) -> Effect[Env2, E2, Out2]: ...
    def call(self: Workflow[Env2, E2, Any, Out2], input: Any = None) -> Effect[Env2, E2, Out2]:
        """Run the body of the workflow within the current run, in its journal, as one step.

        The step has the name of the workflow, and contains the steps of the body. Once it is complete, a
        resume uses its recorded output. Outside of a durable run, the body just runs. For a run of its
        own, use `spawn`.
        """
        blueprint = self.blueprint
        saved = blueprint.save_input(input)
        definition = StepDefinition(
            *(as_name(self.name), blueprint.output_types),
            output=blueprint.output_type,
            was=tuple(map(as_name, blueprint.aliases)),
            is_body=True,
        )
        called = durable(
            definition,
            suspend(lambda: blueprint.body(saved)),
            partial(encode_arguments, {"input": saved}, path=definition.name),
            shown=(f"{self.name}.call", saved),
        )
        return called if blueprint.read_output is unchanged else called.map(blueprint.read_output)

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
        return self._take_up("resume", run_id, Options(force=force), force=force)

    def retry_dead_letters(
        self: Workflow[Env2, E2, Any, Out2],
        run_id: str,
        keys: Iterable[object] | None = None,
        *,
        force: bool = False,
    ) -> Effect[Env2, E2 | CheckpointError, Out2]:
        """Map the dead letters of the run's `MapReduce` jobs again, continue, and yield the new result.

        The groups that an item joins are reduced again, so the result is as if the item had succeeded at
        once. In a workflow with more than one job, everything that came after the job runs again as
        well, such as the later rounds of an `Iterative`, because it may depend on the result. Nothing
        else is repeated. Without such dead letters, this does what `resume` does.

        `resume`, or the same call again, continues a retry that was interrupted or failed. The run is
        not complete until the retry is, but meanwhile `start` yields the earlier result. A retry reads
        the source again, so it may fail. A run that was not preserved cannot be retried.

        Parameters:
            run_id: the run.
            keys: the keys of the items to retry; None for all dead letters.
            force: continue although the definition has changed, or although an at-most-once step would
                run again.

        Fails as `resume` does, also with OutcomeUnknown, changing nothing, if an at-most-once step that
        may have happened would run again. Raises ValueError for a key that never was one of a dead
        letter, and TypeError for an environment that lacks what the workflow declares.
        """
        return self._reopen(run_id, keys, drops=False, force=force)

    def drop_dead_letters(
        self: Workflow[Env2, E2, Any, Out2],
        run_id: str,
        keys: Iterable[object] | None = None,
        *,
        force: bool = False,
    ) -> Effect[Env2, E2 | CheckpointError, Out2]:
        """Drop the dead letters of the run's `MapReduce` jobs, and yield the new result.

        The items no longer count, neither in the result nor for `max_failures`. No item is mapped
        again; otherwise see `retry_dead_letters`.
        """
        return self._reopen(run_id, keys, drops=True, force=force)

    def _reopen(
        self, run_id: str, keys: Iterable[object] | None, *, drops: bool, force: bool
    ) -> Effect[Any, Any, Any]:
        from effectflow.runs.reopening import Reopening

        if isinstance(keys, str):
            raise TypeError(
                f"keys takes a list of keys, not the text {keys!r}: write keys=[{keys!r}]"
            )
        listed = None if keys is None else list(keys)
        chosen = None if listed is None else frozenset(map(str, listed))
        name = "drop_dead_letters" if drops else "retry_dead_letters"
        reopening = Reopening(chosen, drops, force)
        return self._take_up(
            name, run_id, Options(keys=listed, force=force), force=force, reopening=reopening
        )

    def _take_up(
        self,
        name: str,
        run_id: str,
        written: Options,
        *,
        force: bool,
        reopening: Reopening | None = None,
    ) -> Effect[Any, Any, Any]:
        async def perform(place: Place) -> Any:
            if reopening is not None:
                _check_environment(place, name)
            return await _runs().resume_run(place, run_id, force=force, reopening=reopening)

        return self._durably(perform, (name, run_id, written), gives_output=True)

    def result(
        self: Workflow[Any, E2, Any, Out2], run_id: str
    ) -> Effect[HasCheckpoints, E2 | CheckpointError, Out2]:
        """Yield the recorded output of a run that is complete, or fail with the error of one that failed.

        It runs nothing and changes nothing, so it needs only an environment with `checkpoints`. In a
        durable run, read the result of another one in a step, which records it.

        Parameters:
            run_id: the run, also one that another process has driven.

        Fails with the recorded error of the workflow, rebuilt as its class, and with NotSerializable if
        that is impossible; with RunNotEnded if the run has not ended, RunCancelled if it was cancelled,
        RunNotFound, RunConflict for a run of another workflow, and CorruptCheckpoint. A recorded defect
        is raised again, and one that cannot be rebuilt as a RecordedDefect.

        Example:
            >>> from dataclasses import dataclass
            >>> from typing import Never
            >>> from effectflow import Checkpoints, Effect, Workflow, pure
            >>> from effectflow.stores import MemoryStore
            >>> @dataclass
            ... class Env:
            ...     checkpoints: Checkpoints
            >>> def double(number: int) -> Effect[Env, Never, int]:
            ...     return pure(number * 2)
            >>> doubling = Workflow.of_steps("doubling", [double])
            >>> env = Env(Checkpoints(MemoryStore()))
            >>> doubling.start(4, run_id="four").run_sync(env)
            <Success: 8>
            >>> doubling.result("four").run_sync(env)
            <Success: 8>
        """

        async def perform(place: Place) -> Any:
            try:
                return await _runs().read_result(place, run_id)
            except CheckpointError as error:
                # Raised, it would halt a run around this, which only asks about another run.
                return TypedFailure(error)

        return self._durably(perform, ("result", run_id), gives_output=True)

    def plan(
        self: Workflow[Env2, Any, Any, Any], run_id: str, *, effects: bool = False
    ) -> Effect[Env2, CheckpointError, ResumePlan]:
        """Yield what `resume(run_id)` would do, without changing anything.

        It replays the run up to the next step of every branch. It runs bodies and synchronous effects
        between steps, but no steps, acquisitions, releases, finalizers or asynchronous effects. Recorded
        steps that it cannot reach without those are `unverified`.

        Parameters:
            run_id: the run.
            effects: run all effects between steps, including acquisitions and finalizers.

        Fails with RunNotFound, RunConflict or CorruptCheckpoint.
        """

        async def perform(place: Place) -> ResumePlan:
            from effectflow.runs.plan import plan_run

            return await plan_run(place, run_id, effects=effects)

        return self._durably(perform, ("plan", run_id, Options(effects=effects)))

    def complete_step(
        self: Workflow[Env2, Any, Any, Any],
        run_id: str,
        step: str,
        value: object,
        *,
        by: str | None = None,
        effects: bool = False,
    ) -> Effect[Env2, CheckpointError, None]:
        """Record that a step of a run has completed with this value, without executing it.

        Use it for an at-most-once step whose outcome is unknown, once you have found out that it
        happened, and for a step that cannot succeed, such as an undo whose work was done by hand. The
        step must have begun, and be what a resume would try again. The run is not continued here: the
        next worker takes it, or `resume` does. A process that drives the run must end first.

        Parameters:
            run_id: the run.
            step: the path of the step, as `history` shows it.
            value: what the step yields; it is checked against the declared type of the step.
            by: who gives it, for the journal; by default the user of this process and the host.
            effects: run all effects between steps to find the step; see `plan`.

        Fails with ChangeRejected if the step is not in progress; NotSerializable for a value of another
        type; RunNotFound, RunBusy, RunEnded, RunConflict, DefinitionChanged and CorruptCheckpoint. Then
        nothing was changed.

        Example:
            >>> from dataclasses import dataclass
            >>> from effectflow import Checkpoints, Do, step, workflow
            >>> from effectflow.stores import MemoryStore
            >>> @dataclass(frozen=True)
            ... class Shop:
            ...     checkpoints: Checkpoints
            >>> @step
            ... async def charge(amount: int) -> str:
            ...     raise ConnectionError("the bank does not answer")
            >>> @workflow
            ... def checkout(amount: int) -> Do[Shop, Exception, str]:
            ...     return (yield from charge(amount))
            >>> shop = Shop(Checkpoints(MemoryStore()))
            >>> try:
            ...     checkout.start(7, run_id="o1").run_sync(shop)
            ... except ConnectionError as error:
            ...     print(error)
            the bank does not answer
            >>> checkout.complete_step("o1", "charge", "paid in cash").run_sync(shop)
            <Success: None>
            >>> checkout.resume("o1").run_sync(shop)
            <Success: paid in cash>
        """
        return self._settle("complete_step", run_id, step, value, by=by, effects=effects)

    def fail_step(
        self: Workflow[Env2, Any, Any, Any],
        run_id: str,
        step: str,
        error: object,
        *,
        by: str | None = None,
        effects: bool = False,
    ) -> Effect[Env2, CheckpointError, None]:
        """Record that a step of a run has failed with this error, without executing it again.

        So the code of the workflow handles the failure, and its compensations run. The step is not
        attempted again. Otherwise, this is like `complete_step`.

        Parameters:
            error: the error, of a class that the step declares.
        """
        return self._settle("fail_step", run_id, step, error, by=by, effects=effects)

    def _settle(
        self, name: str, run_id: str, step: str, outcome: object, *, by: str | None, effects: bool
    ) -> Effect[Any, CheckpointError, None]:
        async def perform(place: Place) -> None:
            from effectflow.runs.control import asker
            from effectflow.runs.settling import Settlement, settle_step

            is_failure = name == "fail_step"
            settlement = Settlement(step, lambda _definition: outcome, is_failure, by or asker())
            await settle_step(place, run_id, settlement, effects=effects)

        return self._durably(
            perform, (name, run_id, step, outcome, Options(by=by, effects=effects))
        )

    @overload
    def fork(
        self: Workflow[Env2, Any, Any, Any],
        run_id: str,
        *,
        at: int | str | None = None,
        changes: Mapping[str, object] | None = None,
        new_run_id: str | None = None,
        by: str | None = None,
        effects: bool = False,
    ) -> Effect[Env2, CheckpointError, str]: ...
    @overload
    def fork(
        self: Workflow[Env2, Any, Input2, Any],
        run_id: str,
        *,
        input: Input2,
        new_run_id: str | None = None,
        by: str | None = None,
    ) -> Effect[Env2, CheckpointError, str]: ...
    def fork(
        self: Workflow[Env2, Any, Any, Any],
        run_id: str,
        *,
        at: int | str | None = None,
        changes: Mapping[str, object] | None = None,
        input: Any = KEPT,
        new_run_id: str | None = None,
        by: str | None = None,
        effects: bool = False,
    ) -> Effect[Env2, CheckpointError, str]:
        """Make a new run from the beginning of another one, and yield its id. The other run stays.

        What the other run has recorded up to there counts in the new one, and nothing of it is executed
        again: neither its steps, nor what they did elsewhere. The new run executes the rest. The next
        worker takes it, or `resume` does. Steps in it have other idempotency keys. `show` tells where it
        comes from.

        Parameters:
            run_id: the run to begin with, in any state.
            at: the number of an entry: everything up to it counts. Or the path of a step, which the new
                run executes again. By default, the last entry of the `changes`; without any, the first
                entry, so that everything is executed again.
            changes: other outputs of completed steps, by their paths; checked against their types.
            input: another input. The new run begins anew.
            new_run_id: the id of the new run; a random one by default.
            by: who makes it, for the journal; by default the user of this process and the host.
            effects: run all effects between steps, to reach the steps; see `plan`.

        Fails with ChangeRejected for an entry or a step that does not exist, and if a spawned run or an
        at-most-once step is in progress there; NotSerializable for an output of another type;
        StepInputChanged or DefinitionChanged if what is recorded after a change does not fit it;
        RunConflict if the new run exists; RunNotFound and CorruptCheckpoint. Then nothing was changed.

        The idea: forks of LangGraph and DBOS.
        """

        async def perform(place: Place) -> str:
            from effectflow.runs.control import asker
            from effectflow.runs.forking import Fork, fork_run

            check_new_run_id(new_run_id)
            fork = Fork(by or asker(), at, dict(changes or {}), input, new_run_id, effects)
            return await fork_run(place, run_id, fork)

        given = {} if input is KEPT else {"input": input}
        given |= {"new_run_id": new_run_id, "by": by, "effects": effects}
        return self._durably(perform, ("fork", run_id, Options(at=at, changes=changes, **given)))

    def _durably(
        self,
        perform: Callable[[Place], Awaitable[Any]],
        shown: tuple[object, ...],
        *,
        gives_output: bool = False,
    ) -> Effect[Any, Any, Any]:
        """Return an effect that performs this with the checkpoints of its environment.

        `gives_output` says whether it yields what the body does. Each coroutine and closure here is held
        in memory for as long as the run waits.
        """

        def run(env: Any, scope: Scope) -> Awaitable[Any]:
            checkpoints = getattr(env, "checkpoints", None)
            if not isinstance(checkpoints, Checkpoints):
                # Without its repr, which may show the password in the URL of a store.
                found = "none" if checkpoints is None else f"a {type(checkpoints).__name__} there"
                raise TypeError(
                    "a durable run needs an environment with an attribute `checkpoints`, such as "
                    f"Checkpoints(SqliteStore('runs.db')); this one, {type(env).__name__}, has {found}"
                )
            if scope.fiber is not PLAIN:
                if scope.step is None:
                    raise TypeError(
                        f"{self.name}.{shown[0]}(...) drives a run of its own, and a resume would do "
                        "that again: use .call(...) in the body of another workflow, or spawn(...), or "
                        "put it into a step"
                    )
                return scope.fiber.wait(scope, attempt, checkpoints, env, scope)
            return attempt(checkpoints, env, scope)

        async def attempt(checkpoints: Checkpoints, env: Any, scope: Scope) -> Any:
            place = _runs().Place.of(self.blueprint, checkpoints, env, _outermost(scope))
            try:
                # A store that is not open is opened for this, and closed afterwards.
                async with checkpoints.store:
                    outcome = await perform(place)
                    return place.read(outcome) if gives_output else outcome
            except CheckpointError as error:
                return TypedFailure(error)

        return Perform(run, (f"{self.name}.{shown[0]}", *shown[1:]))

    def _check_is_of_this(self, checkpoint: Checkpoint) -> None:
        """Raise ValueError for the checkpoint of another workflow."""
        if checkpoint.workflow not in self.blueprint.names:
            raise ValueError(
                f"run {checkpoint.run_id!r} is of workflow {checkpoint.workflow!r}, not of {self.name!r}"
            )

    if not TYPE_CHECKING:
        # Hidden from type checkers, which therefore reject all of these.
        def __call__(self, *_: object, **__: object) -> Never:
            raise TypeError(f"workflow {self.name!r} cannot be called: {START_A_WORKFLOW}")

        def __iter__(self) -> Never:
            raise TypeError(f"workflow {self.name!r} is not an effect: {START_A_WORKFLOW}")

        __await__ = __iter__

        def __getattr__(self, name: str) -> Never:
            problem = f"{type(self).__name__!r} object has no attribute {name!r}"
            if hasattr(Effect, name):
                problem = f"workflow {self.name!r} is not an effect: {START_A_WORKFLOW}"
            raise AttributeError(problem, name=name, obj=self)

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r} version {self.version!r}>"


def _check_environment(place: Place, called: str) -> None:
    """Raise TypeError for an environment with which a complete run would be reopened only to fail."""
    from effectflow.runs.environment import missing_in

    missing = missing_in(place.env, place.blueprint)
    if missing:
        raise TypeError(
            f"{called} of workflow {place.blueprint.definition.name!r} needs an environment with "
            f"{missing}, which {type(place.env).__name__} lacks. The run is unchanged"
        )


def _outermost(scope: Scope) -> Scope:
    """Return the scope of a run of its own that is driven at this position."""
    if scope.fiber is PLAIN:
        return scope
    outermost = Scope(scope.clock, observer=scope.observer, context=scope.context)
    outermost.finalizer_deadline = scope.finalizer_deadline
    return outermost
