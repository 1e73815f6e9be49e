"""The size of the calls that are sent to other processes."""

from __future__ import annotations

from typing import Any

import pytest

from effectflow import Effect, pure
from effectflow.effects.nodes import Perform
from effectflow.effects.scope import Scope
from effectflow.executors.remote_call import write_call
from effectflow.machines import Moved, StateMachine, Transition

pytestmark = pytest.mark.anyio


async def test_calls_do_not_grow_with_the_history_of_a_machine() -> None:
    sizes: list[int] = []

    def count(state: int) -> Effect[object, Any, Moved[int]]:
        async def measure(_env: object, scope: Scope) -> Moved[int]:
            sizes.append(len(write_call(pure, None, scope)))
            return Moved(state + 1)

        return Perform(measure)

    transitions = [
        Transition("count", int, int, count, lambda state: state < 99),
        Transition("end", int, "end"),
    ]
    machine = StateMachine("counter", initial=0, transitions=transitions, final="end")
    await machine.run_until_final().run_or_raise(None)

    # The path of a step ends with a number, which has one digit at first.
    assert len(sizes) == 99
    assert len(set(sizes[9:])) == 1
