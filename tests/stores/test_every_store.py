"""Every store passes the suite that is published for stores."""

from __future__ import annotations

import pytest

from effectflow.testing import store_conformance
from effectflow.testing.store_conformance import Check, MakeStore

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("check", store_conformance.CHECKS, ids=lambda check: check.__name__)
async def test_conformance(check: Check, make_store: MakeStore) -> None:
    await check(make_store)
