"""One run as a file: exports from one store, imports into another of any kind."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from click.testing import CliRunner

from flowpregel import entrypoint, task
from flowpregel._core.records import Address
from flowpregel._stores import store_plugin_at
from flowpregel.channels import DeltaChannel
from flowpregel.checkpoint import run_files
from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.errors import (
    ConfigurationError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreVersionError,
)
from flowpregel.graph import END, START, StateGraph
from flowpregel.storage import PythonCodec, Seal, StoreOptions
from flowpregel.storage.renames import RENAMED
from tests.runs.cli_flows import FLOWS, total
from tests.runs.stores import KEY, commit, saver_at, start

Open = Callable[..., DurableSaver]
KINDS = [
    ("lmdb", "sqlite"),
    ("sqlite", "lmdb"),
    pytest.param(("lmdb", "postgres"), marks=pytest.mark.slow),
    pytest.param(("postgres", "sqlite"), marks=pytest.mark.slow),
]
LARGE = "large" * 250_000
"""A text that LMDB stores in chunks."""
CALLS: list[int] = []
BROKEN = [False]
OPENED: list[str] = []


@task(executor="inline")
def double(number: int) -> int:
    """Return twice the number, or fail."""
    CALLS.append(number)
    if BROKEN[0] and number == 2:
        raise ValueError("broken")
    return 2 * number


@entrypoint(executor="inline")
def study(numbers: list[int]) -> int:
    return sum(double(number).result() for number in numbers)


def added(values: list[str], more: list[list[str]]) -> list[str]:
    return [*values, *(text for texts in more for text in texts)]


class Words(TypedDict):
    texts: Annotated[list[str], DeltaChannel(added, snapshot_frequency=None)]


class LargeWords(Words):
    large: str


def nested_graph() -> Any:
    """Return a graph whose node is a graph, with deltas and a large value."""
    inner = StateGraph(Words)
    inner.add_node("shout", lambda state: {"texts": [state["texts"][-1].upper()]})
    inner.add_edge(START, "shout")
    inner.add_edge("shout", END)
    outer = StateGraph(LargeWords)
    outer.add_node("write", lambda state: {"texts": ["more"], "large": LARGE})
    outer.add_node("inner", inner.compile(checkpointer=True, executor="inline"))
    outer.add_edge(START, "write")
    outer.add_edge("write", "inner")
    outer.add_edge("inner", END)
    return outer


class Trap:
    """A value whose decoding leaves a trace."""

    def __reduce__(self) -> Any:
        return note_opening, ("decoded",)


def note_opening(text: str) -> None:
    OPENED.append(text)


@pytest.fixture(autouse=True)
def _reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each store has a key of its own, unless the test gives it another."""
    monkeypatch.delenv("FLOWPREGEL_STORE_KEY", raising=False)
    CALLS.clear()
    OPENED.clear()
    BROKEN[0] = False


@pytest.fixture
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Open]:
    """A function that opens the store of a kind, with a number, until the test ends."""
    with ExitStack() as stack:

        def open_store(kind: str, number: int = 0, **options: Any) -> DurableSaver:
            location = str(tmp_path / f"store-{number}")
            if kind == "sqlite":
                location = f"sqlite:///{location}.db"
            if kind == "postgres":
                location = request.getfixturevalue("postgres_url")
            saver = store_plugin_at(location).open_saver(location, **options)
            assert isinstance(saver, DurableSaver)
            return stack.enter_context(saver)

        yield open_store


