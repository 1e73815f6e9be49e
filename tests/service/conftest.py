"""What tests of services may ask for: stores, and services on them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from effectflow import Checkpoints, Client, Workflow
from effectflow.checkpoint import ServiceStore
from effectflow.checkpoint.store import service_of
from effectflow.service import App, Worker
from effectflow.stores import open_store
from tests import apps


@dataclass(frozen=True)
class Service:
    """A store, and a world that its workers act on. Each worker and client has its own checkpoints."""

    store: ServiceStore
    world: apps.World = field(default_factory=apps.World)

    def checkpoints(self, **options: Any) -> Checkpoints:
        return Checkpoints(self.store, **options)

    def app(self, *workflows: Workflow[Any, Any, Any, Any], **options: Any) -> App[apps.App]:
        def environment(checkpoints: Checkpoints) -> apps.App:
            return apps.App(checkpoints, self.world)

        return App[apps.App](
            workflows, environment=environment, checkpoints=self.checkpoints(), **options
        )

    def worker(
        self,
        *workflows: Workflow[Any, Any, Any, Any],
        schedules: Any = (),
        queues: Any = (),
        **options: Any,
    ) -> Worker[apps.App]:
        return Worker(self.app(*workflows, schedules=schedules, queues=queues), **options)

    @property
    def client(self) -> Client:
        return Client(self.checkpoints())


@pytest.fixture
def seldom_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers look for runs only when something has changed, and not from time to time."""
    monkeypatch.setattr("effectflow.service.worker._SECONDS_BETWEEN_LOOKS", 3600)


STORES = {"memory": "memory:", "sqlite": "sqlite:///{folder}/runs.db"}


both_stores = pytest.mark.parametrize("service", STORES, indirect=True)
"""For a smoke set of each topic: the suite of stores shows that one does what the other does."""


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.exhaustive)])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Service]:
    async with open_store(STORES[request.param].format(folder=tmp_path)) as store:
        yield Service(service_of(store, "a test"))
