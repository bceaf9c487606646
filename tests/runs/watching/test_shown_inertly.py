"""What comes from a store is shown as text: no terminal, page or drawing program obeys
it.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel import LMDBSaver, StateGraph, interrupt
from flowpregel._core.records import INTERRUPT, Address, Batch, TaskWrites
from flowpregel._inspection.run_table import RunDrawing, TaskRecord
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.func import entrypoint, task
from flowpregel.pregel.drawing import Graph, NodeShape
from flowpregel.pregel.graph_picture import Edge
from flowpregel.pregel.progress import ProgressView
from flowpregel.storage.codec import PythonCodec
from flowpregel.storage.lmdb.store import open_store
from flowpregel.storage.options import StoreOptions
from tests.runs.stores import ROOT, commit, id_of, step

HOSTILE = {
    "a terminal's title": "\x1b]0;title\x07",
    "a terminal's screen": "\x1b[2J\x1b[31m",
    "C1 controls": "\x9b2J\x9d0;title\x9c",
    "text turned round": "gpj.\u202eexe\u2066",
    "more lines": "one\ntwo\r\u2028three\x85four",
    "a page": "<script>alert(1)</script><img src=x onerror=alert(1)>&lt;b&gt;",
    "a drawing": (
        "\"]; end\nclick n0 \"javascript:alert(1)\"\n%%{init: {'theme': 'dark'}}%% "
        "--> x"
    ),
    "Graphviz": '\\N" URL="javascript:alert(1)"];}\x00',
}
hostile = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
ANSWERS = {"ls": 0, "show": 1, "state": 1, "history": 1, "diff": 1, "stats": 0}
"""The commands that look, and whether they are given a thread."""


def check_inert(shown: str) -> None:
    """See that *shown* has nothing that a terminal obeys."""
    assert "".join(shown.split("\n")).isprintable(), ascii(shown)


# ------------------------------------------------ drawings


def drawing(text: str) -> Graph:
    """Return a drawing with *text* wherever there can be any."""
    inner = Graph({text: NodeShape(text)})
    nodes = {
        text: NodeShape(text),
        "b": NodeShape(text, subgraph=inner),
        "c": NodeShape("c"),
    }
    return Graph(nodes, [Edge(text, "c", text, conditional=True), Edge(text, "b")])


@hostile
def test_drawings_are_of_the_form_that_harmless_ones_have(text: str) -> None:
    """The same lines in Mermaid's language, Graphviz's and in a list."""
    drawn = drawing(text)
    for draw in (Graph.draw_mermaid, Graph.draw_dot):
        check_inert(draw(drawn))
        assert len(draw(drawn).splitlines()) == len(
            draw(drawing("harmless")).splitlines()
        )
    for charset in ("unicode", "ascii"):
        check_inert(drawn.draw_ascii(charset=charset))
    assert "%%" not in drawn.draw_mermaid()
    assert "\nclick" not in drawn.draw_mermaid()
    for line in drawn.draw_mermaid().splitlines():
        assert line.count('"') in (0, 2)


@hostile
def test_the_table_of_a_run_is_inert(text: str) -> None:
    """The names of its tasks and nodes, and what failed."""
    call = TaskRecord(step=0, node=f"call {text}", name=text, is_call=True, detail=text)
    task = TaskRecord(
        step=0,
        node=text,
        name=text,
        status="failed",
        detail=f"x: {text}",
        inner=(call,),
    )
    for charset in ("unicode", "ascii"):
        check_inert(RunDrawing((task,), {"idle": text}).draw_ascii(charset=charset))


@hostile
def test_what_a_notebook_is_given_has_no_tags_but_ours(text: str) -> None:
    """In each of the forms that it may choose from."""
    bundle = drawing(text)._repr_mimebundle_()
    for shown in bundle.values():
        check_inert(shown)

    def elements(picture: str) -> list[tuple[str, list[str]]]:
        """Return the tag of each element, and the names of its attributes."""
        root = xml.etree.ElementTree.fromstring(picture)
        return [(element.tag, sorted(element.attrib)) for element in root.iter()]

    harmless = drawing("harmless")._repr_mimebundle_()
    assert elements(harmless["text/html"]) == elements(bundle["text/html"])


@hostile
@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_a_picture_is_xml_without_scripts_and_links(text: str) -> None:
    """Graphviz makes it of what it is given."""
    source = drawing(text).draw_dot()
    made = subprocess.run(
        ["dot", "-Tsvg"], input=source, capture_output=True, text=True, check=True
    )
    tags = {each.tag for each in xml.etree.ElementTree.fromstring(made.stdout).iter()}
    assert not any(tag.endswith(("}script", "}a", "}img")) for tag in tags)


@hostile
def test_the_view_of_a_run_is_inert(text: str) -> None:
    """The names of its tasks, and what they report."""
    view = ProgressView("flow", workers=lambda: "")
    view.see(((), "tasks", {"id": "1", "name": text}))
    view.see(
        (
            (),
            "progress",
            {"id": "1", "name": text, "done": 1, "total": 2, "message": text},
        )
    )

    for line in view.lines(0.0):
        assert line.isprintable()


# ------------------------------------------------ commands


class Unreadable:
    """Is written, and raises when it is read.

    Args:
        text: What the error says.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _raise, (self.text,)


