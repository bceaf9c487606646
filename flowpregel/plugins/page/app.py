"""The web application of the page, which serves its files, its data as JSON, a stream
of the changes of runs, and the buttons.

Each button starts a command as a separate process. So no user code runs in the server,
and a run that a button has started continues when the server ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route

from flowpregel.errors import ConfigurationError, FlowPregelError
from flowpregel.plugins.page.actions import Actions
from flowpregel.plugins.page.forms import RunForms
from flowpregel.plugins.page.pages import Json, Pages, json_text
from flowpregel.plugins.page.scripts import STATIC, numbers_module, page_script
from flowpregel.plugins.page.server import PageServer, ending_quietly
from flowpregel.plugins.page.static_files import static_endpoint
from flowpregel.plugins.page.store_thread import StoreStalledError, StoreThread
from flowpregel.plugins.page.stores import ServedStore, served_stores

if TYPE_CHECKING:
    from starlette.requests import Request

    from flowpregel.plugins.page.guard import RequestGuard
    from flowpregel.plugins.page.sweeps import ComparedRuns
    from flowpregel.plugins.page.values import ValueFile


_Endpoint: TypeAlias = "Callable[[Request], Awaitable[Response]]"
Result = TypeVar("Result")
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
"""The names of those methods of `Pages` that answer requests to the path with the same
name.
"""
_PERIOD = 0.2
"""Seconds between two reads of the store for an open page."""
_MOST_FOLLOWED = 50
"""The maximum number of runs whose activity one stream of events contains."""
_MOST_SENT = 64 << 10
"""The limit on the size of a request's body, in bytes."""
_LEAST_COMPRESSED = 1_000
"""The size, in bytes, from which an answer is compressed: about the size of a network
packet.
"""
_LONGEST_COMPARISON = 600.0
"""Seconds that a comparison of two runs or calls may take."""
_COMPRESSION_LEVEL = 5
"""The level at which answers are compressed. A higher level takes twice the time for
some percent fewer bytes.
"""


# ---------------------------------------------------------------- the server


def server_of(
    pages: Pages,
    actions: Actions | None,
    guard: RequestGuard,
    restart: str = "flowpregel ui",
    others: Sequence[ServedStore] = (),
) -> PageServer:
    """Return the server of the page. Its method `run` takes the sockets to listen on,
    and returns after Ctrl-C.

    Args:
        pages: The data of the page.
        actions: The object that starts the commands of the buttons, or None for a page
            without buttons.
        guard: The `RequestGuard` that checks each request first.
        restart: The command line that starts the server again, which the page shows
            when the server has ended.
        others: Further stores, which have pages at paths with their names.
    """
    stores = served_stores(pages, actions, others)
    names = [store.name for store in stores]
    routes: list[BaseRoute] = []
    for store in stores[1:]:
        mount = Mount(
            store.prefix,
            routes=_routes(store, restart, names),
        )
        routes.append(mount)
    routes += _routes(stores[0], restart, names)
    app = Starlette(
        routes=routes,
        exception_handlers={FlowPregelError: _on_error},
    )
    config = uvicorn.Config(
        ending_quietly(guard.protect(app)),
        # There is no access log, because its lines would contain the secret (token) of
        # the address.
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
    )
    server = PageServer(config)
    app.state.server = server
    return server


def _routes(
    store: ServedStore,
    restart: str,
    names: Sequence[str],
) -> list[BaseRoute]:
    """Return the routes (paths with their handlers) of a store's page.

    Args:
        store: The store that the page shows.
        restart: The command line that starts the server again.
        names: The names of all stores.
    """
    pages = store.pages
    actions = store.actions
    scripts = {"page.js": page_script(), "numbers.js": numbers_module()}
    static = static_endpoint(STATIC, scripts)

    def follow(request: Request) -> Response:
        """Return a stream of events about changes of the store and the activity of
        runs.
        """
        news = _news(store, request)
        return StreamingResponse(news, media_type="text/event-stream")

    def server_facts() -> dict[str, Json]:
        """Return the facts about the server: whether there are buttons, which commands
        they have started, and the server's command line.
        """
        return {
            "actions": actions is not None,
            "commands": [] if actions is None else actions.commands(),
            "offered": [] if actions is None else actions.flows,
            "restart": restart,
            "stores": names,
            "name": store.name,
        }

    routes: list[BaseRoute] = [
        Route("/", static),
        Route("/static/{name}", static),
        Route("/static/vendor/{name}", static_endpoint(STATIC / "vendor")),
        # This stream of events is not compressed, because each event must arrive at
        # once.
        Route("/api/news", follow),
    ]
    if actions is not None:
        routes += _action_routes(store, actions)
    runs = _query_endpoint(pages.runs, store.reads, server_facts)
    routes.append(_answer_route("runs", runs))
    routes += _query_routes(pages, store.reads)
    return routes


