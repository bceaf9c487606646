"""The commands that look after a store: fork, rm, gc, verify, backup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from click import Context
from click.testing import CliRunner, Result

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.work import Status
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from tests.runs.cli_flows import FLOWS, steps

Invoke = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with the finished threads ``a`` and ``b``."""
    path = str(tmp_path / "store")
    with LMDBSaver(path) as saver:
        for thread_id in ("a", "b"):
            graph = steps.copy({"checkpointer": saver})
            graph.invoke(
                {"n": 1}, thread_id=thread_id, metadata={"flow": f"{FLOWS}:steps"}
            )
    return path


@pytest.fixture
def cli(store: str) -> Invoke:
    """Run the command on the test's store."""
    return lambda *words: CliRunner().invoke(app, [*words, "--store", store])


def kept(store: str, thread_id: str) -> list[int]:
    """Return the steps of the checkpoints that a store has of a thread."""
    with LMDBSaver(store) as saver:
        return [saved.checkpoint.step for saved in saver.history(Address(thread_id))]


def test_fork_copies_a_thread_with_its_history(cli: Invoke, store: str) -> None:
    assert Code.OK == cli("fork", "a", "c").exit_code
    assert kept(store, "a") == kept(store, "c")


def test_a_fork_at_a_checkpoint_goes_on_from_there(cli: Invoke) -> None:
    """The copy knows its flow, so that it can be resumed."""
    forked = cli("fork", "a", "c", "--at", "1", "--json")
    resumed = cli("resume", "c", "--json")

    assert Code.OK == forked.exit_code, forked.output
    assert {"n": 2, "log": "n is 2"} == json.loads(resumed.stdout)["output"]
    assert "tell: 1 done" in resumed.stderr
    assert "add" not in resumed.stderr


def test_a_fork_onto_a_thread_that_is_there_is_refused(cli: Invoke) -> None:
    assert Code.USAGE == cli("fork", "a", "b").exit_code


def test_rm_deletes_a_thread(cli: Invoke, store: str) -> None:
    assert Code.OK == cli("rm", "a", "--yes").exit_code
    assert ([], [2, 1, 0, -1]) == (kept(store, "a"), kept(store, "b"))


def test_rm_deletes_nothing_if_nobody_can_be_asked(cli: Invoke, store: str) -> None:
    assert Code.USAGE == cli("rm", "a").exit_code
    assert kept(store, "a")


def test_rm_deletes_nothing_if_a_thread_is_not_there(cli: Invoke, store: str) -> None:
    assert Code.USAGE == cli("rm", "a", "nobody", "--yes").exit_code
    assert kept(store, "a")


def test_rm_refuses_a_thread_that_a_run_holds(cli: Invoke, store: str) -> None:
    with LMDBSaver(store) as saver, saver.lease("a"):
        result = cli("rm", "a", "--yes")

    assert Code.STORE == result.exit_code
    assert kept(store, "a")


def test_gc_keeps_the_last_checkpoints_of_each_thread(cli: Invoke, store: str) -> None:
    result = cli("gc", "--keep-last", "2", "--json")

    assert 4 == json.loads(result.stdout)["dropped"]
    assert ([2, 1], [2, 1]) == (kept(store, "a"), kept(store, "b"))


def test_gc_can_be_for_one_thread(cli: Invoke, store: str) -> None:
    cli("gc", "a", "--keep-last", "1")

    assert ([2], [2, 1, 0, -1]) == (kept(store, "a"), kept(store, "b"))


def test_gc_by_age_keeps_what_is_young(cli: Invoke, store: str) -> None:
    assert "dropped 0 checkpoints" in cli("gc", "--max-age", "1.5h").stdout
    assert [2, 1, 0, -1] == kept(store, "a")


def test_gc_may_compact_alone(cli: Invoke, store: str) -> None:
    assert Code.OK == cli("gc", "--compact").exit_code
    assert [2, 1, 0, -1] == kept(store, "a")


@pytest.mark.parametrize("bounds", [(), ("--max-age", "soon"), ("--max-bytes", "5q")])
def test_gc_must_be_told_what_to_keep(
    cli: Invoke, store: str, bounds: tuple[str, ...]
) -> None:
    assert Code.USAGE == cli("gc", *bounds).exit_code
    assert [2, 1, 0, -1] == kept(store, "a")


def test_verify_finds_a_sound_store_sound(cli: Invoke) -> None:
    result = cli("verify")

    assert (Code.OK, True) == (result.exit_code, "all is well" in result.stdout)


def test_verify_finds_a_store_that_was_cut_off(cli: Invoke, store: str) -> None:
    data = Path(store) / "data.mdb"
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size // 2)

    assert Code.STORE == cli("verify").exit_code


def test_a_backup_has_the_same_threads(cli: Invoke, tmp_path: Path, store: str) -> None:
    copy = str(tmp_path / "copy")

    assert Code.OK == cli("backup", copy).exit_code
    assert kept(store, "a") == kept(copy, "a")


def test_a_backup_overwrites_nothing(cli: Invoke, store: str) -> None:
    assert Code.STORE == cli("backup", store).exit_code


