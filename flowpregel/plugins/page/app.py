"""The page's server, which serves the page's files, its data as JSON, the changes of a
run, and the buttons.

Each button starts the command, as a process of its own. So no user code runs in the
server, and a run that a button has started continues when the server ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from flowpregel.errors import ConfigurationError, FlowPregelError
from flowpregel.plugins.page.pages import STATIC, Json, Pages, json_text
from flowpregel.plugins.page.static_files import static_endpoint
from flowpregel.watching import printable

if TYPE_CHECKING:
    from starlette.requests import Request

    from flowpregel.plugins.page.guard import RequestGuard
    from flowpregel.plugins.page.values import ValueFile


Words: TypeAlias = list[str]
_Endpoint: TypeAlias = "Callable[[Request], Awaitable[Response]]"
_MOST_COMMANDS = 50
"""The number of commands that are remembered. The oldest commands are forgotten first.
"""
_OUTPUT_SIZE = 4_000
"""The number of bytes that are shown of the end of a command's output."""
_QUERIES = (
    "run",
    "calls",
    "timeline",
    "graph",
    "call",
    "logs",
    "steps",
    "step",
)
"""The methods of `Pages` that have a path of the same name."""
_PERIOD = 0.2
"""Seconds between two reads of the store for an open page."""
_MOST_FOLLOWED = 50
"""The limit on the runs of one stream of news."""
_MOST_SENT = 64 << 10
"""The limit on the size of a request's body, in bytes."""
_LEAST_COMPRESSED = 1_000
"""The size, in bytes, from which an answer is compressed: about that of a packet."""
_COMPRESSION_LEVEL = 5
"""The level at which answers are compressed. A higher level takes twice the time for
some percent fewer bytes.
"""


def _answer_words(answers: Sequence[Mapping[str, Any]]) -> tuple[Words, Words]:
    """Return the options of ``answer``, and its arguments after the thread.

    Args:
        answers: The answers, at least one. Each has the id of the ``question``, the
            ``value``, which is JSON or text, and ``text``, which is true if the value
            is text even if it looks like JSON.

    Raises:
        KeyError: An answer lacks one of these.
        TypeError: There is no answer, or a value is no text.
    """
    if not answers:
        raise TypeError("there is no answer")
    options = ["--quiet"]
    values: Words = []
    for answer in answers:
        question = answer["question"]
        options.append(f"--id={question}")
        values.append(_as_json(answer["value"], text=answer["text"]))
    return options, values


def _retry_words(
    task: str | None = None,
    error: str | None = None,
) -> tuple[Words, Words]:
    """Return the options of ``retry``, and no further arguments.

    Args:
        task: The name of the task whose failed calls are tried again, or None for all.
        error: The error of these calls, or None for all errors.
    """
    options = ["--quiet", "--failed"]
    if task is not None:
        options.append(f"--task={task}")
    if error is not None:
        options.append(f"--error={error}")
    return options, []


def _as_json(value: str, *, text: bool) -> str:
    """Return a value that was typed as JSON or text, as JSON."""
    if not isinstance(value, str):
        raise TypeError("a value must be text")
    if not text:
        with suppress(ValueError):
            return json.dumps(json.loads(value))
    return json.dumps(value)


_COMMANDS: Mapping[str, Callable[..., tuple[Words, Words]]] = {
    "answer": _answer_words,
    "cancel": lambda: ([], []),
    "wake": lambda: (["--quiet"], []),
    "signal": lambda name, value, text: (
        ["--wake"],
        [name, _as_json(value, text=text)],
    ),
    "resume": lambda: (["--quiet"], []),
    "retry": _retry_words,
    "pause": lambda: ([], []),
    "unpause": lambda: ([], []),
    "redo": lambda call: ([], [call]),
    "fork": lambda checkpoint, name: ([f"--at={checkpoint}"], [name]),
}
"""Functions that return a command's options, and its arguments after the thread, by the
name of the command.
"""
ACTIONS = tuple(_COMMANDS)
ACTION_PATHS = tuple(f"/api/actions/{name}" for name in ACTIONS)


@dataclass(frozen=True)
class StartedCommand:
    """A command that a button started."""

    number: int
    action: str
    thread: str
    line: str
    """The command line, as a shell takes it."""
    process: subprocess.Popen[bytes]
    output: int
    """The descriptor of an unnamed file with the command's output."""

    def to_json(self) -> dict[str, Any]:
        """Return the exit code, if the command has ended, and the last output."""
        exit_code = self.process.poll()
        size = os.fstat(self.output).st_size
        begin = max(size - _OUTPUT_SIZE, 0)
        output = os.pread(self.output, _OUTPUT_SIZE, begin).decode(errors="replace")
        return {
            "number": self.number,
            "action": self.action,
            "thread": self.thread,
            "line": self.line,
            "code": exit_code,
            "output": printable(output.strip()),
        }


