"""The observer of named effects and steps: the hook for tracing."""

from __future__ import annotations

from typing import Any, Protocol

from effectflow.effects.exit import Exit

__all__ = ["EffectObserver"]


class EffectObserver(Protocol):
    """Receives the beginning and end of named effects and steps: `effect.run(env, observer=...)`.

    Both methods are called in the task that runs the effect, with its context variables. They must be
    fast and must not raise.
    """

    def began(self, name: str) -> None:
        """Receive the beginning of an effect with this name."""
        ...

    def ended(self, name: str, ended: Exit[Any, Any]) -> None:
        """Receive the end of the effect with this name that began last in this task."""
        ...
