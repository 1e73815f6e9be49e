"""Every page, of a store in which all texts are hostile: nothing takes effect, and all is bounded."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from itertools import product
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import anyio
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    Queue,
    Signal,
    effect,
    fail,
    publish,
    pure,
    step,
    workflow,
)
from effectflow.checkpoint import Encryption, RunDetails, RunStatus, RunSummary
from effectflow.mapreduce import MapReduce
from effectflow.service import App, Client, Schedule
from effectflow.stores import MemoryStore, open_store
from effectflow.ui import create_app
from effectflow.ui.actions import ACTIONS
from effectflow.ui.protection import HEADERS
from tests.sweeps import sample_or_all
from tests.ui.small_app import Environment

HTML = """'"><evil onclick=alert(1)>&lt;evil&gt;</script><script>alert(2)</script>{{ 1/0 }}"""
HIDING = "\u202e\u2066 \x1b[2K \x07 \x85 \u2028 \u200b \ufeff"
EVIL = f"{HTML}{HIDING}"
NAME = """'"><evil onclick=alert(1)>{{ 1-x }}\u202e"""
"""As steps and workflows may be named."""

HUGE = "x" * 1_000_000

RUN_IDS = (
    HTML,
    "\u202ereversed",
    "../../etc/passwd?a=b&c=d#e%00%2F",
    "javascript:alert(1)",
    "y" * 2000,
)


class Evil(Exception):
    """<evil>"""


answer = Signal(NAME, str)


@step(name=NAME)
def tries(text: str) -> Effect[object, Evil, str]:
    return fail(Evil(EVIL)) if text == "fails" else pure(text)


@workflow(name=NAME)
def hostile(text: str) -> Do[Environment, Evil, dict[str, str]]:
    """<evil>"""
    yield from publish(EVIL, {EVIL: EVIL, "huge": HUGE})
    got = yield from tries(text)
    if text == "waits":
        got = yield from answer.wait()
    return {EVIL: EVIL, "huge": HUGE, "got": got}


@effect(errors=Evil)
def mapped(_: object, item: str) -> str:
    if item != "good":
        raise Evil(item)
    return item


def items(_: str) -> list[str]:
    return ["good", EVIL]


def joined(found: list[str]) -> Effect[object, str, str]:
    return pure(EVIL.join(found))


job = MapReduce(
    "job",
    items=items,
    map=mapped,
    reduce=joined,
    key=str,
    limit=1,
    on_item_failure="dead_letter",
)


def opened(app: App[Any], **options: Any) -> TestClient:
    return TestClient(create_app(app, app, **options), follow_redirects=False)


def hostile_app() -> App[Any]:
    """Return an App with hostile names, and runs of all kinds in its store."""
    checkpoints = Checkpoints(MemoryStore())
    app = App[Any](
        [hostile, job],
        environment=Environment,
        checkpoints=checkpoints,
        schedules=[Schedule(hostile, "30 2 * * *", input="x", name=HTML)],
        queues=[Queue(EVIL, limit=1)],
    )

    async def fill() -> None:
        env = Environment(checkpoints)
        context = {"tenant": EVIL, EVIL: EVIL}
        async with Client(app, by=EVIL) as client:
            for run_id, text in zip(RUN_IDS, ("ok", "fails", "waits", EVIL, "ok"), strict=True):
                with anyio.move_on_after(0.1 if text == "waits" else 30):
                    await hostile.start(text, run_id=run_id, context=context).run(env)
            await job.start("x", run_id="job").run(env)
            await client.submit(
                hostile, EVIL, run_id=f"waits{HTML}", queue=EVIL, key=EVIL, context=context
            )
            waiting = client.handle(hostile, RUN_IDS[2])
            await waiting.send(answer, EVIL, idempotency_key=EVIL)
            for kind in ("queue", "workflow", "schedule"):
                await client.pause(**{kind: EVIL})
            await client.pause(workflow=NAME)

    anyio.run(fill)
    return app