def _action_routes(store: ServedStore, actions: Actions) -> list[BaseRoute]:
    """Return the routes of the buttons, and of the form that starts a run."""
    forms = RunForms(store.pages.saver, actions)
    mark = store.pages.mark

    async def start_action(request: Request, body: dict[str, Any]) -> Response:
        """Start the command of a button."""
        action = request.path_params["action"]
        thread = body.pop("thread")
        number = actions.start(
            action,
            thread,
            **body,
        )
        return _json_response({"number": number}, 202)

    async def start_run(_: Request, body: dict[str, Any]) -> Response:
        """Start a run."""
        # The store is read first, on another OS thread. So if the store does not
        # answer, an error is raised before a run is started.
        await store.reads.run(mark)
        number = forms.start(**body)
        return _json_response({"number": number}, 202)

    async def form(_: Request, body: dict[str, Any]) -> Response:
        """Return the fields of the form for a run."""
        await store.reads.run(mark)
        answer = await forms.form(**body)
        return _json_response(answer)

    return [
        _post_route("/api/actions/{action}", start_action),
        _post_route("/api/start", start_run),
        _post_route("/api/form", form),
    ]


def _query_routes(pages: Pages, reads: StoreThread) -> list[BaseRoute]:
    """Return the routes of the queries and files.

    Args:
        pages: The object that answers the queries.
        reads: The OS thread on which the store is read.
    """
    queries = {name: getattr(pages, name) for name in _QUERIES}
    queries["errors"] = pages.diagnosis.errors
    queries["time"] = pages.diagnosis.time
    queries["plot"] = pages.sweeps.plot
    queries["series"] = pages.sweeps.running
    queries["value"] = pages.values.value
    queries["output"] = pages.output.output
    routes: list[BaseRoute] = []
    for name, query in queries.items():
        route = _answer_route(name, _query_endpoint(query, reads))
        routes.append(route)
    files: dict[str, Callable[..., ValueFile]] = {
        "value/file": pages.values.file,
        "output/file": pages.output.file,
    }
    for name, file in files.items():
        route = _answer_route(name, _file_endpoint(file, reads))
        routes.append(route)
    csv = _csv_endpoint(pages.sweeps.csv, reads)
    routes.append(_answer_route("calls/file", csv))
    compare = _compare_endpoint(pages, reads)
    routes.append(_answer_route("compare", compare))
    return routes


def _answer_route(name: str, endpoint: _Endpoint) -> Route:
    """Return the route of an endpoint whose answers are compressed."""
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
    reads: StoreThread,
    more: Callable[[], dict[str, Json]] = dict,
) -> _Endpoint:
    """Return an endpoint that passes a request's parameters to *query*.

    Args:
        query: The method that answers the query.
        reads: The OS thread on which the query reads the store.
        more: A function that returns further fields of the answer. It is called on the
            event loop.
    """

    async def endpoint(request: Request) -> Response:
        """Return the result of the query."""
        answer = await reads.run(partial(_ask_with_parameters, query, request))
        facts = more()
        if facts:
            answer = {**answer, **facts}
        return _json_response(answer)

    return endpoint


def _ask_with_parameters(query: Callable[..., Result], request: Request) -> Result:
    """Pass the parameters of a request to *query*, and return the result.

    Raises:
        ConfigurationError: A parameter is missing or wrong.
    """
    try:
        return query(**request.query_params)
    except FlowPregelError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the request is incomplete: {error}") from error


def _compare_endpoint(pages: Pages, reads: StoreThread) -> _Endpoint:
    """Return an endpoint that compares two runs or calls.

    Args:
        pages: The object that answers the queries.
        reads: The OS thread on which the calls are read.
    """
    # A comparison can take minutes, so it has an OS thread of its own, and other
    # requests are answered at the same time.
    comparisons = StoreThread(pages.path, _LONGEST_COMPARISON)

    async def endpoint(request: Request) -> Response:
        """Return the differences between the two runs or calls."""
        parameters = dict(request.query_params)
        runs = (parameters.get("a", ""), parameters.get("b", ""))
        calls: ComparedRuns | None = None
        while "call_a" not in parameters and calls is None:
            calls = await reads.run(partial(pages.sweeps.compared_runs, *runs))
        compare = partial(pages.sweeps.compare, calls)
        answer = await comparisons.run(partial(_ask_with_parameters, compare, request))
        return _json_response(answer)

    return endpoint


