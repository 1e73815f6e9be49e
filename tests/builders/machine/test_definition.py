"""Building a machine reports all problems of its definition, and nothing that may be right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, Flag
from functools import partial
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar

import pytest

from effectflow import Effect, RetryPolicy, pure
from effectflow.machines import Abort, InvalidMachine, Moved, Retry, StateMachine, Transition
from tests.builders.machine.orders import only

T = TypeVar("T")


class Step(Enum):
    A = "a"
    B = "b"
    C = "c"
    D = "d"


def act(state: object) -> Effect[object, str, Moved[Any] | Retry | Abort[Any]]:
    return pure(Retry("later"))


def no(state: object) -> bool:
    return False


def problems(
    *transitions: Transition[Any, Any, Any],
    initial: Any = Step.A,
    final: Any = (Step.D,),
    **options: Any,
) -> tuple[str, ...]:
    """The problems of a machine with these transitions."""
    try:
        StateMachine("checked", initial=initial, transitions=transitions, final=final, **options)
    except InvalidMachine as invalid:
        return invalid.problems
    return ()


A_TO_D = Transition("go", Step.A, Step.D)


def test_all_problems_are_reported_at_once() -> None:
    found = problems(
        Transition("twice", Step.A, Step.B),
        Transition("twice", Step.C, Step.D),
        Transition("a/b", Step.A, Step.D),
        Transition("back", Step.D, Step.A),
        retry=RetryPolicy.constant(1),
    )

    policy, repeated, unnamed, *others = found
    assert policy.startswith("the retry policy of the machine is unbounded: add with_max_retries")
    assert repeated == "2 transitions have the name 'twice'"
    assert unnamed.startswith("'a/b' cannot name a step")
    assert others == [
        "transition 'a/b' is never attempted: 'twice' comes before it and has no guard",
        "transition 'back' leaves D, which is final",
        "state B is dead: it is not final, and no transition leaves it",
        "state C is unreachable: nothing leads to it from the initial state",
    ]


def test_the_error_lists_the_problems_and_names_the_machine() -> None:
    with pytest.raises(InvalidMachine) as caught:
        StateMachine("empty", initial=None, transitions=[], final=[])

    assert caught.value.machine == "empty"
    assert str(caught.value) == (
        "state machine 'empty' cannot be built:\n"
        "- it has no transitions\n"
        "- it has no initial state: `initial` must be the state to begin in\n"
        "- it has no final state: set `final` to the states that end it, or to None if it never ends"
    )


def test_a_machine_without_final_states_must_declare_it() -> None:
    circle = [Transition("there", Step.A, Step.B), Transition("back", Step.B, Step.A)]

    [endless] = problems(*circle, final=())
    assert endless.startswith("it has no final state: set `final`")
    assert problems(*circle, final=None) == ()


def test_an_unbounded_policy_is_reported() -> None:
    unbounded = RetryPolicy.constant(1)

    [problem] = problems(Transition("go", Step.A, Step.D, act, retry=unbounded))
    assert problem.startswith("the retry policy of transition 'go' is unbounded")
    assert problems(Transition("go", Step.A, Step.D, act, retry=unbounded.without_bound())) == ()


@dataclass(frozen=True)
class Page:
    text: str


@dataclass(frozen=True)
class Draft(Page): ...


@dataclass(frozen=True)
class Review(Page): ...


@dataclass(frozen=True)
class Public(Page): ...


DRAFT = Draft("text")


def case(name: str, *transitions: Any, said: tuple[str, ...] = (), **options: Any) -> Any:
    """A definition and its problems, none by default."""
    return pytest.param(transitions, options, said, id=name)


def go(target: Any, action: Any = None, **options: Any) -> Transition[Any, Any, Any]:
    return Transition("go", Step.A, target, action, **options)


NO_INITIAL = "it has no initial state: `initial` must be the state to begin in"
C_UNREACHABLE = "state C is unreachable: nothing leads to it from the initial state"
NEITHER = "is dead: it is not final, and no transition leaves it"
FALL = Transition("fall", Step.A, Step.B, guard=no)
CIRCLE = [Transition("in", Step.B, Step.C), Transition("out", Step.C, Step.B)]
SPLIT = [Transition("left", Step.A, Step.C, guard=no), Transition("right", Step.A, Step.D)]
C_AND_D = {Step.C, Step.D}
PAGES: dict[str, Any] = {"initial": DRAFT, "final": [Public]}
SUBMIT = Transition("submit", Draft, Review, act)
DECIDE = Transition("decide", Review, {Draft, Public}, act)
MAY_SUBMIT = Transition("submit", Draft, Review, act, guard=no)
FINISH = Transition("finish", Page, Public, act)
OF_UNION: Transition[Any, Any, Any] = Transition("finish", Draft | Review, Public, act)


@pytest.mark.parametrize(
    ("transitions", "options", "said"),
    [
        case("valid", A_TO_D),
        case("nothing initial", said=("it has no transitions", NO_INITIAL), initial=None),
        case("a class as the initial state", A_TO_D, said=(NO_INITIAL,), initial=Step),
        case("None as a state", Transition("go", None, Step.D), initial=None),
        case(
            "no transitions",
            said=(
                "it has no transitions",
                f"state A {NEITHER}",
                "state D is unreachable: nothing leads to it from the initial state",
            ),
        ),
        case(
            "a circle without an exit",
            A_TO_D,
            FALL,
            *CIRCLE,
            said=(
                "transition 'fall' is never attempted: 'go' comes before it and has no guard",
                "state B is dead: no final state can be reached from it",
                "state C is dead: no final state can be reached from it",
            ),
        ),
        case("an action may abort to a final state", go(Step.D, act), final=C_AND_D),
        case("no action aborts", A_TO_D, said=(C_UNREACHABLE,), final=C_AND_D),
        case(
            "it aborts elsewhere",
            go(Step.D, act, abort_to=Step.D),
            said=(C_UNREACHABLE,),
            final=C_AND_D,
        ),
        case(
            "aborted to a dead state",
            go(Step.D, act, abort_to=Step.B),
            said=(f"state B {NEITHER}",),
        ),
        case(
            "two targets without an action",
            go(C_AND_D),
            said=(
                "transition 'go' has no action, so it must lead to a single state, not to C or D",
            ),
            final=C_AND_D,
        ),
        case(
            "no target",
            go(set[Step](), act),
            said=("transition 'go' leads to no state", f"state A {NEITHER}"),
            final=None,
        ),
        # As a source, a class does not add states, and does not leave final ones.
        case("a class as a source", Transition("quit", Step, Step.D, guard=no), go(Step.B)),
        # As a target, it adds all of its members.
        case(
            "a class as a target", go(Step, act), said=(f"state B {NEITHER}", f"state C {NEITHER}")
        ),
        case("one final state", A_TO_D, final=Step.D),
        case("text as a final state", Transition("go", "ab", "cd"), initial="ab", final="cd"),
        case("a set of final states", *SPLIT, final=C_AND_D),
        case("a list of final states", *SPLIT, final=[Step.C, Step.D]),
        case("a frozenset of final states", *SPLIT, final=frozenset(C_AND_D)),
        # A class is one place for all of its instances.
        case("classes", SUBMIT, DECIDE, **PAGES),
        case("a class that nothing leaves", SUBMIT, said=(f"state Review {NEITHER}",), **PAGES),
        case(
            "a class that nothing reaches",
            DECIDE,
            Transition("fix", Draft, Draft, act),
            said=("transition 'decide' leaves Review, to which nothing leads",),
            **PAGES,
        ),
        case("a base class means its subclasses", MAY_SUBMIT, FINISH, **PAGES),
        case(
            "and hides them",
            FINISH,
            MAY_SUBMIT,
            said=(
                "transition 'submit' is never attempted: 'finish' comes before it and has no guard",
            ),
            **PAGES,
        ),
        case("a union means its classes", MAY_SUBMIT, OF_UNION, **PAGES),
        # Any other page would be dead, but it is unknown whether there are others.
        case(
            "an instance of a target class",
            Transition("write", Draft, Public, act),
            initial=DRAFT,
            final={Public("the end")},
        ),
    ],
)
def test_a_definition_has_these_problems(
    transitions: Any, options: dict[str, Any], said: tuple[str, ...]
) -> None:
    assert problems(*transitions, **options) == said


def test_a_literal_means_its_values() -> None:
    assert str(OF_UNION.source) == "Draft or Review"
    assert "transition 'go' leaves no state" in problems(Transition("go", set[Step](), Step.D))
    letters = Literal["b", "a", "b", Step.A, None]
    go: Transition[Any, Any, Any] = Transition("go", letters, "c")

    assert str(go.source) == "b or a or A or None"
    assert problems(go, initial="a", final={"c"}) == (
        "state b is unreachable: nothing leads to it from the initial state",
        "state A is unreachable: nothing leads to it from the initial state",
        "state None is unreachable: nothing leads to it from the initial state",
    )
    some: Any = Literal["a"] | Draft
    assert str(Transition("go", some, "c").source) == "a or Draft"
    assert problems(Transition("go", "a", "c"), initial="a", final=Literal["c"]) == ()


class Box(Generic[T]): ...


Name = NewType("Name", str)


@pytest.mark.parametrize(
    "annotation",
    [Box[int], list[str], Name, Any, Annotated[Draft, "a page"], T, Callable[[int], int], {Name}],
)
def test_other_annotations_are_rejected(annotation: Any) -> None:
    [named] = annotation if isinstance(annotation, set) else [annotation]

    with pytest.raises(TypeError) as caught:
        Transition("go", annotation, "end")
    assert str(caught.value).startswith(
        f"{named} is an annotation, not a state: name states by themselves, by a class"
    )
    begun, *_ = problems(A_TO_D, initial=named)
    assert begun.startswith(f"`initial` must be a state: {named} is an annotation")


class Access(Flag):
    WRITE = 2
    READ = 1
    ALL = 4


def test_combined_members_of_a_flag_are_states() -> None:
    both = Access.READ | Access.WRITE
    widen = Transition("widen", {both, Access.READ, Access(0), Access.WRITE}, Access.ALL)

    assert str(widen.source) == "WRITE or READ or <Access: 0> or WRITE|READ"
    split = [
        Transition("widen", Access.READ, both, guard=no),
        Transition("swap", Access.READ, Access.WRITE),
    ]
    close = Transition("close", {Access.WRITE, both}, Access.ALL)
    assert problems(*split, close, initial=Access.READ, final={Access.ALL}) == ()


@pytest.mark.parametrize("named", [frozenset({"a", "b"}), frozenset({Step.A})])
def test_a_frozenset_is_one_state(named: Any) -> None:
    elements = ", ".join(sorted(map(repr, named)))
    shown = f"frozenset({{{elements}}}) (a frozenset is one state; use a set for several)"

    assert problems(Transition("go", named, "z"), initial="a", final={"z"}) == (
        "state a is dead: it is not final, and no transition leaves it",
        f"state {shown} is unreachable: nothing leads to it from the initial state",
        "state z is unreachable: nothing leads to it from the initial state",
    )
    assert problems(Transition("go", "a", named, act), initial="a", final=None) == (
        f"state {shown} is dead: it is not final, and no transition leaves it",
    )
    assert problems(Transition("go", {named}, "z"), initial=named, final={"z"}) == ()


def test_two_classes_with_the_same_name_are_rejected() -> None:
    other = type("Draft", (Page,), {"__module__": __name__})

    [problem] = problems(Transition("go", Draft, other, act), initial=DRAFT, final=[other])

    assert "two classes" in problem
    assert "named Draft" in problem


def test_actions_may_fail_with_different_classes_of_the_same_name() -> None:
    def declined(module: str) -> type[Exception]:
        @dataclass
        class Declined(Exception):
            code: int

        Declined.__module__ = module
        return Declined

    def act_that_fails_with(error: type[Exception]) -> Callable[[object], Any]:
        def act(state: object) -> Any: ...

        act.__annotations__["return"] = Effect[object, error, Moved[Step]]
        return act

    by_card, by_bank = (act_that_fails_with(declined(module)) for module in ("card", "bank"))

    assert not problems(
        Transition("pay", Step.A, Step.B, by_card), Transition("move", Step.B, Step.D, by_bank)
    )


def test_a_list_of_states_is_rejected() -> None:
    with pytest.raises(TypeError, match="use a set for several states"):
        Transition("go", [Step.A, Step.B], Step.D)


def test_a_mutable_dataclass_cannot_be_a_state() -> None:
    @dataclass
    class Loose:
        text: str

    loose, *_ = problems(Transition("go", Loose, "end", act), initial=Loose("a"), final={"end"})

    assert loose.startswith("`initial` must be a state: ")
    assert "make a dataclass frozen=True" in loose


def test_invalid_initial_and_final_states_are_reported_with_all_other_problems() -> None:
    initial, final, *others = problems(
        Transition("a/b", Step.A, Step.B), initial=[1], final=[[2]], retry=RetryPolicy.constant(1)
    )

    assert initial.startswith("`initial` must be a state: [1] is not hashable")
    assert final.startswith("`final` must be states: [2] is not hashable")
    assert any("cannot name a step" in problem for problem in others)
    assert any("is unbounded" in problem for problem in others)


def generator(state: Step) -> Any:
    yield state


async def later(state: Step) -> bool:
    return False


class Later:
    async def __call__(self, state: Step) -> bool:
        return False


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"action": 5}, "takes a function from a state to an effect as its action, not 5"),
        (
            {"action": generator},
            "takes a function from a state to an effect as its action, not a generator function",
        ),
        ({"guard": True}, "takes a function from a state to a bool as its guard, not True"),
        (
            {"guard": generator},
            "takes a function from a state to a bool as its guard, not a generator function",
        ),
        (
            {"guard": later},
            "takes a function from a state to a bool as its guard, not an async function",
        ),
        (
            {"guard": Later()},
            "takes a function from a state to a bool as its guard, not an async function",
        ),
        (
            {"guard": partial(later)},
            "takes a function from a state to a bool as its guard, not an async function",
        ),
        (
            {"action": later},
            "takes a function from a state to an effect as its action, not an async function",
        ),
    ],
)
def test_actions_and_guards_must_be_functions(given: Any, said: str) -> None:
    [problem] = problems(Transition("go", Step.A, Step.D, **given))

    assert problem.startswith(f"transition 'go' {said}")


def test_invalid_transitions_and_policies_are_reported_with_all_other_problems() -> None:
    given: Any = ["x", A_TO_D, 5]
    policy: Any = 3

    assert problems(*given, retry=policy, initial=[1])[1:] == (
        "`transitions` must have transitions only, but has 'x' at index 0",
        "`transitions` must have transitions only, but has 5 at index 2",
        "the retry policy of the machine must be a RetryPolicy, not 3",
        "it has no initial state: `initial` must be the state to begin in",
    )
    none: Any = None
    assert problems(Transition("go", Step.A, Step.D, act, retry=policy), retry=none) == (
        "the retry policy of the machine must be a RetryPolicy, not None",
        "the retry policy of transition 'go' must be a RetryPolicy, not 3",
    )
    alone: Any = A_TO_D
    with pytest.raises(InvalidMachine, match=r"`transitions` must be a list of .*, not Transition"):
        StateMachine("alone", initial=Step.A, transitions=alone, final={Step.D})


def test_a_machine_needs_a_name() -> None:
    with pytest.raises(InvalidMachine, match="its name must be text that is not empty, not ''"):
        StateMachine("", initial=Step.A, transitions=[A_TO_D], final={Step.D})


SAME_IN_EVERY_PROCESS = """
from dataclasses import dataclass
from effectflow.machines import StateMachine, Transition

