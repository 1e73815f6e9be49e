"""The commands on runs of a state machine."""

from __future__ import annotations

import textwrap
from enum import IntEnum, StrEnum
from pathlib import Path

import pytest

from effectflow import Checkpoints
from effectflow.machines import StateMachine, Transition
from effectflow.service.structured_input import input_of
from effectflow.stores import MemoryStore
from tests.cli.conftest import Command, Ended

DOOR = textwrap.dedent("""
    from enum import Enum
    from pathlib import Path
    from effectflow import attempt
    from effectflow.machines import Abort, Moved, StateMachine, Transition

    class Door(Enum):
        CLOSED = "closed"
        OPEN = "open"
        BROKEN = "broken"

    def unlock(door):
        return attempt(lambda _: Moved(Door[Path("key").read_text()]), OSError)

    def is_closed(door):
        return door is Door.CLOSED

    door = StateMachine(
        "door",
        initial=Door.CLOSED,
        transitions=[
            Transition("knock", Door.CLOSED, Door.CLOSED, unlock, lambda _: False),
            Transition("unlock", Door.CLOSED, {Door.OPEN, Door.BROKEN}, unlock, is_closed),
            Transition("repair", Door.BROKEN, Door.CLOSED),
        ],
        final={Door.OPEN},
    )
""")


@pytest.fixture(autouse=True)
def door(folder: Path) -> Path:
    """Write the module of the machine. The file `key` names the state that unlocking leads to."""
    (folder / "doors.py").write_text(DOOR)
    return folder / "key"


def test_a_machine_is_run_shown_planned_and_resumed(effectflow: Command, door: Path) -> None:
    failed = effectflow("run", "doors:door", "--run-id", "front")
    assert failed.code == 1
    assert "FileNotFoundError" in failed.out

    shown = effectflow("show", "front").out.splitlines()
    assert ["state", "CLOSED"] in [line.split() for line in shown]
    plan = effectflow("plan", "front", "--app", "doors", "--json").json
    assert (plan["start"], plan["retry"]) == (["unlock"], ["unlock"])

    door.write_text("OPEN")
    resumed = effectflow("resume", "front", "--app", "doors")
    assert resumed.code == 0
    assert "at OPEN; transitions: 1, attempts: 1" in resumed.out
    assert ["state", "OPEN"] in [
        line.split() for line in effectflow("show", "front").out.splitlines()
    ]


def test_the_input_may_name_another_initial_state_and_the_output_is_the_machine(
    effectflow: Command, door: Path
) -> None:
    door.write_text("OPEN")

    answer = effectflow("run", "doors:door", "--input", '"broken"', "--json").json

    assert answer["output"]["initial_state"] == {"$enum": ["Door", "BROKEN"]}
    assert [entry["transition"] for entry in answer["output"]["history"]] == ["repair", "unlock"]
    refused = effectflow("run", "doors:door", "--input", '"ajar"')
    assert refused.code == 2
    assert "does not fit" in refused.err


ARTICLES = textwrap.dedent("""
    from dataclasses import dataclass
    from effectflow import pure
    from effectflow.machines import Moved, StateMachine, Transition

    @dataclass(frozen=True)
    class Topic:
        name: str

    @dataclass(frozen=True)
    class Draft:
        text: str

    @dataclass(frozen=True)
    class Public:
        text: str

    def write(topic):
        return pure(Moved(Draft(topic.name)))

    def publish(draft):
        return pure(Moved(Public(draft.text)))

    articles = StateMachine(
        "articles",
        initial=Topic("rain"),
        transitions=[
            Transition("write", Topic, Draft, write),
            Transition("publish", Draft, Public, publish),
        ],
        final=[Public],
    )
    words = StateMachine("words", initial="a", transitions=[Transition("go", "a", "b")], final={"b"})
""")


def begun_in(answer: Ended) -> object:
    assert answer.code == 0, answer.err
    return answer.json["output"]["initial_state"]


def test_plain_data_is_read_as_the_first_state_class_that_it_fits(
    effectflow: Command, folder: Path
) -> None:
    (folder / "articles.py").write_text(ARTICLES)

    def run(data: str) -> Ended:
        return effectflow("run", "articles:articles", "--input", data, "--json")

    assert begun_in(run("null")) == {"$object": ["Topic", {"name": "rain"}]}
    assert begun_in(run('{"name": "sun"}')) == {"$object": ["Topic", {"name": "sun"}]}
    # The final state `Public` has the same fields; a run that starts there would do nothing.
    assert begun_in(run('{"text": "sun"}')) == {"$object": ["Draft", {"text": "sun"}]}
    named = '{"$object": ["Public", {"text": "sun"}]}'
    assert begun_in(run(named)) == {"$object": ["Public", {"text": "sun"}]}


@pytest.mark.parametrize(
    ("machine", "data", "message"),
    [
        ("words", '"zzz"', "state of 'words'"),
        ("words", '{"a": 1}', "does not fit str"),
        ("words", '{"$enum": ["Door", "OPEN"]}', "does not fit a state of 'words'"),
        ("words", '{"$tuple": [1]}', "state of 'words'"),
        ("articles", '"sun"', "does not fit a state of 'articles': it does not fit Topic: "),
        ("articles", '{"name": "sun", "more": 1}', "Topic"),
        ("articles", '{"$object": ["Poem", {}]}', "Poem"),
    ],
)
def test_data_that_does_not_fit_a_state_is_bad_use(
    effectflow: Command, folder: Path, machine: str, data: str, message: str
) -> None:
    (folder / "articles.py").write_text(ARTICLES)

    refused = effectflow("run", f"articles:{machine}", "--input", data)

    assert refused.code == 2
    assert message in refused.err
    assert "Traceback" not in refused.err


def test_plain_data_is_read_as_a_member_of_a_str_or_int_enum() -> None:
    class Light(StrEnum):
        RED = "red"
        GREEN = "green"

    class Floor(IntEnum):
        CELLAR = -1
        GROUND = 0

    light = StateMachine(
        "light",
        initial=Light.RED,
        transitions=[Transition("go", Light.RED, Light.GREEN)],
        final={Light.GREEN},
    )
    lift = StateMachine(
        "lift",
        initial=Floor.CELLAR,
        transitions=[Transition("rise", Floor.CELLAR, Floor.GROUND)],
        final={Floor.GROUND},
    )

    assert input_of(light, "green", Checkpoints(MemoryStore())) is Light.GREEN
    assert input_of(lift, 0, Checkpoints(MemoryStore())) is Floor.GROUND
    with pytest.raises(ValueError, match="does not fit"):
        input_of(light, "blue", Checkpoints(MemoryStore()))
    with pytest.raises(ValueError, match="does not fit"):
        input_of(lift, 0.0, Checkpoints(MemoryStore()))
