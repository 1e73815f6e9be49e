"""A small App for the tests of pages: an order, declined below 0, and a job with dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from html import unescape
from typing import Any

from starlette.testclient import TestClient

from effectflow import Checkpoints, Do, Effect, fail, pure, step, workflow
from effectflow.checkpoint import CheckpointStore
from effectflow.mapreduce import MapReduce
from effectflow.service import App
from effectflow.ui import create_app


@dataclass(frozen=True)
class Environment:
    checkpoints: Checkpoints


class Declined(Exception):
    pass


@step
def pay(amount: int) -> Effect[object, Declined, int]:
    return fail(Declined("no account")) if amount < 0 else pure(amount)


@workflow
def order(amount: int) -> Do[Environment, Declined, int]:
    return (yield from pay(amount))


def words_of(text: str) -> list[str]:
    return text.split()


def length_of(word: str) -> Effect[object, str, int]:
    return fail("no word") if word == "-" else pure(len(word))


def sum_of(lengths: list[int]) -> Effect[object, str, int]:
    return pure(sum(lengths))


lengths = MapReduce(
    "lengths",
    items=words_of,
    map=length_of,
    reduce=sum_of,
    key=str,
    limit=2,
    on_item_failure="dead_letter",
)


def small_app(store: CheckpointStore, **options: Any) -> App[Environment]:
    """Return the App with its runs in a store."""
    return App([order, lengths], environment=Environment, checkpoints=Checkpoints(store), **options)


def html_of(app: App[Any], path: str, *, is_served_with_app: bool = True) -> str:
    """Return a page of an App, with its characters as they are."""
    pages = create_app(app, app if is_served_with_app else None)
    with TestClient(pages) as browser:
        answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    return unescape(answer.text)
