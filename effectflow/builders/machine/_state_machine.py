"""`StateMachine`: states, transitions and final states, as a workflow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Generic, TypeAlias, TypeVar, cast

from effectflow.builders.checks import problems_raised, workflow_name_problems
from effectflow.builders.diagrams import Diagram, to_mermaid
from effectflow.builders.machine._attempt import (
    Attempt,
    TransitionTable,
    machine_after,
    pending_of,
)
from effectflow.builders.machine._chart import InvalidMachine, chart_of, diagram_of, problems_of
from effectflow.builders.machine._machine import (
    DICTIONARY,
    History,
    Machine,
    MachineMetadata,
    SavedForm,
    machine_type,
    over_states,
)
from effectflow.builders.machine._states import State
from effectflow.builders.machine._transition import NoTransition, Transition, TransitionExhausted
from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.errors import CheckpointError, CorruptCheckpoint
from effectflow.checkpoint.values import (
    ReadableBy,
    decode_compact,
    decode_json,
    from_tree,
    of_type,
    union_of,
)
from effectflow.effects import Effect, RetryPolicy
from effectflow.effects.paths import StepPath, flow_of
from effectflow.runs.blueprint import Blueprint, Wrapped
from effectflow.runs.migrations import StateMigration, check_migrations, is_of_outermost_flow
from effectflow.runs.step_loop import Done, Next, Stuck, advance, advance_once
from effectflow.runs.workflow import Workflow

Env = TypeVar("Env", contravariant=True)
E = TypeVar("E", covariant=True)
S = TypeVar("S")

Env2 = TypeVar("Env2", bound=HasCheckpoints)
E2 = TypeVar("E2")
S2 = TypeVar("S2")

AnyMachine: TypeAlias = Machine[Any]

DEFAULT_RETRY = RetryPolicy.exponential(0.1).with_max_retries(5)
"""The default delays between attempts after `Retry`: 0.1, 0.2, 0.4, 0.8 and 1.6 seconds."""


class StateMachine(
    Workflow[Env, E | NoTransition | TransitionExhausted, S | Machine[S] | None, Machine[S]],
    Generic[Env, E, S],
):
    """A workflow that moves from state to state until it reaches a final one.

    The state alone decides the next transition: of those that leave it, the first whose guard allows it.
    Its action ends in `Moved`, `Retry` or `Abort`. In a run, each attempt is a durable step with the
    transition's name. A machine can also be stepped without a run, and saved and restored as a `Machine`.

    Parameters:
        name: the machine's name.
        initial: the state to begin in.
        transitions: tried in this order.
        final: the states, or their classes, that end it; None for a machine that never ends.
        retry: the number and the delays of attempts after `Retry`, unless the transition has a policy.
        version: change it when a code change matters to machines in progress.
        migrations: for each earlier version, a pure function from a state that it saved, as plain data,
            to that of the next version. Runs and saved machines of those versions are then upgraded.

    Raises InvalidMachine with all problems of the definition.

    Example:
        >>> from effectflow.machines import StateMachine, Transition
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

    The idea, and the outcomes of actions, come from Mindset, a Rust library.
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
        migrations: Mapping[int, StateMigration] | None = None,
    ) -> None:
        chart, problems = chart_of(initial, transitions, final)
        problems += [
            *workflow_name_problems(name),
            *problems_of(chart, retry, is_endless=final is None),
            *problems_raised(lambda: check_migrations(name, version, migrations or {})),
        ]
        if problems:
            raise InvalidMachine(name, problems)
        upgrades = {was: over_states(part) for was, part in (migrations or {}).items()}
        self.initial = initial
        self._chart = chart
        self._table = TransitionTable(chart, retry)
        self._form = SavedForm(
            name, version, chart.declared, chart.state_types, self._table.possible, upgrades
        )
        steps = tuple(transition.name for transition in chart.transitions)
        definition = Definition(name, version, "machine", steps, chart.structure)
        saved = Annotated[machine_type(chart.declared), ReadableBy(self._form.read)]
        super().__init__(
            Blueprint(
                definition,
                body=lambda input: self.run_until_final(self._machine(input)).map(self._form.write),
                input_type=union_of([chart.declared.annotation, saved]),
                input_types=chart.state_types,
                output_types=chart.output_types,
                output_type=saved,
                migrations=upgrades,
                gives_state=is_of_outermost_flow,
                environment_types=lambda: chart.environment_types,
                save_input=self._saved,
                read_output=self._form.read,
                yields=Wrapped("a Machine", "lambda machine: machine.current"),
            )
        )

    def begin(
        self, state: S | None = None, *, machine_id: str = "", at: datetime | None = None
    ) -> Machine[S]:
        """Return a new machine in a state; None means the initial state, also as the input of a run.

        Parameters:
            state: the state to begin in.
            machine_id: its `id`, which is saved with it, such as the number of an order; by default its
                first attempt sets that.
            at: its `created_at`, with a time zone; by default its first attempt sets that.

        Raises ValueError for a state that the definition does not name, and for a time without a zone.
        """
        chosen = self._form.check_state(self.initial if state is None else state)
        if at is not None and at.tzinfo is None:
            raise ValueError(
                f"`at` must have a time zone, and {at} has none: datetime.now(UTC) has"
            )
        created_at = None if at is None else at.astimezone(UTC)
        metadata = MachineMetadata(created_at, created_at, {}, None)
        return Machine(chosen, chosen, History(), metadata, self._form, machine_id)

    def is_final(self, machine: Machine[S]) -> bool:
        """Return whether the machine is in a final state."""
        return self._table.is_final(machine.current)

    def step(
        self, machine: Machine[S]
    ) -> Effect[Env, E | NoTransition | TransitionExhausted, Machine[S]]:
        """Attempt one transition, once, and yield the machine after it.

        `machine` itself is unchanged. If the last attempt ended in `Retry`, this one waits until it is
        due. A machine in a final state is yielded unchanged. In a durable run the attempt is a step;
        elsewhere it needs no store.

        Fails with the errors of the action; with NoTransition if no transition can be taken; with
        TransitionExhausted if `Retry` comes more often than the policy allows. An action that yields a
        state that its transition does not declare ends in the defect UndeclaredState.
        """
        return advance_once(self._pick, machine, ("step", machine.current))

    def run_until_final(
        self, machine: Machine[S] | None = None
    ) -> Effect[Env, E | NoTransition | TransitionExhausted, Machine[S]]:
        """Step a machine, or a new one, until it reaches a final state. Fails as `step` does."""
        begun = self.begin() if machine is None else machine
        return advance(self._pick, begun, ("run_until_final", begun.current))

    def from_json(self, text: str, *, force: bool = False) -> Machine[S]:
        """Return the machine that `Machine.to_json` wrote; it continues as if it had never been saved.

        Parameters:
            text: the JSON.
            force: read it although another version of this definition saved it.

        Raises CorruptCheckpoint for any other text, and for a machine of another definition;
        UnsupportedVersion for the format of a newer effectflow; DefinitionChanged for another version.
        """
        return self._form.opened(decode_json, text.encode("utf-8", "surrogatepass"), force=force)

    def from_binary(self, data: bytes, *, force: bool = False) -> Machine[S]:
        """Return the machine that `Machine.to_binary` wrote; see `from_json`."""
        return self._form.opened(partial(decode_compact, dictionary=DICTIONARY), data, force=force)

    def machine_of(self, checkpoint: Checkpoint) -> Machine[S]:
        """Return the machine with which a resume of a run continues; the run may have any status. Pure.

        It has made every attempt that the checkpoint records as completed; `to_mermaid` shows it. For a
        run that needs migrations, pass the fold of the entries that `blueprint.upgraded` returns.

        Raises ValueError for the checkpoint of another workflow, and CorruptCheckpoint for states that
        this definition does not know.
        """
        self._check_is_of_this(checkpoint)
        types, part = self._form.types, "its input"
        try:
            input = from_tree(checkpoint.initial_state, types=types)
            machine = self._machine(of_type(input, self.blueprint.input_type))
            for step in checkpoint.completed_steps:
                # Steps in other flows are part of an action, whose attempt records its outcome.
                if not flow_of(step.step):
                    part, record = step.step, from_tree(step.output, types=types)
                    name = StepPath(part).name
                    of_type(record, self._table.record_type(name))
                    machine = machine_after(machine, name, record)
        except (TypeError, ValueError) as error:
            raise CorruptCheckpoint(checkpoint.run_id, f"{part} is unreadable: {error}") from error
        return machine

    def to_mermaid(self, machine: Machine[S] | None = None) -> str:
        """Return a Mermaid flowchart; with a machine, it marks the visited states and the current one."""
        return to_mermaid(diagram_of(self._chart, machine))

    def diagram(self, checkpoint: Checkpoint | None = None) -> Diagram:
        """Return the boxes and arrows of the machine; with a checkpoint, where that run has been.

        Raises as `machine_of` does.
        """
        return diagram_of(self._chart, None if checkpoint is None else self.machine_of(checkpoint))

    def body(
        self, input: S | Machine[S] | None = None
    ) -> Effect[Env, E | NoTransition | TransitionExhausted, Machine[S]]:
        """Return the machine's work as an effect; see `Workflow.body`. The input is that of `start`."""
        return super().body(input)

    def start(
        self: StateMachine[Env2, E2, S2],
        input: S2 | Machine[S2] | None = None,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        retry_failed: bool = True,
    ) -> Effect[Env2, E2 | NoTransition | TransitionExhausted | CheckpointError, Machine[S2]]:
        """Run a machine durably until it reaches a final state; see `Workflow.start`.

        The input is the state to begin in, by default the initial one, or a machine to continue. A resume
        yields the machine that an uninterrupted run would have yielded, with the same history, times and
        attempts.

        Fails as `step` does, and with the CheckpointErrors. Raises ValueError for a state that the
        definition does not name.
        """
        # Type checkers cannot infer `super()` where `self` is annotated.
        return cast(Any, super()).start(
            input, run_id=run_id, context=context, retry_failed=retry_failed
        )

    @property
    def state_types(self) -> tuple[Any, ...]:
        """The classes of its states: of the initial one, of those that transitions leave, then others."""
        sources = (atom for part in self._chart.transitions for atom in part.source.atoms)
        atoms = (self._chart.initial, *sources, *self._chart.declared.atoms)
        return tuple(
            dict.fromkeys(atom.kind if isinstance(atom, State) else atom for atom in atoms)
        )

    def _pick(self, machine: AnyMachine) -> Next[AnyMachine] | Done | Stuck:
        match self._table.choose(machine.current):
            case None:
                return Done(machine)
            case NoTransition() as error:
                return Stuck(error)
            case bound:
                name = bound.name
                attempt = Attempt(bound, machine, pending_of(machine, name))
                return Next(attempt.run(), partial(machine_after, machine, name))

    def _saved(self, input: Any) -> Any:
        """Return an input in its saved form: a state to begin in, or a machine as plain data."""
        if isinstance(input, Machine):
            return self._form.write(cast(AnyMachine, input))
        return self.begin(input).initial

    def _machine(self, saved: Any) -> Machine[S]:
        """Return the machine of a saved input. A dict is not hashable, so it cannot be a state."""
        if isinstance(saved, dict):
            return self._form.read(cast(object, saved))
        return self.begin(saved)
