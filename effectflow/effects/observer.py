"""Who is told of the effects that have a name: the hook for traces."""

from __future__ import annotations

from typing import Any, Protocol

from effectflow.effects.exit import Exit

__all__ = ["EffectObserver"]


class EffectObserver(Protocol):
    """Is told when a named effect, or a step, begins and ends: `effect.run(env, observer=...)`.

    The two calls come in the task that runs the effect, so context variables are those of the flow.
    They must be quick and must not raise.
    """

    def began(self, name: str) -> None:
        """An effect of this name begins."""
        ...

    def ended(self, name: str, ended: Exit[Any, Any]) -> None:
        """The effect of this name that began last in this task has ended like this."""
        ...
