"""Each way in which somebody else's page or program might get at the runs, and what it
gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowpregel import LMDBSaver
from flowpregel.plugins.page.guard import HEADERS
from tests.page.serving import Served, served

START = "/api/actions/cancel"
FORBIDDEN = (
    "http:",
    "https:",
    "innerHTML",
    "outerHTML",
    "insertAdjacent",
    "document.write",
    "eval(",
    "new Function",
    "DOMParser",
    "srcdoc",
    " style=",
    "javascript:",
)
"""What no file of the page may hold."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty store."""
    path = tmp_path_factory.mktemp("guard") / "store"
    LMDBSaver(path).close()
    return str(path)


@pytest.fixture(scope="module")
def looking(store: str) -> Iterator[Served]:
    """A server without actions."""
    with served(store) as server:
        yield server


@pytest.fixture(scope="module")
def acting(store: str) -> Iterator[Served]:
    """A server with them."""
    with served(store, actions=True) as server:
        yield server


@pytest.mark.parametrize(
    "path", ["/", "/static/main.js", "/api/runs", "/api/news", "/no/such"]
)
@pytest.mark.parametrize(
    "cookie", [None, "", "flowpregel=x", "flowpregel-1=x; a=b", "\x80"]
)
def test_without_the_secret_there_is_nothing(
    looking: Served, path: str, cookie: str | None
) -> None:
    assert 401 == looking.ask(path, cookie=cookie).status


def test_a_wrong_secret_is_none(looking: Served) -> None:
    for token in (
        "",
        "x",
        looking.guard.token[:-1],
        f"{looking.guard.token}x",
        "%C3%A9",
    ):
        assert 401 == looking.ask(f"/?token={token}", cookie=None).status
        assert 401 == looking.ask("/", cookie=f"{looking.guard.cookie}={token}").status


def test_the_secret_of_the_address_becomes_a_cookie_that_no_script_can_read(
    looking: Served,
) -> None:
    answer = looking.ask(f"/?token={looking.guard.token}", cookie=None)

    assert 200 == answer.status
    kept, *how = answer.headers["set-cookie"].split("; ")
    assert looking.cookie == kept
    assert {"Path=/", "HttpOnly", "SameSite=Strict"} == {*how}
    assert 200 == looking.ask("/", cookie=kept).status
    assert "set-cookie" not in looking.ask("/").headers


def test_each_server_has_a_secret_and_a_cookie_of_its_own(
    looking: Served, acting: Served
) -> None:
    assert looking.guard.token != acting.guard.token
    assert looking.guard.cookie != acting.guard.cookie
    assert 401 == acting.ask("/", cookie=looking.cookie).status
    assert looking.guard.token not in repr(looking.guard)


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "localhost@evil.example",
        "evil.example#localhost",
        "127.0.0.1.nip.io",
        "127.0.0.2",
        "0.0.0.0",
        "[",
        "[::2]",
        "2130706433",
    ],
)
def test_a_name_that_was_made_to_lead_here_is_refused(
    looking: Served, host: str | None
) -> None:
    """DNS rebinding: the browser believes that the server is the attacker's, and sends
    to it.
    """
    # The HTTP parser itself refuses a request that names no host, or no valid one.
    assert looking.ask("/api/runs", host=host).status in (400, 421)
    assert looking.ask(f"/?token={looking.guard.token}", host=host).status in (400, 421)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:9", "[::1]:9000", "LOCALHOST:1"]
)
def test_the_names_of_this_machine_are_known_under_any_port(
    looking: Served, host: str
) -> None:
    """As behind a tunnel."""
    assert 200 == looking.ask("/static/main.js", host=host).status


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "https://127.0.0.1"]
)
def test_another_page_of_the_same_browser_is_refused(
    acting: Served, origin: str
) -> None:
    """Cross-site requests, even if they had the cookie."""
    assert 403 == acting.ask("/api/runs", origin=origin).status
    assert 403 == acting.ask(START, "POST", b'{"thread": "a"}', origin=origin).status


def test_another_port_of_this_machine_is_another_site(
    looking: Served, acting: Served
) -> None:
    assert 403 == acting.ask(START, "POST", b"{}", origin=looking.origin).status


