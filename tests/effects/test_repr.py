"""`repr` shows every effect as it was written, so that one that somebody forgot to run is recognised."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from typing import Any

import pytest

import effectflow
import effectflow.checkpoint
import effectflow.effects
import effectflow.machines
from effectflow import *  # noqa: F403  # what `eval` needs
from effectflow import Do, Effect, Signal, Workflow, do, pure, workflow
from effectflow.checkpoint import *  # noqa: F403
from effectflow.effects import *  # noqa: F403
from effectflow.machines import *  # noqa: F403


@workflow
def order(number: int) -> Do[object, str, int]:
    return (yield from pure(number))


@do
def checkout(cart: str) -> Do[object, str, int]:
    return (yield from pure(len(cart)))


def double(number: int) -> Effect[object, Any, int]:
    return pure(2 * number)


OPERATORS = """[
    pure(1), fail('no'), die(KeyError('k')), from_fn(double), from_async(double), from_blocking(double),
    attempt(double, KeyError, OSError), suspend(double), ask(), sleep(3), now(), save_now('why'),
    publish('progress', 5),
    random(), uuid(), never(), transition_info(),
    checkout('c-1'), run_context(), started_version(), patched('vat'),
    par(pure(1), fail('no')), par_all([pure(1)], limit=2), par_try_all([pure(1), fail('no')]),
    traverse([1], double), par_traverse([1], double, limit=2, key=str), par_traverse((1,), double),
    par_reduce([1, 2], double, double, limit=2), race([pure(1), fail('no')]), first_success([pure(1)]),
    emit('half'), bracket(pure(1), double, double), saga(compensate(pure(1), double)),
    acquiring(pure(1), double), acquiring(pure(1), double).and_(pure(2), double).use(double),
    using(double).use(double), acquiring(pure(1), double).and_(using(double)),
    order.start(5), order.start(5, run_id='r-1'), order.resume('r-1'), order.resume('r-1', force=True),
    order.call(5), order.plan('r-1', effects=True), order.body(5),
    order.result('r-1'), order.retry_dead_letters('r-1', keys=['cap']),
    order.drop_dead_letters('r-1', force=True),
    order.complete_step('r-1', 'charge', 5), order.fail_step('r-1', 'charge', 'no', by='Jo'),
    order.fork('r-1'), order.fork('r-1', at='charge', changes={'ask': 1}, new_run_id='r-2'),
    order.fork('r-1', input=6), order.fork('r-1', at=0, input=0),
    Signal('approval', bool).wait(), spawn(order, 5), spawn(order, 5, run_id='r-1', is_detached=True),
    pure(1).map(str), pure(1).map_err(str), pure(1).and_then(double), pure(1).or_else(double),
    pure(1).tap(double), pure(1).tap_err(double), pure(1).zip(pure(2), pure(3)),
    pure(1).zip_with(pure(2), max), pure(1).ensure(bool, 'no'), pure(1).ensure_with(bool, str),
    pure(1).recover(KeyError, double), pure(1).recover((KeyError, OSError), double),
    pure(1).recover(callable, double), pure(1).fallback(2), pure(1).fallback_to(pure(2)),
    pure(1).result(), pure(1).context('c'), pure(1).traced(), pure(1).named('n'), pure(1).local(str),
    pure(1).provide('env'), pure(1).timeout(3), pure(1).on_exit(pure(2)), pure(1).on_exit(double),
    pure(1).collecting(), pure(1).into_sink(print),
    pure(1).retry(RetryPolicy.constant(1.0).with_max_retries(3), retryable=bool, on_retry=double)
]"""

LIST: Any = ast.parse(OPERATORS, mode="eval").body
WRITTEN = [ast.unparse(each) for each in LIST.elts]


@pytest.mark.parametrize("written", WRITTEN)
def test_every_operator_shows_how_it_was_written(written: str) -> None:
    assert repr(eval(written)) == written


def test_the_list_of_operators_is_complete() -> None:
    named = set(re.findall(r"\w+", OPERATORS))
    packages: tuple[Any, ...] = (effectflow, effectflow.effects, effectflow.checkpoint)
    functions = {name: getattr(package, name) for package in packages for name in package.__all__}
    functions |= vars(effectflow.machines)

    # These show what they make: a step, a plain value, or the effect itself. The time of `sleep_until` is
    # shortened.
    assert makers(functions) - named == {
        "asks",
        "from_optional",
        "from_result",
        "sleep_until",
        "with_checkpointing",
    }
    assert makers(vars(Effect)) - named == {"checkpointed", "on_executor", "within"}
    assert makers(vars(Workflow)) | makers(vars(Signal)) <= named


def makers(named: Mapping[str, Any]) -> set[str]:
    """Return the names of the public functions that return an effect."""
    functions = {name: each for name, each in named.items() if inspect.isfunction(each)}
    return {
        name
        for name, function in functions.items()
        if name[0] != "_"
        and str(inspect.signature(function).return_annotation).startswith("Effect[")
    }


def test_policies_show_how_they_were_written() -> None:
    for written in (
        "RetryPolicy.exponential(0.1).with_max_retries(4).with_max_delay(0.5).with_jitter(0.25)",
        "RetryPolicy.fibonacci(1.0).with_max_elapsed(60).with_full_jitter().with_seed(1)",
        "RetryPolicy.linear(1.0).without_bound().with_decorrelated_jitter()",
    ):
        assert repr(eval(written)) == written
