"""What keeps the pages to those who may see and use them: a token, and rules for browsers.

The rules are those of OWASP's cheat sheets on cross-site request forgery (fetch metadata, with the origin
for older browsers) and content security policy.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""The headers of every response."""

COOKIE = "effectflow"
_SAFE = frozenset({"GET", "HEAD"})


class Protected:
    """An ASGI application behind a token and the rules for browsers.

    Parameters:
        app: the application.
        token: what a visitor has to know; "" if everybody who reaches the pages may use them.
    """

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, text in HEADERS.items():
                    headers.setdefault(name, text)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        request = Request(scope, receive)
        await (self._refusal(request) or self._app)(scope, receive, send_protected)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that the application must not see, or None."""
        if request.method not in _SAFE and not is_from_here(request.headers):
            return PlainTextResponse("This form was sent from another site.", status_code=403)
        if not self._token:
            return None
        given = dict(parse_qsl(request.url.query)).get("token")
        if given is not None and self._is_token(given):
            rest = request.url.remove_query_params("token")
            entered = RedirectResponse(f"{rest.path}{rest.query and '?'}{rest.query}", 303)
            entered.set_cookie(
                COOKIE,
                _proof(self._token),
                httponly=True,
                samesite="strict",
                secure=request.url.scheme == "https",
            )
            return entered
        if self._is_known(request.headers):
            return None
        return PlainTextResponse(
            "These pages need a token: open them with ?token=... as `effectflow ui` printed it.",
            status_code=401,
        )

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _is_known(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value, _proof(self._token))


def is_from_here(headers: Headers) -> bool:
    """Return whether a request that changes something comes from one of our own pages.

    Browsers say where a request comes from; scripts of other sites cannot change that. What is no browser
    sends neither header, and has no cookie that it could be made to misuse.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host", "")


def _proof(token: str) -> str:
    """Return what the cookie has, from which the token cannot be found."""
    return hmac.new(token.encode(), b"effectflow pages", hashlib.sha256).hexdigest()
