"""What every test may ask for."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Built on the profile that Hypothesis has chosen, which with CI=true draws the same examples every
# time. A slow machine is not a failure.
settings.register_profile("effectflow", deadline=None)
settings.load_profile("effectflow")

# Tests start hundreds of processes. Each would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both backends: a test marked `anyio` runs once on each."""
    return str(request.param)
