"""Convert plain data, such as parsed JSON, to the type that a workflow declares for its input."""

from __future__ import annotations

from typing import Any, cast

_BASIC: tuple[type[Any], ...] = (bool, int, float, str)


def _exactly(data: object, kind: type[Any]) -> Any:
    """Accept numbers, text and booleans of the exact type only: neither 1.9 nor "5" is an int.

    A subclass, such as a StrEnum, is made of a value of its basic type.
    """
    basic = next(each for each in _BASIC if issubclass(kind, each))
    if type(data) is not basic:
        if basic is not float or type(data) is not int:
            raise ValueError(f"{data!r} is not of type {kind.__name__}")
        data = float(data)
    return data if kind is basic else kind(data)


def structure_as(annotation: object, data: object) -> Any:
    """Return `data` as the annotated type, or unchanged without an annotation.

    Raises ValueError, with the path of each part that does not fit.
    """
    if annotation in (None, type(None), Any, object):
        return data
    # Imported here, as it takes 60 ms and only programs that read input need it.
    from cattrs import transform_error
    from cattrs.preconf.orjson import make_converter

    converter = make_converter(forbid_extra_keys=True)
    for kind in _BASIC:
        converter.register_structure_hook(kind, _exactly)
    try:
        return converter.structure(data, cast(Any, annotation))
    except Exception as error:
        reasons = "; ".join(transform_error(error))
        raise ValueError(f"the input does not fit {annotation}: {reasons}") from error
