"""The page in a real browser: what is seen, what keys do, and what is not obeyed.

With FLOWPREGEL_PICTURES=FOLDER the pictures of the docs are written there.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from flowpregel import LMDBSaver
from flowpregel._inspection.inert import InertCodec
from flowpregel.plugins.page.pages import notebook_report, run_report
from tests.page.browser import NEEDS_CHROMIUM, PICTURES, Tab, keep_picture, open_run
from tests.page.serving import Served, served
from tests.page.stores import HOSTILE, census, hostile_store, long_store, plain_store
from tests.runs import queue_flows

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]
STDLIB = Path(sysconfig.get_paths()["stdlib"])
Picture = Callable[[str], None]
TITLE = "document.querySelector('h1').textContent"
COUNT_OF = (
    "(state => Number(document.querySelector(`.counts .${state}`)"
    "?.textContent.match(/[0-9,]+/)[0].replace(',', '') ?? 0))"
)
STATUS = "document.querySelector('.head > .badge').textContent"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a store with a run that is done, one that failed and one that
    waits.
    """
    with served(plain_store(tmp_path_factory.mktemp("plain") / "store")) as server:
        yield server


@pytest.fixture
def picture(tab: Tab, tmp_path: Path) -> Picture:
    """Take a picture for the docs."""
    return partial(keep_picture, tab, tmp_path)


# ------------------------------------------------ what is seen


def test_the_list_shows_each_run_and_the_secret_is_gone_from_the_address(
    tab: Tab, server: Served
) -> None:
    tab.open(server.address)
    tab.until("document.querySelectorAll('tbody tr').length === 3")

    shown = tab.run("document.querySelector('.flows').innerText")
    assert {"adds", "divides", "asks", "done", "failed"} <= {*shown.split()}
    assert "/" == tab.run("location.pathname + location.search")
    assert "" == tab.run("document.cookie")
    tab.run("document.querySelector('input').value = 'div'")
    tab.run("document.querySelector('input').dispatchEvent(new Event('input'))")
    tab.until("document.querySelectorAll('tbody a').length === 1")
    assert ["divides"] == tab.run(
        "[...document.querySelectorAll('tbody a')].map(a => a.text)"
    )


def test_the_list_shows_what_is_enqueued(tab: Tab, tmp_path: Path) -> None:
    """With a filter of its own, and nothing to resume yet."""
    with LMDBSaver(tmp_path) as saver:
        flow = queue_flows.note.copy({"checkpointer": saver})
        flow.enqueue("file", "line", id="tonight")

    with served(str(tmp_path)) as server:
        tab.open(server.address)
        tab.until("document.querySelector('tbody .badge')")
        badge = tab.run("document.querySelector('tbody .badge').textContent")
        chips = tab.run("document.querySelector('.chips').innerText")

    assert "enqueued" in badge
    assert "enqueued" in chips


def test_a_failed_call_is_shown_with_its_arguments_and_traceback(
    tab: Tab, server: Served
) -> None:
    open_run(tab, server, "divides")
    tab.until("document.querySelector('.row a[title=\"invert(0)\"]')")
    tab.run("document.querySelector('.row a[title=\"invert(0)\"]').click()")
    tab.until("document.querySelector('.panel pre')")

    panel = tab.run("document.querySelector('.panel').innerText")
    assert "return 1 / n" in panel
    assert "Arguments" in panel
    assert "ZeroDivisionError" in panel


def test_the_slider_travels_in_time(tab: Tab, server: Served) -> None:
    open_run(tab, server, "adds", "steps")
    tab.until("document.querySelector('.channel.changed')")
    assert "12" in tab.run("document.querySelector('.travel').innerText")

    tab.run("document.querySelector('input[type=range]').value = 0")
    tab.run(
        "document.querySelector('input[type=range]').dispatchEvent(new Event('input'))"
    )
    tab.until("document.querySelector('.travel h2').textContent === 'Input'")
    tab.until("document.querySelector('.channel').innerText.includes('list of 3')")


def test_of_many_supersteps_the_older_ones_are_a_button_away(
    tab: Tab, tmp_path: Path
) -> None:
    with served(long_store(tmp_path / "store", 300)) as server:
        open_run(tab, server, "long", "steps")
        tab.until(
            "document.querySelector('.bar').innerText.includes('newest 200 of 302')"
        )
        tab.run("document.querySelector('.bar button').click()")
        tab.until("document.querySelectorAll('.steps li').length === 302")


# ------------------------------------------------ keys, and those who do not see it


def test_the_keyboard_is_enough(tab: Tab, server: Served) -> None:
    open_run(tab, server, "adds")
    tab.until("document.querySelectorAll('.row a').length === 4")
    tab.run("document.querySelector('.row a').focus()")
    first = tab.run("document.activeElement.text")

    tab.press("ArrowDown")
    second = tab.run("document.activeElement.text")
    tab.press("Enter")
    tab.until("document.querySelector('.panel h2')")
    opened = tab.run("document.querySelector('.panel h2').textContent")
    tab.press("Escape")
    tab.until("!document.querySelector('.panel')")

    assert first != second
    assert second == opened


