"""The status of a run is a sentence with a button, in each situation."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver
from tests.page.browser import NEEDS_CHROMIUM, Tab, open_run
from tests.page.serving import result_of, served
from tests.page.status_flows import lenient, nap, strict, wait
from tests.page.stores import plain_store, running_python, steady
from tests.page.waits import stopped_where_it_waits

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]
BADGE = "document.querySelector('.head > .badge').textContent"
WAIT = "tests.page.status_flows:wait"
SENTENCE = "document.querySelector('.sentence').textContent"
BUTTON = ".head .button"
LABEL = f"document.querySelector('{BUTTON}').textContent"
COUNTS = (
    "[...document.querySelectorAll('.counts .badge')]"
    ".map(badge => badge.lastChild.textContent)"
)
IS_FULL = "document.querySelector('.meter .rest') === null"


def sentence_of(tab: Tab, begin: str) -> str:
    """Return the sentence, once it begins so."""
    tab.until(f"{SENTENCE}.startsWith({begin!r})")
    return str(tab.run(SENTENCE))


def test_a_run_that_sleeps_is_woken_by_its_button(tab: Tab, tmp_path: Path) -> None:
    with LMDBSaver(tmp_path / "store") as saver, stopped_where_it_waits():
        nap.copy({"checkpointer": saver}).run(3600.0, id="nap")
    with served(str(tmp_path / "store"), actions=True) as server:
        open_run(tab, server, "nap")
        assert sentence_of(tab, "Sleeps until 20").endswith(" UTC.")
        assert "☾sleeps" == tab.run(BADGE)
        assert "☾ sleeps · nap · flowpregel" == tab.run("document.title")
        assert "Wake now" == tab.run(LABEL)
        assert not tab.run(IS_FULL)
        assert not tab.run("document.querySelector('.asks')")

        tab.hold(BUTTON)
        sentence_of(tab, "Done.")

        assert tab.run(IS_FULL)
        assert "awake" == result_of(server, "nap")


@pytest.mark.parametrize(
    ("pause", "sentence", "label", "words"),
    [
        ({"flows": [WAIT]}, "Its flow is paused", "Unpause the flow", f"--flow={WAIT}"),
        ({"everything": True}, "All runs are paused", "Unpause all runs", "--all"),
        ({"threads": ["order"]}, "It is paused", "Unpause", "-- order"),
    ],
)
def test_a_pause_ends_by_its_button(
    tab: Tab,
    tmp_path: Path,
    pause: dict[str, Any],
    sentence: str,
    label: str,
    words: str,
) -> None:
    """Whatever is paused: the run, its flow, or everything."""
    with LMDBSaver(tmp_path / "store") as saver, stopped_where_it_waits():
        wait.copy({"checkpointer": saver}).run("paid", id="order")
    with LMDBSaver(tmp_path / "store") as saver:
        saver.pause(**{"threads": [], **pause})
    with served(str(tmp_path / "store"), actions=True) as server:
        open_run(tab, server, "order")
        tab.until(f"{SENTENCE}.includes({sentence!r})")
        button = (
            "[...document.querySelectorAll('.head .button')]"
            ".find(button => button.textContent.startsWith('Unpause'))"
        )
        assert label == tab.run(f"{button}.textContent")
        tab.run(f"{button}.id = 'unpause'")
        tab.hold("#unpause")
        tab.until(f"!{SENTENCE}.includes('paused') && !{button}")

        assert server.actions is not None
        (command,) = server.actions.commands("order")
        assert words in command["line"]


def test_a_signal_is_sent_with_a_value_and_the_run_goes_on(
    tab: Tab, tmp_path: Path
) -> None:
    with LMDBSaver(tmp_path / "store") as saver, stopped_where_it_waits():
        wait.copy({"checkpointer": saver}).run("paid", id="order")
    with served(str(tmp_path / "store"), actions=True) as server:
        open_run(tab, server, "order")
        sentence_of(tab, "Waits for the signal 'paid'.")
        assert "paid" == tab.run(
            "document.querySelector('.head form code').textContent"
        )

        tab.hold(".head form [name=value]")
        tab.type("12.5")
        tab.hold(".head form button")
        sentence_of(tab, "Done.")

        assert 12.5 == result_of(server, "order")


def test_a_run_that_asks_has_its_question_and_its_forms(
    tab: Tab, tmp_path: Path
) -> None:
    with served(plain_store(tmp_path / "store"), actions=True) as server:
        open_run(tab, server, "asks")
        assert "Publish it?" in sentence_of(tab, "Waits for an answer to")
        tab.until("document.querySelector('.question form')")
        assert not tab.run(IS_FULL)


def test_a_run_that_failed_is_tried_again(tab: Tab, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with LMDBSaver(tmp_path / "store") as saver, pytest.raises(ZeroDivisionError):
        strict.copy({"checkpointer": saver}).run(str(flag), id="strict")
    with served(str(tmp_path / "store"), actions=True) as server:
        open_run(tab, server, "strict")
        sentence = sentence_of(tab, "Failed: divide(")
        assert sentence.endswith("there is no 7; 1 result is stored.")
        assert "Try again what failed" == tab.run(LABEL)
        tab.until(f"{COUNTS}.join() === '1 failed,1 done'")  # the body is no call
        assert not tab.run(IS_FULL)

        flag.touch()
        tab.hold(BUTTON)
        sentence_of(tab, "Done.")

        assert tab.run(IS_FULL)
        # It stays, so that no other filter moves under a press.
        tab.until("document.querySelector('.chip.failed').textContent.endsWith('0')")
        assert 7 == result_of(server, "strict")


def test_the_failed_calls_of_a_run_that_is_done_are_counted_and_tried_again(
    tab: Tab, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    with LMDBSaver(tmp_path / "store") as saver:
        assert 3 == lenient.copy({"checkpointer": saver}).run(str(flag), id="lenient")
    with served(str(tmp_path / "store"), actions=True) as server:
        open_run(tab, server, "lenient")
        sentence_of(tab, "Done, but 2 calls failed.")
        assert "✕done, some failed" == tab.run(BADGE)
        assert "✕ done, some failed · lenient · flowpregel" == tab.run("document.title")
        assert "Try 2 again" == tab.run(LABEL)
        chips = "[...document.querySelectorAll('.chip .number')].map(e => e.innerText)"
        tab.until(f"{chips}.join() === '2,0,0,0,3'")
        assert ["2 failed", "3 done"] == tab.run(COUNTS)
        assert 6 == tab.run("document.querySelectorAll('.rows .row').length")

        tab.run("location.hash = '#/'")
        tab.until("document.querySelector('.strip .partly-failed')")
        name = tab.run("document.querySelector('.strip .partly-failed').ariaLabel")
        assert "lenient: done, 2 failed" in name
        tab.hold(".strip .partly-failed")
        sentence_of(tab, "Done, but 2 calls failed.")
        flag.touch()
        tab.hold(BUTTON)
        sentence_of(tab, "Done.")

        assert 5 == result_of(server, "lenient")


def test_a_run_is_cancelled_and_goes_on(tab: Tab, tmp_path: Path) -> None:
    with steady(tmp_path) as store, served(store, actions=True) as server:
        tab.open(server.address)
        tab.until("document.querySelector('tbody a')")
        open_run(tab, server, "steady")
        tab.until(f"/^Running in process .* now/.test({SENTENCE})")
        assert "Cancel" == tab.run(LABEL)
        assert not tab.run(IS_FULL)

        tab.hold(BUTTON)
        sentence = sentence_of(tab, "Stopped before its end; ")

        assert " results are stored." in sentence
        assert "Resume" == tab.run(LABEL)
        (tmp_path / "stop").touch()
        tab.hold(BUTTON)
        sentence_of(tab, "Done.")


def test_calls_that_wait_for_a_worker_and_a_run_that_is_killed(
    tab: Tab, tmp_path: Path
) -> None:
    """The page has watched the run, so it knows what was lost."""
    store = str(tmp_path / "store")
    LMDBSaver(store).close()
    words = ["-m", "tests.page.status_flows", store, str(tmp_path)]
    with running_python(*words) as process, served(store, actions=True) as server:
        tab.open(server.address)
        tab.until("document.querySelectorAll('tbody a').length === 2")
        open_run(tab, server, "late")
        sentence_of(tab, "Waiting for a worker: 1 call of process ")
        assert "…queued" == tab.run(BADGE)
        open_run(tab, server, "crowd")
        tab.until(f"{SENTENCE}.includes('1 call runs now, 2 more wait for a worker')")

        os.killpg(process.pid, signal.SIGKILL)
        sentence = sentence_of(tab, "Killed: process ")

        end = "; 3 results are stored, 1 call had begun, 2 had not."
        assert sentence.endswith(f"ended unexpectedly{end}")
        lost = tab.run(
            "[...document.querySelectorAll('.lost')].map(e => e.textContent)"
        )
        assert [True, True] == ["hold(" in lost[0], "hold \u00d7 2" in lost[1]]
        assert not tab.run(IS_FULL)
        (tmp_path / "go").touch()
        tab.hold(BUTTON)
        sentence_of(tab, "Done.")
        assert 6 == result_of(server, "crowd")
