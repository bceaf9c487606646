"""Ten questions of a person before the page, each answered with at most two presses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from flowpregel import LMDBSaver, entrypoint, task
from flowpregel.errors import UnansweredError
from flowpregel.runtime import Runtime
from tests.page.browser import NEEDS_CHROMIUM, Tab
from tests.page.serving import Served, served
from tests.page.stores import allow

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]
MOST_PRESSES = 2
RUN = 'tbody a[href*="run/sweep-2"]'


@task
def load(name: str) -> list[float]:
    return [float(len(name)), 0.5]


@task
def train(
    rows: list[float], depth: int, seed: int, *, runtime: Runtime
) -> dict[str, float]:
    print(f"training with seed {seed}")
    runtime.metric("epochs", 3)
    if depth == 12:
        raise FloatingPointError(f"loss is nan at epoch {seed}")
    return {"loss": 1 / (1 + seed)}


@entrypoint(executor="processes")
def sweep(name: str) -> float:
    rows = load(name).result()
    futures = [train(rows, (8, 12)[seed % 4 == 0], seed) for seed in range(24)]
    losses = [f.result()["loss"] for f in futures if not f.exception()]
    return min(losses)


@dataclass
class Person:
    """A person before the list of runs, whose presses are counted."""

    tab: Tab
    presses: int = 0

    def press(self, selector: str) -> None:
        """Press an element, once it is there."""
        self.presses += 1
        assert self.presses <= MOST_PRESSES
        self.tab.hold(selector)

    def open_run(self) -> None:
        """Open the run that failed in part, and wait until nothing moves any more."""
        self.press(RUN)
        self.tab.until("document.querySelector('.kinds .condition')")
        self.tab.until("document.querySelector('.window .row a')")

    def open_view(self, name: str) -> None:
        """Open the run, and a view of it."""
        self.open_run()
        self.press(f'.tabs a[href$="/{name}"]')

    def reads(self, selector: str, *texts: str) -> None:
        """Check that elements show the texts, in the end."""
        for text in texts:
            self.tab.until(
                f"[...document.querySelectorAll({selector!r})]"
                f".some(element => element.innerText.includes({text!r}))"
            )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of two sweeps with calls that failed, and of a run that asks."""
    store = str(tmp_path_factory.mktemp("questions") / "store")
    with LMDBSaver(store) as saver:
        flow = sweep.copy({"checkpointer": saver})
        for name in ("sweep-1", "sweep-2"):
            flow.run(f"{name}.csv", id=name)
        with pytest.raises(UnansweredError):
            allow.copy({"checkpointer": saver}).run("the report", id="asks")
    with served(store) as server:
        yield server


@pytest.fixture
def person(tab: Tab, server: Served) -> Person:
    tab.open(server.address)
    tab.until("document.querySelector('tbody a')")
    return Person(tab)


def test_what_waits_for_me(person: Person) -> None:
    person.press('tbody a[href*="run/asks"]')

    person.reads(".asks", "Publish it?")


def test_what_was_it_given(person: Person) -> None:
    person.reads("tbody", "sweep-2.csv")


def test_did_earlier_runs_fail_too(person: Person) -> None:
    person.tab.until("document.querySelectorAll('.strip a').length >= 2")
    person.press(".strip a[href*='sweep-1']")

    person.reads("h1", "sweep-1")


def test_what_do_i_do_next(person: Person) -> None:
    person.press(RUN)

    person.reads(".sentence", "6 calls failed")
    person.reads(".next", "flowpregel retry")


def test_which_parameters_fail(person: Person) -> None:
    person.press(RUN)

    person.reads(".kinds", "FloatingPointError", "only where depth = 12")


def test_why_did_this_call_fail(person: Person) -> None:
    person.open_run()
    person.press(".window .row a")

    person.reads(".panel pre", "raise FloatingPointError")


def test_why_is_it_slow(person: Person) -> None:
    person.open_view("time")

    person.reads(".content", "train", "waiting for a worker")


def test_what_did_call_17_return(person: Person) -> None:
    person.open_run()
    person.tab.run("document.querySelector('.bar input[type=search]').focus()")
    person.tab.type("seed:17")
    person.tab.until("document.querySelectorAll('.window .row a').length === 1")
    person.press(".window .row a")

    person.reads(".panel", "0.0555")


def test_where_do_its_arguments_come_from(person: Person) -> None:
    person.open_view("graph")

    edges = (
        "[...document.querySelectorAll('.edge title')].map(edge => edge.textContent)"
    )
    person.tab.until("document.querySelector('.edge')")
    assert "load → train: 24 calls received its results" in person.tab.run(edges)


def test_what_did_it_print(person: Person) -> None:
    person.open_view("logs")

    person.reads(".log", "training with seed 23")
