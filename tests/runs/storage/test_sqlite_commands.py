"""Commands and the page on a store that is named by the URL of a SQLite database."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.func import entrypoint, task
from flowpregel.plugins.page.pages import Pages
from flowpregel.plugins.sqlite import SQLiteSaver

BROKEN = [False]


@task
def double(number: int) -> int:
    """Return *number* twice, or fail."""
    if BROKEN[0] and number == 2:
        raise ValueError("broken")
    return 2 * number


@entrypoint(executor="inline")
def study(numbers: list[int]) -> list[int]:
    """Double each of *numbers*."""
    return [double(number).result() for number in numbers]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a database with a run that is done, and one that failed."""
    url = f"sqlite:///{tmp_path}/runs.db"
    flow = study.copy({"checkpointer": url})
    flow.run([1, 3], id="done")
    BROKEN[0] = True
    with pytest.raises(ValueError, match="broken"):
        flow.run([1, 2], id="failed")
    BROKEN[0] = False
    return url


def command(*words: str, exit_code: int = 0) -> str:
    """Return the output of a command that ends with *exit_code*."""
    result = CliRunner().invoke(app, [*words])
    assert exit_code == result.exit_code, result.output
    return result.output


def test_ls_lists_the_runs_with_their_states(url: str) -> None:
    rows = json.loads(command("ls", "--json", "--store", url))

    assert {"done": "done", "failed": "failed"} == {
        row["thread_id"]: row["status"] for row in rows
    }


def test_show_names_the_call_that_failed_with_its_arguments(url: str) -> None:
    shown = command("show", "failed", "--store", url)

    assert "double(2)" in shown
    assert "ValueError: broken" in shown
    assert "double" in command("show", "done", "--store", url)


def test_check_replays_the_run_that_is_not_finished(url: str) -> None:
    """It imports this module, and writes nothing."""
    (row,) = json.loads(command("check", "--json", url))

    assert ("failed", True) == (row["thread_id"], row["fits"])
    assert (1, {"double": 1}) == (row["answered"], row["would_run"])


def test_retry_makes_the_failed_call_again(url: str) -> None:
    command("retry", "failed", "--failed", "--store", url)

    assert "done" in command("show", "failed", "--store", url)


def test_recover_says_that_wake_resumes_the_runs_of_this_machine(url: str) -> None:
    shown = command("recover", "--store", url, exit_code=2)

    assert "flowpregel wake" in shown


def test_encrypt_encrypts_the_store_and_decrypts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other commands need the key then."""
    pytest.importorskip("cryptography")
    database = tmp_path / "runs.db"
    url = f"sqlite:///{database}"
    with SQLiteSaver(url) as saver:
        study.copy({"checkpointer": saver}).run([1, 3], id="finished")
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    assert b"finished" in database.read_bytes()

    command("encrypt", str(key), "--store", url)

    assert b"finished" not in database.read_bytes()
    command("ls", "--store", url, exit_code=Code.STORE)
    monkeypatch.setenv("FLOWPREGEL_ENCRYPTION_KEY_FILE", str(key))
    assert "finished" in command("ls", "--store", url)
    command("encrypt", "--off", "--store", url)
    monkeypatch.delenv("FLOWPREGEL_ENCRYPTION_KEY_FILE")
    assert "double(3)" in command("show", "finished", "--store", url)


def test_encrypt_names_the_store_that_is_open(url: str, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    with SQLiteSaver(url):
        shown = command("encrypt", str(key), "--store", url, exit_code=Code.STORE)

    assert "runs.db is in use by a program that has it open" in shown


def test_the_report_is_one_page_of_the_run(url: str, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    command("report", "failed", "--store", url, "--output", str(page))

    text = page.read_text("utf-8")
    assert "double(2)" in text
    assert "ValueError" in text


def test_the_page_shows_calls_steps_and_values(url: str) -> None:
    """It reads the database beside the runs, without a class of the user's."""
    with SQLiteSaver(url, readonly=True) as saver, closing(Pages(saver)) as pages:
        rows = {row["thread_id"]: row for row in pages.runs()["runs"]}
        page = pages.calls("failed")
        columns = ["number", *page["columns"]]
        rows_of_calls = [dict(zip(columns, row, strict=True)) for row in page["rows"]]
        calls = {row["text"]: row for row in rows_of_calls}
        failed = calls["double(2)"]
        details = pages.call("failed", failed["id"], failed["checkpoint_id"])
        newest, *_ = pages.steps("done")
        step = pages.step("done", newest["id"])

    assert {"done", "failed"} == set(rows)
    assert {"double(1)": "done", "double(2)": "failed"} == {
        text: row["state"] for text, row in calls.items() if row["name"] == "double"
    }
    assert "ValueError: broken" == details["attempts"][0]["error"]
    assert [2, 6] in [channel.get("value") for channel in step["channels"]]


def test_the_path_of_a_database_is_answered_with_its_url(url: str) -> None:
    """Which works as it is printed."""
    path = url.removeprefix("sqlite:///")

    refused = command("ls", "--store", path, exit_code=Code.STORE)

    assert refused.endswith(f"for a store in SQLite, its URL: {url}\n")
    assert "done" in command("ls", "--store", refused.split()[-1])


def test_a_file_that_is_no_database_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("print('no database, but long enough')\n" * 9)

    refused = command(
        "ls", "--store", f"sqlite:///{tmp_path}/job.py", exit_code=Code.STORE
    )

    assert "job.py is not an SQLite database, or its first page is damaged" in refused


def test_the_url_of_a_folder_is_answered_with_its_path(tmp_path: Path) -> None:
    refused = command("ls", "--store", f"sqlite:///{tmp_path}", exit_code=Code.STORE)

    assert "for a store in a folder, write the path without sqlite:///" in refused


def test_a_file_that_is_no_store_gets_no_folder_of_locks(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("numbers = [1, 2, 3]\n" * 100)

    shown = command(
        "rm", "a", "--yes", "--store", f"sqlite:///{file}", exit_code=Code.STORE
    )

    assert "is not an SQLite database" in shown
    assert [file] == [*tmp_path.iterdir()]