def _raise(text: str) -> None:
    raise LookupError(text)


def fill(path: Path, text: str) -> None:
    """Make a store with *text* in the names, values, errors and questions of its
    threads.
    """
    with LMDBSaver(path) as saver:

        @task(name=text)
        def fail(value: str) -> None:
            raise LookupError(value)

        @task(name=text)
        def ask(value: str) -> Any:
            return interrupt({value: value})

        @entrypoint(checkpointer=saver, executor="inline")
        def flow(kind: str) -> None:
            (fail if kind == "fail" else ask)(text).result()

        with pytest.raises(LookupError):
            flow.invoke("fail", thread_id=f"failed {text}", metadata={"m": text})
        flow.invoke("ask", thread_id=f"waits {text}")
        graph = StateGraph(dict).add_node("node", lambda _: {text: {text: [text]}})
        graph.set_entry_point("node").compile(saver, executor="inline").invoke(
            {"n": 1}, thread_id=f"values {text}"
        )
        commit(saver, 0, {text: text}, thread=f"channels {text}")
        commit(saver, 1, {text: Unreadable(text), "n": 1}, thread=f"channels {text}")


@pytest.mark.slow
@hostile
def test_commands_print_what_no_terminal_obeys(text: str, tmp_path: Path) -> None:
    """Names of threads, channels and tasks, values, errors, questions and metadata."""
    text = text.replace("\x00", "")  # which no argument of a command can have
    path = tmp_path / "store"
    fill(path, text)
    threads = [f"{kind} {text}" for kind in ("failed", "waits", "values", "channels")]
    runner, store = CliRunner(), ["--store", str(path)]

    lines = runner.invoke(app, ["ls", *store]).stdout.splitlines()
    assert 1 + len(threads) == len(lines)
    for command, takes_thread in ANSWERS.items():
        for words in [[each] for each in threads] if takes_thread else [[]]:
            for more in ([], ["--json"]):
                result = runner.invoke(app, [command, *words, *store, *more])
                if command != "diff":  # of those with one checkpoint there is none
                    assert Code.OK == result.exit_code, result.output
                check_inert(result.output)
    result = runner.invoke(app, ["show", f"no {text}", *store])
    assert Code.USAGE == result.exit_code
    check_inert(result.output)


PROGRAM = """
import os, sys
from dataclasses import dataclass
from flowpregel import entrypoint, interrupt, task
from flowpregel.checkpoint.lmdb import LMDBSaver

open("imported.txt", "a").write(__name__ + "\\n")

@dataclass
class Report:
    words: int
    path: str

class TooLongError(Exception):
    pass

@task
def read(path):
    return Report(len(path), path)

@task
def check(report):
    raise TooLongError(report.path)

@task
def ask(report):
    return interrupt(report)

@entrypoint(checkpointer=LMDBSaver("runs.lmdb"), executor="inline")
def flow(kind):
    report = read("a.txt").result()
    {"done": str, "failed": check, "waiting": ask}[kind](report)
    return report

for kind in ("done", "failed", "waiting"):
    try:
        flow.invoke(kind, thread_id=kind)
    except TooLongError:
        pass
"""
"""Makes a file when it is imported, and has classes of its own."""
LOOK = """
import json, sys
from click.testing import CliRunner
from flowpregel.cli.app import app

found = [CliRunner().invoke(app, words) for words in json.loads(sys.argv[1])]
assert not any(result.exit_code for result in found)
print(json.dumps([result.stdout for result in found]))
"""
"""Gives the command several sets of words, one after the other."""


@pytest.mark.slow
@pytest.mark.parametrize("is_there", [True, False])
def test_looking_imports_nothing_of_the_program(tmp_path: Path, is_there: bool) -> None:
    """Its values are shown by their structure, also when it is gone."""
    program = tmp_path / "jobs.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def call(*words: str) -> str:
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    call("jobs.py")
    if not is_there:
        program.unlink()
    asked = [
        (command, thread)
        for command, takes_thread in ANSWERS.items()
        if command != "diff"
        for thread in (("done", "failed", "waiting") if takes_thread else ("",))
    ]
    words = [[*filter(None, each), "--store", "runs.lmdb"] for each in asked]
    printed = dict(
        zip(asked, json.loads(call("-c", LOOK, json.dumps(words))), strict=True)
    )
    assert "__main__\n" == (tmp_path / "imported.txt").read_text()
    assert "Report(words=5, path='a.txt')" in printed["show", "done"]
    assert "TooLongError: a.txt" in printed["show", "failed"]
    assert "Report(words=5, path='a.txt')" in printed["show", "waiting"]
    assert "Report(words=5, path='a.txt')" in printed["state", "done"]


