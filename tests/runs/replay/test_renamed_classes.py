"""Recorded values whose class has moved, was renamed, or is gone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any, TypedDict

import pytest
from click.testing import CliRunner, Result

from flowpregel._core.records import Address
from flowpregel.cache.lmdb import LMDBCache
from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.checkpoint.lmdb import LMDBSaver, PythonCodec, StoreOptions
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.context import interrupt
from flowpregel.errors import ConfigurationError, InputMismatchError, ValueEncodingError
from flowpregel.graph import END, START, StateGraph
from flowpregel.plugins import store_plugin_at
from flowpregel.store.lmdb import LMDBStore
from flowpregel.types import Command

pytestmark = pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")

KINDS = """
class {name}:
    def __init__(self, path):
        self.path = path
"""
PROGRAM = """
from pathlib import Path
from flowpregel import entrypoint, task
import {module}

@task(executor="inline", version="1")
def parse(path):
    with open(Path(__file__).parent / "ran", "a") as ran:
        ran.write(path + " ")
    if path == "bad.txt" and (Path(__file__).parent / "bad").exists():
        raise OSError("bad")
    return {module}.{name}(path)

@entrypoint()
def study(paths):
    return [parse(path).result().path for path in paths]

@entrypoint()
def titled(page):
    return [parse("a.txt").result().path, parse(page.path).result().path]

@entrypoint()
def whole(path):
    return parse(path).result()
"""

Load = Callable[[str, str], Any]


class Pages(TypedDict, total=False):
    n: int
    page: Any


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Write the program with its class in a module, under a name, and import it
    anew.
    """
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = {"program"}

    def load_program(module: str, name: str) -> Any:
        for each in made:
            sys.modules.pop(each, None)
            (tmp_path / f"{each}.py").unlink(missing_ok=True)
        made.add(module)
        (tmp_path / f"{module}.py").write_text(KINDS.format(name=name))
        (tmp_path / "program.py").write_text(PROGRAM.format(module=module, name=name))
        invalidate_caches()
        return import_module("program")

    yield load_program
    for each in made:
        sys.modules.pop(each, None)


def ran(folder: Path) -> str:
    """Return which calls ran, since this was asked last."""
    file = folder / "ran"
    text = file.read_text() if file.exists() else ""
    file.write_text("")
    return text.strip()


def run(
    flow: Any,
    given: Any,
    folder: Path,
    options: StoreOptions | None = None,
    **asked: Any,
) -> Any:
    """Run a flow under the id 1 on the test's store."""
    with LMDBSaver(folder / "store", options=options) as saver:
        return flow.copy({"checkpointer": saver}).run(given, id="1", **asked)


@pytest.fixture
def failed(load: Load, tmp_path: Path) -> Any:
    """The program, whose class is ``new.Page`` now; its run 1 has a result of
    ``old.C``.
    """
    (tmp_path / "bad").touch()
    with pytest.raises(OSError, match="bad"):
        run(load("old", "C").study, ["a.txt", "bad.txt"], tmp_path)
    (tmp_path / "bad").unlink()
    ran(tmp_path)
    return load("new", "Page")


def test_an_unreadable_result_is_named_by_its_call_and_class(
    failed: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueEncodingError) as raised:
        run(failed.study, ["a.txt", "bad.txt"], tmp_path)

    text = str(raised.value)
    assert text.startswith(
        "the result of parse('a.txt') is a old.C, which cannot be imported"
    )
    assert "flowpregel rename old.C NEW STORE" in text
    assert "on_unreadable='rerun'" in "".join(raised.value.__notes__)
    assert "" == ran(tmp_path)


@pytest.mark.parametrize("renamed", [{"old.C": "new.Page"}, {"old.C": "new:Page"}])
def test_a_renamed_class_is_found(
    failed: Any, tmp_path: Path, renamed: dict[str, str]
) -> None:
    options = StoreOptions(renamed=renamed)

    assert ["a.txt", "bad.txt"] == run(
        failed.study, ["a.txt", "bad.txt"], tmp_path, options
    )
    assert "bad.txt" == ran(tmp_path)


