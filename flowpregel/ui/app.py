"""The page's server: its files, what it shows as JSON, news as they come, and the buttons."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from flowpregel.errors import ConfigurationError, FlowPregelError
from flowpregel.ui.actions import ACTIONS, Actions
from flowpregel.ui.pages import STATIC, Json, Pages, json_text

if TYPE_CHECKING:
    from starlette.requests import Request

    from flowpregel.ui.guard import RequestGuard


ACTION_PATHS = tuple(f"/api/actions/{name}" for name in ACTIONS)
_ASKED = ("run", "calls", "call", "logs", "steps", "step")
"""The methods of `Pages` that are asked for by their names."""
_PERIOD = 0.2
"""Seconds between two looks at the store for a page that is open."""
_MOST_SENT = 64 << 10
"""Bytes of a request's body."""


def server_of(pages: Pages, actions: Actions | None, guard: RequestGuard) -> uvicorn.Server:
    """Return the server, which serves on the sockets that its `run` is given, until Ctrl-C.

    Args:
        pages: What is shown.
        actions: Starts what the buttons ask for; None: there are none.
        guard: Looks at each request first.
    """

    def follow(request: Request) -> Response:
        news = _news(pages, actions, request)
        return StreamingResponse(news, media_type="text/event-stream")

    def runs() -> Json:
        return {**pages.runs(), "actions": actions is not None}

    asked = {"runs": runs} | {name: getattr(pages, name) for name in _ASKED}
    routes = [
        Route("/", lambda _: FileResponse(STATIC / "index.html")),
        Mount("/static", StaticFiles(directory=STATIC)),
        *(Route(f"/api/{name}", _asked(answer)) for name, answer in asked.items()),
        Route("/api/news", follow),
    ]
    if actions is not None:
        path, start = "/api/actions/{action}", partial(_started, actions)
        routes.append(Route(path, start, methods=["POST"]))
    app = Starlette(routes=routes, exception_handlers={FlowPregelError: _refused})
    server = app.state.server = uvicorn.Server(
        uvicorn.Config(
            guard.around(app),
            access_log=False,  # its lines would hold the token
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
        )
    )
    return server


def _answer(value: Json, status: int = 200) -> Response:
    return Response(json_text(value), status, media_type="application/json")


def _asked(answer: Callable[..., Json]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers with what *answer* makes of the query."""

    # On the event loop, and so one after the other: a `StoreReader` is for one OS thread.
    async def endpoint(request: Request) -> Response:
        try:
            return _answer(answer(**request.query_params))
        except FlowPregelError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the request is not complete: {error}") from error

    return endpoint


def _refused(_: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, ConfigurationError) else 500
    return _answer({"error": str(error)}, status)


async def _started(actions: Actions, request: Request) -> Response:
    """Start a command, by the JSON that a button sends."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_SENT:
            return _answer({"error": "that is too much"}, 413)
    try:
        asked = dict(json.loads(body))
        thread = asked.pop("thread")
    except (ValueError, TypeError, KeyError):
        return _answer({"error": "that is no request"}, 400)
    return _answer({"number": actions.start(request.path_params["action"], thread, **asked)}, 202)


async def _news(pages: Pages, actions: Actions | None, request: Request) -> AsyncIterator[str]:
    """Yield server-sent events: what a run is doing, and when its store has changed."""
    before, thread = None, request.query_params.get("thread")
    while not request.app.state.server.should_exit:
        news: dict[str, Json] = {"mark": pages.reader.mark()}
        if thread is not None:
            news["live"] = pages.reader.live(thread)
            news["commands"] = [] if actions is None else actions.told(thread)
        if news != before:
            before = news
            yield f"data: {json_text(news)}\n\n"
        await asyncio.sleep(_PERIOD)
