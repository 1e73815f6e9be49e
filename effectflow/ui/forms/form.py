"""A form: its fields, what they show, and the values that were typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field as dataclass_field, replace
from typing import Any

from effectflow.checkpoint.values import ValueOptions
from effectflow.ui.forms.field import Field
from effectflow.ui.forms.filling import as_json, blank, filled
from effectflow.ui.forms.plain_values import json_text
from effectflow.ui.forms.reading import MORE_ROWS, Mistyped, Typed, find, read, read_data, rows


@dataclass(frozen=True, slots=True)
class Form:
    """Fields, and what they show.

    Attributes:
        fields: what it asks for.
        typed: what was typed, or is shown at first.
        problems: what is wrong in each field, by its name.
        choice: distinguishes it from the other forms of its page.
    """

    fields: tuple[Field, ...] = ()
    typed: Typed = dataclass_field(default_factory=dict[str, str])
    problems: Mapping[str, str] = dataclass_field(default_factory=dict[str, str])
    choice: str = ""

    def values(self, options: ValueOptions) -> dict[str, Any]:
        """Return the value of each field by its name. Raise Mistyped with all that is wrong."""
        found: dict[str, Any] = {}
        problems: dict[str, str] = {}
        for field in self.fields:
            try:
                found[field.name] = read(field, self.typed, options)
            except Mistyped as error:
                problems |= error.problems
        if problems:
            raise Mistyped(problems)
        return found

    def switched(self, name: str, options: ValueOptions) -> Form:
        """Return the form with a field shown as JSON, or in its own way again, with what was typed."""
        for field in self.fields:
            if field.name == name:
                return self._switched(field, options)
        return self

    def rows(self, field: Field) -> list[Field]:
        """Return the rows that it shows of a field."""
        return rows(field, self.typed)

    def with_more_rows(self, name: str, options: ValueOptions) -> Form:
        """Return the form with more rows in the field of this name."""
        for field in self.fields:
            wanted = find(field, name, self.typed)
            if wanted is not None and wanted.kind == "rows":
                known = rows(wanted, self.typed)
                count = {wanted.rows_name: str(len(known) + MORE_ROWS)}
                more = rows(wanted, count)
                typed = {**self.typed, wanted.rows_name: str(len(more))}
                for one in more[len(known) :]:
                    typed |= blank(one, options)
                return replace(self, typed=typed)
        return self

    def changed(self, options: ValueOptions) -> Form | None:
        """Return the form as one of its own buttons changes it; None if another one was pressed."""
        if (name := self.typed.get("~as")) is not None:
            return self.switched(name, options)
        if (name := self.typed.get("~more")) is not None:
            return self.with_more_rows(name, options)
        return None

    def _switched(self, field: Field, options: ValueOptions) -> Form:
        others = {name: text for name, text in self.typed.items() if not _is_of(name, field.name)}
        try:
            if field.json_name not in self.typed:
                text = json_text(read_data(field, self.typed, options))
                return replace(self, typed=others | as_json(field, text))
            shown = filled(field, read(field, self.typed, options), options)
        except (Mistyped, TypeError) as error:
            problems = error.problems if isinstance(error, Mistyped) else {field.name: str(error)}
            return replace(self, problems=problems)
        if field.json_name in shown:
            return replace(self, problems={field.name: "this value can be typed as JSON only"})
        return replace(self, typed=others | shown)


def _is_of(name: str, field: str) -> bool:
    return name == field or name.startswith((f"{field}/", f"{field}~"))


def form_of(
    *fields: Field,
    values: Mapping[str, Any] | None = None,
    options: ValueOptions,
    choice: str = "",
) -> Form:
    """Return a form that shows these values by the names of their fields, and defaults for others."""
    given = values or {}
    typed: dict[str, str] = {}
    for field in fields:
        known = field.name in given
        typed |= filled(field, given[field.name], options) if known else blank(field, options)
    return Form(fields, typed, choice=choice)
