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

from effectflow import Abort, Effect, Moved, Retry, RetryPolicy, StateMachine, Transition, pure
from effectflow.workflows import InvalidMachine

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


def test_a_valid_definition_has_no_problems() -> None:
    assert problems(A_TO_D) == ()


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
        "- it has no initial state: `initial` must be the state in which it begins\n"
        "- it has no final state: set `final` to the states that end it, or to None if it never ends"
    )


def test_a_machine_needs_an_initial_state_and_transitions() -> None:
    no_initial = "it has no initial state: `initial` must be the state in which it begins"

    assert problems(initial=None) == ("it has no transitions", no_initial)
    assert problems(A_TO_D, initial=Step) == (no_initial,)
    assert problems(Transition("go", None, Step.D), initial=None) == ()


def test_without_transitions_the_states_are_dead_or_unreachable() -> None:
    assert problems() == (
        "it has no transitions",
        "state A is dead: it is not final, and no transition leaves it",
        "state D is unreachable: nothing leads to it from the initial state",
    )


def test_a_state_from_which_no_final_one_can_be_reached_is_dead() -> None:
    circle = [Transition("in", Step.B, Step.C), Transition("out", Step.C, Step.B)]

    assert problems(A_TO_D, Transition("fall", Step.A, Step.B, guard=no), *circle) == (
        "transition 'fall' is never attempted: 'go' comes before it and has no guard",
        "state B is dead: no final state can be reached from it",
        "state C is dead: no final state can be reached from it",
    )


def test_a_machine_without_final_states_must_declare_it() -> None:
    circle = [Transition("there", Step.A, Step.B), Transition("back", Step.B, Step.A)]

    [endless] = problems(*circle, final=())
    assert endless.startswith("it has no final state: set `final`")
    assert problems(*circle, final=None) == ()


def test_an_action_may_abort_to_a_final_state() -> None:
    assert problems(Transition("go", Step.A, Step.D, act), final={Step.C, Step.D}) == ()
    assert problems(A_TO_D, final={Step.C, Step.D}) == (
        "state C is unreachable: nothing leads to it from the initial state",
    )
    assert problems(
        Transition("go", Step.A, Step.D, act, abort_to=Step.D), final={Step.C, Step.D}
    ) == ("state C is unreachable: nothing leads to it from the initial state",)


def test_an_abort_target_must_be_final_or_have_transitions() -> None:
    assert problems(Transition("go", Step.A, Step.D, act, abort_to=Step.B)) == (
        "state B is dead: it is not final, and no transition leaves it",
    )


def test_a_transition_without_an_action_needs_a_single_target() -> None:
    assert problems(Transition("go", Step.A, {Step.C, Step.D}), final={Step.C, Step.D}) == (
        "transition 'go' has no action, so it must lead to a single state, not to C or D",
    )
    assert problems(Transition("go", Step.A, set[Step](), act), final=None) == (
        "transition 'go' leads to no state",
        "state A is dead: it is not final, and no transition leaves it",
    )
    assert "transition 'go' leaves no state" in problems(Transition("go", set[Step](), Step.D))


def test_an_unbounded_policy_is_reported() -> None:
    unbounded = RetryPolicy.constant(1)

    [problem] = problems(Transition("go", Step.A, Step.D, act, retry=unbounded))
    assert problem.startswith("the retry policy of transition 'go' is unbounded")
    assert problems(Transition("go", Step.A, Step.D, act, retry=unbounded.without_bound())) == ()


def test_an_enum_means_each_of_its_members() -> None:
    anywhere = Transition("quit", Step, Step.D, guard=no)

    # As a source, a class does not add states, and does not leave final ones.
    assert problems(anywhere, Transition("go", Step.A, Step.B)) == ()
    # As a target, it adds all of its members.
    assert problems(Transition("go", Step.A, Step, act)) == (
        "state B is dead: it is not final, and no transition leaves it",
        "state C is dead: it is not final, and no transition leaves it",
    )


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


def test_a_class_is_one_place_for_all_of_its_instances() -> None:
    submit = Transition("submit", Draft, Review, act)
    decide = Transition("decide", Review, {Draft, Public}, act)

    assert problems(submit, decide, initial=DRAFT, final=[Public]) == ()
    assert problems(submit, initial=DRAFT, final=[Public]) == (
        "state Review is dead: it is not final, and no transition leaves it",
    )
    assert problems(
        decide, Transition("fix", Draft, Draft, act), initial=DRAFT, final=[Public]
    ) == ("transition 'decide' leaves Review, to which nothing leads",)


def test_a_base_class_means_its_subclasses() -> None:
    submit = Transition("submit", Draft, Review, act, guard=no)
    finish = Transition("finish", Page, Public, act)

    assert problems(submit, finish, initial=DRAFT, final=[Public]) == ()
    assert problems(finish, submit, initial=DRAFT, final=[Public]) == (
        "transition 'submit' is never attempted: 'finish' comes before it and has no guard",
    )


def test_a_union_means_its_classes() -> None:
    finish: Transition[Any, Any, Any] = Transition("finish", Draft | Review, Public, act)

    assert str(finish.source) == "Draft or Review"
    assert (
        problems(
            Transition("submit", Draft, Review, act, guard=no),
            finish,
            initial=DRAFT,
            final=[Public],
        )
        == ()
    )


def test_a_literal_means_its_values() -> None:
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
def test_other_annotations_are_refused(annotation: Any) -> None:
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


def test_an_instance_of_a_target_class_may_be_final() -> None:
    end = Public("the end")
    write = Transition("write", Draft, Public, act)

    # Any other page would be dead, but it is unknown whether there are others.
    assert problems(write, initial=DRAFT, final={end}) == ()


def test_two_classes_with_the_same_name_are_refused() -> None:
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


def test_a_list_of_states_is_refused() -> None:
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
        "it has no initial state: `initial` must be the state in which it begins",
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


def test_final_may_be_a_single_state() -> None:
    assert problems(Transition("go", "ab", "cd"), initial="ab", final="cd") == ()
    assert problems(A_TO_D, final=Step.D) == ()


@pytest.mark.parametrize("final", [{Step.C, Step.D}, [Step.C, Step.D], frozenset({Step.C, Step.D})])
def test_final_may_be_any_collection(final: Any) -> None:
    split = [Transition("left", Step.A, Step.C, guard=no), Transition("right", Step.A, Step.D)]

    assert problems(*split, final=final) == ()


SAME_IN_EVERY_PROCESS = """
from dataclasses import dataclass
from effectflow import StateMachine, Transition

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


@pytest.mark.parametrize("version", ["1", "2"])
def test_migrations_must_lead_to_the_version(version: str) -> None:
    migrations: dict[int, Callable[[Any], Any]] = {1: lambda state: state}

    def build() -> StateMachine[object, Any, Step]:
        return StateMachine(
            "moved",
            initial=Step.A,
            transitions=[A_TO_D],
            final={Step.D},
            version=version,
            migrations=migrations,
        )

    if version == "2":
        assert build().version == "2"
    else:
        with pytest.raises(ValueError, match="migrations"):
            build()


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
