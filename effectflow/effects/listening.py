"""Listeners: they are told what happens on the way, and cannot fail what tells them."""

from __future__ import annotations

from typing import Any

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.interpreter import interpret
from effectflow.effects.scope import Scope

__all__ = ["run_listener"]


async def run_listener(what: str, effect: Effect[Any, Any, object], env: Any, scope: Scope) -> None:
    """Run the effect that a listener gave. That it fails is a bug: its type says that it cannot."""
    outcome = await interpret(effect, env, scope)
    if outcome.__class__ is nodes.Failed:
        error = outcome.error
        raise TypeError(
            f"{what} failed with {error!r}, and it must not fail: let it handle that itself, "
            "for instance by .fallback(None)"
        ) from (error if isinstance(error, BaseException) else None)