@pytest.fixture
def pair(opened: Open, request: pytest.FixtureRequest) -> list[DurableSaver]:
    """Two stores of the kinds in the parameter."""
    return [opened(kind, number) for number, kind in enumerate(request.param)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The path of a run file that is not there."""
    return tmp_path / "carried.run"


def on(saver: DurableSaver, flow: Any = study) -> Any:
    return flow.copy({"checkpointer": saver})


def contents(saver: DurableSaver, thread_id: str) -> list[Any]:
    """Return everything that a saver has of a thread, by namespace."""
    items = []
    for address in sorted(saver.namespaces(thread_id), key=lambda item: item.namespace):
        for saved in saver.history(address):
            checkpoint = saved.checkpoint
            items.append((address.namespace, checkpoint, saved.writes, saved.ran))
            outputs = saver.kept_output(Address(thread_id, "", checkpoint.id))
            items.append((address.namespace, outputs))
    return items


def finished(saver: DurableSaver, file: Path, **options: Any) -> Path:
    """Run a workflow on a store, and export its run ``a``."""
    on(saver).run([1, 2], id="a")
    CALLS.clear()
    saver.export_thread("a", file, **options)
    return file


# ---------------------------------------------------------------- between stores


@pytest.mark.parametrize("pair", KINDS, indirect=True)
def test_an_imported_run_has_all_that_the_exported_run_has(
    pair: list[DurableSaver], file: Path
) -> None:
    """Nested graphs, deltas, and values that LMDB stores in chunks are among it."""
    source, target = pair
    graph = nested_graph().compile(checkpointer=source, executor="inline")
    graph.invoke({"texts": ["small"]}, thread_id="a")
    assert 2 == len([*source.namespaces("a")])

    source.export_thread("a", file)
    imported = target.import_thread(file, trust=True)

    assert "a" == imported
    assert contents(source, "a") == contents(target, "a")
    assert target.verify().ok
    state = on(target, graph).get_state(thread_id="a")
    assert graph.get_state(thread_id="a").values == state.values
    assert "MORE" == state.values["texts"][-1]


@pytest.mark.parametrize("pair", KINDS, indirect=True)
def test_a_failed_run_resumes_in_the_other_store(
    pair: list[DurableSaver], file: Path
) -> None:
    source, target = pair
    BROKEN[0] = True
    with pytest.raises(ValueError, match="broken"):
        on(source).run([1, 2, 3], id="a")
    source.export_thread("a", file)
    target.import_thread(file, "b", trust=True)
    BROKEN[0] = False
    CALLS.clear()

    result = on(target).run([1, 2, 3], id="b")

    assert 12 == result
    assert [2, 3] == CALLS


@pytest.mark.slow
def test_a_run_of_many_megabytes_goes_into_postgresql_in_parts(
    opened: Open, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "_UNSENT", 1 << 10)
    source = opened("lmdb")
    target = opened("postgres")
    for number in range(20):
        commit(source, number, {"n": str(number) * 1_000}, thread="a")
    source.export_thread("a", file)

    target.import_thread(file, trust=True)

    assert contents(source, "a") == contents(target, "a")


def test_a_finished_run_gives_its_result_and_can_be_forked(
    opened: Open, file: Path
) -> None:
    target = opened("sqlite", 1)

    target.import_thread(finished(opened("lmdb"), file), trust=True)
    target.copy_thread("a", "fork")

    assert 6 == on(target).run([1, 2], id="a") == on(target).run([1, 2], id="fork")
    assert [] == CALLS


def test_the_sources_of_the_code_come_with_the_run(opened: Open, file: Path) -> None:
    """So that a notice in the other store can name a change."""
    source = opened("lmdb")
    target = opened("lmdb", 1)
    target.import_thread(finished(source, file), trust=True)

    saved = [saved for saved in source.history(Address("a")) if saved.ran]
    codes = {attempt.code for item in saved for _, _, attempt in item.ran} - {""}

    assert codes
    for code in codes:
        assert "" != source.source_of(code) == target.source_of(code)


def test_renames_come_with_the_run_and_keep_those_of_the_store(
    opened: Open, file: Path
) -> None:
    source = opened("lmdb")
    target = opened("lmdb", 1)
    source.rename("old.A", "new.A")
    source.rename("old.B", "elsewhere.B")
    target.rename("old.B", "new.B")

    target.import_thread(finished(source, file), trust=True)

    store, _ = target.opened_to_look(PythonCodec())
    record = store.read(partial(store.table(b"meta").get, key=RENAMED))
    assert {"old.A": "new.A", "old.B": "new.B"} == json.loads(record)


# ---------------------------------------------------------------- runs under way


def test_a_run_under_way_is_imported_as_a_stopped_one(opened: Open, file: Path) -> None:
    source = opened("lmdb")
    target = opened("sqlite", 1)

    @entrypoint(executor="inline", checkpointer=source)
    def exporting(number: int) -> int:
        result = double(number).result()
        if not file.exists():
            source.export_thread("a", file)
        return result + double(10).result()

    assert 22 == exporting.run(1, id="a", durability="sync")
    target.import_thread(file, trust=True)
    imported = target.thread("a")
    assert imported is not None
    assert "stopped" == imported.status
    CALLS.clear()

    assert 22 == on(target, exporting).run(1, id="a")
    assert 1 not in CALLS


def test_a_commit_during_the_export_is_not_in_the_file(
    opened: Open, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has one moment of the run, never a half of each of two."""
    source = opened("lmdb")
    for number in range(3):
        commit(source, number, thread="a")
    before = contents(source, "a")
    add = run_files.RunFileWriter.add

    def commit_and_add(writer: Any, *record: Any) -> None:
        if len(before) == len(contents(source, "a")):
            other = threading.Thread(target=commit, args=(source, 3), kwargs=thread)
            other.start()
            other.join()
        add(writer, *record)

    thread = {"thread": "a"}
    monkeypatch.setattr(run_files.RunFileWriter, "add", commit_and_add)
    source.export_thread("a", file)
    target = opened("lmdb", 1)
    target.import_thread(file, trust=True)

    assert len(before) < len(contents(source, "a"))
    assert before == contents(target, "a")
    assert target.verify().ok


# ---------------------------------------------------------------- refusals


def test_a_thread_that_exists_is_not_overwritten(opened: Open, file: Path) -> None:
    source = opened("lmdb")
    finished(source, file)
    before = contents(source, "a")

    with pytest.raises(ConfigurationError, match="already has checkpoints; import"):
        source.import_thread(file)

    assert before == contents(source, "a")
    assert "b" == source.import_thread(file, "b")


def test_a_damaged_file_is_named_and_nothing_of_it_is_stored(
    opened: Open, file: Path
) -> None:
    source = opened("lmdb")
    content = finished(source, file).read_bytes()
    head = content.index(b"\n") + 1
    positions = [*range(head, len(content), 97), len(content) - 1]

    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        # A damaged checksum at the end is taken for that of another key.
        with pytest.raises((StoreCorruptError, StoreForeignError), match=file.name):
            source.import_thread(file, "b")

    assert source.thread("b") is None


@pytest.mark.parametrize("lost", [1, 40, 400])
def test_a_file_that_was_cut_off_is_refused_even_if_it_is_trusted(
    opened: Open, file: Path, lost: int
) -> None:
    source = opened("lmdb")
    content = finished(source, file).read_bytes()
    file.write_bytes(content[:-lost])

    with pytest.raises(StoreCorruptError, match="is damaged or incomplete"):
        source.import_thread(file, "b", trust=True)


@pytest.fixture
def last_record(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes, bytes]]:
    """A list of records that are written at the end of each exported file."""
    records: list[tuple[bytes, bytes, bytes]] = []
    finish = run_files.RunFileWriter.finish

    def add_and_finish(writer: run_files.RunFileWriter) -> None:
        for record in records:
            writer.add(*record)
        finish(writer)

    monkeypatch.setattr(run_files.RunFileWriter, "finish", add_and_finish)
    return records


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ((b"values", b"\xff" * 8 + b"key", b"value"), "a record without a namespace"),
        ((b"meta", b"header", b"another header"), "a record that no run has"),
    ],
)
def test_a_record_that_no_run_has_is_refused_and_nothing_is_stored(
    opened: Open, file: Path, last_record: list[Any], record: Any, problem: str
) -> None:
    """Neither a half of a run nor another record of the store, such as its header."""
    saver = opened("lmdb")
    last_record.append(record)

    with pytest.raises(StoreCorruptError, match=problem):
        saver.import_thread(finished(saver, file), "b")

    assert saver.thread("b") is None
    assert saver.verify().ok


