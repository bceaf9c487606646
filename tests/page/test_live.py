"""The page of a run that goes on, in the hands of a person: a press of 120 ms, the
focus, a selection and a scrolled list survive each change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.page.browser import NEEDS_CHROMIUM, Tab, open_run
from tests.page.serving import Served, served
from tests.page.stores import plain_store, steady

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]
DONE = (
    "Number(document.querySelector('.counts .done').textContent.replace(/[^0-9]/g, ''))"
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a run that goes on."""
    with (
        steady(tmp_path_factory.mktemp("live")) as store,
        served(store, actions=True) as server,
    ):
        yield server


def open_live(tab: Tab, server: Served) -> None:
    """Open the run that goes on, and wait until its calls are seen."""
    tab.open(server.address)
    tab.until("document.querySelector('tbody a')")
    open_run(tab, server, "steady")
    tab.until("document.querySelectorAll('.rows .row').length > 15")


def change(tab: Tab) -> None:
    """Wait until the page has shown that ten more calls are done."""
    done = tab.run(DONE)
    tab.until(f"{DONE} >= {done + 10}")


def test_the_head_shows_the_time_left_as_a_range(tab: Tab, live: Served) -> None:
    """Or about as a number, once enough calls have ended."""
    open_live(tab, live)

    tab.until(
        "/(about|to) [0-9]+ s left/.test(document.querySelector('.counts').textContent)"
    )


def test_each_press_of_120_ms_arrives(tab: Tab, live: Served) -> None:
    open_live(tab, live)
    tab.run(
        """window.presses = 0; document.addEventListener("click", event => {
            window.presses += Boolean(event.target.closest(".chip.failed, .chip.done"));
        })"""
    )
    for number in range(8):
        tab.hold(".chip.done")
        assert number + 1 == tab.run("window.presses")
        pressed = str(number % 2 == 0).lower()
        chip = "document.querySelector('.chip.done')"
        assert pressed == tab.run(f"{chip}.getAttribute('aria-pressed')")


def test_a_press_opens_the_call_on_which_it_began(tab: Tab, live: Served) -> None:
    """Though the newest calls push the others down."""
    open_live(tab, live)
    tab.run(
        """document.addEventListener("pointerdown", event => {
            window.began = event.target.closest(".row")?.dataset.id;
        }, true)"""
    )
    for number in (2, 6, 10):
        tab.hold(f".rows .row:nth-child({number}) a", 0.3)
        tab.until("document.querySelector('.panel h2')")
        opened = "new URLSearchParams(location.hash.split('?')[1]).get('call')"
        assert tab.run("window.began") == tab.run(opened)
        change(tab)


def test_the_slowest_calls_keep_their_places_under_a_press(
    tab: Tab, live: Served
) -> None:
    """An answer that comes during the press would bring another call under it."""
    open_run(tab, live, "steady", "time")
    tab.until("document.querySelector('.time table a')")
    tab.run(
        """window.arrived = null; window.release = null;
        const real = fetch;
        window.fetch = async (address, ...words) => {
            const answer = await real(address, ...words);
            if (String(address).includes("api/time")) {
                window.arrived = await new Promise(done => { window.release = done; });
            }
            return answer;
        }"""
    )
    tab.until("window.release")
    shown = "document.querySelector('.time').innerText"
    with tab.held(".time table a"):
        before = tab.run(shown)
        tab.run("window.release(true)")
        tab.run("new Promise(done => setTimeout(() => requestAnimationFrame(done)))")
        assert tab.run("window.arrived")
        assert before == tab.run(shown)

    tab.until(f"{shown} !== {json.dumps(before)}")


def test_the_focus_stays_where_tab_has_brought_it(tab: Tab, live: Served) -> None:
    """On a filter, and on a call, which the order moves down; Enter opens it then."""
    open_live(tab, live)
    tab.hold(".bar select", 0)
    tab.press("Escape")
    tab.press("Tab")
    focused = "document.activeElement"
    assert "chip" in tab.run(f"{focused}.className")
    tab.run(f"window.kept = {focused}")
    change(tab)
    assert tab.run(f"window.kept === {focused}")
    # The heads of the columns, which are buttons, come before the calls.
    while not tab.run(f"{focused}.closest('.row')?.dataset.id"):
        tab.press("Tab")
    call = tab.run(f"{focused}.closest('.row').dataset.id")
    tab.run(f"window.kept = {focused}")
    change(tab)
    assert tab.run(f"window.kept === {focused}")
    tab.press("Enter")
    tab.until(f"{focused}.matches('.panel') && location.hash.includes('{call}')")
    tab.press("Escape")
    tab.until("!document.querySelector('.panel')")
    assert call == tab.run(f"{focused}.closest('.row').dataset.id")


def test_one_call_is_a_stop_of_the_tab_key(tab: Tab, live: Served) -> None:
    open_live(tab, live)

    assert 1 == tab.run("document.querySelectorAll('.rows a[tabindex=\"0\"]').length")
    change(tab)
    assert 1 == tab.run("document.querySelectorAll('.rows a[tabindex=\"0\"]').length")


