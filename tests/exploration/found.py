"""Cases in which an engine broke a promise, made small by `python -m tests.exploration --shrink SEED`."""

from __future__ import annotations

from tests.exploration.trials import Case

FOUND: dict[str, Case] = {}
