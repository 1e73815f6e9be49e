"""These tests use one backend, unless they are marked with `both_backends`."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
