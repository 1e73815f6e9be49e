"""What tests of workflows may ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from effectflow.stores import MemoryStore


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with MemoryStore() as store:
        yield store
