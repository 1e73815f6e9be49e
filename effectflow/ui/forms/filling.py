"""What the fields of a form show for a value, so that reading them gives the same value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values import ValueOptions, mismatch_of
from effectflow.service.structured_input import structure_as
from effectflow.ui.forms.field import MOST_ROWS, Field, row
from effectflow.ui.forms.plain_values import comparable, json_text, plain_data
from effectflow.ui.forms.reading import FIRST_ROWS, Mistyped, read, rows


def filled(field: Field, value: Any, options: ValueOptions) -> dict[str, str]:
    """Return what a form shows for a value of its type: what `read` makes the same value of.

    What has no exact text in its field is shown as JSON, and nothing if that has none either. Secrets are
    shown as they are saved.
    """
    return _Filler(options).texts(field, value) or {}


def blank(field: Field, options: ValueOptions) -> dict[str, str]:
    """Return what a form shows before anything is typed: the defaults that are known."""
    if field.defaults:
        return filled(field, field.defaults[0], options)
    parts = rows(field, {}) if field.kind == "rows" else field.parts
    return {name: text for part in parts for name, text in blank(part, options).items()}


class _Filler:
    def __init__(self, options: ValueOptions) -> None:
        self._options = options

    def texts(self, field: Field, value: Any) -> dict[str, str] | None:
        """Return texts of a field that mean a value; None if there are none."""
        for texts in (self._in_fields, self._in_json):
            try:
                found = texts(field, value)
                if self._tree(field, read(field, found, self._options)) == self._tree(field, value):
                    return found
            except (ValueError, TypeError, AttributeError, LookupError, RecursionError, Mistyped):
                continue
            except NotSerializable:
                return None
        return None

    def _tree(self, field: Field, value: Any) -> Any:
        return comparable(field.annotation, value, self._options)

    def _in_fields(self, field: Field, value: Any) -> dict[str, str]:
        if value is None and field.when_empty == "none":
            return {}
        given = {field.given_name: "on"} if field.has_switch else {}
        match field.kind:
            case "nothing":
                return {}
            case "text":
                return {field.name: typeable(str(value))} | given
            case "choice":
                return {field.name: self._label(field, value)}
            case "lines":
                item = field.item
                assert item is not None
                items = cast("Iterable[Any]", value)
                lines = [self._in_fields(item, each)[item.name] for each in items]
                if any("\n" in line or not line for line in lines):
                    raise ValueError("an item is not one line")
                return {field.name: "\n".join(lines)} | given
            case "group":
                return self._in_parts(field, value) | given
            case "rows":
                return self._in_rows(field, value) | given
            case "variant":
                return self._in_variant(field, value)
            case _:
                if field.line is None:
                    raise ValueError("it is typed as JSON")
                return {field.name: typeable(field.line.show(value))}

    def _in_parts(self, field: Field, value: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in field.parts:
            if field.is_list:
                inner = value[part.key]
            elif part.attribute:
                inner = getattr(value, part.attribute)
            elif part.key in value:
                inner = value[part.key]
            else:
                continue
            found |= self._shown(part, inner)
        return found

    def _in_rows(self, field: Field, value: Any) -> dict[str, str]:
        items = [*value]
        if len(items) > MOST_ROWS - FIRST_ROWS:
            raise ValueError("it has too many items for rows")
        found = {field.rows_name: str(len(items) + FIRST_ROWS)}
        for number, item in enumerate(items):
            found |= self._shown(row(field, number), item)
        for number in range(len(items), len(items) + FIRST_ROWS):
            found |= blank(row(field, number), self._options)
        return found

    def _in_variant(self, field: Field, value: Any) -> dict[str, str]:
        for part in field.parts:
            if mismatch_of(value, part.annotation) is None:
                return {field.name: part.label} | self._shown(part, value)
        raise ValueError("it is of none of the types")

    def _shown(self, field: Field, value: Any) -> dict[str, str]:
        texts = self.texts(field, value)
        if texts is None:
            raise ValueError("a part cannot be typed")
        return texts

    def _label(self, field: Field, value: Any) -> str:
        for choice in field.choices:
            made = structure_as(field.annotation, choice.data, self._options)
            if made.__class__ is value.__class__ and made == value:
                return choice.label
        raise ValueError("it is none of the choices")

    def _in_json(self, field: Field, value: Any) -> dict[str, str]:
        return as_json(field, json_text(plain_data(field.annotation, value, self._options)))


def as_json(field: Field, text: str) -> dict[str, str]:
    """Return what a form shows of a field that is typed as JSON."""
    return {field.name: text} | ({} if field.kind == "json" else {field.json_name: "on"})


def typeable(text: str) -> str:
    """Return a text as it is. Raise ValueError if a browser would change it, or it would mislead."""
    if all(one.isprintable() or one in "\n\t" for one in text):
        return text
    raise ValueError("it has characters that nobody can type")