class Actions:
    """A starter of commands on a store, which records how the commands end.

    Args:
        store: The store's folder.
        options: The options of each command, such as ``--trust``.
    """

    def __init__(self, store: str, options: Sequence[str] = ()) -> None:
        self._options = [*options, f"--store={store}"]
        self._started: list[StartedCommand] = []
        self._numbers = count(1)

    def start(
        self,
        action: str,
        thread: str,
        /,
        **parameters: Any,
    ) -> int:
        """Start a command, and return its number.

        Args:
            action: One of `ACTIONS`.
            thread: The id of the run.
            parameters: The parameters of the action: texts, or for ``answer`` a list of
                ``answers``.

        Raises:
            ConfigurationError: The action does not have these parameters.
        """
        try:
            options, arguments = _COMMANDS[action](**parameters)
        except (KeyError, TypeError) as error:
            raise ConfigurationError(
                f"the request for {action!r} is incomplete"
            ) from error
        # The thread and the arguments follow two dashes, so that a word that begins
        # like an option is not read as one.
        words = [action, *options, *self._options, "--", thread, *arguments]
        output, path = tempfile.mkstemp()
        os.unlink(path)
        try:
            line = shlex.join(["flowpregel", *words])
            process = _start_process(words, output)
        except (TypeError, ValueError) as error:
            os.close(output)
            raise ConfigurationError(
                f"the arguments of {action!r} must be text"
            ) from error
        command = StartedCommand(
            number=next(self._numbers),
            action=action,
            thread=thread,
            line=line,
            process=process,
            output=output,
        )
        self._started.append(command)
        self._forget_oldest()
        return command.number

    def _forget_oldest(self) -> None:
        """Forget the oldest commands if there are too many."""
        for forgotten in self._started[:-_MOST_COMMANDS]:
            os.close(forgotten.output)
        del self._started[:-_MOST_COMMANDS]

    def commands(self, thread: str | None = None) -> list[dict[str, Any]]:
        """Return the states of a thread's commands, or of all commands. The command
        that was started last comes first.
        """
        return [
            command.to_json()
            for command in reversed(self._started)
            if thread is None or command.thread == thread
        ]


