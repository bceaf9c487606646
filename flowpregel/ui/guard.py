"""Who may ask the page's server for something, and how.

Any program in the same browser can send requests to a server on this machine, and any
site can have a name that leads to it (DNS rebinding). So each request has to name a
host of ours, to come from a page of ours, and to hold the secret that the address
printed at the start has.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

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

    def refusal(self, asked: Request) -> Response | None:
        """Return why a request is refused, whatever secret it has; None: it is not."""
        host, origin = asked.headers.get("host", ""), asked.headers.get("origin")
        is_post = asked.method == "POST"
        if _name_of(host) not in self.hosts:
            return _refused(
                421, "this host is not one of the server's names; see --host"
            )
        if not is_post and asked.method not in _READING:
            return _refused(405, "only GET, HEAD and POST are known")
        if is_post and asked.scope["path"] not in self.writes:
            return _refused(405, "this is only read; actions need --actions")
        if (origin is None and is_post) or origin not in (None, f"http://{host}"):
            return _refused(403, "only the page itself may ask")
        if is_post and asked.headers.get("content-type") != "application/json":
            return _refused(415, "what is sent has to be JSON")
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
            asked = Request(scope)
            # The page drops the token from its address; the cookie is what is left of
            # it.
            is_new = self.knows(asked.query_params.get("token"))
            refused = self.refusal(asked)
            if (
                refused is None
                and not is_new
                and not self.knows(asked.cookies.get(self.cookie))
            ):
                refused = _refused(
                    401, "open the address that `flowpregel ui` has printed"
                )

            async def sent(message: Message) -> None:
                if message["type"] == "http.response.start":
                    headers = MutableHeaders(scope=message)
                    headers.update(HEADERS)
                    if is_new and refused is None:
                        kept = (
                            f"{self.cookie}={self.token}; Path=/; HttpOnly; "
                            "SameSite=Strict"
                        )
                        headers.append("set-cookie", kept)
                await send(message)

            await (refused or app)(scope, receive, sent)

        return guarded


def _refused(status: int, reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", status)


def _name_of(host: str) -> Any:
    """Return the name in a Host header, without the port; None: there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
