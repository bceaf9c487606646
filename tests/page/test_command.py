"""The command `flowpregel ui`: a process that serves until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowpregel import LMDBSaver
from flowpregel.cli import main
from flowpregel.cli.app import app

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> str:
    """An empty store."""
    LMDBSaver(tmp_path / "store").close()
    return str(tmp_path / "store")


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_page_is_served_until_a_signal(store: str, end: signal.Signals) -> None:
    """Also while a page is open: its stream of news ends with the server."""
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
        news = f"{address.partition('/?')[0]}/api/news"
        request = urllib.request.Request(news, headers={"cookie": cookie})
        with urllib.request.urlopen(request) as stream:
            assert stream.readline().startswith(b'data: {"mark":')
            process.send_signal(end)
            stream.read()
        told = process.communicate(timeout=120)[1]

    assert "Traceback" not in told
    assert "ERROR" not in told
    assert address.partition("token=")[2] not in told
    assert process.returncode == (130 if end == signal.SIGINT else -end)


def test_a_port_that_is_taken_is_an_error_in_words(store: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["ui", store, "--port", str(port)])

    assert 2 == result.exit_code
    assert f"cannot listen on 127.0.0.1 port {port}: " in result.output


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
