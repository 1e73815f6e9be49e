"""Whether the store of the pages answers now, and whether they may change it."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from effectflow.checkpoint.errors import StoreUnavailable
from effectflow.checkpoint.store import CheckpointStore, find_run, is_service, store_errors

SECONDS_TO_ANSWER = 3.0
"""The time that a store has to answer a short question. A worker waits longer, because its work would be
lost; one who looks at a page wants to know."""

_SECONDS_KNOWN = 1.0
"""A store that has answered is not asked again within this time."""


class StoreAccess:
    """Opens the store for requests.

    Attributes:
        obstacle: why nothing can be changed in the store, as it has said last, such as "is read-only"; ""
            if that can be.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self.obstacle = ""
        self._store = store
        self._answered_at = -math.inf

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Open the store for a request. Raise StoreUnavailable if it does not answer in time."""
        async with AsyncExitStack() as stack:
            try:
                with anyio.fail_after(SECONDS_TO_ANSWER):
                    await stack.enter_async_context(self._store)
                    if anyio.current_time() > self._answered_at + _SECONDS_KNOWN:
                        await self._ask()
            except TimeoutError:
                reason = f"it has not answered for {SECONDS_TO_ANSWER:g} s"
                raise StoreUnavailable(repr(self._store), reason) from None
            yield

    async def _ask(self) -> None:
        with store_errors(self._store):
            if (await self._store.facts()).is_read_only:
                self.obstacle = "is read-only"
            elif not is_service(self._store):
                self.obstacle = "keeps journals only, so no worker would do the work"
            else:
                self.obstacle = ""
            # Facts need no server. Files have none, and finding a run in an archive takes long.
            if is_service(self._store):
                await find_run(self._store, "")
        self._answered_at = anyio.current_time()
