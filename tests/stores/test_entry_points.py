"""Stores of other packages, which `open_store` and `--store` find by the entry points of these."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from effectflow.stores import MemoryStore, open_store
from tests.cli.conftest import Command, effectflow, folder

__all__ = ["effectflow", "folder"]

MODULE = """
    from effectflow.stores import MemoryStore

    class MyStore(MemoryStore):
        def __init__(self, url: str) -> None:
            super().__init__()
            self.url = url
"""

ENTRY_POINTS = """
    [effectflow.stores]
    my = my_store:MyStore
    gone = my_store.gone:Store
    none = my_store:NoStore
    memory = my_store:MyStore
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package: a module, and the metadata that pip writes."""
    site = tmp_path / "site"
    metadata = site / "my_store-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "my_store.py").write_text(textwrap.dedent(MODULE))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-store\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS))
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("my_store", None)


def test_a_store_of_another_package_is_opened_by_its_name() -> None:
    store = open_store("my://host/name?option=1")
    assert type(store).__name__ == "MyStore"
    assert getattr(store, "url", None) == "my://host/name?option=1"


def test_a_package_is_imported_only_when_its_name_is_used() -> None:
    assert type(open_store("memory:")) is MemoryStore
    open_store("runs.db")
    with pytest.raises(ValueError, match="does not name a store"):
        open_store("your://host")
    assert "my_store" not in sys.modules


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'your:\.\.\.' does not name a store") as caught:
        open_store("your://me:secret@host")
    for known in (
        "runs.db",
        "memory:",
        "file:",
        "sqlite:",
        "postgresql:",
        "redis:",
        "my:",
        "gone:",
    ):
        assert known in str(caught.value)


@pytest.mark.parametrize(("url", "said"), [("gone:x", "my_store.gone"), ("none:x", "NoStore")])
def test_a_package_that_cannot_be_loaded_is_named(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"of my-store cannot be loaded from .*{said}"):
        open_store(url)


def test_commands_know_the_stores_of_other_packages(effectflow: Command) -> None:
    listed = effectflow("list", "--store", "my://host/name")
    assert (listed.code, "This store has no runs" in listed.out) == (0, True)
    refused = effectflow("list", "--store", "your:x")
    assert (refused.code, "my:" in refused.err) == (2, True)
    refused = effectflow("list", "--store", "gone:x")
    assert (refused.code, "of my-store cannot be loaded" in refused.err) == (2, True)