def test_a_selection_and_what_was_opened_and_scrolled_stay(
    tab: Tab, live: Served
) -> None:
    open_live(tab, live)
    change(tab)
    tab.run("document.querySelector('.window').scrollTop = 108")
    tab.hold(".rows .row:nth-child(10) a")
    tab.until("document.querySelector('.panel details')")
    tab.hold(".panel summary")
    tab.until("!document.querySelector('.panel details').open")
    selected = tab.run(
        """(() => {
            const flow = document.querySelector(".head .facts .mono");
            getSelection().selectAllChildren(flow);
            return getSelection().toString();
        })()"""
    )
    change(tab)

    assert "live_flow" in selected
    assert selected == tab.run("getSelection().toString()")
    assert not tab.run("document.querySelector('.panel details').open")
    assert 108 == tab.run("document.querySelector('.window').scrollTop")


def test_what_is_typed_into_a_search_stays(tab: Tab, live: Served) -> None:
    open_live(tab, live)
    tab.hold(".bar input[type=search]")
    tab.type("work(1")
    change(tab)

    assert "work(1" == tab.run("document.activeElement.value")
    names = "[...document.querySelectorAll('.rows a')].map(link => link.text)"
    assert tab.run(f"{names}.every(name => name.startsWith('work(1'))")


def test_cancel_is_pressed_once_and_shows_that_it_is_under_way(
    tab: Tab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Until the run has stopped; then the focus is in the head of the run."""
    with (
        steady(tmp_path_factory.mktemp("cancelled")) as store,
        served(store, actions=True) as server,
    ):
        open_live(tab, server)
        tab.run(
            """window.shown = new Set(); new MutationObserver(() => {
                const busy = document.querySelector(".head [aria-busy]");
                if (busy) window.shown.add(busy.textContent);
            }).observe(document.body, { subtree: true, childList: true,
                                        characterData: true, attributes: true })"""
        )
        tab.hold(".button.danger")
        tab.until("document.querySelector('.head .badge').matches('.stopped')")
        tab.until("document.querySelector('summary .badge').matches('.done')")
        assert ["Cancelling …"] == tab.run("[...window.shown]")
        assert server.actions is not None
        assert 1 == len(server.actions.commands("steady"))
        tab.until("document.querySelector('.head .button').textContent === 'Resume'")


# ------------------------------------------------ how it is drawn again


def draw(tab: Tab, server: Served, script: str) -> object:
    """Run a script that has `h`, `patch`, `fill` and an element `place`."""
    tab.open(server.address)
    tab.until("document.querySelector('tbody')")
    return tab.run(
        f"""import('/static/dom.js').then(async ({{ h, patch, fill }}) => {{
            const place = document.createElement("div");
            document.body.append(place);
            {script}
        }})"""
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a store in which nothing goes on."""
    with served(plain_store(tmp_path_factory.mktemp("plain") / "store")) as server:
        yield server


def test_an_element_with_the_same_key_is_the_same_node(tab: Tab, plain: Served) -> None:
    told = draw(
        tab,
        plain,
        """
        const row = (key, text) => h("p", { key, class: text }, text);
        patch(place, row("a", "1"), row("b", "2"), row("c", "3"));
        const [a, b, c] = place.children;
        patch(place, row("d", "4"), row("c", "5"), row("a", "6"));
        return [place.children[1] === c, place.children[2] === a, b.isConnected,
                [...place.children].map(each => each.textContent + each.className)];
        """,
    )

    assert [True, True, False, ["44", "55", "66"]] == told


def test_the_element_with_the_focus_is_not_moved(tab: Tab, plain: Served) -> None:
    told = draw(
        tab,
        plain,
        """
        const button = key => h("button", { key }, key);
        patch(place, [..."abcd"].map(button));
        place.children[2].focus();
        patch(place, [..."cdba"].map(button));
        return [document.activeElement.textContent, place.textContent];
        """,
    )

    assert ["c", "cdba"] == told


def test_the_last_handler_is_called_once(tab: Tab, plain: Served) -> None:
    told = draw(
        tab,
        plain,
        """
        const calls = [];
        for (const number of [1, 2, 3])
            patch(place, h("button", { onclick: () => calls.push(number) }, "x"));
        place.firstChild.click();
        return calls;
        """,
    )

    assert [3] == told


def test_what_a_reader_has_changed_is_left(tab: Tab, plain: Served) -> None:
    """An opened detail, a typed text; what is drawn otherwise is changed."""
    told = draw(
        tab,
        plain,
        """
        const view = (text) => [h("details", null, h("summary", null, text)),
                                h("input", { placeholder: text })];
        patch(place, view("old"));
        place.firstChild.open = true;
        place.lastChild.value = "typed";
        patch(place, view("new"));
        return [place.firstChild.open, place.lastChild.value,
                place.lastChild.placeholder, place.textContent];
        """,
    )

    assert [True, "typed", "new", "new"] == told