class Parsed(HTMLParser):
    """What a browser sees of a page: its elements, links and forms, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(answer: Any, url: str) -> Parsed:
    """Raise AssertionError unless an answer shows hostile texts as texts."""
    assert answer.status_code < 500, (url, answer.text)
    for name, text in HEADERS.items():
        assert answer.headers[name] == text
    kind = answer.headers.get("content-type", "")
    if kind != "text/html; charset=utf-8":
        # A browser shows a text as it is, and saves what is attached.
        is_attached = answer.headers.get("content-disposition", "").startswith("attachment")
        assert is_attached or kind == "text/plain; charset=utf-8" or answer.status_code == 303, url
        return Parsed("")
    assert len(answer.content) < 1_000_000, (url, len(answer.content))
    page = Parsed(answer.text)
    for tag, attributes in page.found:
        assert tag != "evil", (url, tag, attributes)
        assert tag != "script" or attributes["src"].startswith("/static/"), url
        assert not [name for name in attributes if name.startswith("on") or name == "style"], url
        for name in ("href", "src", "action"):
            assert not attributes.get(name, "").lower().startswith(("javascript:", "data:", "//"))
    shown = "".join(page.text)
    hiding = [one for one in shown if not one.isprintable() and one not in "\n\t\xa0"]
    assert not hiding, (url, hiding)
    return page


def links(page: Parsed, url: str) -> Iterator[str]:
    """Yield where the links and the forms that only ask lead to."""
    action, fields = None, list[tuple[str, str]]()
    for tag, attributes in page.found:
        if tag == "form":
            if action is not None:
                yield f"{action}?{urlencode(fields)}"
            is_asking = attributes.get("method", "get").lower() == "get"
            action, fields = (attributes.get("action") or url) if is_asking else None, []
        if tag == "input" and attributes.get("type") != "checkbox" and "name" in attributes:
            fields.append((attributes["name"], attributes.get("value", "")))
        if tag == "a" and not attributes["href"].startswith("#"):
            yield attributes["href"]
    if action is not None:
        yield f"{action}?{urlencode(fields)}"


def crawled(pages: TestClient, most_of_a_path: int) -> dict[str, Parsed]:
    """Follow all links from the first page; of those to the same path, only some."""
    found: dict[str, Parsed] = {}
    waiting = deque(["/", "/start", "/store", "/service"])
    seen = Counter[str]()
    while waiting:
        url = waiting.popleft()
        path = urlsplit(url).path
        if url in found or seen[path] >= most_of_a_path:
            continue
        seen[path] += 1
        answer = pages.get(url)
        assert answer.status_code != 404, url
        found[url] = check(answer, url)
        waiting += [
            urlsplit(urljoin(url, one))._replace(fragment="").geturl()
            for one in links(found[url], url)
        ]
    return found


def state(app: App[Any]) -> Any:
    async def read() -> Any:
        async with Client(app) as client:
            return await client.find(), await client.pauses()

    return anyio.run(read)


MOST = [20, pytest.param(1000, marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("most", MOST)
def test_hostile_texts_are_only_texts_on_every_page(most: int) -> None:
    app = hostile_app()
    before = state(app)
    with opened(app) as pages:
        found = crawled(pages, most)
        routes = [one.path for one in cast("Any", pages.app).routes if isinstance(one, Route)]
        for path in routes:
            for read in ({}, {"id": EVIL}, {"id": RUN_IDS[0]}):
                check(pages.get(path, params=read), path)
    visited = {urlsplit(url).path for url in found}
    # All pages are reached by links, except those for forms.
    assert {path for path in routes if "{" not in path} - visited <= {"/bulk"}
    assert state(app) == before


VALUES = ("", "\0", EVIL, "-1", "9" * 5000, "1e400", "x" * 5000)


# Every third by default: all seven values occur, and each parameter has two of them or three.
@sample_or_all("every", 3, 1)
def test_no_query_makes_a_page_fail(every: int) -> None:
    app = hostile_app()
    with opened(app) as pages:
        queries: dict[str, dict[str, str]] = {}
        for url in crawled(pages, 10):
            parts = urlsplit(url)
            queries.setdefault(parts.path, {}).update(
                parse_qsl(parts.query, keep_blank_values=True)
            )
        names = [(path, name) for path, query in queries.items() for name in query]
        for (path, name), value in [*product(names, VALUES)][::every]:
            query = {**queries[path], name: value}
            check(pages.get(path, params=query), f"{path} {name} {value}")
        for path in queries:
            check(pages.get(f"{path}?id=%ED%A0%80%FF"), path)


@pytest.mark.parametrize("is_of_app", [True, False])
def test_pages_that_only_show_accept_no_form(is_of_app: bool) -> None:
    app = hostile_app()
    before = state(app)
    made = create_app(app, app, read_only=True) if is_of_app else create_app(app)
    routes = [
        one for one in made.routes if isinstance(one, Route) and "POST" in (one.methods or ())
    ]
    assert len(routes) >= 4
    query = {"kind": "queue", "name": "x", "do": "pause", "workflow": NAME}
    with TestClient(made, follow_redirects=False) as pages:
        for path in (one.path.replace("{name}", name) for one in routes for name in ACTIONS):
            for run_id in RUN_IDS[:3]:
                form = {"run": run_id, "id": run_id, "action": "delete", "confirmed": "yes"}
                answer = pages.post(path, params={"id": run_id, **query}, data={**query, **form})
                check(answer, path)
                assert answer.status_code == 403, path
    assert state(app) == before


SECRET = "card 4111 1111"

ENDS = ("", "/history", "/data", "/drawing", "/download", "/act/retry", "/act/fork", "/act/delete")


@step
def charged(card: str) -> Effect[object, Evil, str]:
    return fail(Evil(card)) if card != SECRET else pure(card)


@workflow
def paid(card: str) -> Do[Environment, Evil, str]:
    yield from publish("card", card)
    yield from charged(card)
    return (yield from charged(f"{card} again"))


def test_without_its_keys_no_page_shows_what_is_encrypted() -> None:
    store = MemoryStore()
    known = Checkpoints(store, encryption=Encryption("1", {"1": b"k" * 32}))
    anyio.run(paid.start(SECRET, run_id="paid").run, Environment(known))
    app = App([paid], environment=Environment, checkpoints=Checkpoints(store))
    with opened(app) as pages:
        for path in ("/", "/store?newest=5", "/service", *(f"/run{end}?id=paid" for end in ENDS)):
            answer = pages.get(path)
            assert answer.status_code < 500, path
            assert "4111" not in answer.text, path
    with TestClient(create_app(known)) as pages:
        assert "4111" not in pages.get("/").text
        assert "4111" in pages.get("/run/history?id=paid&at=4").text


def test_a_password_of_the_store_is_on_no_page() -> None:
    store = open_store("postgresql://ann:4111@127.0.0.1:9/shop?reconnect_timeout=0.1")
    pages = TestClient(create_app(Checkpoints(store)))
    for path in ("/", "/store", "/service", "/run?id=x"):
        answer = pages.get(path)
        assert (answer.status_code, "4111" in answer.text) == (503, False)


def test_long_texts_of_a_summary_make_no_page_large() -> None:
    """They are not in the journal, which a key may seal."""
    store, long = MemoryStore(), "x" * 500_000
    details = RunDetails(error=long, version=long, waits_for=long, owner=long)
    summary = RunSummary("hostile", RunStatus.FAILED, 1.0, queue=long, key=long, details=details)
    anyio.run(partial(store.create, "r", (b"{}",), summary=summary))
    pages = TestClient(create_app(Checkpoints(store)))
    for path in ("/", "/service", "/store"):
        assert len(pages.get(path).content) < 100_000, path
