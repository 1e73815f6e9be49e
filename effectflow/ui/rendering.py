"""The templates of all pages, and how one is rendered."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.runtime import Context

from effectflow.ui.formatting import FILTERS

_contexts: ContextVar[list[Context]] = ContextVar("_contexts")
"""What this rendering has made."""


class _PageContext(Context):
    """What a template shows, remembered for the end of the rendering."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        _contexts.get().append(self)


@cache
def templates() -> Environment:
    """Return the templates of all pages, which every site of a process shares."""
    made = Environment(
        loader=PackageLoader("effectflow.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.context_class = _PageContext
    # Not of the declared type, which pyright does not know.
    filters: dict[str, Any] = vars(made)["filters"]
    filters.update(FILTERS)
    return made


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """Return the HTML of a template with these values."""
    contexts: list[Context] = []
    before = _contexts.set(contexts)
    try:
        return templates().get_template(template).render(values)
    finally:
        _contexts.reset(before)
        # Macros keep the context that they are defined in, and it keeps them. So until the next garbage
        # collection, which comes rarely, a run would stay in memory for each of its pages.
        for context in contexts:
            if not values.keys().isdisjoint(context.parent):
                context.parent.clear()
                context.vars.clear()


def compile_templates() -> None:
    """Compile the templates, for which the first readers of the pages would wait otherwise."""
    for name in templates().list_templates():
        templates().get_template(name)
