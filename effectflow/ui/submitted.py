"""What a browser submits with a form, within bounds."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from effectflow.ui.site import Refused

MOST_BYTES = 4_000_000
"""The bytes of a form that are read. A letter may take nine of them."""

MOST_FIELDS = 2_000


async def submitted(request: Request) -> dict[str, str]:
    """Return the fields of a submitted form by name. Raise Refused if it is too large."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                raise Refused("What was submitted is too large: start it from a program.", 413)
    except ClientDisconnect:
        raise Refused("The browser has gone.") from None
    try:
        pairs = parse_qsl(
            body.decode("ascii", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS
        )
    except ValueError:
        raise Refused(f"A form has at most {MOST_FIELDS} fields.", 413) from None
    return dict(pairs)