def test_the_first_key_leads_past_the_head(tab: Tab, server: Served) -> None:
    tab.open(server.address)
    tab.until("document.querySelector('tbody a')")
    tab.press("Tab")

    assert "Skip to the content" == tab.run("document.activeElement.textContent")


@pytest.mark.parametrize("view", ["", "calls", "timeline", "graph", "steps"])
def test_a_screen_reader_finds_its_way(tab: Tab, server: Served, view: str) -> None:
    """Landmarks, one title, names of all that is pressed or typed into, news that are
    spoken.
    """
    tab.open(server.address)
    tab.until("document.querySelector('tbody a')")
    if view:
        open_run(tab, server, "asks", view)

    assert [1, 1, 1] == tab.run(
        "['main', 'header', 'h1'].map(name => document.querySelectorAll(name).length)"
    )
    assert "en" == tab.run("document.documentElement.lang")
    assert "polite" == tab.run(
        "document.querySelector('#said').getAttribute('aria-live')"
    )
    # What is in closed details has text, but none that is rendered.
    text = "(each.checkVisibility() ? each.innerText : each.textContent)"
    named = f"each.getAttribute('aria-label') || {text} || each.closest('label')"
    nameless = f"each => !({named})"
    every = (
        "[...document.querySelectorAll('button, a, input, select, canvas, nav, aside')]"
    )
    assert [] == tab.run(f"{every}.filter({nameless}).map(each => each.outerHTML)")
    tree = tab.send("Accessibility.getFullAXTree")["nodes"]
    assert "asks" in {node.get("name", {}).get("value") for node in tree} or not view


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast_enough(tab: Tab, server: Served, dark: bool) -> None:
    """Each colour of text has 4.5 : 1 on its ground, light and dark."""
    tab.look(dark=dark)
    open_run(tab, server, "divides")
    ratios = tab.run(
        """(() => {
            const style = getComputedStyle(document.documentElement);
            const light = (name) => {
                const hex = style.getPropertyValue(`--${name}`).trim().slice(1);
                const doubled = [...hex].map((c) => c + c).join("");
                const full = hex.length === 3 ? doubled : hex;
                const [r, g, b] = [0, 2, 4]
                    .map((at) => parseInt(full.slice(at, at + 2), 16) / 255)
                    .map((c) =>
                        c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const states = ["done", "failed", "running", "waiting", "unfinished"];
            const names = ["ink", "quiet", "accent", ...states];
            return names.flatMap((name) => ["card", "ground"].map((under) => {
                const [a, b] = [light(name), light(under)].sort((x, y) => y - x);
                return [`${name} on ${under}`, (a + 0.05) / (b + 0.05)];
            }));
        })()"""
    )
    assert [] == [each for each in ratios if each[1] < 4.5]


def test_a_dark_page_for_those_who_like_it(tab: Tab, server: Served) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    tab.open(server.address)
    tab.until("document.querySelector('tbody a')")
    light = tab.run(ground)
    tab.look(dark=True)

    assert light != tab.run(ground)


@pytest.mark.parametrize("view", ["", "calls", "timeline", "graph", "steps"])
def test_a_phone_needs_no_scrolling_sideways(
    tab: Tab, server: Served, view: str
) -> None:
    tab.look(width=360, height=740)
    tab.open(server.address)
    tab.until("document.querySelector('tbody a')")
    if view:
        open_run(tab, server, "divides", view)
        tab.until("document.querySelector('.content').innerText.length > 0")

    assert tab.run("document.documentElement.scrollWidth <= window.innerWidth")


# ------------------------------------------------ what is not obeyed


def test_markup_and_escapes_are_seen_and_not_obeyed(tab: Tab, tmp_path: Path) -> None:
    """In names of runs and calls, arguments, results, errors, questions; also in a
    report.
    """
    canary = tmp_path / "hit"
    store = hostile_store(tmp_path / "store", canary)
    with served(store) as server:
        for thread in (f"asks {HOSTILE}", f"fails {HOSTILE}"):
            for view in ("calls", "timeline", "graph", "steps"):
                open_run(tab, server, thread, view)
                see_all_calls(tab)
    for thread in (f"asks {HOSTILE}", f"fails {HOSTILE}"):
        with LMDBSaver(store, readonly=True, codec=InertCodec()) as saver:
            page = tmp_path / "run.html"
            page.write_text(run_report(saver, thread), encoding="utf-8")
        tab.open(f"file://{page}")
        tab.until("document.querySelector('.head .badge')")
        see_all_calls(tab)
    assert not canary.exists()


