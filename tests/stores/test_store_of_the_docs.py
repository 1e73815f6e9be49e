"""The store that `docs/stores.md` builds is complete: the tests on that page pass."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from effectflow.testing import store_conformance
from tests.pages import ROOT, examples

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """The examples of the page that build the store and test it."""
    module = sys.modules["store_of_the_docs"] = ModuleType("store_of_the_docs")
    for example in examples(ROOT / "docs" / "stores.md"):
        if "TableStore" in example:
            exec(compile(example, "docs/stores.md", "exec", dont_inherit=True), module.__dict__)
    return module


@pytest.mark.parametrize("check", store_conformance.JOURNAL_CHECKS, ids=str)
async def test_journals(check: store_conformance.Check, page: ModuleType, tmp_path: Path) -> None:
    await page.test_journals(check, tmp_path)


@pytest.mark.parametrize("check", store_conformance.DAMAGE_CHECKS, ids=str)
async def test_damage(check: store_conformance.Check, page: ModuleType, tmp_path: Path) -> None:
    await page.test_damage(check, tmp_path)


async def test_it_is_not_a_store_that_workers_can_use(page: ModuleType, tmp_path: Path) -> None:
    for check in store_conformance.SERVICE_CHECKS:
        with pytest.raises(
            AssertionError, match="lacks send, mailbox, claim_due, save_setting, settings, changes"
        ):
            await check(lambda: page.TableStore(tmp_path / "runs.db"))
