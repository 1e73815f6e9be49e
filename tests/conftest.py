"""What every test may ask for."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both backends: a test marked `anyio` runs once on each."""
    return str(request.param)
