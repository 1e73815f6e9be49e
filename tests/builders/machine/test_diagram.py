"""The diagram of a machine: its states, the transitions between them, and the current state."""

from __future__ import annotations

from typing import Any

from effectflow import Effect, pure
from effectflow.machines import Abort, Moved, StateMachine, Transition
from tests.builders.machine.orders import App, Order, World, orders


def test_mermaid_shows_states_transitions_guards_and_aborts() -> None:
    assert orders.to_mermaid() == (
        "flowchart TD\n"
        '    n0((" "))\n'
        '    n1["NEW"]\n'
        '    n2["PAID"]\n'
        '    n3["CANCELLED"]\n'
        '    n4["SHIPPED"]\n'
        '    n5["LOST"]\n'
        '    n6(((" ")))\n'
        "    n0 --> n1\n"
        '    n1 -->|"cancel if is_never"| n3\n'
        '    n2 -->|"cancel if is_never"| n3\n'
        '    n1 -->|"charge"| n2\n'
        '    n2 -->|"ship"| n4\n'
        '    n2 -.->|"ship (abort)"| n5\n'
        "    n3 --> n6\n"
        "    n4 --> n6\n"
        "    n5 --> n6\n"
    )


def test_a_machine_marks_its_visited_and_current_states() -> None:
    paid = orders.step(orders.begin()).run_sync(App(World())).unwrap()

    assert orders.to_mermaid(paid).splitlines()[-2:] == [
        "    class n1 visited",
        "    class n2 current",
    ]


def act(_: object) -> Effect[object, str, Moved[Order] | Abort[Order]]:
    return pure(Abort("why", Order.LOST))


def test_implied_aborts_are_drawn_only_to_states_without_another_arrow() -> None:
    machine = StateMachine(
        "any",
        initial=Order.NEW,
        transitions=[
            Transition("ship", Order.NEW, Order.SHIPPED, act, guard=lambda _: True),
            Transition("cancel", Order, Order.CANCELLED),
        ],
        final={Order.SHIPPED, Order.CANCELLED, Order.LOST},
    )

    ways = [line.strip() for line in machine.to_mermaid().splitlines() if '|"' in line]

    assert ways == [
        'n1 -->|"ship if guard"| n2',
        'n1 -->|"cancel"| n3',
        'n1 -.->|"ship if guard (abort)"| n4',
    ]


def test_states_and_transitions_may_have_any_name() -> None:
    state = '"] ; drop\nend --> #35;'
    machine: StateMachine[Any, Any, str] = StateMachine(
        "any", initial=state, transitions=[Transition('a"b', state, "end")], final={"end"}
    )

    assert '["#34;#93; #59; drop end --#62; #35;35#59;"]' in machine.to_mermaid()
    assert '|"a#34;b"|' in machine.to_mermaid()
