"""What the server sends for a visit: compressed, counted as bytes on the wire."""

from __future__ import annotations

import gzip
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flowpregel import LMDBSaver
from flowpregel.plugins.page.pages import run_report
from flowpregel.plugins.page.scripts import MODULES, STATIC
from flowpregel.watching import CALL_NUMBERS
from tests.page.serving import FIRST_VISIT, Served, receive, served
from tests.page.stores import long_store, plain_store

MOST_SENT = 160_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a store with three runs."""
    with served(plain_store(tmp_path_factory.mktemp("wire") / "store")) as server:
        yield server


def test_no_two_scripts_define_the_same_name() -> None:
    """They are joined into one module, which would not run."""
    definition = r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)"
    names: list[str] = []
    for module in MODULES:
        text = (STATIC / f"{module}.js").read_text("utf-8")
        names += re.findall(definition, text, re.MULTILINE)

    assert len(names) > 300
    assert [] == [name for name, count in Counter(names).items() if count > 1]


def test_a_first_visit_takes_few_bytes(server: Served) -> None:
    """All files of the page, with the heads of their responses."""
    compressed = sum(receive(server, path).size for path in FIRST_VISIT)
    plain = sum(receive(server, path, "identity").size for path in FIRST_VISIT)

    print(f"first visit: {compressed:,} bytes sent, {plain:,} without compression")
    assert compressed <= MOST_SENT
    assert compressed < plain


@pytest.mark.parametrize(
    "path", ["/", "/static/icon.svg", "/static/main.js", "/static/style.css"]
)
def test_a_file_has_the_same_content_in_both_encodings(
    server: Served, path: str
) -> None:
    content = (STATIC / (path.rpartition("/")[2] or "index.html")).read_bytes()
    compressed = receive(server, path)
    plain = receive(server, path, "identity")

    assert content == gzip.decompress(compressed.body) == plain.body
    assert ("gzip", None) == (
        compressed.header("content-encoding"),
        plain.header("content-encoding"),
    )
    assert "accept-encoding" == compressed.header("vary") == plain.header("vary")


def test_a_visit_takes_one_request_for_all_scripts(server: Served) -> None:
    """Each of the modules was a request, which took a server half of a visit."""
    page = receive(server, "/", "identity").body.decode()
    script = receive(server, "/static/page.js", "identity").body.decode()

    assert ["static/page.js"] == re.findall(r'src="(.*?)"', page)
    assert not re.findall(r"^(?:import|export) .*", script, re.MULTILINE)
    for name in MODULES:
        text = (STATIC / f"{name}.js").read_text(encoding="utf-8")
        assert text.splitlines()[-1].removeprefix("export ") in script


@pytest.mark.parametrize("name", ["page.js", "numbers.js"])
def test_the_scripts_have_pythons_table_of_numbers(server: Served, name: str) -> None:
    """A further number of each call is a change of Python only."""
    script = receive(server, f"/static/{name}", "identity").body.decode()

    assert [number._asdict() for number in CALL_NUMBERS] == table_of_numbers(script)


def test_a_report_has_pythons_table_of_numbers(tmp_path: Path) -> None:
    """A report has no server that could name the numbers."""
    with LMDBSaver(plain_store(tmp_path / "store")) as saver:
        report = run_report(saver, "adds")

    assert [number._asdict() for number in CALL_NUMBERS] == table_of_numbers(report)


def table_of_numbers(script: str) -> list[dict[str, str]]:
    """Return the table of the numbers of a call that a script defines."""
    (table,) = re.findall(r"\bconst CALL_NUMBERS = (\[.*\]);$", script, re.MULTILINE)
    rows: list[dict[str, str]] = json.loads(table)
    return rows


def test_a_compressed_file_is_sent_once(server: Served) -> None:
    """Its tag holds in both encodings, and among other tags."""
    etag = receive(server, "/static/page.js").header("etag")
    assert etag is not None
    tag = etag.replace("w/", "W/")

    for encoding in ("gzip", "identity"):
        again = receive(
            server, "/static/page.js", encoding, if_none_match=f'"other", {tag}'
        )
        assert again.head.startswith("HTTP/1.1 304")
        assert (b"", etag) == (again.body, again.header("etag"))


@pytest.mark.parametrize(
    "name", ["none.js", "../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", ""]
)
def test_only_the_files_of_the_page_are_sent(server: Served, name: str) -> None:
    assert receive(server, f"/static/{name}").head.startswith("HTTP/1.1 404")


def test_a_large_answer_is_compressed_and_a_small_one_is_not(tmp_path: Path) -> None:
    with served(long_store(tmp_path / "store", 30)) as server:
        path = "/api/steps?thread=long"
        compressed = receive(server, path)
        plain = receive(server, path, "identity")
        small = receive(server, "/api/logs?thread=long&call=x")

    assert "gzip" == compressed.header("content-encoding")
    assert len(compressed.body) < len(plain.body) / 2
    assert json.loads(gzip.decompress(compressed.body)) == json.loads(plain.body)
    assert small.header("content-encoding") is None


def test_news_are_never_compressed(server: Served) -> None:
    """Each must arrive at once, which a compressor does not promise."""
    link = socket.create_connection(("127.0.0.1", server.port), 120)
    with closing(link), link.makefile("rb") as stream:
        link.sendall(
            f"GET /api/news?thread=adds HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n"
            f"cookie: {server.cookie}\r\naccept-encoding: gzip\r\n\r\n".encode()
        )
        head = b"".join(iter(stream.readline, b"\r\n")).decode().lower()
        size = int(stream.readline(), 16)
        first = stream.read(size)

    assert "text/event-stream" in head
    assert "content-encoding" not in head
    assert first.startswith(b"data: {")