named = {'x', 'b', 'long', 'a', frozenset('vuw'), frozenset('fed'), frozenset('ihg')}
print(Transition('go', named, {'u', 'v', 'w'}).source)

@dataclass(frozen=True)
class Kit:
    parts: frozenset[object]
    places: tuple[object, ...] = ()

full = Kit(frozenset({'a', 'b', Kit(frozenset('cde'))}), (1, frozenset('fgh')))
empty = Kit(frozenset())
use = Transition('use', full, empty)
print(StateMachine('kits', initial=full, transitions=[use], final={empty}).fingerprint)
"""


def test_messages_and_fingerprints_are_the_same_in_every_process() -> None:
    def output(seed: str) -> list[str]:
        command = [sys.executable, "-c", SAME_IN_EVERY_PROCESS]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.check_output(command, text=True, env=environment).splitlines()

    source, fingerprint = output("1")
    letters = [f"frozenset({{{', '.join(map(repr, part))}}})" for part in ("def", "ghi", "uvw")]
    assert source == " or ".join([*letters, "a", "b", "long", "x"])
    assert output("2") == output("3") == [source, fingerprint]


def test_a_machine_is_a_workflow_with_a_definition() -> None:
    machine = StateMachine(
        "defined", initial=Step.A, transitions=[A_TO_D], final={Step.D}, version="3"
    )

    assert (machine.name, machine.kind, machine.version) == ("defined", "machine", "3")
    assert machine.definition.steps == ("go",)
    assert machine.initial is Step.A


def test_migrations_must_lead_to_the_version() -> None:
    migrations: dict[int, Callable[[Any], Any]] = {1: lambda state: state}
    assert only(version="2", migrations=migrations).version == "2"
    with pytest.raises(ValueError, match="migrations"):
        only(version="1", migrations=migrations)


def test_building_hundreds_of_states_does_not_compare_each_with_each() -> None:
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    transitions = [Transition(f"to {n + 1}", n, n + 1, act) for n in range(200)]
    sys.setprofile(count)
    try:
        machine = StateMachine("long", initial=0, transitions=transitions, final={200})
    finally:
        sys.setprofile(None)

    assert len(machine.definition.steps) == 200
    assert calls < 1_000_000  # nearly four times as many, if all are looked at for each
