"""Plain data, as people type it, to the type that a workflow declares for its input."""

from __future__ import annotations

from typing import Any, cast

__all__ = ["structure_as"]


_BASIC: tuple[type[Any], ...] = (bool, int, float, str)


def _as_it_is(data: object, kind: type[Any]) -> Any:
    """A number, text or truth value of the very type: 1.9 is no int, and "5" is none either.

    A class of one of these, such as a StrEnum, is made of what that one is.
    """
    basic = next(each for each in _BASIC if issubclass(kind, each))
    if type(data) is not basic:
        if basic is not float or type(data) is not int:
            raise ValueError(f"{data!r} is no {kind.__name__}")
        data = float(data)
    return data if kind is basic else kind(data)


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
    for kind in _BASIC:
        converter.register_structure_hook(kind, _as_it_is)
    try:
        return converter.structure(data, cast(Any, annotation))
    except Exception as error:
        reasons = "; ".join(transform_error(error))
        raise ValueError(f"the input does not fit {annotation}: {reasons}") from error