def _csv_endpoint(
    query: Callable[..., Iterator[str]],
    reads: StoreThread,
) -> _Endpoint:
    """Return an endpoint that passes a request's parameters to *query*, and sends the
    parts of the file that it returns.

    Args:
        query: The method that yields the parts of the file. Other requests are answered
            between the parts.
        reads: The OS thread on which the query reads the store.
    """

    async def encoded_parts(parts: Iterator[str]) -> AsyncIterator[bytes]:
        """Yield the parts as bytes. Surrogates, which UTF-8 cannot represent, are
        replaced.
        """
        while (part := await reads.run(partial(next, parts, None))) is not None:
            if part:
                yield part.encode(errors="replace")

    async def endpoint(request: Request) -> Response:
        """Return the response with the CSV file."""
        parts = _ask_with_parameters(query, request)
        return StreamingResponse(
            encoded_parts(parts),
            media_type="text/csv",
            headers={"content-disposition": 'attachment; filename="calls.csv"'},
        )

    return endpoint


def _file_endpoint(
    query: Callable[..., ValueFile],
    reads: StoreThread,
) -> _Endpoint:
    """Return an endpoint that passes a request's parameters to *query*, and sends the
    file that it returns.

    Args:
        query: The method that returns the file.
        reads: The OS thread on which the query reads the store.
    """

    async def endpoint(request: Request) -> Response:
        """Return the response with the file."""
        file = await reads.run(partial(_ask_with_parameters, query, request))
        return Response(
            file.content.encode(errors="replace"),
            media_type=file.media_type,
            headers={"content-disposition": f'attachment; filename="{file.name}"'},
        )

    return endpoint


def _on_error(_: Request, error: Exception) -> Response:
    """Return the response for an error that flowpregel has raised."""
    status = 500
    if isinstance(error, ConfigurationError):
        status = 404
    elif isinstance(error, StoreStalledError):
        status = 503
    return _json_response({"error": str(error)}, status)


def _post_route(
    path: str,
    handle: Callable[[Request, dict[str, Any]], Awaitable[Response]],
) -> Route:
    """Return the route of a path that accepts JSON objects.

    Args:
        path: The path of the route.
        handle: A function that returns the response to a request with such an object.
    """

    async def endpoint(request: Request) -> Response:
        """Pass the JSON object in the request to *handle*, or return a response that
        explains what is wrong with the request.
        """
        size = int(request.headers.get("content-length", _MOST_SENT + 1))
        if size > _MOST_SENT:
            return _json_response({"error": "the request is too large"}, 413)
        try:
            body = dict(await request.json())
            return await handle(request, body)
        except ConfigurationError as error:
            return _json_response({"error": str(error)}, 400)
        except (ValueError, TypeError, KeyError, RecursionError):
            return _json_response({"error": "the request is not valid"}, 400)

    return Route(path, endpoint, methods=["POST"])


async def _news(
    store: ServedStore,
    request: Request,
) -> AsyncIterator[str]:
    """Yield server-sent events: a notice of each change of the store, and the activity
    of runs.

    The browser has one such stream for all its tabs, so it may follow several runs.
    """
    threads = request.query_params.getlist("thread")[:_MOST_FOLLOWED]
    last_news: dict[str, Json] | None = None
    while not request.app.state.server.should_exit:
        read = partial(_current_news, store.pages, threads)
        try:
            news = await store.reads.run(read)
        except StoreStalledError as error:
            news = {"stalled": str(error)}
        for thread, run in news.get("threads", {}).items():
            run["commands"] = []
            if store.actions is not None:
                run["commands"] = store.actions.commands(thread)
        if news != last_news:
            last_news = news
            yield f"data: {json_text(news)}\n\n"
        await asyncio.sleep(_PERIOD)


def _without_series(live: Mapping[str, Json] | None) -> Json:
    """Return the activity of a run without the series (metrics over time) of the calls,
    which a page requests only for a call that it shows.
    """
    if live is None:
        return None
    running: list[Json] = []
    for task in live["running"]:
        others = {name: part for name, part in task.items() if name != "series"}
        running.append(others)
    return {**live, "running": running}


def _current_news(
    pages: Pages,
    threads: Sequence[str],
) -> dict[str, Json]:
    """Return the store's mark (a string that changes with the store), and the activity
    of runs.

    If the store is gone, the result has only the reason, as ``gone``.
    """
    gone = pages.reason_gone()
    if gone is not None:
        return {"gone": gone}
    runs: dict[str, Json] = {}
    try:
        mark = pages.mark()
        for thread in threads:
            live = _without_series(pages.reader.live(thread))
            runs[thread] = {
                "live": live,
                "time_left": pages.call_pages.time_left(thread, live),
            }
        pages.call_pages.keep_some()
    except (FlowPregelError, OSError) as error:
        return {"gone": f"The store cannot be read: {error}."}
    return {"mark": mark, "threads": runs}
