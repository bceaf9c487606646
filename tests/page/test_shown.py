"""What the server answers and what a report holds is inert, whatever the store
holds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from flowpregel import LMDBSaver
from flowpregel._inspection.inert import InertCodec
from flowpregel.cli.app import app
from flowpregel.plugins.page.pages import Pages, json_text, run_report
from flowpregel.plugins.page.scripts import MODULES, STATIC
from flowpregel.storage.lmdb.tables import LMDBTable
from tests.page.serving import served
from tests.page.stores import (
    HOSTILE,
    MARKUP,
    allow,
    hostile_store,
    long_store,
    plain_store,
    sums,
)

ASKS, FAILS = f"asks {HOSTILE}", f"fails {HOSTILE}"


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What exists once a pickle of the hostile store was read."""
    return tmp_path_factory.mktemp("canary") / "hit"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, canary: Path) -> str:
    """A store that is full of what must not be obeyed."""
    return hostile_store(tmp_path_factory.mktemp("hostile") / "store", canary)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a run that is done, one that failed and one that waits."""
    return plain_store(tmp_path_factory.mktemp("plain") / "store")


@pytest.fixture
def pages(plain: str) -> Iterator[Pages]:
    """What the page shows of it."""
    with (
        LMDBSaver(plain, readonly=True, codec=InertCodec()) as saver,
        closing(Pages(saver)) as pages,
    ):
        yield pages


def calls_of(pages: Pages, thread: str) -> dict[str, dict[str, Any]]:
    """Return the calls of a run by how they are read, or by their names."""
    told = pages.calls(thread)
    columns = ("number", *told["columns"])
    rows = [dict(zip(columns, cells, strict=True)) for cells in told["rows"]]
    return {row["text"] or row["name"]: row for row in rows}


def test_each_answer_is_ascii_without_markup_and_no_pickle_is_obeyed(
    hostile: str, canary: Path
) -> None:
    with served(hostile) as server:
        asked = ["runs"]
        for thread in (ASKS, FAILS):
            name = quote(thread)
            asked += [
                f"run?thread={name}",
                f"calls?thread={name}",
                f"timeline?thread={name}",
                f"graph?thread={name}",
                f"steps?thread={name}",
            ]
            rows = json.loads(server.ask(f"/api/calls?thread={name}").body)["rows"]
            for what in ("call", "logs"):
                asked += [f"{what}?thread={name}&call={cells[1]}" for cells in rows]
            steps = json.loads(server.ask(f"/api/steps?thread={name}").body)
            asked += [f"step?thread={name}&checkpoint={each['id']}" for each in steps]
        answers = [server.ask(f"/api/{path}") for path in asked]

    for answer in answers:
        assert 200 == answer.status, answer.body
        assert answer.body.isascii()
        assert answer.body.isprintable()
        assert not {"<", ">", "&"} & {*answer.body}
        assert "application/json" == answer.headers["content-type"]
    assert HOSTILE in json.loads(answers[0].body)["runs"][0]["thread_id"]
    assert f"{HOSTILE}\n" in [json.loads(answer.body) for answer in answers]
    assert len(answers) > 10
    assert any("Canary" in answer.body or "mkdir" in answer.body for answer in answers)
    assert not canary.exists()


def test_a_report_holds_nothing_that_ends_an_element_or_asks_for_something(
    hostile: str, canary: Path
) -> None:
    with LMDBSaver(hostile, readonly=True, codec=InertCodec()) as saver:
        page = run_report(saver, FAILS)

    assert not canary.exists()
    assert MARKUP not in page
    assert 2 == page.count("<script") == page.count("</script>")
    assert 1 == page.count("<style") == page.count("</style>")
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert "https:" not in page
    policy = re.search(
        r"http-equiv=\"content-security-policy\" content=\"([^\"]+)\"", page
    )
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    kept = re.search(r'id="answers">(.*?)</script>', page)
    assert kept is not None
    assert FAILS == json.loads(kept[1])["run:"]["thread_id"]


def test_the_command_writes_a_report(plain: str, tmp_path: Path) -> None:
    output = tmp_path / "run.html"
    words = ["report", "adds", "--store", plain, "--output", str(output), "--json"]

    result = CliRunner().invoke(app, words)

    assert 0 == result.exit_code, result.output
    assert output.stat().st_size == json.loads(result.stdout)["bytes"]
    assert output.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("was_there", [False, True])
def test_nobody_else_may_read_a_report(
    plain: str, tmp_path: Path, was_there: bool
) -> None:
    """It shows arguments and results; one that was there is closed to others."""
    output = tmp_path / "run.html"
    if was_there:
        output.write_text("an older one")
        output.chmod(0o644)
    before = os.umask(0)
    try:
        result = CliRunner().invoke(
            app, ["report", "adds", "--store", plain, "--output", str(output)]
        )
    finally:
        os.umask(before)

    assert 0 == result.exit_code, result.output
    assert 0o600 == output.stat().st_mode & 0o777


@pytest.mark.parametrize(
    "words", [["nobody"], ["adds", "--output", "/no/such/folder/run.html"]]
)
def test_a_report_that_cannot_be_written_is_told(plain: str, words: list[str]) -> None:
    assert 2 == CliRunner().invoke(app, ["report", *words, "--store", plain]).exit_code


def test_a_report_has_all_modules_and_no_name_twice() -> None:
    assert {*MODULES} == {file.stem for file in STATIC.glob("*.js")}
    names: list[str] = []
    for file in STATIC.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        found = re.findall(
            r"(?m)^(?:export )?(?:async )?(?:const|let|function|class) (.+)", text
        )
        for each in found:
            names += re.findall(
                r"\w+", each.partition("=")[0] if "[" in each else each
            )[:1]
    assert [*sorted({*names})] == sorted(names)


def test_a_handle_shows_itself_in_a_notebook_in_a_frame_of_its_own(
    tmp_path: Path,
) -> None:
    with LMDBSaver(tmp_path / "store") as saver:
        handle = sums.copy({"checkpointer": saver}).start([1, 2], id="adds <b>")
        handle.result()
        shown = handle._repr_html_()

    assert shown is not None
    assert shown.startswith('<iframe sandbox="allow-scripts" srcdoc="&lt;!doctype html')
    assert 1 == shown.count("<") - 1
    assert "adds <b>" not in shown


def test_a_handle_of_a_run_that_nothing_keeps_shows_no_page() -> None:
    handle = sums.start([1, 2])
    handle.result()

    assert handle._repr_html_() is None


def test_a_call_is_told_with_its_arguments_result_and_error(pages: Pages) -> None:
    done = calls_of(pages, "adds")["double(2)"]
    failed = calls_of(pages, "divides")["invert(0)"]

    kept, lost = pages.call("adds", done["id"]), pages.call("divides", failed["id"])

    assert ("done", 4) == (kept["row"]["state"], kept["result"])
    assert "failed" == lost["row"]["state"]
    assert {"items": [("0", 0)]} == lost["arguments"]
    assert "ZeroDivisionError" in lost["row"]["error"]
    assert "return 1 / n" in lost["attempts"][-1]["traceback"]


def test_a_question_is_told_with_its_id(pages: Pages) -> None:
    asking = next(row for row in calls_of(pages, "asks").values() if row["questions"])
    [question] = pages.call("asks", asking["id"])["questions"]

    with LMDBSaver(pages.path, readonly=True) as saver:
        state = allow.copy({"checkpointer": saver}).get_state(thread_id="asks")
    assert [question["id"]] == [each.id for each in state.interrupts]
    assert ("question", "Publish it?") in question["value"]["items"]


def test_a_run_is_told_in_a_sentence_with_the_next_command(
    pages: Pages, plain: str
) -> None:
    """In a report, which goes to others, without the path of the store."""
    fails = pages.run("divides")["text"]
    with LMDBSaver(plain, readonly=True, codec=InertCodec()) as saver:
        report = run_report(saver, "divides")

    assert "failed" == fails["situation"]
    assert fails["sentence"].startswith("Failed: invert(0): ZeroDivisionError: ")
    assert fails["command"].endswith(f"retry divides --store {plain}")
    assert ("done", "Done.") == tuple(
        pages.run("adds")["text"][name] for name in ("situation", "sentence")
    )
    assert "flowpregel answer asks VALUE" in pages.run("asks")["text"]["command"]
    assert "flowpregel retry divides" in report
    assert plain not in report


def test_a_superstep_is_told_with_what_it_changed(pages: Pages) -> None:
    newest, *_, first = pages.steps("adds")

    after = {
        each["name"]: each for each in pages.step("adds", newest["id"])["channels"]
    }
    before = {
        each["name"]: each for each in pages.step("adds", first["id"])["channels"]
    }

    assert [1, 2, 3] == before["input"]["value"]
    assert {"name": "result", "changed": True, "value": 12} == after["result"]
    assert "value" not in after["input"]
    assert [1, 2, 3] == after["input"]["before"]


def test_the_newest_of_many_supersteps_are_told_and_more_if_asked_for(
    tmp_path: Path,
) -> None:
    with served(long_store(tmp_path / "store", 300)) as server:
        told, more = (
            json.loads(server.ask(f"/api/steps?thread=long{most}").body)
            for most in ("", "&most=1000")
        )

    assert [*range(300, 100, -1)] == [step["step"] for step in told]
    assert [*range(300, -2, -1)] == [step["step"] for step in more]


def test_a_report_looks_up_each_call_at_its_own_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[bytes] = []
    get = LMDBTable.get

    def counted(table: LMDBTable, transaction: Any, key: bytes) -> bytes | None:
        looked_up.append(key)
        return get(table, transaction, key)

    monkeypatch.setattr(LMDBTable, "get", counted)
    counts = []
    for supersteps in (25, 50):
        path = long_store(tmp_path / f"store{supersteps}", supersteps)
        with LMDBSaver(path, readonly=True, codec=InertCodec()) as saver:
            looked_up.clear()
            run_report(saver, "long")
        counts.append(len(looked_up))

    few, many = counts
    # Were each looked up at all checkpoints, twice as many would take four times as
    # much.
    assert many <= 2 * few


@pytest.mark.parametrize(
    "path",
    [
        "run?thread=x",
        "calls",
        "call?thread=adds&call=x",
        "step?thread=adds&checkpoint=x",
        "calls?thread=adds&since=x",
        "calls?thread=adds&count=1001",
        "calls?thread=adds&state=lost",
        "calls?thread=adds&colour=red",
        "timeline?thread=adds&begin=x",
    ],
)
def test_what_is_not_there_is_an_error_in_words(plain: str, path: str) -> None:
    with served(plain) as server:
        answer = server.ask(f"/api/{path}")

    assert 404 == answer.status
    assert json.loads(answer.body)["error"]


@pytest.mark.parametrize("text", ["</script>", "\ud800", "\u2028", "\x00", "é", "&lt;"])
def test_text_comes_back_as_it_was(text: str) -> None:
    assert text == json.loads(json_text(text))