def test_a_module_that_moved_is_found_with_all_that_is_in_it(
    load: Load, tmp_path: Path
) -> None:
    run(load("old", "C").whole, "a.txt", tmp_path)
    moved = load("moved", "C")

    found = run(moved.whole, "a.txt", tmp_path, StoreOptions(renamed={"old": "moved"}))

    assert (moved.moved.C, "a.txt") == (type(found), found.path)


def test_rerun_makes_only_the_unreadable_calls_again(
    failed: Any, tmp_path: Path
) -> None:
    """Once they have been, they are recorded like others, whatever is asked for."""
    (tmp_path / "bad").touch()
    with pytest.raises(OSError, match="bad"):
        run(failed.study, ["a.txt", "bad.txt"], tmp_path, on_unreadable="rerun")
    (tmp_path / "bad").unlink()
    assert "a.txt bad.txt" == ran(tmp_path)

    assert ["a.txt", "bad.txt"] == run(failed.study, ["a.txt", "bad.txt"], tmp_path)
    assert "bad.txt" == ran(tmp_path)


def test_the_kept_result_of_a_finished_run_can_be_made_anew(
    load: Load, tmp_path: Path
) -> None:
    run(load("old", "C").whole, "a.txt", tmp_path)
    ran(tmp_path)
    program = load("new", "Page")

    with pytest.raises(
        ValueEncodingError, match=r"the result of thread '1' is a old\.C"
    ):
        run(program.whole, "a.txt", tmp_path)
    assert "a.txt" == run(program.whole, "a.txt", tmp_path, on_unreadable="rerun").path
    assert "a.txt" == run(program.whole, "a.txt", tmp_path).path
    assert "a.txt" == ran(tmp_path)


def test_a_node_of_a_superstep_that_is_not_over_is_made_again(
    load: Load, tmp_path: Path
) -> None:
    program = load("old", "C")
    fails = [True]

    def page(state: dict[str, Any]) -> dict[str, Any]:
        module = program.old if hasattr(program, "old") else program.new
        return {"page": (getattr(module, "C", None) or module.Page)("x")}

    def stop(state: dict[str, Any]) -> dict[str, Any]:
        if fails.pop():
            raise OSError("bad")
        return {}

    builder = StateGraph(Pages).add_node("page", page).add_node("stop", stop)
    for name in ("page", "stop"):
        builder.add_edge(START, name).add_edge(name, END)
    with LMDBSaver(tmp_path / "store") as saver:
        graph = builder.compile(checkpointer=saver, executor="inline")
        with pytest.raises(OSError, match="bad"):
            graph.invoke({"n": 1}, thread_id="1")
        program = load("new", "Page")
        fails.append(False)

        with pytest.raises(
            ValueEncodingError, match="the write of node 'page' to 'page' is a old"
        ):
            graph.invoke(None, thread_id="1")
        found = graph.invoke(None, thread_id="1", on_unreadable="rerun")
    assert program.new.Page is type(found["page"])


def test_an_unreadable_input_is_an_error_that_names_it(
    load: Load, tmp_path: Path
) -> None:
    """It says what to do, with an input or without."""
    (tmp_path / "bad").touch()
    program = load("old", "C")
    with pytest.raises(OSError, match="bad"):
        run(program.titled, program.old.C("bad.txt"), tmp_path)
    program = load("new", "Page")

    text = r"the input of thread '1' is a old\.C.*flowpregel rename old\.C NEW STORE"
    with pytest.raises(ValueEncodingError, match=text) as error:
        run(program.titled, program.new.Page("bad.txt"), tmp_path)
    assert (
        "to replace it, pass an input and on_unreadable='rerun'"
        in error.value.__notes__[0]
    )
    with LMDBSaver(tmp_path / "store") as saver:
        flow = program.titled.copy({"checkpointer": saver})
        with pytest.raises(ValueEncodingError, match=text) as error:
            flow.invoke(None, thread_id="1", on_unreadable="rerun")
    assert "to replace the recorded input, pass another one to run(..., id=)" in str(
        error.value.__notes__
    )


