"""Pages that renew themselves cost the store one look for all browsers that watch a URL."""

from __future__ import annotations

from contextlib import aclosing

import anyio

from effectflow.stores import MemoryStore
from effectflow.ui.live import Feeds, State


def test_all_browsers_that_watch_a_url_share_one_look() -> None:
    looks: list[str] = []

    async def watch(feeds: Feeds, url: str) -> None:
        async def render() -> State:
            looks.append(url)
            return State(f"<p>{url}</p>")

        async with aclosing(feeds.watch(url, render)) as states:
            async for state in states:
                assert state == State(f"<p>{url}</p>")
                return

    async def main() -> None:
        async with MemoryStore() as store:
            feeds = Feeds(store)
            async with anyio.create_task_group() as group:
                for number in range(200):
                    group.start_soon(watch, feeds, "/failed" if number % 2 else "/")

    anyio.run(main)
    # Once at the beginning, and once more when changes can no longer be missed.
    assert set(looks) == {"/", "/failed"}
    assert len(looks) <= 4
