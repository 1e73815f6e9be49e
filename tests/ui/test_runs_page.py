"""The page of runs: its filters are its URL, it pages by key, and people act on many runs."""

from __future__ import annotations

import gzip
import html
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import anyio
import pytest
from starlette.testclient import TestClient

from effectflow import Checkpoints, Do, RunStatus, workflow
from effectflow.checkpoint import CheckpointStore, RunQuery, RunSummary, import_run, read_exported
from effectflow.checkpoint.store import find_run
from effectflow.observe import run_filters
from effectflow.service import App, Client
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.ui import bulk_page, create_app
from tests.ui.small_app import Declined, Environment, order, pay


@workflow
def ask(_: None) -> Do[Environment, Declined, int]:
    return (yield from pay(7))


class Answer(Protocol):
    """What the pages answer."""

    @property
    def text(self) -> str: ...

    @property
    def content(self) -> bytes: ...

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class Pages(TestClient):
    """The pages of a store, by default in memory, and what a test puts into the store."""

    def __init__(self, store: CheckpointStore | None = None, **options: Any) -> None:
        self.checkpoints = Checkpoints(store or MemoryStore())
        self.of = App([order, ask], environment=Environment, checkpoints=self.checkpoints)
        super().__init__(create_app(self.of, self.of, **options))

    def ended(self, run_id: str, amount: int = 5, **options: Any) -> None:
        """Put a run that has ended into the store; one that has failed for an amount below 0."""

        async def main() -> None:
            async with self.checkpoints.store:
                environment = Environment(self.checkpoints)
                await order.start(amount, run_id=run_id, **options).run(environment)

        anyio.run(main)

    def pending(self, run_id: str, workflow: Any = order, input: Any = 5, **options: Any) -> None:
        """Put a run that no worker has taken into the store."""
        client = Client(self.checkpoints)
        anyio.run(lambda: client.submit(workflow, input, run_id=run_id, **options))

    def create(self, run_id: str, summary: RunSummary, owner: str = "") -> None:
        """Put a run with only this summary into the store."""

        async def main() -> None:
            async with self.checkpoints.store as store:
                await store.create(run_id, [b"{}"], summary=summary, owner=owner, seconds=60.0)

        anyio.run(main)

    def status(self, run_id: str) -> str | None:
        async def main() -> str | None:
            async with self.checkpoints.store as store:
                info = await find_run(store, run_id)
                return None if info is None else str(info.summary.status)

        return anyio.run(main)

    def ids(self, url: str) -> list[str]:
        """Return the ids of the runs on a page."""
        answer = self.get(url)
        assert answer.status_code == 200, answer.text
        return ids_in(answer)

    def act(self, action: str, *run_ids: str, **fields: str | list[str]) -> Answer:
        return self.post("/bulk", data={"action": action, "id": [*run_ids], **fields})

    def confirm(self, preview: Answer) -> Answer:
        """Press the button of a preview."""
        inputs = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', preview.text)
        fields: dict[str, list[str]] = {}
        for name, value in inputs:
            fields.setdefault(html.unescape(name), []).append(html.unescape(value))
        assert fields["confirmed"] == ["yes"]
        return self.post("/bulk", data=fields)


def ids_in(answer: Answer) -> list[str]:
    return [
        html.unescape(found) for found in re.findall(r'name="shown" value="([^"]*)"', answer.text)
    ]


