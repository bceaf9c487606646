"""The buttons start the command's own siblings, and nothing else."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver
from flowpregel._core.records import Address
from flowpregel.errors import ConfigurationError
from flowpregel.plugins.page.actions import ACTIONS, Actions
from tests.page.serving import Served, served
from tests.page.stores import plain_store


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with a run of each kind."""
    return plain_store(tmp_path / "store")


def ended(actions: Actions, thread: str) -> dict[str, Any]:
    """Return the last command of a thread once it has ended."""
    while (last := actions.commands(thread)[0])["code"] is None:
        time.sleep(0.01)
    return last


def status_of(store: str, thread: str) -> str:
    """Return how a thread stands."""
    with LMDBSaver(store, readonly=True) as saver:
        return {info.thread_id: info.status for info in saver.threads()}[thread]


def question_of(server: Served, thread: str) -> str:
    """Return the id of the question that a run asks."""
    page = json.loads(server.ask(f"/api/calls?thread={thread}").body)
    columns = ["number", *page["columns"]]
    calls = [dict(zip(columns, cells, strict=True)) for cells in page["rows"]]
    asking = next(call["id"] for call in calls if call["questions"])
    detail = json.loads(server.ask(f"/api/call?thread={thread}&call={asking}").body)
    return str(detail["questions"][0]["id"])


def test_a_question_is_answered_through_the_server(store: str) -> None:
    with served(store, actions=True) as server:
        given = {"question": question_of(server, "asks"), "value": "yes", "text": True}
        body = json.dumps({"thread": "asks", "answers": [given]}).encode()
        answer = server.ask("/api/actions/answer", "POST", body)
        assert 202 == answer.status, answer.body
        assert server.actions is not None
        assert 0 == ended(server.actions, "asks")["code"]

    assert "done" == status_of(store, "asks")
    with LMDBSaver(store) as saver:
        saved = saver.load(Address("asks"))
    assert saved is not None
    assert "the report: yes" == saved.checkpoint.values["__end__"]


@pytest.mark.parametrize(
    ("value", "text", "word"),
    [
        ("yes", False, '"yes"'),
        ("7", False, "7"),
        ("7", True, '"7"'),
        ('{"a": [1, true]}', False, '{"a": [1, true]}'),
        ("\0", False, '"\\u0000"'),
        ("--help", False, '"--help"'),
    ],
)
def test_an_answer_is_json_or_text(value: str, text: bool, word: str) -> None:
    actions = Actions("no such store")
    answer = {"question": "q", "value": value, "text": text}
    actions.start("answer", "t", answers=[answer, {**answer, "question": "r"}])

    line = ended(actions, "t")["line"]
    assert ["--id=q", "--id=r"] == shlex.split(line)[3:5]
    assert ["--", "t", word, word] == shlex.split(line)[-4:]


def test_a_fork_and_what_is_taken_back_are_commands(store: str) -> None:
    actions = Actions(store)
    with LMDBSaver(store) as saver:
        checkpoint = next(iter(saver.history(Address("adds")))).checkpoint.id

    actions.start("fork", "adds", checkpoint=checkpoint, name="--again")
    forked = ended(actions, "adds")
    actions.start("redo", "adds", call="double(1)")
    redone = ended(actions, "adds")

    assert 0 == forked["code"], forked
    assert "done" == status_of(store, "--again")
    assert 0 == redone["code"], redone
    assert "stopped" == status_of(store, "adds")
    actions.start("resume", "adds")
    assert 0 == ended(actions, "adds")["code"]
    assert "done" == status_of(store, "adds")
    assert [3, 2, 1] == [each["number"] for each in actions.commands("adds")]


@pytest.mark.parametrize(
    "thread", ["--help", "-h", "--store=elsewhere", "$(touch hit)", "a; touch hit"]
)
def test_what_is_typed_is_no_option_and_no_line_of_a_shell(
    store: str, thread: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    actions = Actions(store)

    actions.start("cancel", thread)
    last = ended(actions, thread)

    assert 2 == last["code"]
    assert f"has no thread {thread!r}" in last["output"]
    assert not (tmp_path / "hit").exists()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("value", [5, None, "\0", "\ud800"])
def test_what_no_command_line_can_hold_is_refused(value: object) -> None:
    """And nothing of it stays open."""
    before = len(os.listdir("/dev/fd"))

    with pytest.raises(ConfigurationError, match="must be text"):
        Actions("store").start("fork", "t", checkpoint="c", name=value)

    assert before == len(os.listdir("/dev/fd"))


def test_a_failure_of_a_command_is_told(store: str) -> None:
    actions = Actions(store)
    actions.start("cancel", "adds")

    assert "nothing runs on thread 'adds'" in ended(actions, "adds")["output"]
    assert [] == actions.commands("another")


@pytest.mark.parametrize("value", ["[1,", ' {"a": }', '"yes'])
def test_what_begins_as_json_is_not_sent_as_text(store: str, value: str) -> None:
    """A run went on with the text of a list that was not typed to its end."""
    actions = Actions(store)
    answer = {"question": "q", "value": value, "text": False}
    with pytest.raises(ConfigurationError, match=r"not valid JSON .* 'as text'"):
        actions.start("answer", "t", answers=[answer])
    with pytest.raises(ConfigurationError, match="not valid JSON"):
        actions.start("signal", "t", name="paid", value=value, text=False)

    assert [] == actions.commands()


@pytest.mark.parametrize(
    "action", ["run", "rm", "encrypt", "", "answer --help", "../cancel"]
)
def test_no_other_command_can_be_started(store: str, action: str) -> None:
    assert action not in ACTIONS
    with pytest.raises(ConfigurationError, match="is incomplete"):
        Actions(store).start(action, "adds")


@pytest.mark.parametrize(
    ("action", "asked"),
    [
        ("answer", {}),
        ("answer", {"answers": []}),
        ("answer", {"answers": 5}),
        ("answer", {"answers": ["a"]}),
        ("answer", {"answers": [{"question": "a", "text": True}]}),
        ("answer", {"answers": [{"question": "a", "value": 1, "text": False}]}),
        ("answer", {"answers": [{"question": "\0", "value": "1", "text": False}]}),
        ("redo", {"call": ["a"]}),
        ("cancel", {"wait": "--trust"}),
        ("fork", {"checkpoint": "a"}),
    ],
)
def test_a_request_that_is_not_complete_starts_nothing(
    store: str, action: str, asked: dict[str, Any]
) -> None:
    actions = Actions(store)
    with pytest.raises(ConfigurationError):
        actions.start(action, "adds", **asked)

    assert [] == actions.commands("adds")