class Canary:
    """Makes a file when it is read.

    Args:
        file: Which.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.file,)


@pytest.mark.slow
def test_nothing_of_a_store_from_somebody_else_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By no command: to read a value can run code."""
    path, canary = tmp_path / "store", tmp_path / "canary"
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "somebody else's key")
    with LMDBSaver(path) as saver:
        for number in range(2):
            commit(saver, number, {"n": Canary(canary), "m": [Canary(canary)]})
        assert not canary.exists()
        saver.load(next(saver.namespaces()))
        assert canary.exists()
    canary.unlink()
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "ours")

    for command, takes_thread in {
        **ANSWERS,
        "verify": 0,
        "doctor": 0,
        "backup": 2,
    }.items():
        words = [[], ["t"], [str(tmp_path / "backup")]][takes_thread]
        result = CliRunner().invoke(app, [command, *words, "--store", str(path)])
        assert Code.STORE == result.exit_code or command == "doctor", result.output
        assert not canary.exists(), command


@pytest.mark.slow
@pytest.mark.parametrize("place", ["values", "records"])
def test_a_store_that_holds_harms_nobody_who_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It may have come with its key: what is in its values, and in its records, is not
    run.
    """
    path, canary = tmp_path / "store", tmp_path / "canary"
    monkeypatch.delenv("FLOWPREGEL_STORE_KEY")
    with LMDBSaver(path) as saver:
        for number in range(2):
            commit(
                saver, number, {"n": Canary(canary), "m": [Canary(canary)], "k": number}
            )
    if place == "records":
        poison(path, canary)

    for command, takes_thread in {**ANSWERS, "verify": 0, "doctor": 0}.items():
        for more in ([], ["--json"]):
            words = ["t"] if takes_thread else []
            result = CliRunner().invoke(
                app, [command, *words, "--store", str(path), *more]
            )
            assert isinstance(result.exception, SystemExit | None) or place == "records"
            assert not canary.exists(), command
        if place == "values" and command == "state":
            assert "touch" in result.stdout


class NeverHashed(PythonCodec):
    """Encodes the text ``endless`` as a dict whose key has a hash of 2 to the power of
    60 steps.
    """

    def encode(self, value: Any) -> bytes:
        if value == "endless":
            return b"p\x80\x04})" + b"2\x86" * 60 + b"Ns."
        return super().encode(value)


@pytest.mark.slow
def test_a_value_whose_hash_never_ends_keeps_nobody_waiting(tmp_path: Path) -> None:
    """No command that looks, and not the page: they would stand still in C."""
    path = tmp_path / "store"
    metadata = {"run_id": "endless", "parents": "endless", "flow": "endless"}
    with LMDBSaver(path, codec=NeverHashed()) as saver:
        for number in range(2):
            checkpoint = replace(
                step(number, {"n": "endless", "m": number}), metadata=metadata
            )
            written = TaskWrites(id_of(number), "task", "path", (("n", "endless"),))
            saver.commit([Batch(Address("t"), (written,), checkpoint)])
        asked = TaskWrites(id_of(1), "other", "path", ((INTERRUPT, "endless"),))
        saver.commit([Batch(Address("t"), (asked,))])

    commands = [
        [command, *(["t"] if takes_thread else []), "--store", str(path), "--json"]
        for command, takes_thread in ANSWERS.items()
    ]
    # Nothing but another process can end one that stands still in C.
    code = (
        "import sys; from click.testing import CliRunner\n"
        "from flowpregel import LMDBSaver\n"
        "from flowpregel.cli.app import app\n"
        f"for words in {commands!r}:\n"
        "    done = CliRunner().invoke(app, words)\n"
        "    assert done.exit_code == 0, (words, done.output)\n"
        "from flowpregel._inspection.inert import InertCodec\n"
        "from flowpregel.plugins.page.pages import run_report\n"
        "saver = LMDBSaver(sys.argv[1], readonly=True, codec=InertCodec())\n"
        "print(len(run_report(saver, 't')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert 0 == done.returncode, done.stderr


def poison(path: Path, canary: Path) -> None:
    """Add the pickle of a canary to that of each record of a store, under its own
    key.
    """
    store = open_store(path, options=StoreOptions())
    tables = [
        store.table(name) for name in (b"threads", b"checkpoints", b"writes", b"deltas")
    ]

    def work(transaction: Any) -> None:
        for table in tables:
            for key, data in [*table.scan(transaction, b"")]:
                fields = (*pickle.loads(data)[:-1], Canary(canary))
                table.put(transaction, key, pickle.dumps(fields))

    store.environment.commits.write(work, timeout=10)
    store.close()