@pytest.mark.parametrize("is_finished", [False, True])
def test_an_input_that_is_given_takes_the_place_of_an_unreadable_one(
    load: Load, tmp_path: Path, is_finished: bool
) -> None:
    """Calls that are recorded are answered; those whose results cannot be read are made
    again.
    """
    bad = tmp_path / "bad"
    program = load("old", "C")
    if is_finished:
        run(program.titled, program.old.C("bad.txt"), tmp_path)
    else:
        bad.touch()
        with pytest.raises(OSError, match="bad"):
            run(program.titled, program.old.C("bad.txt"), tmp_path)
        bad.unlink()
    ran(tmp_path)
    program = load("new", "Page")

    # The input of a finished run is read only where it is adopted, or needed for a
    # rerun.
    options = {"on_unreadable": "rerun", "adopt": is_finished}
    result = run(program.titled, program.new.Page("bad.txt"), tmp_path, **options)
    assert ["a.txt", "bad.txt"] == result
    assert ["a.txt", "bad.txt"] == ran(tmp_path).split()


def test_an_input_of_a_renamed_class_is_the_same_input(
    load: Load, tmp_path: Path
) -> None:
    """Its recorded digest has the old name in it. Another input is still another
    one.
    """
    (tmp_path / "bad").touch()
    program = load("old", "C")
    with pytest.raises(OSError, match="bad"):
        run(program.titled, program.old.C("bad.txt"), tmp_path)
    (tmp_path / "bad").unlink()
    ran(tmp_path)
    program, options = load("new", "Page"), StoreOptions(renamed={"old.C": "new.Page"})

    with pytest.raises(InputMismatchError):
        run(program.titled, program.new.Page("c.txt"), tmp_path, options)
    result = run(program.titled, program.new.Page("bad.txt"), tmp_path, options)
    assert ["a.txt", "bad.txt"] == result
    assert "bad.txt" == ran(tmp_path)


@pytest.mark.parametrize("policy", ["error", "rerun"])
def test_an_unreadable_channel_of_a_graph_is_an_error_that_names_it(
    load: Load, tmp_path: Path, policy: Any
) -> None:
    """Nothing makes it anew: a new name of its class helps."""
    program = load("old", "C")
    builder = StateGraph(Pages).add_node("page", lambda _: {"page": program.old.C("x")})
    builder.add_node("wait", lambda _: {"n": interrupt("go on?")})
    builder.add_edge(START, "page").add_edge("page", "wait").add_edge("wait", END)
    with LMDBSaver(tmp_path / "store") as saver:
        graph = builder.compile(checkpointer=saver, executor="inline")
        graph.invoke({"n": 1}, thread_id="1")
    new = load("new", "Page").new

    text = (
        r"a value of channel 'page' of thread '1' is a old\.C.*"
        "renamed={'old.C': 'new.name'}"
    )
    with LMDBSaver(tmp_path / "store") as saver:
        graph = builder.compile(checkpointer=saver, executor="inline")
        with pytest.raises(ValueEncodingError, match=text) as error:
            graph.invoke(None, thread_id="1", on_unreadable=policy)
    notes = getattr(error.value, "__notes__", [])
    assert (policy == "rerun") == any(
        "cannot restore the value of a channel" in note for note in notes
    )
    options = StoreOptions(renamed={"old.C": "new.Page"})
    with LMDBSaver(tmp_path / "store", options=options) as saver:
        graph = builder.compile(checkpointer=saver, executor="inline")
        result = graph.invoke(Command(resume=2), thread_id="1")
    assert (2, new.Page) == (result["n"], type(result["page"]))


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store in a database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.mark.slow
def test_a_class_is_renamed_in_a_store_in_a_database(
    load: Load, tmp_path: Path, database_url: str
) -> None:
    """By the command, for whoever opens the store from then on, and back again."""
    plugin = store_plugin_at(database_url)

    def run_there(flow: Any) -> Any:
        with plugin.open_saver(database_url) as saver:
            return flow.copy({"checkpointer": saver}).run(["a.txt", "bad.txt"], id="1")

    (tmp_path / "bad").touch()
    with pytest.raises(OSError, match="bad"):
        run_there(load("old", "C").study)
    program = load("new", "Page")
    with pytest.raises(
        ValueEncodingError, match=r"the result of parse\('a.txt'\) is a old\.C"
    ):
        run_there(program.study)
    (tmp_path / "bad").unlink()
    ran(tmp_path)

    result = CliRunner().invoke(app, ["rename", "old.C", "new.Page", database_url])
    assert (0, "renamed: old.C is new.Page\n") == (result.exit_code, result.stdout)
    assert ["a.txt", "bad.txt"] == run_there(program.study)
    assert "bad.txt" == ran(tmp_path)
    with plugin.open_saver(database_url) as saver:
        assert isinstance(saver, DurableSaver)
        saver.rename("new.Page", "old.C")
    assert ["a.txt", "bad.txt"] == run_there(load("old", "C").study)
    assert "" == ran(tmp_path)


