from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from effectflow import (
    App,
    Checkpoints,
    Client,
    Do,
    Effect,
    Signal,
    Worker,
    publish,
    pure,
    spawn,
    step,
    workflow,
)
from effectflow.checkpoint import CheckpointStore, Encryption
from effectflow.observe.recorded_run import read_recorded
from effectflow.stores import ArchiveStore, FileStore, MemoryStore, SqliteStore
from effectflow.ui import create_app
from tests.ui.small_app import Environment, html_of, lengths, small_app

approval = Signal("approval", str)
SECRET = b"k" * 32
PAGES = ("/run", "/run/history", "/run/data", "/run/drawing")


@step
def charge(price: int) -> Effect[object, str, dict[str, Any]]:
    return pure({"paid": price, "receipt": "<b>" + "x" * 9000})


@workflow
def parcel(weight: int) -> Do[Environment, str, int]:
    return (yield from pure(weight))


@workflow
def order(price: int) -> Do[Environment, str, dict[str, Any]]:
    yield from publish("progress", "charging")
    child = yield from spawn(parcel, 3)
    yield from child.result()
    return (yield from charge(price))


def shop_on(store: CheckpointStore, **options: Any) -> App[Any]:
    return App([order, parcel], environment=Environment, checkpoints=Checkpoints(store, **options))


def ordered(app: App[Any], around: Callable[[Client], Awaitable[Any]] | None = None) -> App[Any]:
    """Submit an order, do something, and drive it to its end."""

    async def work() -> None:
        async with Client(app) as client:
            handle = await client.submit(order, 5, run_id="order-1", context={"tenant": "acme"})
            if around is not None:
                await around(client)
                return
            async with Worker(app):
                await handle.result(10)

    anyio.run(work)
    return app


def test_the_data_of_a_run_and_its_downloads() -> None:
    app = ordered(shop_on(MemoryStore()))
    page = html_of(app, "/run/data?id=order-1")
    assert "{'tenant': 'acme'}" in page
    assert "'charging'" in page
    assert len(page) < 20_000, "long values are cut"
    assert '<a href="/run?id=order-1%2Fparcel">order-1/parcel</a>' in page
    child = html_of(app, "/run/data?id=order-1/parcel")
    assert 'Spawned by <a href="/run?id=order-1">' in child
    with TestClient(create_app(app)) as browser:

        def downloaded(**query: str) -> Any:
            answer = browser.get("/run/download", params={"id": "order-1", **query})
            assert "attachment" in answer.headers["content-disposition"]
            return answer.text

        whole = json.loads(downloaded(value="output"))
        assert whole == json.loads(downloaded(value="output", step="charge"))
        assert len(whole["receipt"]) == 9003
        assert json.loads(downloaded(value="input")) == 5
        assert json.loads(downloaded(value="published", key="progress")) == "charging"
        lines = downloaded().splitlines()
        assert json.loads(lines[0])["entries"] == len(lines) - 1
        missing = {"id": "order-1", "value": "published", "key": "none"}
        assert browser.get("/run/download", params=missing).status_code == 404


def test_the_progress_and_the_dead_letters_of_a_job() -> None:
    app = small_app(MemoryStore())
    anyio.run(lengths.start("a - bcd", run_id="job").run, Environment(app.checkpoints))
    page = html_of(app, "/run/data?id=job")
    assert '<progress max="3" value="2"' in page
    assert "<code>map[-]</code> '-'" in page
    assert 'href="/run/act/dead-letters?id=job"' in page
    assert "It is complete, with 1 dead letter." in page


def test_messages_that_were_not_taken_are_shown_with_their_values() -> None:
    async def send(client: Client) -> None:
        handle = client.handle(order, "order-1")
        await handle.send(approval, "yes \x1b please")
        await handle.cancel()

    page = html_of(ordered(shop_on(MemoryStore()), send), "/run/data?id=order-1")
    assert r"signal approval: <span class=\"value\">'yes \x1b please'" in page.replace('"', '\\"')
    assert "a request to cancel it" in page


def _archived(app: App[Any], folder: Path) -> Checkpoints:
    path = folder / "runs.jsonl.gz"
    anyio.run(Client(app).archive, path)
    return Checkpoints(ArchiveStore(path))


def _copied(app: App[Any], folder: Path) -> Checkpoints:
    copy = folder / "copy"
    copy.mkdir()
    (copy / "runs.db").write_bytes((folder / "runs.db").read_bytes())
    return Checkpoints(SqliteStore(copy / "runs.db"))


@pytest.mark.parametrize("kind", ["files", "archive", "copy", "encrypted", "signed"])
def test_all_pages_of_a_run_show_what_any_store_has(kind: str, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "runs") if kind == "files" else SqliteStore(tmp_path / "runs.db")
    options: dict[str, Any] = {}
    if kind == "encrypted":
        options = {"encryption": Encryption("2026", {"2026": SECRET})}
    if kind == "signed":
        options = {"key": SECRET}
    app = shop_on(store, **options)
    if kind == "files":
        anyio.run(_start, app)
    else:
        ordered(app)
    made = {"archive": _archived, "copy": _copied}.get(kind)
    pages = create_app(app.checkpoints if made is None else made(app, tmp_path))
    with TestClient(pages) as browser:
        for page in PAGES:
            answer = browser.get(page, params={"id": "order-1"})
            assert answer.status_code == 200, answer.text
            assert "It is complete" in answer.text
        stream = browser.get("/run/download", params={"id": "order-1"})
        assert ("fingerprint" in stream.text) is (kind != "encrypted")


async def _start(app: App[Any]) -> None:
    await parcel.start(5, run_id="order-1").run(Environment(app.checkpoints))


def test_without_the_key_an_encrypted_run_says_what_is_missing(tmp_path: Path) -> None:
    encryption = Encryption("2026", {"2026": SECRET})
    ordered(shop_on(SqliteStore(tmp_path / "runs.db"), encryption=encryption))
    pages = create_app(Checkpoints(SqliteStore(tmp_path / "runs.db")))
    with TestClient(pages) as browser:
        answer = browser.get("/run/data", params={"id": "order-1"})
    assert answer.status_code == 409
    assert "encrypted" in answer.text


@step
def repeat(size: int) -> Effect[object, str, str]:
    return pure("x" * size)


@workflow
def long_texts(size: int) -> Do[Environment, str, str]:
    return (yield from repeat(size))


def test_a_run_counts_with_what_it_takes_in_memory_and_not_compressed() -> None:
    checkpoints = Checkpoints(MemoryStore())

    async def main() -> int:
        await long_texts.start(1_000_000, run_id="long").run(Environment(checkpoints))
        return (await read_recorded(checkpoints, "long")).size

    # An output of a step, and that of the run.
    assert 2_000_000 < anyio.run(main) < 2_100_000


@workflow
def steps(count: int) -> Do[Environment, str, None]:
    for _ in range(count):
        yield from publish("progress", "x" * 100)


def test_a_long_run_is_downloaded_in_few_parts() -> None:
    checkpoints, sent = Checkpoints(MemoryStore()), list[bytes]()

    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    async def main() -> None:
        await steps.start(300, run_id="long").run(Environment(checkpoints))
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/run/download",
            "query_string": b"id=long",
            "headers": [],
            "server": ("test", 80),
        }
        await create_app(checkpoints)(scope, receive, send)

    anyio.run(main)
    assert b"".join(sent).count(b"\n") > 300
    assert len(sent) < 10
