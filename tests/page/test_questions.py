"""Questions in the page: each once, as the form that fits it; answers go together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowpregel import LMDBSaver
from flowpregel.errors import UnansweredError
from tests.page.browser import NEEDS_CHROMIUM, Tab, open_run
from tests.page.question_flows import QUESTIONS, ask, book
from tests.page.serving import Served, result_of, served

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]
STATUS = "document.querySelector('.head > .badge').textContent"
OPEN_FORMS = "document.querySelectorAll('.question form').length"
PRESSABLE = "[...document.querySelectorAll('.question button')].map(b => b.textContent)"


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Served]:
    """The page of a store with a run that asks three questions at once, and one of each
    kind of question.
    """
    with LMDBSaver(tmp_path / "store") as saver:
        with pytest.raises(UnansweredError):
            book.copy({"checkpointer": saver}).run(3, id="book")
        for name in QUESTIONS:
            with pytest.raises(UnansweredError):
                ask.copy({"checkpointer": saver}).run(name, id=name)
    with served(str(tmp_path / "store"), actions=True) as server:
        yield server


def open_question(tab: Tab, server: Served, thread: str) -> None:
    """Open a run, and wait until its questions are seen."""
    open_run(tab, server, thread)
    tab.until("document.querySelector('.question button')")


def test_each_question_is_asked_once_with_its_call(tab: Tab, asking: Served) -> None:
    open_question(tab, asking, "book")

    text = tab.run("document.querySelector('.asks').innerText")
    assert [1, 1, 1] == [text.count(f"is page {page} good?") for page in range(3)]
    assert 3 == tab.run(OPEN_FORMS)
    assert "review(1)" in text
    assert "It waits for 3 answers" in text


def test_answers_in_a_row_go_on_with_one_command(tab: Tab, asking: Served) -> None:
    """The focus goes from each to the next."""
    open_question(tab, asking, "book")
    tab.hold(".question input")
    for answer in ("yes", "no", "maybe"):
        tab.type(answer)
        tab.press("Enter")
    tab.until(f"{STATUS}.includes('done')")

    assert ["0: yes", "1: no", "2: maybe"] == result_of(asking, "book")
    assert asking.actions is not None
    assert 1 == len(asking.actions.commands("book"))


def test_some_answers_can_go_on_before_the_others(tab: Tab, asking: Served) -> None:
    """An answer can be changed until then; what is typed for the others stays."""
    open_question(tab, asking, "book")
    tab.hold(".question:nth-of-type(2) button[title='Answers true']")
    tab.until("document.querySelector('.question:nth-of-type(2) code')")
    tab.hold(".question:nth-of-type(2) button")
    tab.hold(".question:nth-of-type(2) button[title='Answers false']")
    tab.hold(".question:nth-of-type(1) input")
    tab.type("later")
    tab.hold(".send")
    tab.until("document.querySelector('#asks-title').textContent.includes('2 answers')")
    tab.until(f"{STATUS}.includes('asks')")
    tab.until("!document.querySelector('.send')")
    typed = "document.querySelector('.question input[type=text]').value"
    assert "later" == tab.run(typed)
    tab.hold(".question:nth-of-type(1) button[type=submit]")
    tab.hold(".question:nth-of-type(2) button[title='Answers true']")
    tab.until(f"{STATUS}.includes('done')")

    assert ["0: later", "1: False", "2: True"] == result_of(asking, "book")
    assert asking.actions is not None
    assert [0, 3] == [each["code"] for each in asking.actions.commands("book")]


def test_a_press_of_answer_shows_that_it_is_under_way(tab: Tab, asking: Served) -> None:
    open_question(tab, asking, "boolean")
    tab.run(
        """window.shown = new Set(); new MutationObserver(() => {
            const busy = document.querySelector(".asks [aria-busy]");
            if (busy) window.shown.add(busy.textContent);
        }).observe(document.body, { subtree: true, childList: true, attributes: true,
                                    characterData: true })"""
    )
    tab.hold(".question button")
    tab.until(f"{STATUS}.includes('done')")

    assert ["Sending 1 answer …"] == tab.run("[...window.shown]")
    assert "run-title" == tab.run("document.activeElement.id")
    assert result_of(asking, "boolean") is True


@pytest.mark.parametrize(
    ("thread", "buttons", "answer"),
    [
        ("options", ["left", "right"], "left"),
        ("labels", ["Fine"], 1),
        ("enum", ["slow", "fast"], "slow"),
        ("boolean", ["Yes", "No"], True),
        ("literal", ["slow", "fast"], "slow"),
    ],
)
def test_what_can_be_answered_is_a_button(
    tab: Tab, asking: Served, thread: str, buttons: list[str], answer: object
) -> None:
    open_question(tab, asking, thread)

    assert buttons == tab.run(PRESSABLE)
    tab.hold(".question button")
    tab.until(f"{STATUS}.includes('done')")
    assert answer == result_of(asking, thread)


@pytest.mark.parametrize(
    ("thread", "typed", "answer"),
    [
        ("number", "12345678901234567890", 12345678901234567890),
        ("text", "123", "123"),
    ],
)
def test_a_number_or_a_text_is_typed_into_its_field(
    tab: Tab, asking: Served, thread: str, typed: str, answer: object
) -> None:
    open_question(tab, asking, thread)
    tab.hold(".question input")
    tab.type(typed)
    tab.press("Enter")
    tab.until(f"{STATUS}.includes('done')")

    assert answer == result_of(asking, thread)


def test_a_wait_for_a_signal_is_no_question(tab: Tab, asking: Served) -> None:
    open_run(tab, asking, "pause")
    tab.until("document.querySelector('.sentence')?.textContent.includes('signal')")

    assert not tab.run("document.querySelector('.asks')")


def test_an_object_has_a_field_for_each_property(tab: Tab, asking: Served) -> None:
    open_question(tab, asking, "object")
    for name, text in (("name", "a"), ("tries", "3")):
        tab.hold(f".question [name={name}]")
        tab.type(text)
    tab.hold(".question [name=dry]")
    assert "How often" in tab.run("document.querySelector('.question').innerText")
    tab.hold(".question button")
    tab.until(f"{STATUS}.includes('done')")

    told = {"name": "a", "tries": 3, "dry": True, "kind": "quick"}
    assert told == result_of(asking, "object")


def test_markdown_is_shown_and_nothing_of_it_is_obeyed(
    tab: Tab, asking: Served
) -> None:
    open_question(tab, asking, "markdown")

    names = ["strong", "em", "code", "li", "pre", "blockquote", "a", "img", "b"]
    counts = tab.run(
        f"{json.dumps(names)}.map(name => document.querySelectorAll("
        "`.markdown ${name}`).length)"
    )
    assert [2, 1, 2, 2, 1, 1, 0, 0, 0] == counts
    text = tab.run("document.querySelector('.markdown').innerText")
    assert "x = <b>1</b>" in text
    assert "a link (https://flowpregel.example) <img" in text
    assert tab.run("window.hit") is None


def test_a_schema_that_refers_to_itself_does_no_harm(tab: Tab, asking: Served) -> None:
    """The question has a field for any answer then."""
    tab.open(asking.address)
    tab.until("document.querySelector('tbody a')")
    told = tab.run(
        """import('/static/questions.js').then(async ({ questionsView }) => {
            const schema = { $ref: "#/$defs/a", $defs: { a: { $ref: "#/$defs/a" } } };
            const row = { id: "c", text: "", questions: 1, began: 1 };
            const asked = { row, questions: [{ id: "q", value: "?", schema }] };
            const { fetch } = window;
            window.fetch = async () => new Response(JSON.stringify(asked));
            const asking = () => [row];
            const run = { thread: "t", row: { status: "waiting" }, asking };
            const view = questionsView({ run, start() {}, isPending: () => false });
            await view.update();
            window.fetch = fetch;
            return view.element.querySelectorAll("form input[name=answer]").length;
        })"""
    )
    assert 1 == told
