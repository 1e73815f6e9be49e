"""`--input` takes what the types take, and shows no secrets."""

from __future__ import annotations

import json
import sqlite3
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Command

MALL = textwrap.dedent("""
    from collections.abc import AsyncGenerator
    from contextlib import asynccontextmanager
    from dataclasses import dataclass, replace
    from datetime import date
    import anyio
    from pydantic import BaseModel, HttpUrl, SecretStr
    from effectflow import Checkpoints, Effect, pure, step, workflow
    from effectflow.checkpoint import Codec

    class Money:
        def __init__(self, cents):
            if cents < 0:
                raise ValueError("a debt")
            self.cents = cents

    class Login(BaseModel):
        site: HttpUrl
        password: SecretStr

    @dataclass
    class Card:
        number: str

    @dataclass
    class Invoice:
        due: date

    @dataclass
    class App:
        checkpoints: Checkpoints

    @asynccontextmanager
    async def environment(checkpoints: Checkpoints) -> AsyncGenerator[App]:
        money = Codec(Money, tag="money", encode=lambda it: it.cents, decode=Money)
        # Wraps what is raised through it in a group.
        async with anyio.create_task_group():
            yield App(replace(checkpoints, codecs=[money]))

    @step
    def enter(login: Login) -> Effect[App, str, Login]:
        return pure(login)

    @workflow
    def entering(login: Login) -> Effect[App, str, Login]:
        return enter(login)

    @step
    def price(pay: Card | Invoice) -> Effect[App, str, Money]:
        return pure(Money(5))

    @step
    def spend(money: Money) -> Effect[App, str, int]:
        return pure(money.cents)

    @workflow
    def spending(cents: int) -> Effect[App, str, int]:
        return spend(Money(cents))

    @workflow
    def giving(money: list[Money]) -> Effect[App, str, int]:
        return spend(money[0])

    @workflow
    def paying(pay: Card | Invoice) -> Effect[App, str, int]:
        return price(pay).map(lambda money: money.cents)
""")

LOGIN = json.dumps({"site": "https://example.org", "password": "hunter2"})


@pytest.fixture(autouse=True)
def mall(folder: Path) -> None:
    (folder / "mall.py").write_text(MALL)
    (folder / "keys").write_text("2026 " + "00" * 32)


def test_a_model_with_a_secret_is_run_encrypted_and_never_shown(effectflow: Command) -> None:
    keys = ("--encryption-keys", "keys")
    ran = effectflow("run", "mall:entering", "--input", LOGIN, "--run-id", "r", *keys)
    assert ran.code == 0
    texts = [ran.out, ran.err]
    for command in ("show", "history"):
        for options in ((), ("--json",)):
            shown = effectflow(command, "r", *keys, *options)
            assert shown.code == 0
            texts += [shown.out, shown.err]
    assert "hunter2" not in "".join(texts)
    assert "**********" in "".join(texts)


def test_a_secret_is_rejected_without_encryption(effectflow: Command) -> None:
    refused = effectflow("run", "mall:entering", "--input", LOGIN)
    assert refused.code == 4
    assert "$.password: a secret is saved only encrypted" in refused.out + refused.err
    assert "hunter2" not in refused.out + refused.err


def test_a_wrong_part_is_named_by_its_path(effectflow: Command) -> None:
    wrong = effectflow("run", "mall:entering", "--input", '{"site": "?", "password": ["hunter2"]}')
    assert wrong.code == 2
    assert "Input should be a valid URL" in wrong.err
    assert "@ $.site" in wrong.err
    assert "Input should be a valid string @ $.password" in wrong.err
    assert "hunter2" not in wrong.err


def test_a_plan_has_the_codecs_of_the_environment(effectflow: Command) -> None:
    assert effectflow("run", "mall:spending", "--input", "5", "--run-id", "r").code == 0
    with closing(sqlite3.connect("effectflow.db")) as database, database:
        # The row with the number of its last entry has the end of the step and that of the run.
        [row] = database.execute("SELECT body FROM entries WHERE sequence = 4").fetchone()
        [size, entries] = row.split(b"\n", 1)
        without_end = b"\n" + entries[: int(size)]
        database.execute(
            "UPDATE entries SET sequence = 3, body = ? WHERE sequence = 4", (without_end,)
        )
        database.execute("UPDATE runs SET status = 'running'")

    plan = effectflow("plan", "r", "--app", "mall", "--json").json
    assert (plan["skip"], plan["problem"]) == (["spend"], None)


def test_an_input_of_a_class_with_a_codec_is_made_by_the_codec_of_the_environment(
    effectflow: Command,
) -> None:
    ran = effectflow("run", "mall:giving", "--input", "[5]", "--run-id", "r", "--json")
    assert (ran.code, ran.json["output"]) == (0, 5)
    # The same input continues the run, and in its saved form, too.
    for same in ("[5]", '[{"$codec": ["money", 5]}]'):
        again = effectflow("run", "mall:giving", "--input", same, "--run-id", "r", "--json")
        assert (again.code, again.json["output"]) == (0, 5)


def test_an_input_that_its_codec_rejects_is_named_and_starts_no_run(
    effectflow: Command, folder: Path
) -> None:
    ran = effectflow("run", "mall:giving", "--input", "[5, -5]", "--run-id", "r")
    assert (ran.code, ran.out) == (2, "")
    assert "the codec 'money' raised ValueError('a debt') @ $[1]" in ran.err
    assert "Traceback" not in ran.err
    assert not (folder / "effectflow.db").exists()


def test_unions_are_built_and_the_environment_adds_codecs(effectflow: Command) -> None:
    ran = effectflow("run", "mall:paying", "--input", '{"due": "2026-01-02"}', "--json")
    assert (ran.code, ran.json["output"]) == (0, 5)
