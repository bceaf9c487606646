"""Who may ask the page's server for something, and how.

Any program in the same browser can send requests to a server on this machine, and any site
can have a name that leads to it (DNS rebinding). So each request has to name a host of ours,
to come from a page of ours, and to hold the secret that the address printed at the start has.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
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
"""Of each answer."""
_READING = ("GET", "HEAD")


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused."""

    status: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class RequestGuard:
    """Refuses what does not come from the page itself.

    Args:
        hosts: The names under which the server is asked.
        writes: The paths that may be asked by POST; anything else is only read.
        cookie: The name of the cookie with the secret: one for each server, since a
            browser gives the cookies of one port to all ports of a host.
        token: The secret.
    """

    hosts: Collection[str] = LOOPBACK
    writes: Collection[str] = ()
    cookie: str = "flowpregel"
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request is refused, whatever secret it has; None: it is not."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if _name_of(host) not in self.hosts:
            return Refusal(421, "this host is not one of the server's names; see --host")
        if method != "POST" and method not in _READING:
            return Refusal(405, "only GET, HEAD and POST are known")
        if method == "POST" and path not in self.writes:
            return Refusal(405, "this is only read; actions need --actions")
        if (origin is None and method == "POST") or origin not in (None, f"http://{host}"):
            return Refusal(403, "only the page itself may ask")
        if method == "POST" and headers.get("content-type") != "application/json":
            return Refusal(415, "what is sent has to be JSON")
        return None

    def knows(self, token: str | None) -> bool:
        """Return whether *token* is the secret."""
        return hmac.compare_digest((token or "").encode(), self.token.encode())

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return *app* with each request looked at first."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await app(scope, receive, send)
                return
            headers = Headers(scope=scope)
            answered, is_new = app, False
            refused = self.refusal(scope.get("method", ""), scope["path"], headers)
            if refused is None:
                # The page drops the token from its address; this cookie is what is left of it.
                is_new = self.knows(QueryParams(scope["query_string"]).get("token"))
                kept = cookie_parser(headers.get("cookie", "")).get(self.cookie)
                if not is_new and not self.knows(kept):
                    refused = Refusal(401, "open the address that `flowpregel ui` has printed")
            if refused is not None:
                answered = PlainTextResponse(f"{refused.reason}\n", refused.status)
            await answered(scope, receive, self._sender(send, is_new=is_new))

        return guarded

    def _sender(self, send: Send, *, is_new: bool) -> Send:
        """Return what sends an answer with our headers, and with the cookie to a new browser."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if is_new:
                    kept = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                    headers.append("set-cookie", kept)
            await send(message)

        return sent


def _name_of(host: str) -> Any:
    """Return the name in a Host header, without the port; None: there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
