"""The page's server: its files, what it shows as JSON, news as they come, and the
buttons.

Each button starts the command, as a process of its own. So no code of the user's runs
in the server, and a run that a button started outlives it.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from flowpregel._text import printable
from flowpregel.errors import ConfigurationError, FlowPregelError
from flowpregel.ui.pages import STATIC, Json, Pages, json_text

if TYPE_CHECKING:
    from starlette.requests import Request

    from flowpregel.ui.guard import RequestGuard


Words: TypeAlias = list[str]
_MOST = 50
"""Of the commands that have ended, the last ones are known."""
_SHOWN = 4_000
"""Bytes of what a command printed, from its end."""
_ASKED = ("run", "calls", "call", "logs", "steps", "step")
"""The methods of `Pages` that are asked for by their names."""
_PERIOD = 0.2
"""Seconds between two looks at the store for a page that is open."""
_MOST_SENT = 64 << 10
"""Bytes of a request's body."""


def _answer_words(question: str, value: str, text: bool) -> tuple[Words, Words]:
    return ["--quiet", f"--id={question}", *(["--text"] if text else [])], [value]


_COMMANDS: Mapping[str, Callable[..., tuple[Words, Words]]] = {
    "answer": _answer_words,
    "cancel": lambda: (["--wait=0"], []),
    "resume": lambda: (["--quiet"], []),
    "retry": lambda: (["--quiet", "--failed"], []),
    "redo": lambda call: ([], [call]),
    "fork": lambda checkpoint, name: ([f"--at={checkpoint}"], [name]),
}
"""By name: makes the options of a command, and its arguments after the thread."""
ACTIONS = (*_COMMANDS,)
ACTION_PATHS = tuple(f"/api/actions/{name}" for name in ACTIONS)


@dataclass(frozen=True)
class StartedCommand:
    """A command that a button started."""

    number: int
    thread: str
    line: str
    """As it would be written in a shell."""
    process: subprocess.Popen[bytes]
    output: int
    """The descriptor of a file that has no name."""

    def to_json(self) -> dict[str, Any]:
        """Return what is known of it now."""
        code = self.process.poll()
        begin = max(os.fstat(self.output).st_size - _SHOWN, 0)
        text = os.pread(self.output, _SHOWN, begin).decode(errors="replace").strip()
        told = {"number": self.number, "thread": self.thread, "line": self.line}
        return {**told, "code": code, "output": printable(text)}


class Actions:
    """Starts commands on a store, and knows how they ended.

    Args:
        store: The store's folder.
        options: What every command is given, such as ``--trust``.
    """

    def __init__(self, store: str, options: Sequence[str] = ()) -> None:
        self._options = [*options, f"--store={store}"]
        self._started: list[StartedCommand] = []
        self._numbers = count(1)

    def start(self, action: str, thread: str, /, **asked: Any) -> int:
        """Start a command, and return its number.

        Args:
            action: One of `ACTIONS`.
            thread: Whose run.
            asked: What else it needs: texts, and for ``answer`` whether it is one
                (``text``).

        Raises:
            ConfigurationError: That is no request for this action.
        """
        try:
            options, arguments = _COMMANDS[action](**asked)
        except (KeyError, TypeError) as error:
            raise ConfigurationError(
                f"the request for {action!r} is not complete"
            ) from error
        # What follows the two dashes is no option, however it begins.
        words = [action, *options, *self._options, "--", thread, *arguments]
        output, path = tempfile.mkstemp()
        os.unlink(path)
        try:
            line = shlex.join(["flowpregel", *words])
            process = subprocess.Popen(
                [sys.executable, "-m", "flowpregel.cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except (TypeError, ValueError) as error:
            os.close(output)
            raise ConfigurationError(
                f"what {action!r} is given has to be text"
            ) from error
        made = StartedCommand(next(self._numbers), thread, line, process, output)
        self._started.append(made)
        for forgotten in self._started[:-_MOST]:
            os.close(forgotten.output)
        del self._started[:-_MOST]
        return made.number

    def told(self, thread: str) -> list[dict[str, Any]]:
        """Return what is known of the commands for a thread, the last started first."""
        return [
            each.to_json() for each in reversed(self._started) if each.thread == thread
        ]


def server_of(
    pages: Pages, actions: Actions | None, guard: RequestGuard
) -> uvicorn.Server:
    """Return the server, which serves on the sockets that its `run` is given, until
    Ctrl-C.

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

    # On the event loop, and so one after the other: a `StoreReader` is for one OS
    # thread.
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
    if int(request.headers.get("content-length", _MOST_SENT + 1)) > _MOST_SENT:
        return _answer({"error": "that is too much"}, 413)
    try:
        asked = dict(await request.json())
        thread = asked.pop("thread")
        number = actions.start(request.path_params["action"], thread, **asked)
    except ConfigurationError as error:
        return _answer({"error": str(error)}, 400)
    except (ValueError, TypeError, KeyError, RecursionError):
        return _answer({"error": "that is no request"}, 400)
    return _answer({"number": number}, 202)


async def _news(
    pages: Pages, actions: Actions | None, request: Request
) -> AsyncIterator[str]:
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
