"""Forms made from types. Nothing here reads a store or a request.

`described` returns the field of a type with its parts, `filled` what it shows for a value, and a `Form`
reads the values of what was typed. A part whose type has no field of its own is typed as JSON, and every
value can be.
"""

from __future__ import annotations

from effectflow.ui.forms.describing import described as described
from effectflow.ui.forms.field import Field as Field, one_line as one_line
from effectflow.ui.forms.filling import filled as filled
from effectflow.ui.forms.form import Form as Form, form_of as form_of
from effectflow.ui.forms.new_run import (
    checked_id as checked_id,
    input_field as input_field,
    made_input as made_input,
    recorded_input as recorded_input,
)
from effectflow.ui.forms.reading import Mistyped as Mistyped
