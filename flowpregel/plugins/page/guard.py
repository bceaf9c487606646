"""The guard of the page's server, which refuses requests that do not come from the
page.

Any program in the same browser can send requests to a server on this machine, and any
site can have a name that leads to the server (DNS rebinding). So the server accepts a
request only if it names one of the server's own hosts, comes from a page of the server,
and contains the secret. The secret is part of the address that the server prints when
it starts.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""The headers of each response."""
_READING = ("GET", "HEAD")
_STATIC_PATH = re.compile(r"(/stores/[^/]+)?/static/(vendor/)?[^/]+")
"""The paths of the files of the page."""
_CACHEABLE = (200, 304)
"""The status codes of responses with a file of the page, which a browser may store."""


def _new_token() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, kw_only=True)
class RequestGuard:
    """A guard that refuses requests that do not come from the page itself.

    Args:
        hosts: The host names under which browsers reach the server.
        writes: The paths that accept POST requests. All other paths accept only
            requests that read.
        cookie: The name of the cookie with the secret. Each server needs a different
            name, since a browser sends a cookie to all ports of a host.
        token: The secret.
    """

    hosts: Collection[str] = LOOPBACK
    writes: Collection[str] = ()
    cookie: str = "flowpregel"
    token: str = field(default_factory=_new_token, repr=False)

    def refusal(self, request: Request) -> Response | None:
        """Return the response that refuses a request, or None if the request may be
        accepted. The secret is not checked here.
        """
        host = request.headers.get("host", "")
        is_post = request.method == "POST"
        if _host_name(host) not in self.hosts:
            return _error_response(
                421,
                "this host is not one of the server's names; see --host",
            )
        if not is_post and request.method not in _READING:
            return _error_response(405, "only GET, HEAD and POST are supported")
        if is_post and request.scope["path"] not in self.writes:
            return _error_response(
                405, "this page is read-only; start it with --actions to allow actions"
            )
        if not _is_same_origin(request, host):
            return _error_response(403, "requests from other pages are refused")
        if is_post and request.headers.get("content-type") != "application/json":
            return _error_response(415, "the content of a request must be JSON")
        return None

    def accepts(self, token: str | None) -> bool:
        """Return whether *token* is the secret."""
        candidate = (token or "").encode()
        return hmac.compare_digest(candidate, self.token.encode())

    def protect(self, app: ASGIApp) -> ASGIApp:
        """Return an application that checks each request, and passes it to *app* if it
        is allowed.
        """

        async def protected(scope: Scope, receive: Receive, send: Send) -> None:
            """Pass a request to *app*, or refuse it."""
            if scope["type"] == "lifespan":
                await app(scope, receive, send)
                return
            request = Request(scope)
            # Either the token or the cookie is enough: the page removes the token from
            # its address, and later requests have only the cookie.
            has_token = self.accepts(request.query_params.get("token"))
            refusal = self.refusal(request)
            if refusal is None and not has_token and not self._has_cookie(request):
                refusal = _error_response(
                    401,
                    "open the address that `flowpregel ui` has printed",
                )
            sets_cookie = has_token and refusal is None

            async def send_with_headers(message: Message) -> None:
                """Send a part of the response. The server's own headers are added to
                the first part.
                """
                if message["type"] == "http.response.start":
                    is_file = _STATIC_PATH.fullmatch(scope["path"])
                    self._add_headers(
                        message,
                        with_cookie=sets_cookie,
                        is_file=is_file is not None,
                    )
                await send(message)

            handler = refusal or app
            await handler(scope, receive, send_with_headers)

        return protected

    def _has_cookie(self, request: Request) -> bool:
        """Return whether a request has the secret as a cookie."""
        return self.accepts(request.cookies.get(self.cookie))

    def _add_headers(
        self,
        message: Message,
        *,
        with_cookie: bool,
        is_file: bool,
    ) -> None:
        """Add the headers of each response, and the cookie with the secret.

        A browser stores a file of the page, and asks at each visit whether it is
        still the same. Everything else is the user's data, and is not stored.
        """
        headers = MutableHeaders(scope=message)
        headers.update(HEADERS)
        if is_file and message["status"] in _CACHEABLE:
            headers["cache-control"] = "no-cache"
        if with_cookie:
            cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            headers.append("set-cookie", cookie)


def _is_same_origin(request: Request, host: str) -> bool:
    """Return whether a request comes from a page of this server.

    A browser leaves the origin out of some requests that only read, so such a request
    needs none.
    """
    origin = request.headers.get("origin")
    if origin is None:
        return request.method != "POST"
    return origin == f"http://{host}"


def _error_response(status: int, reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", status)


def _host_name(host: str) -> str | None:
    """Return the name in a Host header without the port, or None if there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