def test_a_later_format_is_refused(opened: Open, file: Path) -> None:
    saver = opened("lmdb")
    content = finished(saver, file).read_bytes()
    file.write_bytes(content.replace(b'"format": 1', b'"format": 2', 1))

    with pytest.raises(StoreVersionError, match="has format 2, but this release reads"):
        saver.import_thread(file, "b", trust=True)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" * 500, b"[1]\n", b'{"a": 1}\n'])
def test_another_kind_of_file_is_refused(
    opened: Open, file: Path, content: bytes
) -> None:
    file.write_bytes(content)

    with pytest.raises(StoreError, match="is not a run that flowpregel has exported"):
        opened("lmdb").import_thread(file, trust=True)


def test_a_file_that_is_there_is_not_overwritten(opened: Open, file: Path) -> None:
    file.write_text("mine")

    with pytest.raises(StoreError, match="there is already a file at"):
        finished(opened("lmdb"), file)

    assert "mine" == file.read_text()


def test_a_folder_in_place_of_a_file_is_named(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder; give the path of a new file"):
        finished(opened("lmdb"), tmp_path)


def test_an_export_that_fails_leaves_no_file(opened: Open, file: Path) -> None:
    with pytest.raises(ConfigurationError, match="the store has no thread 'a'"):
        opened("lmdb").export_thread("a", file)

    assert [] == [*file.parent.glob("*.run*")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["target", "target.db"])
def test_an_import_that_is_killed_stores_nothing(
    opened: Open, file: Path, name: str
) -> None:
    """Before its only commit, when all records are in the transaction."""
    finished(opened("lmdb"), file)
    path = file.with_name(name)
    saver_at(path).close()
    code = """
        with saver_at(path) as saver:
            saver.import_thread(sys.argv[2], trust=True)
        """

    killed = start(code, path, file, key="", fault="store.commit.before:1:kill")

    killed.communicate(timeout=60)
    assert -signal.SIGKILL == killed.returncode
    with saver_at(path) as saver:
        assert saver.thread("a") is None
        assert saver.verify().ok
        assert "a" == saver.import_thread(file, trust=True)
        assert 6 == on(saver).run([1, 2], id="a")


# ---------------------------------------------------------------- seals


def test_only_the_key_or_trust_lets_a_file_in(opened: Open, file: Path) -> None:
    finished(opened("lmdb"), file)
    target = opened("lmdb", 1)

    with pytest.raises(StoreForeignError, match="is not sealed under the key of this"):
        target.import_thread(file)

    assert target.thread("a") is None
    assert "a" == target.import_thread(file, trust=True)


def test_a_shared_key_needs_no_trust(opened: Open, file: Path) -> None:
    finished(opened("lmdb"), file, key=b"shared")
    target = opened("lmdb", 1)

    with pytest.raises(StoreForeignError):
        target.import_thread(file, key=b"another")
    with pytest.raises(ConfigurationError, match="the key of the file is empty"):
        target.import_thread(file, key=b" ")

    assert "a" == target.import_thread(file, key=b"shared")


def test_stores_with_the_same_key_need_no_trust(
    opened: Open, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", KEY)
    finished(opened("lmdb"), file)

    assert "a" == opened("sqlite", 1).import_thread(file)


def test_a_changed_file_is_no_longer_sealed(opened: Open, file: Path) -> None:
    """Whoever changes a file cannot make the checksum, only the digest."""
    saver = opened("lmdb")
    finished(saver, file)
    with file.open("wb") as forged:
        writer = run_files.RunFileWriter(forged, Seal(b"a stranger's key"))
        fields = run_files.NamespaceFields("b", "", 0, None, 0, 0)
        writer.add(b"threads", bytes(8), fields.to_json())
        writer.finish()

    with pytest.raises(StoreForeignError):
        saver.import_thread(file)


def test_an_import_decodes_no_value(opened: Open, file: Path) -> None:
    source = opened("lmdb")
    commit(source, 0, {"n": Trap()}, thread="a")
    source.export_thread("a", file)
    target = opened("lmdb", 1)

    target.import_thread(file, trust=True)
    assert [] == OPENED

    target.load(Address("a"))
    assert ["decoded"] == OPENED


def test_the_file_of_an_encrypted_store_is_encrypted(opened: Open, file: Path) -> None:
    pytest.importorskip("cryptography")
    key = os.urandom(32)
    source = opened("lmdb", options=StoreOptions(encryption_key=key))
    on(source).run([1, 2], id="a-secret-name")
    source.export_thread("a-secret-name", file)

    assert b"secret" not in file.read_bytes()
    other = opened("lmdb", 1)
    with pytest.raises(StoreForeignError, match="is encrypted under another key"):
        other.import_thread(file, trust=True)
    imported = other.import_thread(file, trust=True, encryption_key=key)
    assert "a-secret-name" == imported
    assert contents(source, imported) == contents(other, imported)


def test_others_cannot_read_the_file(opened: Open, file: Path) -> None:
    assert 0o600 == finished(opened("lmdb"), file).stat().st_mode & 0o777


# ---------------------------------------------------------------- the commands


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A store with the finished run ``a``."""
    path = str(tmp_path / "store")
    with LMDBSaver(path) as saver:
        flow = total.copy({"checkpointer": saver})
        flow.invoke([1, 2], thread_id="a", metadata={"flow": f"{FLOWS}:total"})
    return path


def flowpregel(*words: str) -> Any:
    """Return the result of a command with ``--json``, or its exit code and error."""
    result = CliRunner().invoke(app, [*words, "--json"])
    if result.exit_code:
        return result.exit_code, json.loads(result.stdout)["error"]["message"]
    return json.loads(result.stdout)


def test_the_commands_move_a_run_into_a_new_store(folder: str, file: Path) -> None:
    store = f"sqlite:///{file}.db"

    exported = flowpregel("export", "a", "-o", str(file), "--store", folder)
    imported = flowpregel("import", str(file), "--as", "b", "--trust", "--store", store)
    shown = flowpregel("show", "b", "--store", store)
    resumed = flowpregel("resume", "b", "--store", store)

    assert file.stat().st_size == exported["bytes"]
    assert {"thread_id": "b", "status": "done"}.items() <= imported.items()
    assert "done" == shown["status"] == resumed["status"]
    assert 6 == resumed["output"]


def test_the_command_refuses_a_file_of_another_key(folder: str, file: Path) -> None:
    flowpregel("export", "a", "-o", str(file), "--store", folder)

    code, message = flowpregel("import", str(file), "--store", f"{file}.lmdb")

    assert Code.STORE == code
    assert "or --trust" in message


def test_the_commands_take_the_key_of_the_file(folder: str, file: Path) -> None:
    key = file.with_suffix(".key")
    key.write_text("a shared secret\n")
    words = ("--key", str(key), "--store")
    flowpregel("export", "a", "-o", str(file), *words, folder)

    imported = flowpregel("import", str(file), *words, f"{file}.lmdb")
    key.write_text("\n")
    code, message = flowpregel("import", str(file), *words, f"{file}.lmdb")

    assert "a" == imported["thread_id"]
    assert Code.USAGE == code
    assert "contains no key" in message


def test_a_file_that_is_missing_is_named(folder: str, file: Path) -> None:
    code, message = flowpregel("import", str(file), "--store", folder)

    assert Code.USAGE == code
    assert f"there is no file {file}" == message


def test_the_command_reports_a_thread_that_exists(folder: str, file: Path) -> None:
    flowpregel("export", "a", "-o", str(file), "--store", folder)

    code, message = flowpregel("import", str(file), "--store", folder)

    assert Code.USAGE == code
    assert "--as" in message
