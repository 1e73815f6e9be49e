"""Plain data, as people type it, to the type that a workflow declares for its input."""

from __future__ import annotations

from typing import Any, cast

__all__ = ["structure_as"]


def structure_as(annotation: object, data: object) -> Any:
    """`data` as the annotated type; as it is where there is no annotation.

    Raises ValueError, with the path of each part that does not fit.
    """
    if annotation in (None, type(None), Any, object):
        return data
    # cattrs takes 60 ms to import, and only programs that take input from people need it.
    from cattrs import transform_error
    from cattrs.preconf.orjson import make_converter

    converter = make_converter(forbid_extra_keys=True)
    try:
        return converter.structure(data, cast(Any, annotation))
    except Exception as error:
        reasons = "; ".join(transform_error(error))
        raise ValueError(f"the input does not fit {annotation}: {reasons}") from error
