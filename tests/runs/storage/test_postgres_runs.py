"""Runs on PostgreSQL: killed, stopped and cut off, they lose nothing and do nothing
twice.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel._core.records import Address, Saved
from flowpregel.checkpoint.work import work_of
from flowpregel.cli.app import app
from flowpregel.errors import StoreError, StoreForeignError
from flowpregel.func import entrypoint, task
from flowpregel.plugins.postgres import PostgresSaver
from tests.postgres_server import Server
from tests.runs.cli_jobs import environment
from tests.runs.watched import reading

pytestmark = pytest.mark.slow

_PATIENCE = 90
PROGRAM = """
import os, pathlib, time
from flowpregel.plugins.postgres import PostgresSaver
from flowpregel.func import entrypoint, task

@task
def step(n):
    with open("made", "a") as log:
        log.write(f"{n}\\n")
    while n == 3 and not pathlib.Path("go").exists():
        time.sleep(0.02)
    return n * n

SAVER = PostgresSaver(os.environ["URL"], lease_ttl=2)


@entrypoint(checkpointer=SAVER, executor="threads")
def job(numbers):
    return sum(step(n).result() for n in numbers)

if __name__ == "__main__":
    print(job.run([0, 1, 2, 3, 4], id="a"))
"""


def until(condition: Callable[[], Any]) -> None:
    """Wait for *condition*."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def coordinator(folder: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    """Start the program; give its process in the middle of its fourth call, the others
    kept.
    """
    from flowpregel.plugins.postgres import PostgresSaver

    (folder / "job.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "job.py"],
        cwd=folder,
        env=environment(URL=url),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            until(lambda: "3" in made(folder))
            with PostgresSaver(url) as saver:
                until(lambda: 3 == finished(saver.load(Address("a"))))
            yield process
        finally:
            process.kill()


def finished(saved: Saved | None) -> int:
    """Return how many calls are recorded as finished."""
    return sum(work.state == "done" for work in work_of(saved)) if saved else 0


def made(folder: Path) -> list[str]:
    """Return the calls that were begun, in their order."""
    log = folder / "made"
    return log.read_text().split() if log.exists() else []


def recover(folder: Path, url: str) -> dict[str, Any]:
    """Go on with what has died, as another machine would; return what the command
    told.
    """
    from flowpregel.plugins.postgres import PostgresSaver

    with PostgresSaver(url) as saver:
        until(lambda: saver.abandoned() == [Address("a")])
    (folder / "go").touch()
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "flowpregel.cli",
            "recover",
            "--store",
            url,
            "--json",
            "--quiet",
        ],
        cwd=folder,
        env=environment(URL=url),
        text=True,
        capture_output=True,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


def test_another_machine_goes_on_where_a_killed_coordinator_was(
    tmp_path: Path, postgres_url: str
) -> None:
    with coordinator(tmp_path, postgres_url) as process:
        process.kill()

    told = recover(tmp_path, postgres_url)

    assert (30, "done") == (told["output"], told["status"])
    assert ["0", "1", "2", "3", "3", "4"] == made(tmp_path)


def test_a_coordinator_that_was_stopped_and_goes_on_is_refused(
    tmp_path: Path, postgres_url: str
) -> None:
    with coordinator(tmp_path, postgres_url) as process:
        process.send_signal(signal.SIGSTOP)
        told = recover(tmp_path, postgres_url)
        process.send_signal(signal.SIGCONT)
        _, told_by_the_old = process.communicate(timeout=_PATIENCE)

    assert 30 == told["output"]
    assert 1 == process.returncode
    assert "LeaseLostError" in told_by_the_old
    assert ["0", "1", "2", "3", "3", "4"] == made(tmp_path)[:6]


def test_a_run_whose_process_is_alive_is_left_alone(
    tmp_path: Path, postgres_url: str
) -> None:
    with coordinator(tmp_path, postgres_url) as process:
        ended = CliRunner().invoke(app, ["recover", "--store", postgres_url])
        (tmp_path / "go").touch()
        output, _ = process.communicate(timeout=_PATIENCE)

    assert 0 == ended.exit_code
    assert "30" == output.strip()
    assert ["0", "1", "2", "3", "4"] == made(tmp_path)


def _cut(server: Server) -> None:
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )


def _restart(server: Server) -> None:
    server.stop()
    server.start()


def _crash(server: Server) -> None:
    server.stop(signal.SIGQUIT)
    server.start()


@pytest.mark.parametrize("trouble", [_cut, _restart, _crash])
def test_a_run_goes_on_when_the_server_does(
    postgres_server: Server, postgres_url: str, trouble: Callable[[Server], None]
) -> None:
    calls: list[int] = []

    @task
    def step(n: int) -> int:
        calls.append(n)
        if n == 2:
            trouble(postgres_server)
        return n * n

    @entrypoint(checkpointer=postgres_url, executor="threads")
    def job(numbers: list[int]) -> int:
        return sum(step(n).result() for n in numbers)

    assert 30 == job.run([0, 1, 2, 3, 4], id="a")
    assert 30 == job.run([0, 1, 2, 3, 4], id="a")
    assert [0, 1, 2, 3, 4] == calls


def test_every_command_takes_the_url_of_a_database(
    tmp_path: Path, postgres_url: str
) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    (tmp_path / "go").touch()

    def command(*words: str) -> str:
        ended = CliRunner().invoke(app, [*words, "--store", postgres_url])
        assert 0 == ended.exit_code, ended.output
        return ended.stdout

    run = ("run", "job.py:job", "--input", "[1, 2]", "--id", "a", "--quiet")
    done = subprocess.run(
        [sys.executable, "-m", "flowpregel.cli", *run, "--store", postgres_url],
        cwd=tmp_path,
        env=environment(URL=postgres_url),
        text=True,
        capture_output=True,
        check=False,
    )
    assert (0, "5") == (done.returncode, done.stdout.strip()), done.stderr
    assert "done" in command("ls")
    assert "step" in command("show", "a")
    assert "done" in command("watch", "a")
    assert "" == command("logs", "a")
    assert "all is well" in command("verify")
    assert "threads" in command("stats")
    command("fork", "a", "b")
    command("signal", "b", "go", "1")
    command("gc", "--keep-last", "1")
    command("rm", "b", "--yes")
    listed = json.loads(command("ls", "--json"))
    assert "'b'" not in str(listed)


def test_a_store_under_another_key_is_refused(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowpregel.plugins.postgres import PostgresSaver

    with PostgresSaver(postgres_url) as saver:
        assert [] == [*saver.threads()]
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "another")

    with (
        PostgresSaver(postgres_url) as saver,
        pytest.raises(StoreForeignError, match="another key"),
    ):
        saver.load(Address("a"))


def test_a_server_that_is_not_there_is_named_without_its_password(
    tmp_path: Path,
) -> None:
    pytest.importorskip("psycopg")
    from flowpregel.plugins.postgres import PostgresSaver

    url = f"postgresql://me:secret@/runs?host={tmp_path}"
    with PostgresSaver(url) as saver, pytest.raises(StoreError) as caught:
        saver.load(Address("a"))

    assert "me@" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_record_that_was_changed_in_the_database_is_found(
    postgres_server: Server, postgres_url: str
) -> None:
    from flowpregel.plugins.postgres import PostgresSaver

    @entrypoint(checkpointer=postgres_url, executor="threads")
    def job(n: int) -> int:
        return n

    job.run(1, id="a")
    postgres_server.execute(
        "UPDATE flowpregel.records SET record = set_byte(record, 20, 1 # "
        "get_byte(record, 20)) "
        "WHERE substr(key, 1, 1) = 'c'"
    )

    with PostgresSaver(postgres_url) as saver:
        assert not saver.verify().ok
        with pytest.raises(StoreError, match="damaged"):
            saver.load(Address("a"))


def test_what_calls_have_left_is_read_a_few_at_a_time(postgres_url: str) -> None:
    """Each is told once."""

    @task(executor="inline")
    def work(n: int) -> int:
        return n

    with PostgresSaver(postgres_url) as saver, reading(saver, most=3) as reader:

        @entrypoint(checkpointer=saver)
        def flow(count: int) -> int:
            return sum(work(n).result() for n in range(count))

        flow.invoke(10, thread_id="1")
        told = [
            row.text or row.name for each in reader.changes("1") for row in each.rows
        ]
        row, live = reader.run("1"), reader.live("1")

    assert sorted(["flow", *(f"work({n})" for n in range(10))]) == sorted(told)
    assert row is not None
    assert "done" == row.status
    assert live is None