def _start_process(
    words: Sequence[str],
    output: int,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, which outlives the server."""
    return subprocess.Popen(
        [sys.executable, "-m", "flowpregel.cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


# ---------------------------------------------------------------- the server


def server_of(
    pages: Pages,
    actions: Actions | None,
    guard: RequestGuard,
    restart: str = "flowpregel ui",
) -> uvicorn.Server:
    """Return the server of the page. Its method `run` takes the sockets that the server
    listens on, and returns after Ctrl-C.

    Args:
        pages: The data of the page.
        actions: The starter of the buttons' commands, or None for a page without
            buttons.
        guard: The guard that checks each request first.
        restart: The command line that starts the server again, which the page shows
            when the server has ended.
    """
    app = Starlette(
        routes=_routes(pages, actions, restart),
        exception_handlers={FlowPregelError: _on_error},
    )
    config = uvicorn.Config(
        guard.protect(app),
        access_log=False,  # The lines of an access log would contain the token.
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
    )
    server = uvicorn.Server(config)
    app.state.server = server
    return server


def _routes(
    pages: Pages,
    actions: Actions | None,
    restart: str,
) -> list[BaseRoute]:
    """Return the paths of the server, and their handlers."""
    static = static_endpoint(STATIC)

    def follow(request: Request) -> Response:
        """Return a stream of the changes of the store, and of runs."""
        news = _news(pages, actions, request)
        return StreamingResponse(news, media_type="text/event-stream")

    def runs(**query: str) -> Json:
        """Return a page of the list of runs, whether there are buttons, the commands
        that buttons have started, and the server's command line.
        """
        return {
            **pages.runs(**query),
            "actions": actions is not None,
            "commands": [] if actions is None else actions.commands(),
            "restart": restart,
        }

    routes: list[BaseRoute] = [
        Route("/", static),
        Route("/static/{name}", static),
        # The news are not compressed, because each of them must arrive at once.
        Route("/api/news", follow),
    ]
    if actions is not None:
        start = partial(_start_action, actions)
        routes.append(
            Route(
                "/api/actions/{action}",
                start,
                methods=["POST"],
            )
        )
    routes.append(_answer_route("runs", _query_endpoint(runs)))
    routes += _query_routes(pages)
    return routes


def _query_routes(pages: Pages) -> list[BaseRoute]:
    """Return the paths of the queries and files."""
    queries = {name: getattr(pages, name) for name in _QUERIES}
    queries["errors"] = pages.diagnosis.errors
    queries["time"] = pages.diagnosis.time
    queries["value"] = pages.values.value
    queries["output"] = pages.output.output
    routes: list[BaseRoute] = []
    for name, query in queries.items():
        route = _answer_route(name, _query_endpoint(query))
        routes.append(route)
    routes.append(_answer_route("value/file", _file_endpoint(pages.values.file)))
    routes.append(_answer_route("output/file", _file_endpoint(pages.output.file)))
    return routes


def _answer_route(name: str, endpoint: _Endpoint) -> Route:
    """Return the path of an endpoint whose answers are compressed."""
    compression = Middleware(
        GZipMiddleware,
        minimum_size=_LEAST_COMPRESSED,
        compresslevel=_COMPRESSION_LEVEL,
    )
    return Route(f"/api/{name}", endpoint, middleware=[compression])


def _json_response(value: Json, status: int = 200) -> Response:
    return Response(
        json_text(value),
        status,
        media_type="application/json",
    )


def _query_endpoint(
    query: Callable[..., Json],
) -> _Endpoint:
    """Return an endpoint that passes a request's parameters to *query*."""

    # The endpoint is a coroutine function, so that it runs on the event loop, one
    # request after the other: a `StoreReader` must not be used by several OS threads.
    async def endpoint(request: Request) -> Response:
        """Return the result of the query."""
        try:
            return _json_response(query(**request.query_params))
        except FlowPregelError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the request is incomplete: {error}") from error

    return endpoint


def _file_endpoint(
    query: Callable[..., ValueFile],
) -> _Endpoint:
    """Return an endpoint that passes a request's parameters to *query*, and sends the
    file that it returns.
    """

    # The endpoint is a coroutine function, as that of `_query_endpoint` is.
    async def endpoint(request: Request) -> Response:
        """Return the file."""
        try:
            file = query(**request.query_params)
        except TypeError as error:
            raise ConfigurationError(f"the request is incomplete: {error}") from error
        return Response(
            file.content.encode(errors="replace"),
            media_type=file.media_type,
            headers={"content-disposition": f'attachment; filename="{file.name}"'},
        )

    return endpoint


def _on_error(_: Request, error: Exception) -> Response:
    """Return the response for an error that flowpregel has raised."""
    status = 404 if isinstance(error, ConfigurationError) else 500
    return _json_response({"error": str(error)}, status)


async def _start_action(actions: Actions, request: Request) -> Response:
    """Start the command that the JSON of a button's request describes."""
    size = int(request.headers.get("content-length", _MOST_SENT + 1))
    if size > _MOST_SENT:
        return _json_response({"error": "the request is too large"}, 413)
    try:
        parameters = dict(await request.json())
        thread = parameters.pop("thread")
        action = request.path_params["action"]
        number = actions.start(
            action,
            thread,
            **parameters,
        )
    except ConfigurationError as error:
        return _json_response({"error": str(error)}, 400)
    except (ValueError, TypeError, KeyError, RecursionError):
        return _json_response({"error": "the request is not valid"}, 400)
    return _json_response({"number": number}, 202)


async def _news(
    pages: Pages,
    actions: Actions | None,
    request: Request,
) -> AsyncIterator[str]:
    """Yield server-sent events: the store's changes, and the activity of runs.

    The browser has one such stream for all its tabs, so it may follow several runs.
    """
    threads = request.query_params.getlist("thread")[:_MOST_FOLLOWED]
    last_news: dict[str, Json] | None = None
    while not request.app.state.server.should_exit:
        news = _current_news(pages, actions, threads)
        if news != last_news:
            last_news = news
            yield f"data: {json_text(news)}\n\n"
        await asyncio.sleep(_PERIOD)


def _current_news(
    pages: Pages,
    actions: Actions | None,
    threads: Sequence[str],
) -> dict[str, Json]:
    """Return the store's mark, and the activity of runs.

    If the store is gone, the result has only the reason, as ``gone``.
    """
    gone = pages.reason_gone()
    if gone is not None:
        return {"gone": gone}
    runs: dict[str, Json] = {}
    try:
        mark = pages.mark()
        for thread in threads:
            commands = [] if actions is None else actions.commands(thread)
            runs[thread] = {"live": pages.reader.live(thread), "commands": commands}
    except (FlowPregelError, OSError) as error:
        return {"gone": f"The store cannot be read: {error}."}
    return {"mark": mark, "threads": runs}
