"""A store that does not answer: the others do, and the page says so."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from flowpregel import LMDBSaver, entrypoint
from flowpregel.plugins.page import stores
from flowpregel.plugins.page.pages import Json, Pages
from flowpregel.plugins.page.store_thread import StoreStalledError, StoreThread
from tests.page.browser import NEEDS_CHROMIUM, Tab
from tests.page.serving import Answer, Served, served_together
from tests.runs.watched import until

BANNER = "document.querySelector('#banner').innerText"


@pytest.fixture
def answers() -> Iterator[threading.Event]:
    """An event that ends the reads that wait for it, at the end of the test too."""
    event = threading.Event()
    yield event
    event.set()


async def fails(reads: StoreThread) -> str:
    """Return the error of a read that does nothing."""
    with pytest.raises(StoreStalledError) as caught:
        await reads.run(list)
    return str(caught.value)


async def first_answer(reads: StoreThread) -> int:
    """Return the result of a read, once the one before it has ended."""
    while True:
        with suppress(StoreStalledError):
            return await reads.run(lambda: 7)


def test_a_read_that_exceeds_the_limit_is_refused_until_it_ends(
    answers: threading.Event,
) -> None:
    async def scenario() -> list[object]:
        reads = StoreThread("postgresql://db/runs", 0.01)
        with pytest.raises(StoreStalledError):
            await reads.run(answers.wait)
        message = await fails(reads)
        answers.set()
        return [message, await first_answer(reads)]

    message, value = asyncio.run(scenario())

    assert "The store postgresql://db/runs has not answered for" in str(message)
    assert 7 == value


def test_reads_follow_one_another_even_if_one_is_cancelled(
    answers: threading.Event,
) -> None:
    order: list[str] = []

    def first() -> None:
        answers.wait()
        order.append("first")

    async def scenario() -> None:
        reads = StoreThread("runs.lmdb", 60)
        request = asyncio.create_task(reads.run(first))
        await asyncio.sleep(0)
        request.cancel()
        second = asyncio.create_task(reads.run(lambda: order.append("second")))
        await asyncio.sleep(0)
        answers.set()
        await second

    asyncio.run(scenario())

    assert ["first", "second"] == order


def test_an_error_of_a_read_is_raised() -> None:
    def divide() -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError):
        asyncio.run(StoreThread("runs.lmdb").run(divide))


def test_an_error_at_the_close_of_a_store_is_printed_and_keeps_no_other_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def close() -> None:
        raise OSError("the disk is gone")

    printed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", printed.append)

    StoreThread("postgresql://db/runs", 60).close(close)

    assert ["the disk is gone"] == [str(args.exc_value) for args in printed]


def test_a_store_is_closed_after_the_last_read_or_not_at_all(
    answers: threading.Event,
) -> None:
    closed: list[str] = []

    async def stalled(reads: StoreThread) -> None:
        with pytest.raises(StoreStalledError):
            await reads.run(answers.wait)

    idle = StoreThread("a", 0.01)
    asyncio.run(idle.run(list))
    idle.close(lambda: closed.append("a"))
    busy = StoreThread("b", 0.01)
    asyncio.run(stalled(busy))
    busy.close(lambda: closed.append("b"))

    assert ["a"] == closed


Method = Callable[..., Json]


@pytest.fixture
def stalled() -> list[str]:
    """The methods that do not answer in the store that is stalled."""
    return ["mark"]


@pytest.fixture
def server(
    tmp_path: Path,
    answers: threading.Event,
    stalled: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Served]:
    """Two stores, of which the second does not answer."""
    paths: list[str] = []
    for name in ("quick", "slow"):
        path = str(tmp_path / name)
        paths.append(path)
        with LMDBSaver(path) as saver:

            @entrypoint(checkpointer=saver)
            def double(number: int) -> int:
                return 2 * number

            double.run(4, id=name)

    def waits(method: Method) -> Method:
        def query(pages: Pages, **parameters: str) -> Json:
            if pages.path == paths[1]:
                answers.wait()
            return method(pages, **parameters)

        return query

    for name in stalled:
        monkeypatch.setattr(Pages, name, waits(getattr(Pages, name)))
    monkeypatch.setattr(stores, "ANSWER_LIMIT", 0.1)
    with served_together(*paths) as server:
        yield server
        answers.set()


def first_news(server: Served, path: str) -> dict[str, Json]:
    address = ("127.0.0.1", server.port)
    head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n"
    with closing(socket.create_connection(address)) as link:
        link.sendall(f"{head}cookie: {server.cookie}\r\n\r\n".encode())
        received = b""
        while b"\n\n" not in received.partition(b"data: ")[2]:
            received += link.recv(1 << 16)
    text = received.partition(b"data: ")[2].partition(b"\n\n")[0]
    news: dict[str, Json] = json.loads(text)
    return news


def answered(server: Served, path: str) -> Answer | None:
    """Return the answer to a request, or None if the store did not answer."""
    answer = server.ask(path)
    return None if answer.status == 503 else answer


def news_of_runs(server: Served) -> dict[str, Json] | None:
    """Return the first news of the store that answers, or None if it did not."""
    news = first_news(server, "/api/news")
    return None if "stalled" in news else news


def test_a_store_that_does_not_answer_holds_up_no_other(
    server: Served, answers: threading.Event
) -> None:
    news = first_news(server, "/stores/slow/api/news")
    refused = server.ask("/stores/slow/api/runs")
    # A machine under load may need more than the limit for an answer.
    other = until(lambda: answered(server, "/api/runs"))
    other_news = until(lambda: news_of_runs(server))
    answers.set()
    until(lambda: server.ask("/stores/slow/api/runs").status == 200)

    assert ["stalled"] == list(news)
    assert "/slow has not answered for" in news["stalled"]
    assert 503 == refused.status
    assert "/slow has not answered for" in refused.body
    assert "quick" == json.loads(other.body)["runs"][0]["thread_id"]
    assert {"mark", "threads"} == set(other_news)


@pytest.mark.slow
@NEEDS_CHROMIUM
@pytest.mark.parametrize("stalled", [["mark"], ["mark", "runs"]], ids=["open", "new"])
def test_a_banner_says_so_until_the_store_answers(
    tab: Tab, server: Served, answers: threading.Event
) -> None:
    tab.open(server.address)
    tab.until("document.querySelector('#link.on')")
    tab.open(f"{server.origin}/stores/slow/")
    tab.until(f"{BANNER}.includes('has not answered')")
    assert tab.run(f"{BANNER}.includes('goes on by itself')")
    answers.set()
    tab.until(
        "document.querySelector('#link.on') && document.querySelector('#banner').hidden"
    )
    tab.until("document.querySelector('#main').innerText.includes('slow')")
    tab.open("about:blank")
    tab.messages.clear()
