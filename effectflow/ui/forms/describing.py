"""The fields of a form that asks for a value of a type."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Collection, Mapping, Sequence, Set as AbstractSet
from dataclasses import replace
from enum import Enum, Flag
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast

from effectflow.checkpoint.values import mismatch_of
from effectflow.checkpoint.values.classes import is_record, record_of
from effectflow.checkpoint.values.declared import field_types, name_of_type, required_keys
from effectflow.effects.signatures import UnresolvedName, meaning_of
from effectflow.ui.forms.field import Choice, Field, WhenEmpty
from effectflow.ui.forms.lines import line_of

_MOST_FIELDS = 200
_DEEPEST = 5
_MOST_CHOICES = 200
_MOST_KINDS = 8


def described(
    annotation: object,
    *,
    name: str = "value",
    label: str = "Value",
    hint: str | None = None,
    default: object = inspect.Parameter.empty,
) -> Field:
    """Return the field of a type, with its parts.

    Parameters:
        annotation: the type; None for any value.
        name: its name in what is submitted.
        label: what it is, for people.
        hint: more about it; by default, its type.
        default: what it shows at first.
    """
    found = _Describer().field(Any if annotation is None else annotation, name, label)
    known = () if default is inspect.Parameter.empty else (default,)
    return replace(found, hint=found.hint if hint is None else hint, defaults=known)


def short_name(annotation: object) -> str:
    """Return the name of a type without the modules of its parts."""
    return re.sub(r"(\w+\.)+(?=\w)", "", name_of_type(annotation))


class _Describer:
    """Describes a type, with a bound on all of its parts."""

    def __init__(self) -> None:
        self._left = _MOST_FIELDS
        self._around: list[object] = []
        self._is_in_row = False

    def field(
        self,
        annotation: Any,
        name: str,
        label: str,
        *,
        key: str | int = "",
        in_model: bool = False,
        when_empty: WhenEmpty = "",
    ) -> Field:
        self._left -= 1
        kind: Any = typing.get_origin(annotation) or annotation
        if kind is Annotated:
            inner = self.field(
                annotation.__origin__,
                name,
                label,
                key=key,
                in_model=in_model,
                when_empty=when_empty,
            )
            return replace(inner, annotation=annotation)
        base = Field(name, label, "json", annotation, when_empty, short_name(annotation), key=key)
        is_bounded = self._left > 0 and len(self._around) < _DEEPEST
        found = self._of_kind(base, kind, in_model) if is_bounded else base
        return found if self._left >= 0 or found.kind != "group" else base

    def _of_kind(self, base: Field, kind: Any, in_model: bool) -> Field:
        arguments = typing.get_args(base.annotation)
        if kind is NoneType:
            return replace(base, kind="nothing")
        if kind in (Union, UnionType):
            return self._union(base, arguments, in_model)
        if kind is Literal:
            values = [(each, getattr(each, "value", each)) for each in arguments]
            return _choice(base, values)
        if not isinstance(kind, type) or isinstance(kind, UnresolvedName):
            meant = meaning_of(kind)
            if meant is None or self._left <= 0:
                return base
            inner = self.field(
                meant, base.name, base.label, key=base.key, when_empty=base.when_empty
            )
            return replace(inner, annotation=base.annotation)
        cls = cast("type[Any]", kind)
        if cls is bool:
            return _choice(replace(base, hint=""), [("yes", True), ("no", False)])
        if issubclass(cls, Enum):
            # Several flags together are one value.
            is_flag = issubclass(cls, Flag) or not len(cls)
            return base if is_flag else _choice(base, [(each, _enum_data(each)) for each in cls])
        if typing.is_typeddict(cls) or is_record(cls):
            return self._record(base, cls, arguments, in_model)
        if cls is tuple and arguments and ... not in arguments:
            parts = tuple(enumerate(arguments))
            return self._group(base, cls, parts, in_model=in_model, is_list=True)
        if issubclass(cls, tuple | list | AbstractSet) or cls is Sequence:
            return self._lines(base, arguments, in_model)
        return _line(base, cls, in_model)

    def _union(self, base: Field, arguments: tuple[Any, ...], in_model: bool) -> Field:
        others = [each for each in arguments if each is not NoneType]
        is_optional = len(others) < len(arguments)
        if is_optional and base.when_empty:
            # Empty, it would mean two things.
            return base
        if len(others) != 1:
            return self._variant(base, others, in_model, is_optional=is_optional)
        inner = self.field(
            others[0],
            base.name,
            base.label,
            key=base.key,
            in_model=in_model,
            when_empty="none",
        )
        return replace(inner, annotation=base.annotation)

    def _variant(
        self, base: Field, kinds: Sequence[Any], in_model: bool, *, is_optional: bool
    ) -> Field:
        if len(kinds) > _MOST_KINDS:
            return base
        self._around.append(base.annotation)
        try:
            parts = tuple(
                replace(
                    self.field(kind, f"{base.name}~{number}", short_name(kind), in_model=in_model),
                    hint="",
                )
                for number, kind in enumerate(kinds)
            )
        finally:
            self._around.pop()
        when_empty = "none" if is_optional else base.when_empty
        return replace(base, kind="variant", parts=parts, when_empty=when_empty)

    def _record(self, base: Field, cls: Any, arguments: tuple[Any, ...], in_model: bool) -> Field:
        hints = field_types(cls, arguments)
        is_model = in_model or hasattr(cls, "__pydantic_validator__")
        if typing.is_typeddict(cls):
            required = required_keys(cls)
            parts = [("", key, _bare(hints[key]), key in required, ()) for key in hints]
        else:
            given = _parameters(cls)
            parts = [
                (name, key, hints.get(name, Any), is_required, _default(cls, name, hints))
                for key, (name, is_required) in given.items()
            ]
        self._around.append(cls)
        try:
            made = tuple(
                self._part(base, (key, name), hint, is_required, defaults, is_model)
                for name, key, hint, is_required, defaults in parts
            )
        finally:
            self._around.pop()
        return replace(base, kind="group", parts=made)

    def _part(
        self,
        base: Field,
        at: tuple[str, str],
        hint: Any,
        is_required: bool,
        defaults: tuple[object, ...],
        in_model: bool,
    ) -> Field:
        """Return a part of a record, at a key of its data and an attribute of its value."""
        key, attribute = at
        when_empty: WhenEmpty = "" if is_required or defaults else "left out"
        name = f"{base.name}/{pointer(key)}"
        made = self.field(hint, name, key, key=key, in_model=in_model, when_empty=when_empty)
        if defaults and made.kind in ("line", "json", "choice") and not made.when_empty:
            # Its default is shown, and counts again if nothing is typed instead.
            made = replace(made, when_empty="left out")
        return replace(made, attribute=attribute, defaults=defaults)

    def _group(
        self,
        base: Field,
        cls: Any,
        parts: Collection[tuple[int, Any]],
        *,
        in_model: bool,
        is_list: bool,
    ) -> Field:
        self._around.append(cls)
        try:
            made = tuple(
                self.field(hint, f"{base.name}/{key}", str(key + 1), key=key, in_model=in_model)
                for key, hint in parts
            )
        finally:
            self._around.pop()
        return replace(base, kind="group", parts=made, is_list=is_list)

    def _lines(self, base: Field, arguments: tuple[Any, ...], in_model: bool) -> Field:
        if not arguments:
            return base
        is_in_row, self._is_in_row = self._is_in_row, True
        item = self.field(arguments[0], base.name, base.label, in_model=in_model)
        self._is_in_row = is_in_row
        if item.kind == "group" and not is_in_row:
            # Only a row that is given counts.
            row = replace(item, when_empty="left out", hint="")
            return replace(base, kind="rows", item=row)
        if item.kind not in ("line", "text", "choice"):
            return base
        hint = f"{base.hint}: one item in each line"
        return replace(base, kind="lines", item=item, hint=hint)


def _bare(hint: Any) -> Any:
    """Return the annotation of an item of a TypedDict, without whether it is required."""
    is_marked = typing.get_origin(hint) in (typing.Required, typing.NotRequired)
    return typing.get_args(hint)[0] if is_marked else hint


def pointer(key: str) -> str:
    """Return a key as a part of a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _parameters(cls: Any) -> dict[str, tuple[str, bool]]:
    """Return the field of each parameter of a record, and whether it is required."""
    if hasattr(cls, "model_fields"):
        return {
            key if isinstance(key := part.validation_alias, str) else name: (
                name,
                part.is_required(),
            )
            for name, part in cls.model_fields.items()
        }
    known = inspect.signature(cls).parameters
    return {
        key: (name, known[key].default is inspect.Parameter.empty)
        for name, key in record_of(cls).parameters.items()
        if key and key in known
    }