def test_a_store_is_encrypted_and_decrypted_with_keys_in_files(
    cli: Invoke, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other commands use it with its key, `run` too, and not without."""
    pytest.importorskip("cryptography")
    files = [tmp_path / name for name in ("one", "two")]
    for file in files:
        file.write_bytes(file.name.encode() * 5 + b"!")
    for file in files:
        assert Code.OK == cli("encrypt", str(file)).exit_code
        assert Code.STORE == cli("ls").exit_code
        monkeypatch.setenv("FLOWPREGEL_ENCRYPTION_KEY_FILE", str(file))
        assert {"a", "b"} <= {*cli("ls").stdout.split()}
    assert Code.OK == cli("run", f"{FLOWS}:steps", "--input", '{"n": 1}').exit_code
    assert Code.OK == cli("verify").exit_code

    assert Code.OK == cli("encrypt", "--off").exit_code
    assert Code.STORE == cli("verify").exit_code
    monkeypatch.delenv("FLOWPREGEL_ENCRYPTION_KEY_FILE")
    assert Code.OK == cli("verify").exit_code


@pytest.mark.parametrize("words", [(), ("key", "--off"), ("not there",)])
def test_a_store_is_not_encrypted_without_a_key(
    cli: Invoke, store: str, words: tuple[str, ...]
) -> None:
    assert Code.USAGE == cli("encrypt", *words).exit_code
    assert kept(store, "a")


def test_the_manual_has_every_command_and_no_other() -> None:
    """Each has a row in a table of its page."""
    page = (Path(__file__).parents[3] / "docs/reference/command-line.md").read_text(
        "utf-8"
    )
    rows = re.findall(r"^\| `([a-z]+)\b", page, re.MULTILINE)
    statuses = {*get_args(Status)}

    assert {*app.list_commands(Context(app))} == {*rows} - statuses


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["signal", "a", "", "1"], "the name of the signal is empty"),
        (["signal", "", "go", "1"], "thread_id is empty"),
        (["fork", "a", ""], "thread_id is empty"),
        (["fork", "a", "a"], "there is a thread 'a' already: pass another NEW_THREAD"),
        (["fork", "a", "b"], "there is a thread 'b' already: pass another NEW_THREAD"),
        (
            ["enqueue", f"{FLOWS}:rest", "--input", "0", "--id", ""],
            "the id is empty",
        ),
    ],
)
def test_an_id_or_a_name_that_cannot_be_used_is_refused(
    cli: Invoke, store: str, words: list[str], expected: str
) -> None:
    """Nothing is stored."""
    result = cli(*words)

    assert Code.USAGE == result.exit_code
    assert expected in result.stderr
    with LMDBSaver(store) as saver:
        assert {"a", "b"} == {thread.thread_id for thread in saver.threads()}


def test_an_empty_id_of_an_imported_run_is_refused(cli: Invoke, tmp_path: Path) -> None:
    file = str(tmp_path / "run")
    cli("export", "a", "-o", file)

    result = cli("import", file, "--as", "")

    assert Code.USAGE == result.exit_code
    assert "thread_id is empty" in result.stderr


def test_a_busy_thread_is_advised_in_the_words_of_the_command(
    cli: Invoke, store: str
) -> None:
    """`resume` has the option that `rm` lacks."""
    with LMDBSaver(store) as saver, saver.lease("a"):
        resumed = cli("resume", "a", "--on-conflict", "raise")
        deleted = cli("rm", "a", "--yes")
        record = json.loads(cli("rm", "a", "--yes", "--json").stdout)

    advice = "; wait for it, or pass --on-conflict wait or --on-conflict takeover\n"
    assert resumed.stderr.endswith(advice)
    assert deleted.stderr.endswith("; wait for it\n")
    assert record["error"]["message"].endswith("; wait for it")


def test_other_input_is_advised_in_the_words_of_the_command(cli: Invoke) -> None:
    """`enqueue` cannot adopt an input, as `run` can."""
    words = [f"{FLOWS}:rest", "--id", "r", "--input"]
    cli("run", *words, "0")
    ran = cli("run", *words, "1")
    enqueued = cli("enqueue", *words, "1")

    assert "pass --adopt to resume with the new one" in ran.stderr
    assert "input, or start a new run under another --id\n" in enqueued.stderr
    assert "adopt=True" not in ran.stderr + enqueued.stderr


def test_a_module_that_cannot_open_its_store_has_the_exit_code_of_a_store(
    tmp_path: Path,
) -> None:
    (tmp_path / "no_store").write_text("text")
    (tmp_path / "job_without_store.py").write_text(
        "from flowpregel import entrypoint\n"
        f"@entrypoint(checkpointer={str(tmp_path / 'no_store')!r})\n"
        "def flow(number: int) -> int:\n"
        "    return number\n"
    )
    name = f"{tmp_path / 'job_without_store.py'}:flow"

    result = CliRunner().invoke(app, ["run", name, "--input", "1"])

    assert Code.STORE == result.exit_code
    assert "cannot be imported: " in result.stderr
    assert "no_store is a file; a store is a folder" in result.stderr


def test_a_run_that_a_store_error_made_fail_has_the_exit_code_of_a_failure(
    tmp_path: Path,
) -> None:
    """The error of the task has an error of a store as its cause."""
    (tmp_path / "job_with_cause.py").write_text(
        "from flowpregel import entrypoint\n"
        "from flowpregel.errors import StoreError\n"
        "@entrypoint\n"
        "def flow(number: int) -> int:\n"
        "    raise RuntimeError('no data') from StoreError('lost')\n"
    )
    name = f"{tmp_path / 'job_with_cause.py'}:flow"
    store = str(tmp_path / "store")

    result = CliRunner().invoke(app, ["run", name, "--input", "1", "--store", store])

    assert Code.FAILED == result.exit_code
    assert isinstance(result.exception, SystemExit)
    assert "RuntimeError: no data" in result.stderr


def test_an_input_file_that_cannot_be_read_is_named(cli: Invoke) -> None:
    result = cli("run", f"{FLOWS}:steps", "--input", "@no-such-file")

    assert Code.USAGE == result.exit_code
    problem = "--input: no-such-file cannot be read: No such file or directory"
    assert problem in result.stderr
