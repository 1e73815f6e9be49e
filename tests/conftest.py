"""What every test may ask for."""

from __future__ import annotations

import pytest
from hypothesis import settings

# Built on the profile that Hypothesis has chosen, which with CI=true draws the same examples every
# time. A slow machine is not a failure.
settings.register_profile("effectflow", deadline=None)
settings.load_profile("effectflow")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both backends: a test marked `anyio` runs once on each."""
    return str(request.param)