def _default(cls: Any, name: str, hints: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the default of a field, if it is a value of its type."""
    hint = hints.get(name)
    default = record_of(cls).defaults.get(name)
    is_known = hint not in (None, Any, object) and mismatch_of(default, hint) is None
    return (default,) if is_known and not isinstance(default, type) else ()


def _enum_data(member: Enum) -> object:
    """Return the plain data that means a member of an enum: its value, or its name."""
    value: object = member.value
    return value if value.__class__ in (str, int, float, bool) else member.name


def _choice(base: Field, values: Sequence[tuple[object, object]]) -> Field:
    if len(values) > _MOST_CHOICES:
        return base
    names = [value.name if isinstance(value, Enum) else value for value, _ in values]
    labels = [name if isinstance(name, str) else repr(name) for name in names]
    if len(set(labels)) < len(labels):
        labels = [repr(name) for name in names]
    choices = tuple(Choice(label, data) for label, (_, data) in zip(labels, values, strict=True))
    return replace(base, kind="choice", choices=choices)


def _line(base: Field, cls: type[Any], in_model: bool) -> Field:
    if issubclass(cls, str):
        return replace(base, kind="text", hint="")
    line = line_of(cls, in_model)
    if line is None:
        return base
    return replace(base, kind="line", line=line, hint=line.hint or base.hint)
