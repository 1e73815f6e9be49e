"""Every store passes the suite that is published for stores."""

from __future__ import annotations

import inspect

import pytest

from effectflow.checkpoint import CheckpointStore
from effectflow.stores import FileStore, MemoryStore, PostgresStore, RedisStore, SqliteStore
from effectflow.testing import store_conformance
from effectflow.testing.store_conformance import Check, MakeStore

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("check", store_conformance.CHECKS, ids=lambda check: check.__name__)
async def test_conformance(check: Check, make_store: MakeStore) -> None:
    await check(make_store)


@pytest.mark.parametrize("store", [MemoryStore, FileStore, SqliteStore, PostgresStore, RedisStore])
def test_help_says_what_each_method_of_the_contract_does(store: type[CheckpointStore]) -> None:
    contract = [name for name in vars(CheckpointStore) if not name.startswith("_")]

    assert "append" in contract
    assert [name for name in contract if not inspect.getdoc(getattr(store, name))] == []