def test_what_changes_something_has_to_name_where_it_comes_from(acting: Served) -> None:
    assert 403 == acting.ask(START, "POST", b"{}", origin=None).status


@pytest.mark.parametrize(
    "kind",
    ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", None],
)
def test_a_form_of_another_site_is_no_request(acting: Served, kind: str | None) -> None:
    assert (
        415 == acting.ask(START, "POST", b'{"thread": "a"}', content_type=kind).status
    )


@pytest.mark.parametrize(
    "method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"]
)
@pytest.mark.parametrize("path", ["/", "/api/runs", START])
def test_other_methods_are_refused(acting: Served, method: str, path: str) -> None:
    answer = acting.ask(path, method, origin="http://evil.example")

    assert 405 == answer.status
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_without_actions_nothing_can_be_started(looking: Served) -> None:
    assert 405 == looking.ask(START, "POST", b'{"thread": "a"}').status
    assert 404 == looking.ask(START).status


def test_a_get_starts_nothing(acting: Served) -> None:
    """An image on another page would be enough."""
    assert 405 == acting.ask(f"{START}?thread=a").status


@pytest.mark.parametrize(
    "path", ["/", "/api/runs", "/static/main.js", "/no/such", START]
)
@pytest.mark.parametrize("secret", [True, False])
def test_each_answer_has_the_headers_that_bind_a_browser(
    acting: Served, path: str, secret: bool
) -> None:
    answer = acting.ask(path, cookie=acting.cookie if secret else None)

    is_file = secret and path.startswith("/static/")
    cache_control = "no-cache" if is_file else "no-store"
    expected = {**HEADERS, "cache-control": cache_control}
    assert {*expected.items()} <= {*answer.headers.items()}
    assert "server" not in answer.headers
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..%5capp.py",
        "/app.py",
        "/static/\x00",
        "/static/",
    ],
)
def test_no_other_file_is_given(looking: Served, path: str) -> None:
    if "\x00" in path:
        path = path.replace("\x00", "%00")
    assert 404 == looking.ask(path).status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'"a"', 400),
        (b"{}", 400),
        (b"\xff", 400),
        (b'{"thread": 1}', 400),
        (b'{"thread": "a\\u0000"}', 400),
        (b'{"thread": "a", "more": "--trust"}', 400),
        (b" " * 70_000, 413),
        (b"[" * 60_000, 400),
        (b'{"self": 1}', 400),
        (b'{"thread": "a", "self": 1}', 400),
        (b'{"thread": "a", "action": "cancel"}', 400),
        (b'{"thread": [], "value": {}}', 400),
    ],
)
def test_a_request_that_is_none_starts_nothing(
    acting: Served, body: bytes, status: int
) -> None:
    assert status == acting.ask(START, "POST", body).status


def test_a_file_of_the_page_is_sent_once(looking: Served) -> None:
    """At the next visit the browser asks whether it is still the same."""
    first = looking.ask("/static/main.js")
    again = looking.ask("/static/main.js", if_none_match=first.headers["etag"])
    other = looking.ask("/static/main.js", if_none_match='"other"')

    assert (200, 304, 200) == (first.status, again.status, other.status)
    assert "" == again.body
    assert "no-cache" == first.headers["cache-control"]
    assert "no-cache" == again.headers["cache-control"]
    assert first.body == other.body


def test_a_guard_that_listens_for_others_knows_their_names(store: str) -> None:
    with served(store, hosts=("box.example",)) as server:
        assert 421 == server.ask("/").status
        assert 200 == server.ask("/", host="box.example:80").status
        assert 401 == server.ask("/", host="box.example:80", cookie=None).status


COMMENT = "/*! https://github.com/leeoniya/uPlot (v1.6.32) */"
"""The first line of the library of plots."""


def test_no_file_of_the_page_asks_for_anything_elsewhere_or_reads_markup() -> None:
    static = Path(__file__).parents[2] / "flowpregel" / "plugins" / "page" / "static"
    files = [file for file in static.rglob("*") if file.is_file()]
    assert {"main.js", "uplot.js"} < {file.name for file in files}
    for file in files:
        text = file.read_text(encoding="utf-8")
        for address in ("http://www.w3.org/2000/svg", COMMENT):
            text = text.replace(address, "")
        for word in FORBIDDEN:
            assert word not in text, (file.name, word)