def rows_in(answer: Answer) -> list[str]:
    """Return the text of each row of a table, without tags."""
    rows = re.findall(r"<tr>\n(.*?)</tr>", answer.text, re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", row)).split()) for row in rows]


@pytest.fixture
def pages() -> Iterator[Pages]:
    with Pages() as pages:
        yield pages


def link_named(answer: Answer, text: str) -> str:
    [found] = re.findall(rf'<a [^>]*href="([^"]*)"[^>]*>{text}', answer.text)
    return html.unescape(found)


def test_each_filter_finds_its_runs(pages: Pages) -> None:
    pages.ended("a-1", context={"tenant": "acme"})
    pages.ended("b-1", -1)
    pages.pending("c-1", queue="reports")
    pages.pending("c-2", ask, None)
    assert pages.ids("/") == ["c-2", "c-1", "b-1", "a-1"]
    assert pages.ids("/?status=failed") == ["b-1"]
    assert pages.ids("/?status=failed&status=completed") == ["b-1", "a-1"]
    assert pages.ids("/?status=running&status=crashed") == []
    assert pages.ids("/?workflow=ask") == ["c-2"]
    assert pages.ids("/?prefix=c-") == ["c-2", "c-1"]
    assert pages.ids("/?tenant=acme") == ["a-1"]
    assert pages.ids("/?queue=reports") == ["c-1"]
    assert pages.ids("/?queue=order") == ["b-1", "a-1"]
    assert pages.ids("/?since=1h&workflow=order&status=pending") == ["c-1"]
    assert len(pages.ids("/?since=99999999999d")) == 4
    assert pages.ids("/?before=1h") == pages.ids("/?since=2999-01-01") == []
    assert pages.ids("/?parent=nothing") == []


def test_chips_count_the_runs_and_toggle_one_filter(pages: Pages) -> None:
    for number in range(3):
        pages.ended(f"good-{number}")
    pages.ended("bad-1", -1)
    pages.pending("new-1", ask, None)
    answer = pages.get("/?status=failed&workflow=order")
    assert "completed <b>3</b>" in answer.text
    assert "failed <b>1</b>" in answer.text
    # The counts are of the runs that the other filters find.
    assert "pending <b>" not in answer.text
    more = link_named(answer, "completed")
    assert pages.ids(more) == ["bad-1", "good-2", "good-1", "good-0"]
    assert pages.ids(link_named(answer, "failed")) == pages.ids("/?workflow=order")
    assert pages.ids(link_named(answer, "workflow order")) == ["bad-1"]
    assert len(pages.ids(link_named(answer, "Show all runs"))) == 5


def test_the_form_without_javascript_leads_to_a_url_without_its_empty_fields(pages: Pages) -> None:
    answer = pages.get("/?prefix=&workflow=order&tenant=&status=failed&since=")
    assert answer.url.query == b"status=failed&workflow=order"


def test_pages_go_on_by_key(pages: Pages) -> None:
    for number in range(120):
        pages.create(f"r{number:03}", RunSummary("order", RunStatus.COMPLETED, float(number // 7)))
    by_time = sorted(range(120), key=lambda number: (-(number // 7), number))
    answer = pages.get("/?workflow=order")
    seen = ids_in(answer)
    assert len(seen) == 50
    # New runs do not move what comes next.
    pages.create("later", RunSummary("order", RunStatus.COMPLETED, 1000.0))
    while ">Older<" in answer.text:
        answer = pages.get(link_named(answer, "Older"))
        seen += ids_in(answer)
    assert seen == [f"r{number:03}" for number in by_time]
    assert pages.ids(link_named(answer, "Newest"))[0] == "later"


def test_a_page_of_a_queue_looks_at_a_bounded_number_of_runs(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_filters, "_PAGE", 5)
    monkeypatch.setattr(run_filters, "MOST_READ", 20)
    summary = RunSummary("order", RunStatus.COMPLETED, 0.0)
    for number in range(21):
        queue = "reports" if number == 0 else ""
        pages.create(f"r{number:04}", replace(summary, created_at=float(number), queue=queue))
    answer = pages.get("/?queue=reports")
    assert ids_in(answer) == []
    assert "looked at 1,000 runs" in answer.text
    assert pages.ids(link_named(answer, "Older")) == ["r0000"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("/?status=lost", "status takes one of"),
        ("/?since=soon", "since takes a duration"),
        ("/?after=soon", "after takes a place"),
        ("/?after=nan,x", "after takes a place"),
        ("/?since=0001-01-01T00:00%2B10:00", "since takes a duration"),
        ("/?before=%3Cscript%3E", "&lt;script&gt;"),
    ],
)
def test_a_wrong_filter_is_refused_in_words(pages: Pages, url: str, said: str) -> None:
    answer = pages.get(url)
    assert answer.status_code == 400
    assert said in answer.text


HOSTILE = [
    "<script>alert(1)</script>",
    "\"' onmouseover=alert(1) x='",
    "a&status=failed#?id=b",
    "\u202egnp.exe",
    " two  spaces ",
    "\u0085line",
    "{{ 7 * 7 }}",
    "é" * 300,
]


def test_hostile_ids_are_shown_as_text_and_their_links_lead_to_them(pages: Pages) -> None:
    for number, run_id in enumerate(HOSTILE):
        summary = RunSummary(
            "<i>w</i>", RunStatus.COMPLETED, float(-number), tenant="<b>", queue="\x1b[0m"
        )
        pages.create(run_id, summary)
    answer = pages.get("/")
    assert ids_in(answer) == HOSTILE
    for text in ("<script>alert", "<i>w", "<b>&", "\u202e", "\x1b"):
        assert text not in answer.text.replace('value="\u202e', "")
    ids = re.findall(r'<tr id="([^"]*)"', answer.text)
    assert len(set(ids)) == len(HOSTILE)
    assert not any(" " in one for one in ids)
    for run_id in HOSTILE:
        assert pages.ids(f"/?{urlencode({'prefix': run_id})}") == [run_id]
    deleted = pages.confirm(pages.act("delete", *HOSTILE))
    assert f"{len(HOSTILE)} of {len(HOSTILE)} runs were deleted" in deleted.text
    assert pages.ids("/") == []


def test_nothing_changes_before_it_is_confirmed_and_each_run_is_reported(pages: Pages) -> None:
    pages.ended("good")
    pages.ended("bad", -1)
    pages.pending("new")
    preview = pages.act("retry", "good", "bad", "new", "gone")
    assert rows_in(preview) == [
        "good order completed No: it is completed.",
        "bad order failed The next worker continues it. Its completed steps are not run again.",
        "new order pending No: it is pending, so there is nothing to try again.",
        "gone No: there is no such run, or it is damaged.",
    ]
    assert pages.status("bad") == "failed"
    done = pages.confirm(preview)
    assert "1 of 4 runs were retried" in done.text
    assert [row.split()[0] for row in rows_in(done)] == ["good", "new", "gone", "bad"]
    assert pages.status("bad") == "interrupted"


def fill_with_every_state(pages: Pages) -> list[str]:
    """Put runs into the store of which each action changes some. Return their ids."""
    pages.ended("good")
    pages.ended("bad", -1)
    pages.pending("new")
    pages.pending("later", delay=100)
    pages.pending("paused")
    client = Client(pages.checkpoints)
    anyio.run(client.handle(order, "paused").pause)
    pages.ended("again", -1)
    anyio.run(client.handle(order, "again").retry)
    running = RunSummary("order", RunStatus.RUNNING, 0.0)
    pages.create("held", running, owner="a worker elsewhere")
    pages.create("child", replace(running, status=RunStatus.COMPLETED, parent="new"))
    return ["child", "good", "bad", "new", "later", "paused", "again", "held"]


@pytest.mark.parametrize(
    ("action", "acted_on", "said"),
    [
        ("retry", ["bad", "again"], "The next worker continues it."),
        (
            "cancel",
            ["bad", "new", "later", "paused", "again", "held"],
            "The next worker runs its finalizers and compensations, and ends it.",
        ),
        (
            "delete",
            ["good", "bad", "new", "later", "paused", "again"],
            "No: run 'new', which may wait for its result, has not ended.",
        ),
    ],
)
def test_what_the_preview_says_is_what_happens(
    pages: Pages, action: str, acted_on: list[str], said: str
) -> None:
    run_ids = fill_with_every_state(pages)
    preview = pages.act(action, *run_ids)
    assert [row.split()[0] for row in rows_in(preview) if "No: " not in row] == acted_on
    assert said in preview.text.replace("&#39;", "'")
    done = pages.confirm(preview)
    assert f"{len(acted_on)} of {len(run_ids)} runs were" in done.text
    ends = ("Retried.", "Asked to end.", "Deleted.")
    happened = [row.split()[0] for row in rows_in(done) if row.endswith(ends)]
    assert sorted(happened) == sorted(acted_on)


def test_a_preview_has_no_button_if_nothing_would_happen(pages: Pages) -> None:
    pages.ended("good")
    pages.ended("bad", -1)
    nothing = pages.act("retry", "good", "gone")
    assert "Nothing would happen to any of these runs." in nothing.text
    assert "confirmed" not in nothing.text
    some = pages.act("retry", "good", "bad", "gone")
    assert "Nothing would happen to 2 of 3 runs." in some.text
    assert "confirmed" in some.text


def test_all_that_the_filters_find_are_acted_on_but_none_that_came_later(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_page, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(bulk_page, "LISTED", 2)
    for number in range(5):
        pages.ended(f"r{number}", -1)
    pages.ended("good")
    preview = pages.act("retry", every="found", status="failed", since="1h")
    assert "Retry 5 runs" in preview.text
    assert len(rows_in(preview)) == 2
    pages.ended("later", -1)
    first = pages.confirm(preview)
    assert "3 of 3 runs were retried" in first.text
    second = pages.confirm(first)
    assert "2 of 2 runs were retried" in second.text
    assert "confirmed" not in second.text
    assert pages.ids("/?status=failed") == ["later"]
    assert len(pages.ids("/?status=interrupted")) == 5


def test_all_on_the_page_are_those_that_it_showed(pages: Pages) -> None:
    pages.ended("a")
    pages.ended("b")
    preview = pages.post(
        "/bulk", data={"action": "delete", "every": "page", "shown": ["a"], "id": ["b"]}
    )
    assert [row.split()[0] for row in rows_in(preview)] == ["a"]


def test_an_export_is_what_import_reads(pages: Pages) -> None:
    pages.ended("a")
    pages.ended("b", -1)
    answer = pages.confirm(pages.act("export", "a", "b"))
    assert answer.headers["content-disposition"] == 'attachment; filename="runs.jsonl.gz"'
    runs = [*read_exported(gzip.decompress(answer.content).splitlines(keepends=True))]
    assert [run.run_id for run in runs] == ["a", "b"]

    async def imported() -> list[str]:
        async with MemoryStore() as store:
            for run in runs:
                assert await import_run(store, run)
            return [info.run_id for info in await store.find(RunQuery())]

    assert anyio.run(imported) == ["b", "a"]


def test_a_damaged_run_is_named_and_the_others_are_exported_then(pages: Pages) -> None:
    pages.ended("a")
    damaged = pages.confirm(pages.act("export", "a", "gone"))
    assert "1 of the runs cannot be exported" in damaged.text
    assert "Nothing would happen" not in damaged.text
    answer = pages.confirm(damaged)
    [run] = read_exported(gzip.decompress(answer.content).splitlines(keepends=True))
    assert run.run_id == "a"


def test_a_damaged_run_does_not_stop_what_is_done_to_others(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    pages = Pages(store=SqliteStore(path))
    pages.pending("a")
    pages.pending("b")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE runs SET details = 'damaged' WHERE run_id = 'a'")
    with pages:
        assert pages.ids("/") == ["b"]
        preview = pages.act("cancel", "a", "b")
        assert rows_in(preview)[0] == "a No: there is no such run, or it is damaged."
        done = pages.confirm(preview)
        assert "1 of 2 runs were asked to end" in done.text


def test_who_may_only_see_may_export_but_not_change() -> None:
    with Pages(read_only=True) as pages:
        pages.ended("a", -1)
        assert "Delete…" not in pages.get("/").text
        for action in ("retry", "cancel", "delete"):
            assert pages.act(action, "a").status_code == 403
        assert pages.confirm(pages.act("export", "a")).status_code == 200


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"action": "retry"}, "Select runs first"),
        ({"action": "destroy", "id": "a"}, "The actions are retry"),
        ({"action": "delete", "every": "found"}, "every run of the store"),
        ({"action": "delete", "every": "found", "status": "lost"}, "status takes one of"),
    ],
)
def test_a_form_that_selects_nothing_is_refused(
    pages: Pages, fields: dict[str, str], said: str
) -> None:
    answer = pages.post("/bulk", data=fields)
    assert answer.status_code == 400
    assert said in answer.text


def test_a_range_of_times_is_counted_among_the_newest_500(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_filters, "_PAGE", 60)
    for number in range(70):
        status = RunStatus.FAILED if number % 10 == 0 else RunStatus.COMPLETED
        pages.create(f"r{number:02}", RunSummary("order", status, float(number)))
    answer = pages.get("/?since=1h")
    assert "failed <b>6+</b>" in answer.text
    assert "completed <b>54+</b>" in answer.text
    assert len(pages.ids("/?since=1h")) == 50
    assert len(pages.ids(link_named(answer, "Older"))) == 20
    # Fewer are all that there are.
    assert "failed <b>1</b>" in pages.get("/?since=1h&prefix=r1").text