# ---------------------------------------------------------------- the command

Check = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path) -> Check:
    return lambda *words: CliRunner().invoke(app, [*words, str(tmp_path / "store")])


def test_rename_makes_it_permanent(failed: Any, tmp_path: Path, cli: Check) -> None:
    result = cli("rename", "old.C", "new.Page")

    assert (0, "renamed: old.C is new.Page\n") == (result.exit_code, result.stdout)
    assert ["a.txt", "bad.txt"] == run(failed.study, ["a.txt", "bad.txt"], tmp_path)
    assert "bad.txt" == ran(tmp_path)


def test_a_class_may_be_renamed_again_and_back(load: Load, tmp_path: Path) -> None:
    for number, (module, name) in enumerate(
        (("old", "C"), ("new", "Page"), ("old", "C"))
    ):
        program = load(module, name)
        with LMDBSaver(tmp_path / "store") as saver:
            if number:
                saver.rename(
                    *(("old.C", "new.Page") if number == 1 else ("new.Page", "old.C"))
                )
            flow = program.whole.copy({"checkpointer": saver})
            flow.run("a.txt", id=f"run {number}")
            found = [flow.run("a.txt", id=f"run {each}") for each in range(number + 1)]
        assert ["a.txt"] * (number + 1) == [each.path for each in found]
        assert {name} == {type(each).__name__ for each in found}


def test_rename_holds_in_a_store_that_is_encrypted_and_compressed(
    load: Load, tmp_path: Path
) -> None:
    """And under other keys later; a codec of the user's is asked as before."""

    class Reversed(PythonCodec):
        def encode(self, value: Any) -> bytes:
            return super().encode(value)[::-1]

        def decode(self, data: bytes) -> Any:
            return super().decode(data[::-1])

    def opened(key: bytes) -> LMDBSaver:
        options = StoreOptions(encryption_key=key, compression=True)
        return LMDBSaver(tmp_path / "store", codec=Reversed(), options=options)

    with opened(b"k" * 16) as saver:
        load("old", "C").whole.copy({"checkpointer": saver}).run("a" * 1000, id="1")
    program = load("new", "Page")
    with opened(b"k" * 16) as saver:
        saver.rename("old.C", "new.Page")
        assert saver.verify().ok
        saver.change_keys(encryption_key=b"l" * 32)
    with opened(b"l" * 32) as saver:
        assert (
            "a" * 1000
            == program.whole.copy({"checkpointer": saver}).run("a" * 1000, id="1").path
        )


