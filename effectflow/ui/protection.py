"""What keeps the pages to those who may see and use them: a token, and rules for browsers.

The rules are those of OWASP's cheat sheets on cross-site request forgery (fetch metadata, with the origin
for older browsers) and content security policy.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

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

_SAFE = frozenset({"GET", "HEAD"})


class Protected:
    """An ASGI application behind a token and the rules for browsers. An error of it shows no details.

    Parameters:
        app: the application.
        token: what a visitor has to know; "" if everybody who reaches the pages may use them.
        hosts: the names under which a browser may reach the pages; empty for any.
    """

    def __init__(self, app: ASGIApp, token: str = "", hosts: Collection[str] = ()) -> None:
        self._app = app
        self._token = token
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def send_protected(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, text in HEADERS.items():
                    headers.setdefault(name, text)
                # Files have tags, by which browsers ask whether they have changed.
                headers.setdefault("cache-control", "no-cache" if "etag" in headers else "no-store")
            await send(message)

        try:
            answer = self._refusal(Request(scope)) or self._app
            await answer(scope, receive, send_protected)
        except Exception:
            if has_begun:
                raise
            logger.exception("the pages have failed to answer %s", scope["path"])
            failed = PlainTextResponse("The pages have failed: see the log of their server.", 500)
            await failed(scope, receive, send_protected)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that the application must not see, or None."""
        if self._hosts and host_of(request.headers) not in self._hosts:
            return PlainTextResponse("These pages are not reached by this name.", 421)
        if not is_from_here(request.method, request.headers):
            return PlainTextResponse("This request was sent by another site.", 403)
        if not self._token:
            return None
        given = dict(parse_qsl(request.url.query)).get("token")
        if given is not None and _is_same(given, self._token):
            return self._entered(request)
        if self._is_known(request):
            return None
        return PlainTextResponse(
            "These pages need a token: open them with ?token=... as `effectflow ui` printed it.",
            status_code=401,
            headers={"www-authenticate": "Bearer"},
        )

    def _entered(self, request: Request) -> Response:
        """Return a redirection to the same page without the token in its URL, which sets a cookie."""
        rest = request.url.remove_query_params("token")
        # Two slashes would begin the name of another host.
        entered = RedirectResponse(
            f"/{rest.path.lstrip('/')}{rest.query and '?'}{rest.query}", status_code=303
        )
        entered.set_cookie(
            self._cookie,
            _proof(self._token, "cookie"),
            httponly=True,
            # So that links in other sites lead to the pages. No request that another site makes otherwise
            # is answered.
            samesite="lax",
            secure=request.url.scheme == "https",
        )
        return entered

    @property
    def _cookie(self) -> str:
        """The name of the cookie. All ports of a host share cookies, so each token has its own."""
        return f"effectflow-{_proof(self._token, 'name')[:12]}"

    def _is_known(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _is_same(given, self._token):
            return True
        # Not by `http.cookies`, for which an unusual cookie of another program on this host hides ours.
        cookie = request.cookies.get(self._cookie, "")
        return _is_same(cookie, _proof(self._token, "cookie"))


def host_of(headers: Headers) -> str | None:
    """Return the name of the host that a request asks for, without its port; None if there is none."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname
    except ValueError:
        return None


def is_from_here(method: str, headers: Headers) -> bool:
    """Return whether a request comes from one of our own pages, or only opens one.

    Browsers say where a request comes from; scripts of other sites cannot change that. What is no browser
    sends none of these headers, and has no cookie that it could be made to misuse.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        opens = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
        return site in ("same-origin", "none") or (
            method in _SAFE and opens == ("navigate", "document")
        )
    origin = headers.get("origin")
    return method in _SAFE or origin is None or _netloc(origin) == headers.get("host")


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _is_same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), known.encode())


def _proof(token: str, purpose: str) -> str:
    """Return what a cookie has, from which the token cannot be found."""
    return hmac.new(
        token.encode(), f"effectflow pages: {purpose}".encode(), hashlib.sha256
    ).hexdigest()
