"""Everything that is read back from a store must have the type that its annotation declares."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pytest
from returns.result import Failure, Success

from effectflow import Do, Effect, Workflow, pure, workflow
from effectflow.checkpoint import CorruptCheckpoint, NotSerializable, find_run, read_checkpoint
from effectflow.checkpoint.errors import CLASS_CHANGED
from effectflow.graphs import StateGraph
from effectflow.iterative import Iterative
from effectflow.machines import Moved, StateMachine, Transition
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore
from tests.apps import App, app_on, last

AnyWorkflow: TypeAlias = Workflow[Any, Any, Any, Any]

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Tax:
    percent: int


# What an earlier version of the code declared and yielded, and what the code declares now.
CHANGED = [
    (str, "5", int),
    (Decimal, Decimal("1.5"), Tax),
    (list[str], ["a"], list[int]),
    (int | None, None, int),
]
changed = pytest.mark.parametrize(("was", "value", "now"), CHANGED)


def annotated(function: Any, **types: object) -> Any:
    function.__annotations__ = types
    return function


def yielding(value: object, declared: object, **inputs: object) -> Any:
    """Return a function of a state that yields a value of the declared type."""

    def work(state: Any) -> Effect[App, str, Any]:
        return pure(value)

    output = Effect[App, str, declared]
    return annotated(work, **inputs, **{"return": output})


def code(declared: object, *, output: object = Any, value: object = None) -> AnyWorkflow:
    def body(given: Any) -> Do[App, str, Any]:
        yield from last()
        return given if value is None else value

    returned = Do[App, str, output]
    return workflow(name="code")(annotated(body, given=declared, **{"return": returned}))


def ending(state: object) -> Effect[App, str, Any]:
    return last().map(lambda _: state)


def graph(declared: object, value: object) -> AnyWorkflow:
    builder: Any = StateGraph("graph")
    builder.node("make", yielding(value, declared, state=Any)).node("end", ending)
    return builder.edge("make", "end").entry("make").exit("end").build()


def rounds(declared: object, value: object) -> AnyWorkflow:
    def work(state: Any) -> Effect[App, str, Any]:
        return pure(value) if state == "begin" else ending(state)

    types = {"state": Any, "return": Effect[App, str, declared]}
    return Iterative("rounds", annotated(work, **types), converged=lambda *_: False, max_rounds=2)


def job(declared: object, value: object) -> AnyWorkflow:
    def reduce(values: list[Any]) -> Effect[App, str, Any]:
        return ending(values[0])

    return MapReduce(
        "job",
        items=lambda _: [1, 2],
        map=yielding(value, declared),
        reduce=annotated(reduce, **{"return": Effect[App, str, declared]}),
        key=str,
        limit=1,
    )


def steps(declared: object, value: object) -> AnyWorkflow:
    def end(state: Any) -> Effect[App, str, Any]:
        return ending(state)

    make, end = yielding(value, declared), annotated(end, **{"return": Effect[App, str, declared]})
    make.__name__ = "make"
    return Workflow.of_steps("steps", [make, end])


BUILDERS = [(graph, "begin"), (rounds, "begin"), (job, 2), (steps, "begin")]


async def refused(made: AnyWorkflow, app: App) -> str:
    """Return why a resume refuses the run `r`, and check that it appends nothing."""
    before = await app.checkpoints.store.read("r")
    result = await made.resume("r").run(app)
    assert isinstance(result, Failure)
    assert isinstance(result.failure(), CorruptCheckpoint)
    assert await app.checkpoints.store.read("r") == before
    return str(result.failure())


@changed
async def test_a_recorded_input_must_have_the_declared_type(
    was: object, value: object, now: object
) -> None:
    app = app_on(MemoryStore(), failing={"last"})
    assert await code(was).start(value, run_id="r").run(app) == Failure("crash here")
    app.world.recover()
    reason = await refused(code(now), app)
    assert "its input is not what the workflow declares: input: $" in reason
    assert reason.endswith(CLASS_CHANGED)
    plan = await code(now).plan("r").run(app)
    assert isinstance(plan.failure(), CorruptCheckpoint)
    assert await code(now).resume("r", force=True).run(app) == Success(value)


@dataclass(frozen=True)
class Receipt:
    number: int


RENAMED = make_dataclass("Bill", [("number", int)], frozen=True)
GROWN = make_dataclass("Receipt", [("number", int), ("colour", str)], frozen=True)
COMPATIBLE = make_dataclass(
    "Receipt", [("number", int), ("colour", str, field(default="red"))], frozen=True
)


@pytest.mark.parametrize(
    ("now", "problem"), [(RENAMED, "'Receipt' is not declared"), (GROWN, "'colour'")]
)
async def test_a_saved_class_that_has_changed_says_what_to_do(now: type, problem: str) -> None:
    app = app_on(MemoryStore(), failing={"last"})
    assert await code(Receipt).start(Receipt(1), run_id="r").run(app) == Failure("crash here")
    app.world.recover()

    reason = await refused(code(now), app)
    assert problem in reason
    assert "give its new fields defaults and keep its name" in reason
    compatible = code(COMPATIBLE, output=COMPATIBLE)
    assert await compatible.resume("r").run(app) == Success(COMPATIBLE(1))


@pytest.mark.parametrize(
    ("now", "problem"), [(RENAMED, "'Receipt' is not declared"), (GROWN, "'colour'")]
)
async def test_a_saved_class_of_a_step_that_has_changed_says_what_to_do(
    now: type, problem: str
) -> None:
    app = app_on(MemoryStore(), failing={"last"})
    await steps(Receipt, Receipt(1)).start(Receipt(0), run_id="r").run(app)
    app.world.recover()

    reason = await refused(steps(now, None), app)
    assert problem in reason
    assert "give its new fields defaults and keep its name" in reason


async def test_an_input_of_another_type_is_rejected_before_anything_is_recorded() -> None:
    app = app_on(MemoryStore())
    result = await code(list[int]).start([1, "2"], run_id="r").run(app)
    assert isinstance(result.failure(), NotSerializable)
    assert "input: $[1]: '2' is not of the declared type int" in str(result.failure())
    assert await find_run(app.checkpoints.store, "r") is None


@changed
async def test_the_recorded_output_of_a_complete_run_must_have_the_declared_type(
    was: object, value: object, now: object
) -> None:
    app = app_on(MemoryStore())
    assert await code(Any, output=was).start(value, run_id="r").run(app) == Success(value)
    made = code(Any, output=now)
    assert "its output is not what the workflow declares" in await refused(made, app)
    assert isinstance((await made.start(value, run_id="r").run(app)).failure(), CorruptCheckpoint)
    assert await made.resume("r", force=True).run(app) == Success(value)


async def test_an_output_of_another_type_than_the_workflow_declares_is_not_saved() -> None:
    app = app_on(MemoryStore())
    result = await code(Any, output=int).start("5", run_id="r").run(app)
    assert isinstance(result.failure(), NotSerializable)
    assert "output: $: '5' is not of the declared type int" in str(result.failure())


@changed
async def test_the_recorded_outcome_of_a_nested_run_must_have_the_declared_type(
    was: object, value: object, now: object
) -> None:
    def outer(inner: AnyWorkflow) -> AnyWorkflow:
        @workflow(name="outer")
        def outer(_: None) -> Do[App, str, Any]:
            found = yield from inner.call(value)
            yield from last()
            return found

        return outer

    def inner(output: object) -> AnyWorkflow:
        body = yielding(value, output)
        return workflow(name="inner")(body)

    app = app_on(MemoryStore(), failing={"last"})
    assert await outer(inner(was)).start(None, run_id="r").run(app) == Failure("crash here")
    app.world.recover()
    assert "the output of step 'inner'" in await refused(outer(inner(now)), app)
    assert await outer(inner(now)).resume("r", force=True).run(app) == Success(value)


@changed
@pytest.mark.parametrize(("build", "input"), BUILDERS)
async def test_a_recorded_state_must_have_the_declared_type(
    build: Any, input: object, was: object, value: object, now: object
) -> None:
    app = app_on(MemoryStore(), failing={"last"})
    failed = await build(was, value).start(input, run_id="r").run(app)
    assert failed == Failure("crash here"), failed
    app.world.recover()
    assert "is not of the declared type" in await refused(build(now, value), app)


def door(declared: object, value: object) -> StateMachine[App, str, Any]:
    """Return a machine whose states have a part of the declared type."""
    shut = make_dataclass("Shut", [], frozen=True)
    ajar = make_dataclass("Ajar", [("part", declared)], frozen=True)
    wide = make_dataclass("Wide", [("part", declared)], frozen=True)

    def move(state: Any) -> Effect[App, str, Any]:
        return pure(Moved(ajar(value)))

    def end(state: Any) -> Effect[App, str, Any]:
        return last().map(lambda _: Moved(wide(value)))

    return StateMachine(
        "door",
        initial=shut(),
        transitions=[Transition("move", shut, ajar, move), Transition("end", ajar, wide, end)],
        final={wide},
    )


@changed
async def test_the_recorded_states_of_a_machine_must_have_the_declared_types(
    was: object, value: object, now: object
) -> None:
    app = app_on(MemoryStore(), failing={"last"})
    assert await door(was, value).start(run_id="r").run(app) == Failure("crash here")
    app.world.recover()
    assert "is not of the declared type moved | abort | retry" in await refused(
        door(now, value), app
    )
    checkpoint = await read_checkpoint(app.checkpoints.store, "r")
    with pytest.raises(CorruptCheckpoint):
        door(now, value).machine_of(checkpoint)
    complete = await door(was, value).resume("r").run(app)
    assert complete.unwrap().current.part == value
    assert "its output is not what the workflow declares" in await refused(door(now, value), app)
    with pytest.raises(CorruptCheckpoint):
        door(now, value).from_json(complete.unwrap().to_json())
