"""`--input` takes what the types take, and shows no secrets."""

from __future__ import annotations

import json
import sqlite3
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SHOP = textwrap.dedent("""
    from dataclasses import dataclass, replace
    from datetime import date
    from pydantic import BaseModel, HttpUrl, SecretStr
    from effectflow import Checkpoints, Codec, Effect, pure, step, workflow

    class Money:
        def __init__(self, cents):
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

    def environment(checkpoints: Checkpoints) -> App:
        money = Codec(Money, tag="money", encode=lambda it: it.cents, decode=Money)
        return App(replace(checkpoints, codecs=[money]))

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
    def paying(pay: Card | Invoice) -> Effect[App, str, int]:
        return price(pay).map(lambda money: money.cents)
""")

LOGIN = json.dumps({"site": "https://example.org", "password": "hunter2"})


@pytest.fixture(autouse=True)
def shop(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)
    (folder / "keys").write_text("2026 " + "00" * 32)


def test_a_model_with_a_secret_is_run_encrypted_and_never_shown(effectflow: Command) -> None:
    keys = ("--encryption-keys", "keys")
    ran = effectflow("run", "shop:entering", "--input", LOGIN, "--run-id", "r", *keys)
    assert ran.code == 0
    texts = [ran.out, ran.err]
    for command in ("show", "history"):
        for options in ((), ("--json",)):
            shown = effectflow(command, "r", *keys, *options)
            assert shown.code == 0
            texts += [shown.out, shown.err]
    assert "hunter2" not in "".join(texts)
    assert "**********" in "".join(texts)


def test_a_secret_is_refused_without_encryption(effectflow: Command) -> None:
    refused = effectflow("run", "shop:entering", "--input", LOGIN)
    assert refused.code == 4
    assert "$.password: a secret is saved only encrypted" in refused.out + refused.err
    assert "hunter2" not in refused.out + refused.err


def test_a_wrong_part_is_named_by_its_path(effectflow: Command) -> None:
    wrong = effectflow("run", "shop:entering", "--input", '{"site": "?", "password": ["hunter2"]}')
    assert wrong.code == 2
    assert "Input should be a valid URL" in wrong.err
    assert "@ $.site" in wrong.err
    assert "Input should be a valid string @ $.password" in wrong.err
    assert "hunter2" not in wrong.err


def test_a_plan_has_the_codecs_of_the_environment(effectflow: Command) -> None:
    assert effectflow("run", "shop:spending", "--input", "5", "--run-id", "r").code == 0
    with closing(sqlite3.connect("effectflow.db")) as database, database:
        database.execute("DELETE FROM entries WHERE sequence > 3")
        database.execute("UPDATE runs SET status = 'running'")

    plan = effectflow("plan", "r", "--app", "shop", "--json").json
    assert (plan["skip"], plan["problem"]) == (["spend"], None)


def test_unions_are_built_and_the_environment_adds_codecs(effectflow: Command) -> None:
    ran = effectflow("run", "shop:paying", "--input", '{"due": "2026-01-02"}', "--json")
    assert (ran.code, ran.json["output"]) == (0, 5)
