"""What a request says: names and numbers in its address, and the fields of its form. All are bounded."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import ClientDisconnect, Request

from effectflow.ui.site import Refused

N = TypeVar("N", int, float)

MOST_BYTES = 4_000_000
"""The bytes of a form that are read. A letter may take nine of them."""

MOST_FIELDS = 2_000


def run_id_of(request: Request) -> str:
    """Return the run that a request is about. Raise Refused without one."""
    run_id = request.query_params.get("id")
    if not run_id:
        raise Refused("Say which run: /run?id=...")
    return run_id


def number_in(request: Request, name: str, kind: type[N]) -> N | None:
    """Return a number in the query of a request, at least 0; None without it. Raise Refused for text."""
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        found = kind(text)
    except ValueError:
        found = kind(-1)
    if not 0 <= found < 1e15:
        raise Refused(f"{name} is a number, and not {text!r}.")
    return found


async def submitted(request: Request) -> ImmutableMultiDict[str, str]:
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
    return ImmutableMultiDict(pairs)
