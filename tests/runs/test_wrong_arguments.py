"""Wrong arguments are refused where they are given, with what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import wraps
from typing import Any, Never, Protocol, TypeVar, cast

import pytest
from returns.result import Success

from effectflow import (
    App,
    Checkpoints,
    Do,
    Effect,
    RetryPolicy,
    Workflow,
    ask,
    do,
    effect,
    pure,
    spawn,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import NotSerializable, RunConflict
from effectflow.effects import asks, catch, die, emit, from_async
from effectflow.executors.pickling import dumps, loads
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.testing import RecordingObserver


class Environment:
    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints


@workflow
def order(number: int) -> Do[Environment, Any, int]:
    return (yield from pure(number))


def run(effect: Any) -> object:
    return effect.run_sync(Environment(Checkpoints(MemoryStore())))


def double(env: Environment, number: int) -> int:
    return number * 2


doubled = step(effect(double))


class Client:
    def charge(self, number: int) -> Effect[Environment, Never, int]:
        return pure(number)

    async def charge_later(self, number: int) -> int:
        return number


class Other:
    """The environment of something else."""


def yielding(yielded: Any) -> Any:
    @workflow
    def body(_: int) -> Do[Environment, Any, int]:
        return (yield from yielded)

    return body


def awaiting(awaited: Any) -> Any:
    @workflow
    async def body(_: int) -> int:
        return await awaited

    return body


def called(function: Any) -> object:
    return function(1)


@dataclass(frozen=True)
class Exact:
    number: int


@dataclass(frozen=True)
class Inexact:
    number: int


class Methods:
    def order(self, number: int) -> Effect[Environment, Any, int]:
        return pure(number)

    def all(self) -> Effect[Environment, Any, int]:
        return pure(0)


anything: Any = pure(1)
number: Any = 3
CASES: dict[str, tuple[Callable[[], object], str]] = {
    "a path in place of a store": (lambda: Checkpoints("runs.db"), r"open_store\('runs.db'\)"),  # type: ignore[arg-type]
    "a class in place of a store": (lambda: Checkpoints(SqliteStore), "takes a store"),  # type: ignore[arg-type]
    "a count in place of a policy": (lambda: pure(1).retry(number), r"with_max_retries\(3\)"),
    "a count in place of the policy of a step": (
        lambda: step(retry=number)(lambda: pure(1)),
        r"with_max_retries\(3\)",
    ),
    "a sink that is not a function": (lambda: emit(1).into_sink(number), "takes each event"),
    "a value in place of an effect": (
        lambda: with_checkpointing("charge", number),
        "expected an effect and got 3",
    ),
    "a version that is not text": (
        lambda: workflow(version=number)(lambda _: pure(1)),
        "version of a workflow is text, not 3",
    ),
    "a name that is not text": (
        lambda: Workflow.of_steps(number, [step(lambda _: pure(1))]),
        "name of a workflow is text, not 3",
    ),
    "a run id that is not text": (
        lambda: run(order.start(1, run_id=number)),
        "run id is text, not 3",
    ),
    "another run id that is not text": (lambda: run(order.resume(number)), "run id is text, not 3"),
    "a result of a run id that is not text": (lambda: run(order.result(number)), "run id is text"),
    "a context that is not a mapping": (
        lambda: run(order.start(1, context=number)),
        "dict of plain data by name, not 3",
    ),
    "a list of errors": (
        lambda: effect(errors=[KeyError, LookupError])(double),  # type: ignore[call-overload]
        "takes a class of exceptions or a tuple of classes",
    ),
    "a union of errors": (
        lambda: effect(errors=KeyError | LookupError)(double),
        r"a tuple of classes, such as .* not KeyError \| LookupError",
    ),
    "a tuple with something else": (
        lambda: effect(errors=(KeyError, int))(double),  # type: ignore[type-var]
        "not <class 'int'>",
    ),
    "a step that returns a value": (
        lambda: step(double),  # type: ignore[arg-type]
        "double returns int: make it an async function, or write @effect below @step",
    ),
    "a step that is a method": (
        lambda: step(Client.charge),
        "Client.charge is a method: .* take from the environment what its object has",
    ),
    "a step that is an async method": (
        lambda: step(retry=RetryPolicy.constant(1).with_max_retries(1))(Client.charge_later),
        "Client.charge_later is a method",
    ),
    "an environment of another class": (
        lambda: ask(Environment).run_sync(cast("Any", Other())),
        "ask.Environment. found an environment of another class, Other: run the effect in a Environ",
    ),
    "a step that is not called": (
        lambda: run(yielding(doubled).start(1)),
        r"step 'double' is not called: write `yield from double\(number\)`",
    ),
    "a step that is awaited": (
        lambda: run(awaiting(doubled).start(1)),
        r"step 'double' is not called: write `await double\(number\)`",
    ),
    "a step that is caught": (
        lambda: catch(ValueError)(cast("Any", doubled)),
        r"catch: expected an effect and got <Step 'double'>: did you forget to call it\?",
    ),
    "a workflow that is awaited": (
        lambda: run(awaiting(order).start(1)),
        r"'order' is not an effect: use its .start\(...\)",
    ),
    "a workflow in place of an effect": (
        lambda: run(yielding(order).start(1)),
        r"'order' is not an effect: use its .start\(...\), or .call\(...\) within another workflow",
    ),
    "a workflow that is called": (
        lambda: called(order),
        r"'order' cannot be called: use its .start\(...\), or .call\(...\) within another workflow",
    ),
    "a workflow in place of a function": (
        lambda: pure(1).and_then(order),  # type: ignore[arg-type]
        "and_then takes a function, not <Workflow 'order'",
    ),
    "a workflow that is run": (
        lambda: run(pure(1).and_then(lambda _: order)),  # type: ignore[arg-type, return-value]
        r"expected an effect and got <Workflow 'order' version '1'>: use its .start",
    ),
    "a workflow with two inputs": (
        lambda: workflow(lambda a, b: pure(1)),  # type: ignore[arg-type, misc]
        r"not .*<lambda>\(a, b\): use a dataclass for several",
    ),
    "a method as a workflow": (
        lambda: workflow(Methods.order),  # type: ignore[arg-type]
        r"not Methods.order\(self, number\): use .* a function in place of a method",
    ),
    "a method without an input as a workflow": (
        lambda: workflow(Methods.all),
        r"not Methods.all\(self\): use .* a function in place of a method",
    ),
    "a store as checkpoints": (
        lambda: order.start(1).run_sync(Environment(MemoryStore())),  # type: ignore[arg-type]
        r"Checkpoints\(SqliteStore\('runs.db'\)\); this one, Environment, has a MemoryStore there",
    ),
    "a class as checkpoints": (
        lambda: order.start(1).run_sync(Environment(Checkpoints)),  # type: ignore[arg-type]
        "this one, Environment, has a type there",
    ),
    "checkpoints as the environment": (
        lambda: order.start(1).run_sync(Checkpoints(MemoryStore())),  # type: ignore[misc]
        "needs an environment with an attribute `checkpoints`, .*; this one, Checkpoints, has none",
    ),
    "a policy that is none": (
        lambda: Checkpoints(MemoryStore(), policy=number),
        "policy takes a CheckpointPolicy, .* not 3",
    ),
    "an observer that is none": (
        lambda: Checkpoints(MemoryStore(), observers=[number]),
        r"observers takes objects with a method `notify\(event\)`, not 3",
    ),
    "the class of an observer": (
        lambda: Checkpoints(MemoryStore(), observers=[RecordingObserver]),  # type: ignore[list-item]
        "not <class '.*RecordingObserver'>",
    ),
    "an observer in place of a list": (
        lambda: Checkpoints(MemoryStore(), observers=RecordingObserver()),  # type: ignore[arg-type]
        "observers takes a list",
    ),
    "a key as text": (
        lambda: Checkpoints(MemoryStore(), key="of a secret"),  # type: ignore[arg-type]
        "key is of type bytes, not str$",
    ),
    "keys in place of an encryption": (
        lambda: Checkpoints(MemoryStore(), encryption={"a": b""}),  # type: ignore[arg-type]
        "encryption is of type Encryption, not dict$",
    ),
    "a plain function to await": (
        lambda: from_async(lambda _: 1).run_sync(None),  # type: ignore[arg-type, return-value]
        r"from_async\(<lambda>\) takes an async function of the environment, .* 1; use from_fn",
    ),
    "an effect to spawn": (lambda: spawn(anything, 1), r"spawn takes a workflow .* not pure\(1\)"),
    "a workflow in place of a list": (
        lambda: App(
            order,  # type: ignore[call-overload]
            environment=Environment,
            checkpoints=Checkpoints(MemoryStore()),
        ),
        r"App\(\[order\], ...\)",
    ),
}


@pytest.mark.parametrize(
    "run_id", ["", " ", "\t", "r\n1", "r\x1b[31m", "r\x7f", "r\x85", "r\u2028"]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda run_id: order.start(1, run_id=run_id),
        lambda run_id: spawn(order, 1, run_id=run_id),
    ],
    ids=["start", "spawn"],
)
def test_the_id_of_a_new_run_is_visible_text(make: Callable[[str], object], run_id: str) -> None:
    with pytest.raises(ValueError, match="cannot be the id of a run: use text with at least one"):
        make(run_id)


@pytest.mark.parametrize("run_id", ["0", "a b", "order/17#2", "naïve 日本", "[red]"])
def test_other_text_can_be_a_run_id(run_id: str) -> None:
    assert run(order.start(1, run_id=run_id)) == Success(1)


@pytest.mark.parametrize(("make", "way_out"), CASES.values(), ids=CASES)
def test_a_wrong_argument_is_rejected_with_the_way_out(
    make: Callable[[], object], way_out: str
) -> None:
    with pytest.raises(TypeError, match=way_out):
        make()


@effect
async def later(env: Environment, number: int) -> int:
    return number


@step
def plainly(number: int) -> Effect[Environment, Any, int]:
    return pure(number)


@step
def forgotten(env, number):
    return number


@do
def body(number: int) -> Do[Environment, Any, int]:
    return (yield from pure(number))


ENVIRONMENT = Environment(Checkpoints(MemoryStore()))
PASSED = "the environment is passed for you"
ABOVE_EFFECT = "write @effect below @step, and the environment is passed for you"
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "a step with the environment": (
        lambda: doubled(ENVIRONMENT, 3),  # type: ignore[arg-type, call-arg]
        rf"step 'double': too many .*\. Write double\(number\): {PASSED}",
    ),
    "a step with an argument too many": (
        lambda: doubled(3, 4),  # type: ignore[arg-type, call-arg]
        rf"double\(\) takes 2 .*\. Write double\(number\): {PASSED}",
    ),
    "a step without its argument": (
        lambda: doubled(),  # type: ignore[arg-type, call-arg]
        rf"double\(\) missing 1 .*\. Write double\(number\): {PASSED}",
    ),
    "a step with an unknown argument": (
        lambda: doubled(count=3),  # type: ignore[arg-type, call-arg]
        rf"step 'double': .*\. Write double\(number\): {PASSED}",
    ),
    "an effect with the environment": (
        lambda: later(ENVIRONMENT, 3),  # type: ignore[arg-type, call-arg]
        rf"later\(\) takes 2 .*\. Write later\(number\): {PASSED}",
    ),
    "a step that takes no environment": (
        lambda: plainly(3, 4),  # type: ignore[arg-type, call-arg]
        rf"plainly\(\) takes 1 .*\. @step passes only these .* {ABOVE_EFFECT}",
    ),
    "a step without @effect": (
        lambda: forgotten(3),  # type: ignore[arg-type, call-arg]
        rf"forgotten\(\) missing 1 .*'number'\. @step passes only these .* {ABOVE_EFFECT}",
    ),
    "a body with the environment": (
        lambda: body(ENVIRONMENT, 3),  # type: ignore[arg-type, call-arg]
        r"body\(\) takes 1 .*\. Write body\(number\)\n",
    ),
}


@pytest.mark.parametrize(("call", "way_out"), CALLS.values(), ids=CALLS)
def test_a_call_with_wrong_arguments_says_what_to_write(
    call: Callable[[], Any], way_out: str
) -> None:
    @workflow
    def calling(_: None) -> Do[Environment, Any, int]:
        return (yield from call())

    with pytest.raises(TypeError, match=way_out):
        run(calling.start(None))


class AnEffect(Protocol):
    def run(self, env: Any) -> Any: ...


@pytest.mark.parametrize(
    "annotation",
    [
        None,
        Any,
        object,
        AnEffect,
        Effect,
        Effect[Any, Any, int],
        Do[Any, Any, int],
        TypeVar("T"),
        "Later",
    ],
    ids=repr,
)
def test_a_step_may_be_annotated_with_what_may_be_an_effect(annotation: object) -> None:
    def acting(number: int) -> Any:
        return pure(number)

    acting.__annotations__ = {} if annotation is None else {"return": annotation}
    assert step(acting)(1).run_sync(None) == Success(1)


async def ship(env: Environment, number: int) -> int:
    return number


def infallible(number: int) -> Effect[Environment, Never, int]:
    return pure(number)


def infallible_body(number: int) -> Do[Environment, Never, int]:
    return (yield from pure(number))


def fallible(number: int) -> Effect[Environment, str, int]:
    return pure(number)


def unannotated(number: int) -> Any:
    return (yield from pure(number))


@wraps(effect(double))
def wrapped(number: int) -> Effect[Environment, str, int]:
    return effect(double)(number).ensure(bool, "zero")


RETRY = RetryPolicy.constant(0).with_max_retries(2)


@pytest.mark.parametrize(
    "function",
    [effect(double), effect(ship), infallible, infallible_body, do(infallible_body)],
    ids=["effect", "async effect", "annotated", "body", "do"],
)
def test_a_retry_policy_of_a_step_without_failures_says_what_to_declare(function: Any) -> None:
    with pytest.raises(TypeError, match=r"declares no failures, .*errors=\.\.\. of @step"):
        step(retry=RETRY)(function)
    # A timeout is a failure.
    step(retry=RETRY, timeout=5)(function)


@pytest.mark.parametrize(
    "function",
    [effect(errors=KeyError)(double), fallible, do(unannotated), wrapped, lambda: pure(1)],
    ids=["effect", "annotated", "do", "another decorator", "lambda"],
)
def test_a_retry_policy_of_a_step_that_may_have_failures_is_accepted(function: Any) -> None:
    step(retry=RETRY)(function)


def test_a_type_error_of_the_code_itself_is_unchanged() -> None:
    def inner(first: int) -> int:
        return first

    @effect
    def calls(env: Environment, number: int) -> int:
        return called_with_nothing(inner)

    with pytest.raises(TypeError) as raised:
        run(calls(3))
    assert str(raised.value).endswith("missing 1 required positional argument: 'first'")


def called_with_nothing(function: Any) -> int:
    return function()


def test_yield_from_a_list_says_what_to_write() -> None:
    @workflow
    def listing(_: None) -> Do[Environment, Any, object]:
        effects: Any = [doubled(1), doubled(2)]
        return (yield from effects)

    with pytest.raises(
        AttributeError, match="takes one effect, not a list: use par_try_all"
    ) as raised:
        run(listing.start(None))
    assert str(raised.value).count("takes one effect") == 1


def returning(value: object, declared: object) -> Any:
    def body(_: None) -> Any:
        return pure(value)

    body.__annotations__ = {"return": Effect[Environment, Any, declared]}
    return workflow(body)


@pytest.mark.parametrize(
    ("value", "declared", "problem"),
    [
        (
            doubled(1),
            int,
            r"output: \$: step\('double'\) is not of the declared type int, but an effect",
        ),
        (doubled(1), Any, r"output: \$: step\('double'\) is an effect, not its value"),
        (
            [pure(1)],
            list[int],
            r"output: \$\[0\]: pure\(1\) is not of the declared type int, but an effect",
        ),
        ({"a": pure(1)}, Any, r"pure\(1\) is an effect, not its value"),
    ],
)
def test_an_effect_as_an_output_asks_for_yield_from(
    value: object, declared: object, problem: str
) -> None:
    ended: Any = run(returning(value, declared).start(None))
    with pytest.raises(
        NotSerializable, match=rf"{problem} \(did you forget `await` or `yield from`\?\)"
    ):
        raise ended.failure()


@pytest.mark.parametrize("given", [Inexact(1), {"number": 1}, "1"], ids=["class", "dict", "text"])
def test_an_input_of_another_type_names_the_type(given: object) -> None:
    @workflow
    def exact(_: Exact) -> Do[Environment, Any, int]:
        return (yield from pure(1))

    ended: Any = run(exact.start(given))  # type: ignore[arg-type]
    with pytest.raises(
        NotSerializable,
        match=r"is not of the declared type Exact\. Pass a value of that type, or correct the annotation",
    ):
        raise ended.failure()


def test_an_input_of_an_undeclared_class_asks_for_an_annotation() -> None:
    ended: Any = run(workflow(lambda _: pure(1)).start(Inexact(1)))
    with pytest.raises(
        NotSerializable, match=r"annotate the function that .* takes it as its input"
    ):
        raise ended.failure()


def test_a_method_of_an_effect_says_how_to_make_one_of_a_step_or_a_workflow() -> None:
    with pytest.raises(AttributeError, match=r"write `double\(number\)\.timeout\(\.\.\.\)`"):
        cast("Any", doubled).timeout(1)
    with pytest.raises(AttributeError, match=r"'order' is not an effect: use its .start"):
        cast("Any", order).timeout(1)
    assert not hasattr(doubled, "timeout")
    assert not hasattr(order, "timeout")
    with pytest.raises(AttributeError, match=r"^'Step' object has no attribute 'nmae'"):
        cast("Any", doubled).nmae()
    assert loads(dumps(doubled)).name == copy(doubled).name == "double"
    assert inspect.signature(doubled) == inspect.signature(doubled.function)


def test_a_step_may_be_a_value() -> None:
    def the_step(_: object) -> Any:
        return doubled

    assert asks(the_step).run_sync(None) == Success(doubled)
    assert effect(the_step)().run_sync(None) == Success(doubled)


def test_a_conflict_shows_both_inputs() -> None:
    order.start(1, run_id="r").run_sync(ENVIRONMENT)
    ended = order.start(2, run_id="r").run_sync(ENVIRONMENT)
    with pytest.raises(RunConflict, match="it was started with another input: 1, not 2"):
        raise ended.failure()


def test_a_conflict_shortens_long_inputs() -> None:
    @workflow
    def long(text: str) -> Do[Environment, Any, str]:
        return (yield from pure(text))

    long.start("a" * 1000, run_id="long").run_sync(ENVIRONMENT)
    ended = long.start("b" * 1000, run_id="long").run_sync(ENVIRONMENT)
    with pytest.raises(RunConflict, match=r"another input: 'a{199}\.\.\., not 'b{199}\.\.\.\."):
        raise ended.failure()


@pytest.mark.anyio
async def test_run_sync_in_async_code_says_what_to_write() -> None:
    for run_sync in (pure(1).run_sync, pure(1).run_sync_or_raise):
        with pytest.raises(RuntimeError, match=r"In async code, write `await effect.run\(env\)`"):
            run_sync(None)


def test_a_runtime_error_of_the_effect_is_unchanged() -> None:
    with pytest.raises(RuntimeError, match=r"^out of paper$"):
        die(RuntimeError("out of paper")).run_sync(None)
