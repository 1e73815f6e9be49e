"""`StateMachine`: states, transitions and final states, as a workflow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, cast

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.errors import CheckpointError, CorruptCheckpoint
from effectflow.effects import Effect, RetryPolicy
from effectflow.effects.nodes import AndThen, AnyEffect, Fail, Pure, Suspend
from effectflow.effects.scope import Scope
from effectflow.workflows.blueprint import Blueprint
from effectflow.workflows.checks import workflow_name_problems
from effectflow.workflows.drawing import to_dot, to_mermaid
from effectflow.workflows.machine.attempt import Attempt
from effectflow.workflows.machine.binding import bind, saved_types
from effectflow.workflows.machine.chart import chart_of
from effectflow.workflows.machine.errors import InvalidMachine, NoTransition, TransitionExhausted
from effectflow.workflows.machine.history import History
from effectflow.workflows.machine.machine import Machine, MachineMetadata
from effectflow.workflows.machine.migrating import over_states
from effectflow.workflows.machine.picture import picture
from effectflow.workflows.machine.planning import attempt_under_way, next_path
from effectflow.workflows.machine.recorded import attempts_of, machine_after, state_of
from effectflow.workflows.machine.routes import Routes
from effectflow.workflows.machine.saved import SavedForm
from effectflow.workflows.machine.states import name_of
from effectflow.workflows.machine.structuring import structure_state
from effectflow.workflows.machine.transition import Transition
from effectflow.workflows.machine.validation import problems_of
from effectflow.workflows.migrating import Migration, check_migrations, is_of_outermost_flow
from effectflow.workflows.workflow import Workflow

__all__ = ["DEFAULT_RETRY", "StateMachine"]

Env = TypeVar("Env", contravariant=True)
E = TypeVar("E", covariant=True)
S = TypeVar("S")

Env2 = TypeVar("Env2", bound=HasCheckpoints)
E2 = TypeVar("E2")
S2 = TypeVar("S2")

AnyMachine: TypeAlias = Machine[Any]

DEFAULT_RETRY = RetryPolicy.exponential(0.1).with_max_retries(5)
"""How `Retry` is followed up where nothing else is said: after 0.1, 0.2, 0.4, 0.8 and 1.6 seconds."""


class StateMachine(
    Workflow[Env, E | NoTransition | TransitionExhausted, S | Machine[S] | None, Machine[S]],
    Generic[Env, E, S],
):
    """A workflow that moves from state to state until it comes to a final one.

    A transition is chosen by the state alone: of those that leave it, the first whose guard agrees. Its
    action ends in `Moved`, `Retry` or `Abort`. Each attempt is a durable step, named after the
    transition, when the machine is started as a run; the same machine can also be stepped by hand, and
    saved and restored as a `Machine`.

    Parameters:
        name: the machine's name.
        initial: the state that it begins in.
        transitions: tried in this order.
        final: the states that end it, by themselves or by their class; None for a machine that is to go
            on for ever.
        retry: how often and how soon `Retry` is followed by another attempt, where the transition does
            not say it.
        version: change it when a change of the code matters to machines that are under way.
        migrations: for each earlier version, a pure function from a state that it saved, as plain data,
            to that of the next version. Runs and saved machines of those versions then go on, upgraded.

    Raises InvalidMachine, which lists everything that is wrong with the definition.

    Example:
        >>> from effectflow import StateMachine, Transition
        >>> turnstile = StateMachine(
        ...     "turnstile",
        ...     initial="locked",
        ...     transitions=[
        ...         Transition("coin", "locked", "unlocked"),
        ...         Transition("push", "unlocked", "passed"),
        ...     ],
        ...     final={"passed"},
        ... )
        >>> machine = turnstile.run_until_final().run_sync(None).unwrap()
        >>> [entry.transition for entry in machine.history]
        ['coin', 'push']

    The idea, and the outcomes of actions, are from Rust's Mindset.
    """

    def __init__(
        self,
        name: str,
        *,
        initial: S,
        transitions: Sequence[Transition[Env, E, S]],
        final: Collection[S] | Collection[type[S]] | Collection[S | type[S]] | None,
        retry: RetryPolicy = DEFAULT_RETRY,
        version: str = "1",
        migrations: Mapping[int, Migration] | None = None,
    ) -> None:
        chart, problems = chart_of(initial, transitions, final)
        problems += [
            *workflow_name_problems(name),
            *problems_of(chart, retry, is_endless=final is None),
        ]
        if problems:
            raise InvalidMachine(name, problems)
        check_migrations(name, version, migrations or {})
        upgrades = {was: over_states(part) for was, part in (migrations or {}).items()}
        types = saved_types(chart)
        bound = bind(chart, types, retry)
        self.initial = initial
        self._chart = chart
        self._routes = Routes(bound, chart.declared, chart.final)
        self._form = SavedForm(name, version, chart.declared, types.states, upgrades)
        steps = tuple(part.step.name for part in bound)
        definition = Definition(name, version, "machine", steps, chart.structure)
        super().__init__(
            Blueprint(
                define=lambda: definition,
                body=lambda input: self.run_until_final(self._machine(input)).map(self._form.write),
                # What states look alike in plain data, no annotation says: see `structure_input`.
                input_type=None,
                input_types=types.states,
                output_types=types.outcomes,
                migrations=upgrades,
                gives_state=is_of_outermost_flow,
                following=self._following,
            )
        )

    def begin(self, state: S | None = None) -> Machine[S]:
        """A machine that has gone through nothing yet, at the initial state or at another one.

        None stands for the initial state, here and as the input of a run.

        Raises ValueError for a state that the definition does not name.
        """
        chosen: Any = self.initial if state is None else state
        if chosen not in self._form.states:
            raise ValueError(f"{name_of(chosen)} is no state of {self.name!r}")
        return Machine(chosen, chosen, History(), MachineMetadata(None, None, {}, None), self._form)

    def is_final(self, machine: Machine[S]) -> bool:
        """Whether the machine stands at a final state, so that nothing leads on from it."""
        return self._routes.is_final(machine.current)

    def step(
        self, machine: Machine[S]
    ) -> Effect[Env, E | NoTransition | TransitionExhausted, Machine[S]]:
        """Attempt one transition, once; yields the machine after it.

        The machine that is given stays as it is. If the last attempt asked for a retry, this one waits
        until that is due. A machine in a final state is yielded as it is. Within a durable run the
        attempt is a step of it; outside it needs no store.

        Fails with the errors of the action; with NoTransition where no transition may be taken; with
        TransitionExhausted where `Retry` has come as often as the policy allows. An action that gives
        a state which its transition does not declare ends in the defect UndeclaredState.
        """
        return Suspend(partial(self._step, machine), ("step", machine.current))

    def run_until_final(
        self, machine: Machine[S] | None = None
    ) -> Effect[Env, E | NoTransition | TransitionExhausted, Machine[S]]:
        """Step a machine, or a new one, until it comes to a final state. Fails as `step` does."""

        def go_on(reached: Machine[S]) -> AnyEffect:
            if self.is_final(reached):
                return Pure(reached)
            return AndThen(Suspend(partial(self._step, reached)), go_on)

        begun = self.begin() if machine is None else machine
        return Suspend(lambda _: go_on(begun), ("run_until_final", begun.current))

    def from_json(self, text: str, *, force: bool = False) -> Machine[S]:
        """The machine that `Machine.to_json` was called on; it goes on as if it had never been saved.

        Parameters:
            text: what `to_json` gave.
            force: read it although it was saved by another version of this definition.

        Raises CorruptCheckpoint for any other text, and for a machine of another definition;
        UnsupportedVersion for what a newer effectflow wrote; DefinitionChanged for another version.
        """
        return self._form.read_json(text, force=force)

    def from_binary(self, data: bytes, *, force: bool = False) -> Machine[S]:
        """The machine that `Machine.to_binary` was called on; see `from_json`."""
        return self._form.read_binary(data, force=force)

    def machine_of(self, checkpoint: Checkpoint) -> Machine[S]:
        """The machine that a run of this definition stands at, be it failed, under way or complete. Pure.

        It has gone through every attempt that the checkpoint has as completed, and is what a resume goes
        on with; `to_mermaid` draws it. Of a run that migrations are to upgrade, give the fold of the
        entries that `blueprint.upgraded` gives.

        Raises ValueError for the checkpoint of another workflow, and CorruptCheckpoint for one with
        states that this definition does not know.
        """
        if checkpoint.workflow != self.name:
            raise ValueError(
                f"run {checkpoint.run_id!r} is of workflow {checkpoint.workflow!r}, not of {self.name!r}"
            )
        types = self._form.types
        begun = state_of(checkpoint, checkpoint.initial_state, types, "its input")
        try:
            machine = self._machine(begun)
        except (TypeError, ValueError) as error:
            raise CorruptCheckpoint(
                checkpoint.run_id, f"its input is unreadable: {error}"
            ) from error
        for transition, record in attempts_of(checkpoint, types):
            machine = machine_after(machine, transition, record)
        return machine

    def to_mermaid(self, machine: Machine[S] | None = None) -> str:
        """A flowchart for Mermaid; with a machine, the states that it was at, and where it stands."""
        return to_mermaid(picture(self.name, self._chart, machine))

    def to_dot(self, machine: Machine[S] | None = None) -> str:
        """The same drawing in DOT, for Graphviz; see `to_mermaid`."""
        return to_dot(picture(self.name, self._chart, machine))

    def body(
        self, input: S | Machine[S] | None = None
    ) -> Effect[Env, E | NoTransition | TransitionExhausted, Machine[S]]:
        """The machine's work as an effect; see `Workflow.body`. The input is that of `start`."""
        return super().body(self._saved(input)).map(self._form.read)

    def start(
        self: StateMachine[Env2, E2, S2],
        input: S2 | Machine[S2] | None = None,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
    ) -> Effect[Env2, E2 | NoTransition | TransitionExhausted | CheckpointError, Machine[S2]]:
        """Run a machine durably until it comes to a final state; see `Workflow.start`.

        Parameters:
            input: the state to begin in, or a machine to go on with; the initial state if not given.
            run_id: names the run; made up if not given.
            context: plain data to keep with the run.

        Fails as `step` does, and with the CheckpointErrors. Raises ValueError for a state that the
        definition does not name.
        """
        # The checkers cannot tell what `super()` is where `self` is annotated.
        workflow = cast(Any, super())
        started: AnyEffect = workflow.start(self._saved(input), run_id=run_id, context=context)
        return started.map(self._form.read)

    def resume(
        self: StateMachine[Env2, E2, S2], run_id: str, *, force: bool = False
    ) -> Effect[Env2, E2 | NoTransition | TransitionExhausted | CheckpointError, Machine[S2]]:
        """Take up a run where it stood; see `Workflow.resume`.

        The machine that it ends in is the one that it would have ended in without the interruption:
        the same history, with the same times, and the same attempts.
        """
        resumed: AnyEffect = cast(Any, super()).resume(run_id, force=force)
        return resumed.map(self._form.read)

    def structure_input(self, data: object) -> Any:
        """The state that plain data, such as parsed JSON, stands for; None for the initial one.

        It is made one of the class of the initial state, or else of the first class that fits among those
        that transitions leave. Data in the form in which a state is saved, such as
        `{"$object": ["Draft", {...}]}`, names its class.

        Raises ValueError if the data is no state of this machine.
        """
        return structure_state(self.name, self._chart, self._form.types, data)

    def _step(self, machine: AnyMachine, scope: Scope) -> AnyEffect:
        match self._routes.choose(machine.current):
            case None:
                return Pure(machine)
            case NoTransition() as error:
                return Fail(error)
            case bound:
                return Attempt(bound, machine).run(scope)

    def _saved(self, input: Any) -> Any:
        """An input as it is saved: the state to begin in, or a machine as plain data."""
        if isinstance(input, Machine):
            return self._form.write(cast(AnyMachine, input))
        return self.begin(input).initial

    def _machine(self, saved: Any) -> Machine[S]:
        """The machine that a saved input stands for. No state is a dict: those are not hashable."""
        if isinstance(saved, dict):
            return self._form.read(cast(object, saved))
        return self.begin(saved)

    def _following(self, checkpoint: Checkpoint) -> str | None:
        """The path of the attempt that a run makes next; None where it is at its end."""
        under_way = attempt_under_way(checkpoint)
        if under_way is not None:
            return under_way
        state = state_of(checkpoint, checkpoint.current_state, self._form.types, "its state")
        match self._routes.choose(state):
            case None | NoTransition():
                return None
            case bound:
                return next_path(checkpoint, bound.transition.name)
