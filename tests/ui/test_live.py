"""Pages that renew themselves cost the store one look for all browsers that watch a URL."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from effectflow.checkpoint import RunStatus, RunSummary
from effectflow.checkpoint.store import find_run
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.ui.live import Feeds, Render, State


async def watch(feeds: Feeds, url: str, render: Render, seen: Callable[[bytes], object]) -> None:
    """Watch a page until it has been seen once."""
    async with aclosing(feeds.watch(url, render)) as events:
        async for event in events:
            seen(event)
            return


def test_all_browsers_that_watch_a_url_share_one_look() -> None:
    looks: list[str] = []
    events: list[bytes] = []

    async def main() -> None:
        async with MemoryStore() as store, anyio.create_task_group() as group:
            feeds = Feeds(store)
            for number in range(200):
                url = "/failed" if number % 2 else "/"

                async def render(url: str = url) -> State:
                    looks.append(url)
                    return State(f"<p>{url}</p>\nfor all")

                group.start_soon(watch, feeds, url, render, events.append)

    anyio.run(main)
    assert sorted(looks) == ["/", "/failed"]
    assert sorted(events) == sorted(
        100 * [b"event: page\ndata: <p>/</p>\ndata: for all\n\n"]
        + 100 * [b"event: page\ndata: <p>/failed</p>\ndata: for all\n\n"]
    )


def test_pages_do_not_delay_each_other_when_all_browsers_connect_again() -> None:
    rendering = most = 0
    events: list[bytes] = []

    async def render() -> State:
        nonlocal rendering, most
        rendering += 1
        most = max(most, rendering)
        await anyio.sleep(0.001)
        rendering -= 1
        return State("page")

    async def main() -> None:
        async with MemoryStore() as store, anyio.create_task_group() as group:
            feeds = Feeds(store)
            for number in range(100):
                group.start_soon(watch, feeds, f"/run?id={number}", render, events.append)

    anyio.run(main)
    assert len(events) == 100
    assert most <= 8


def test_a_page_that_has_failed_once_is_rendered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effectflow.ui.live._SECONDS_UNTIL_LOOK", 0.01)
    events: list[bytes] = []
    looks = 0

    async def render() -> State:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise RuntimeError("of a handler")
        return State("page")

    async def main() -> None:
        async with MemoryStore() as store:
            with anyio.fail_after(30):
                await watch(Feeds(store), "/", render, events.append)

    anyio.run(main)
    assert events == [b"event: page\ndata: page\n\n"]


def test_a_page_about_a_run_is_not_rendered_when_only_others_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effectflow.ui.live.SECONDS_BETWEEN", 0.001)
    monkeypatch.setattr("effectflow.ui.live._SECONDS_UNTIL_LOOK", 60.0)
    path, done = tmp_path / "runs.db", RunSummary("w", RunStatus.COMPLETED, 0.0)
    looks = 0

    async def main() -> None:
        # SQLite does not tell which runs another process has changed.
        async with SqliteStore(path) as store, SqliteStore(path) as of_another_process:
            await of_another_process.create("a", [b"body"], summary=done)

            async def render() -> State:
                nonlocal looks
                looks += 1
                return State(f"{looks}", run=await find_run(store, "a"))

            async with (
                aclosing(Feeds(store).watch("/run?id=a", render)) as events,
                store.changes() as changes,
            ):
                await anext(events)
                await anext(events)
                for other in ("b", "c"):
                    await of_another_process.create(other, [b"body"], summary=done)
                    assert await changes.wait(10) is None
                await of_another_process.delete("a")
                await anext(events)

    anyio.run(main)
    assert looks == 3