def see_all_calls(tab: Tab) -> None:
    """Open each call of the run that is shown, and see that markup is text wherever it
    is.
    """
    tab.until("document.querySelector('.content').innerText.length > 0")
    printed = "[...document.querySelectorAll('.panel section')].at(-1).innerText"
    assert "<script>" in tab.run(TITLE)
    assert "\\x1b]0;title\\x07" in tab.run(TITLE)
    assert "\\u202e" in tab.run(TITLE)
    for number in range(tab.run("document.querySelectorAll('.window .row a').length")):
        tab.run(f"document.querySelectorAll('.window .row a')[{number}].click()")
        tab.until("document.querySelector('.panel h2')")
        if tab.run(
            "document.querySelector('.panel h2').textContent.startsWith('chatter')"
        ):
            tab.until(f"{printed}.includes('x1b]0;title')")
    assert tab.run("window.hit") is None
    assert 0 == tab.run("document.querySelectorAll('img, iframe, #main script').length")
    unseen = r"/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/"
    assert not tab.run(f"{unseen}.test(document.body.innerText)")


def test_a_report_works_alone_and_in_the_frame_of_a_notebook(
    tab: Tab, server: Served, tmp_path: Path
) -> None:
    store = server.store
    with LMDBSaver(store, readonly=True, codec=InertCodec()) as saver:
        text = run_report(saver, "divides")
    (tmp_path / "run.html").write_text(text, encoding="utf-8")
    tab.open(f"file://{tmp_path / 'run.html'}")
    tab.until("document.querySelector('.row a')")
    for view, what in (
        ("Timeline", "canvas"),
        ("Graph", ".node"),
        ("Supersteps", ".channel"),
    ):
        tab.run(
            "[...document.querySelectorAll('.tabs a')].find(a => a.text === "
            f"'{view}').click()"
        )
        tab.until(f"document.querySelector('.content {what}')")
    tab.run("[...document.querySelectorAll('.tabs a')][0].click()")
    tab.until("document.querySelector('.row a')")
    tab.run("document.querySelector('.row a').click()")
    tab.until("document.querySelector('.panel pre')")
    with LMDBSaver(server.store, readonly=True) as saver:
        frame = notebook_report(saver, "divides")
    (tmp_path / "notebook.html").write_text(
        f"<h1>A notebook</h1>{frame}", encoding="utf-8"
    )
    tab.open(f"file://{tmp_path / 'notebook.html'}")
    while "invert(0)" not in (
        seen := str(tab.send("DOM.getDocument", depth=-1, pierce=True))
    ):
        tab.until("document.querySelector('iframe')")
    assert "Report of a run" in seen


# ------------------------------------------------ another process


def test_a_census_is_watched_while_it_is_killed_and_run_again(
    tab: Tab, tmp_path: Path, picture: Picture
) -> None:
    """It is another process's, and the page follows it by itself."""
    more = ("json", "xml", "importlib") if PICTURES else ()
    for name in ("asyncio", "email", *more):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(STDLIB / name, tmp_path / "source" / name, ignore=ignored)
    # To open a pipe takes until somebody writes to it: the census stays where it is.
    held = [tmp_path / "source" / f"email_{name}.py" for name in ("one", "two")]
    for path in held:
        os.mkfifo(path)
    LMDBSaver(tmp_path / "census.lmdb").close()
    with served(str(tmp_path / "census.lmdb")) as server:
        tab.open(server.address)
        tab.until("document.body.innerText.includes('no runs yet')")
        with census(tmp_path):
            tab.until("document.querySelector('tbody a')")
            tab.run("document.querySelector('tbody a').click()")
            tab.until(f"{STATUS}.includes('running') && {COUNT_OF}('done') >= 30")
            tab.until(f"{COUNT_OF}('running') >= 1")
            tab.until("document.querySelector('.worker')")
            picture("run")
            tab.run("location.hash += '/timeline'")
            tab.until("document.querySelector('canvas').getAttribute('aria-label')")
            picture("timeline")
        tab.until(f"{STATUS}.includes('killed')")
        picture("stopped")
        before = tab.run(f"{COUNT_OF}('done')")
        for path in held:
            path.unlink()
            path.touch()
        with census(tmp_path):
            tab.until(f"{STATUS}.includes('done')")
        tab.until("!document.querySelector('.counts .running')")
        assert tab.run(f"{COUNT_OF}('done')") > before >= 30
        picture("done")


def test_a_question_is_answered_in_the_page(
    tab: Tab, tmp_path: Path, picture: Picture
) -> None:
    """The run goes on in a process of its own, and the page shows its end."""
    with served(plain_store(tmp_path / "store"), actions=True) as server:
        tab.look(dark=True)
        open_run(tab, server, "asks")
        tab.until("document.querySelector('.question form')")
        picture("question")
        tab.run("document.querySelector('.question input').focus()")
        tab.send("Input.insertText", text='"yes"')
        tab.press("Enter")
        tab.until(f"{STATUS}.includes('done')")
        tab.until("!document.querySelector('.question')")
        assert server.actions is not None
        tab.until("document.querySelector('summary code')")
        while server.actions.commands("asks")[0]["code"] is None:
            time.sleep(0.01)

        assert "answer" in tab.run("document.querySelector('summary code').textContent")


def test_without_actions_there_are_no_buttons(tab: Tab, server: Served) -> None:
    open_run(tab, server, "asks")
    tab.until("document.querySelector('.question')")

    assert tab.run(
        "[...document.querySelectorAll('.needs-actions')].every(e => !e.offsetParent)"
    )