def test_rename_refuses_what_it_cannot_find_and_what_is_in_use(
    failed: Any, tmp_path: Path, cli: Check
) -> None:
    typing_error = cli("rename", "old.C", "new.Pgae")
    in_use = cli("rename", "new.Page", "program.study")

    assert (Code.USAGE, Code.USAGE) == (typing_error.exit_code, in_use.exit_code)
    assert "new.Pgae cannot be imported here: check the name" in typing_error.stderr
    assert "new.Page still exists" in in_use.stderr
    assert 0 == cli("rename", "--unchecked", "old.C", "new.Pgae").exit_code
    assert 0 == cli("rename", "old.C", "new.Page").exit_code
    assert ["a.txt", "bad.txt"] == run(failed.study, ["a.txt", "bad.txt"], tmp_path)


def test_an_old_name_that_is_used_again_is_refused_and_not_guessed(
    failed: Any, load: Load, tmp_path: Path
) -> None:
    with LMDBSaver(tmp_path / "store") as saver:
        saver.rename("old.C", "new.Page")
    (tmp_path / "old.py").write_text(KINDS.format(name="C"))
    invalidate_caches()

    with pytest.raises(ValueEncodingError, match=r"a new old\.C exists"):
        run(failed.study, ["a.txt", "bad.txt"], tmp_path)
    sys.modules.pop("old", None)


def test_a_rename_of_nothing_is_refused(tmp_path: Path) -> None:
    with (
        LMDBSaver(tmp_path / "store") as saver,
        pytest.raises(
            ConfigurationError,
            match=r"use full names, such as 'package\.module\.Class', that differ",
        ),
    ):
        saver.rename("old.C", "old.C")


# ---------------------------------------------------------------- caches, stores, check


def test_for_a_cache_an_unreadable_entry_is_a_miss(load: Load, tmp_path: Path) -> None:
    key = (("t",), "k")
    with LMDBCache(tmp_path / "cache") as cache:
        cache.set({key: (load("old", "C").old.C("a.txt"), None)})
        program = load("new", "Page")

        assert {} == cache.get([key])
        cache.set({key: (program.new.Page("b.txt"), None)})
        assert "b.txt" == cache.get([key])[key].path
    assert program.new.Page


def test_an_item_of_a_store_is_found_by_its_new_name(
    load: Load, tmp_path: Path
) -> None:
    with LMDBStore(tmp_path / "store") as items:
        items.put(("a",), "k", {"page": load("old", "C").old.C("a.txt")})
    program = load("new", "Page")

    options = StoreOptions(renamed={"old": "new", "old.C": "new.Page"})
    with LMDBStore(tmp_path / "store", options=options) as items:
        item = items.get(("a",), "k")
    assert item is not None
    assert program.new.Page is type(item.value["page"])


def test_check_imports_the_flow_before_it_reads(
    load: Load, tmp_path: Path, cli: Check
) -> None:
    """Also for results of the user's own classes; and what is bad is one row, not the
    end.
    """
    (tmp_path / "bad").touch()
    program = load("old", "C")
    with LMDBSaver(tmp_path / "store") as saver:
        for name in ("1", "2"):
            with pytest.raises(OSError, match="bad"):
                program.study.copy({"checkpointer": saver}).run(
                    ["a.txt", "bad.txt"], id=name
                )
        program.whole.copy({"checkpointer": saver}).run("a.txt", id="done")
        assert saver.load(Address("1")) is not None
    for module in ("program", "old"):
        sys.modules.pop(module)
    sys.path.remove(str(tmp_path))

    fits = cli("check")
    assert (0, 2) == (
        fits.exit_code,
        fits.stdout.count("calls: 1 answered, 1 would run"),
    )

    load("new", "Page")
    rows = {row["thread_id"]: row for row in json.loads(cli("check", "--json").stdout)}
    assert {"1", "2", "done"} == rows.keys()
    assert "the result of parse('a.txt') is a old.C" in rows["1"]["error"]
    assert "the result of thread 'done' is a old.C" in rows["done"]["error"]
