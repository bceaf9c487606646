"""The command `flowpregel ui`: a process that serves until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from flowpregel import LMDBSaver
from flowpregel.cli import main
from flowpregel.cli.app import app
from flowpregel.plugins.page.address import keep_address, kept_address

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> str:
    """An empty store."""
    LMDBSaver(tmp_path / "store").close()
    return str(tmp_path / "store")


class Command(NamedTuple):
    """A command `flowpregel ui` that runs."""

    process: subprocess.Popen[str]
    address: str
    cookie: str

    @property
    def origin(self) -> str:
        return self.address.partition("/?")[0]


@contextmanager
def command(store: str) -> Iterator[Command]:
    """Start the command, and visit its page."""
    with subprocess.Popen(
        [sys.executable, "-m", "flowpregel.cli", "ui", store],
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address) as answer:
            cookie = answer.headers["set-cookie"].partition(";")[0]
            assert b"<title>flowpregel</title>" in answer.read()
        try:
            yield Command(process, address, cookie)
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_page_is_served_until_a_signal(store: str, end: signal.Signals) -> None:
    """Also while a page is open: its stream of news ends with the server."""
    with command(store) as served:
        news = f"{served.origin}/api/news"
        request = urllib.request.Request(news, headers={"cookie": served.cookie})
        with urllib.request.urlopen(request) as stream:
            assert stream.readline().startswith(b'data: {"mark":')
            served.process.send_signal(end)
            stream.read()
        told = served.process.communicate(timeout=120)[1]

    assert "Traceback" not in told
    assert "ERROR" not in told
    assert served.address.partition("token=")[2] not in told
    assert served.process.returncode == (130 if end == signal.SIGINT else -end)


@pytest.mark.slow
def test_a_client_that_reads_no_answer_does_not_keep_the_server(store: str) -> None:
    with command(store) as served, socket.socket() as client:
        # The answers are larger than what the system keeps for such a client.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        host = urlsplit(served.origin)
        client.connect((host.hostname, host.port))
        request = (
            f"GET /static/page.js HTTP/1.1\r\nhost: {host.netloc}"
            f"\r\ncookie: {served.cookie}\r\n\r\n"
        )
        client.sendall(request.encode() * 100)
        assert b"200 OK" in client.recv(200)
        served.process.send_signal(signal.SIGINT)
        told = served.process.communicate(timeout=120)[1]

    assert "Traceback" not in told
    assert "ERROR" not in told
    assert 130 == served.process.returncode


def test_a_port_that_is_taken_is_an_error_in_words(store: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["ui", store, "--port", str(port)])

    assert 2 == result.exit_code
    assert f"cannot listen on 127.0.0.1 port {port}: " in result.output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--flow", "jobs:count"], "add --actions"),
        (["--flow", "jobs", "--actions"], "write MODULE:FLOW"),
    ],
)
def test_a_flow_that_cannot_be_offered_is_an_error(
    store: str, words: list[str], problem: str
) -> None:
    result = CliRunner().invoke(app, ["ui", store, *words])

    assert 2 == result.exit_code
    assert problem in result.output


def test_a_port_that_cannot_be_is_an_error_in_words(store: str) -> None:
    result = CliRunner().invoke(app, ["ui", store, "--port", "65536"])

    assert 2 == result.exit_code
    assert "--port" in result.output


def test_without_a_store_there_is_no_page(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["ui", str(tmp_path / "none")])

    assert 4 == result.exit_code
    assert "there is no store" in result.output


@pytest.mark.parametrize("name", ["starlette", "uvicorn"])
def test_without_the_extra_the_command_names_it(
    store: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in [*sys.modules]:
        if module.startswith(("flowpregel.plugins.page", f"{name}.")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "argv", ["flowpregel", "ui", store])

    with pytest.raises(SystemExit) as ended:
        main()

    assert 2 == ended.value.code
    assert f"needs {name}" in (printed := capsys.readouterr().err)
    assert "pip install 'flowpregel[ui]'" in printed


def started_at(store: str, *words: str) -> str:
    """Start the page's command, and return the address that it prints."""
    with subprocess.Popen(
        [sys.executable, "-m", "flowpregel.cli", "ui", store, *words],
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        process.terminate()
    return address


@pytest.mark.slow
def test_a_page_that_is_started_again_has_the_same_address(store: str) -> None:
    first = started_at(store)

    assert first.startswith("http://127.0.0.1:")
    assert first == started_at(store)
    assert 0o600 == stat.S_IMODE(os.stat(f"{store}/page.address").st_mode)


@pytest.mark.slow
def test_another_port_keeps_the_secret(store: str) -> None:
    first = started_at(store)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    second = started_at(store, "--port", str(port))

    assert f":{port}/" in second
    assert first.partition("token=")[2] == second.partition("token=")[2]


@pytest.mark.parametrize("is_folder", [True, False])
def test_an_address_is_kept_with_a_store(tmp_path: Path, is_folder: bool) -> None:
    store = tmp_path / "store"
    store.mkdir() if is_folder else store.touch()
    address = kept_address(str(store))._replace(port=8_000)

    assert address.token != kept_address(str(store)).token
    keep_address(str(store), address)
    assert address == kept_address(str(store))


def test_an_address_that_others_may_read_is_replaced(store: str) -> None:
    address = kept_address(store)
    keep_address(store, address)
    os.chmod(f"{store}/page.address", 0o644)
    fresh = kept_address(store)
    keep_address(store, fresh)

    assert address.token != fresh.token
    assert fresh == kept_address(store)
    assert 0o600 == stat.S_IMODE(os.stat(f"{store}/page.address").st_mode)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "text"])
def test_what_is_no_address_is_not_read(store: str, kind: str, tmp_path: Path) -> None:
    """And nothing but a file of ours is written through it."""
    address = kept_address(store)
    path = Path(store, "page.address")
    other = tmp_path / "other"
    keep_address(store, address)
    path.rename(other)
    match kind:
        case "link":
            path.symlink_to(other)
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path, 0o600)
        case "text":
            path.write_text("../../etc\n0\n")
            path.chmod(0o600)
    before = other.read_bytes()

    fresh = kept_address(store)
    keep_address(store, fresh)

    assert address.token != fresh.token
    assert before == other.read_bytes()


def test_a_database_at_a_url_keeps_no_address() -> None:
    url = "postgresql://nobody@localhost/none"
    address = kept_address(url)
    keep_address(url, address)

    assert address.token != kept_address(url).token
