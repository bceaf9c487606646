"""The graph of a run: by its data, in boxes that open, for mouse and keyboard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from flowpregel import LMDBSaver
from flowpregel._inspection.inert import InertCodec
from flowpregel.plugins.page.pages import run_report
from tests.page.browser import NEEDS_CHROMIUM, Tab, keep_picture, open_run
from tests.page.graph_flows import add_graph_runs, review_graph
from tests.page.serving import Served, served

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]

NODES = """[...document.querySelectorAll('[data-node]')]
    .map(node => node.querySelector('.title').textContent)"""
EDGES = "[...document.querySelectorAll('.edge title')].map(title => title.textContent)"
FOCUSED = "document.activeElement.dataset.node"
STOPS = "document.querySelectorAll('[data-node][tabindex=\"0\"]')"
PAPER = "document.querySelector('.paper').getBoundingClientRect()"
WIDTH = "Number(document.querySelector('.paper svg').getAttribute('width'))"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = str(tmp_path_factory.mktemp("graph") / "store")
    with LMDBSaver(store) as saver:
        add_graph_runs(saver)
    with served(store) as server:
        yield server


def open_graph(tab: Tab, server: Served, thread: str, *boxes: str) -> None:
    """Open the graph of a run with some of its boxes opened."""
    names = ",".join(quote(quote(box, safe=""), safe="") for box in boxes)
    open_run(tab, server, thread, f"graph?open={names}")
    tab.until("document.querySelector('[data-node]')")


def test_a_functional_flow_is_drawn_by_its_data(tab: Tab, server: Served) -> None:
    """The body is not drawn. An edge says how many calls received results."""
    open_graph(tab, server, "study")

    assert ["find", "fetch", "parse", "score", "notify"] == tab.run(NODES)
    assert {
        "START → find",
        "find → fetch: 3 calls received its results",
        "fetch → parse: 3 calls received its results",
        "parse → score: 1 call received its results",
        "score → notify",
        "notify → END",
    } == {*tab.run(EDGES)}
    assert 1 == tab.run("document.querySelectorAll('.edge.after').length")


def test_a_task_is_a_link_to_its_calls(tab: Tab, server: Served) -> None:
    open_graph(tab, server, "study")
    tab.hold('[data-node$="parse"] .title')

    tab.until("document.querySelectorAll('.row a').length === 3")
    shown = tab.run("[...document.querySelectorAll('.row a')].map(row => row.title)")
    assert all(text.startswith("parse(") for text in shown)


def test_a_box_opens_in_place_and_stays_open_in_the_address(
    tab: Tab, server: Served
) -> None:
    open_graph(tab, server, "study")
    tab.hold('[data-toggle$="fetch"]')
    tab.until("document.querySelector('[data-node$=clean]')")
    address = tab.run("location.href")

    tab.open("about:blank")
    tab.open(address)
    tab.until("document.querySelector('[data-node$=clean]')")
    tab.run("document.querySelector('[data-toggle$=fetch]').focus()")
    tab.press("Enter")
    tab.until("!document.querySelector('[data-node$=clean]')")
    assert tab.run(
        "document.activeElement === document.querySelector('[data-toggle$=fetch]')"
    )


def test_a_nested_graph_is_a_box_and_a_loop_leads_back(
    tab: Tab, server: Served
) -> None:
    open_graph(tab, server, "review", "|write")

    assert ["write", "draft", "check", "review"] == tab.run(NODES)
    assert {
        "START → write",
        "draft → check",
        "write → review",
        "review → write",
        "review → END",
    } == {*tab.run(EDGES)}


def test_no_node_lies_on_another(tab: Tab, server: Served) -> None:
    """Of a hundred drawn graphs, in any order of nodes and edges."""
    tab.open(server.address)

    assert [] == tab.run(
        """import('/static/layout.js').then(({ layout }) => {
            let seed = 1;
            const chance = (limit) => {
                seed = (seed * 16807) % 2147483647;
                return seed % limit;
            };
            const faults = [];
            for (let round = 0; round < 100; round += 1) {
                const count = 1 + chance(20);
                const nodes = Array.from({ length: count }, (_, id) => (
                    { id: `${id}`, width: 50 + chance(300), height: 30 + chance(200) }
                ));
                const edges = Array.from({ length: chance(40) }, () => (
                    { source: `${chance(count)}`, target: `${chance(count)}` }
                ));
                const { places, width, height } = layout(nodes, edges);
                const boxes = nodes.map(
                    (node) => ({ ...node, ...places.get(node.id) })
                );
                boxes.forEach((a, at) => {
                    if (a.x < 0 || a.y < 0 || a.x + a.width > width + 0.01
                        || a.y + a.height > height + 0.01) faults.push([round, a]);
                    for (const b of boxes.slice(at + 1)) {
                        if (a.x < b.x + b.width && b.x < a.x + a.width
                            && a.y < b.y + b.height && b.y < a.y + a.height)
                            faults.push([round, a, b]);
                    }
                });
            }
            return faults;
        })"""
    )


def test_the_edges_of_a_known_drawing_have_labels(tab: Tab, server: Served) -> None:
    """A run that goes on publishes the drawing of its graph: with what it has not come
    to, labels, and edges that are decided each time.
    """
    tab.open(server.address)
    graph = review_graph().compile()
    drawing = json.dumps(graph.get_graph().outline())

    edges = tab.run(
        f"""import('/static/graph.js').then(({{ graphOf }}) => {{
            const node = {{
                id: "|write", name: "write", parent: "", states: {{ done: 2 }}
            }};
            const answer = {{
                nodes: [node], body: "", data: [], after: [], last: ["|write"],
                steps: [["|write", "|write"]]
            }};
            return graphOf(answer, {drawing}).edges.map(edge => [
                edge.source, edge.target, edge.label, edge.isConditional
            ]);
        }})"""
    )

    assert {
        ("start", "|write", "", False),
        ("|write", "|review", "", False),
        ("|review", "|write", "again", True),
        ("|review", "end", "good", True),
    } == {*map(tuple, edges)}


def test_a_run_that_has_ended_has_the_labels_of_its_edges(
    tab: Tab, server: Served
) -> None:
    """The drawing is stored with the run."""
    open_graph(tab, server, "review")

    labels = "[...document.querySelectorAll('.paper text.words')]"
    texts = tab.run(f"{labels}.map(text => text.textContent)")
    assert {"again", "good"} <= {*texts}
    assert 2 == tab.run("document.querySelectorAll('.edge.conditional').length")


def test_the_keyboard_walks_and_zooms(tab: Tab, server: Served) -> None:
    open_graph(tab, server, "study")
    tab.run(f"{STOPS}[0].focus()")
    for key in ("ArrowRight", "ArrowRight"):
        tab.press(key)
    assert "|study|parse" == tab.run(FOCUSED)
    assert 1 == tab.run(
        "document.querySelectorAll('[data-node][tabindex=\"0\"]').length"
    )
    tab.press("ArrowLeft")
    assert "|study|fetch" == tab.run(FOCUSED)

    before = tab.run(WIDTH)
    tab.press("+")
    assert tab.run(WIDTH) > before
    tab.press("-")
    tab.press("-")
    assert tab.run(WIDTH) < before
    tab.press("Home")
    assert tab.run(WIDTH) == before

    tab.press("Enter")
    tab.until("document.querySelectorAll('.row a').length === 3")


def test_buttons_and_the_wheel_zoom_and_the_address_keeps_it(
    tab: Tab, server: Served
) -> None:
    open_graph(tab, server, "study")
    before = tab.run(WIDTH)
    tab.hold("[aria-label='Zoom in']")
    closer = tab.run(WIDTH)
    assert closer > before
    first = tab.until("location.hash.includes('scale=') && location.hash")
    x, y = tab.run(f"[{PAPER}.x + 30, {PAPER}.y + 10]")
    wheel = {"type": "mouseWheel", "deltaX": 0, "deltaY": -100}
    tab.send("Input.dispatchMouseEvent", x=x, y=y, **wheel)
    tab.until(f"{WIDTH} > {closer}")
    tab.until(f"location.hash !== {json.dumps(first)}")
    width, address = tab.run(WIDTH), tab.run("location.href")

    tab.open("about:blank")
    tab.open(address)
    tab.until(f"{WIDTH} === {width}")
    tab.hold("[aria-label='Show all of the graph']")
    assert before == tab.run(WIDTH)


def test_dragging_moves_the_graph(tab: Tab, server: Served) -> None:
    open_graph(tab, server, "study")
    for _ in range(3):
        tab.hold("[aria-label='Zoom in']")
    tab.run("document.querySelector('.paper').scrollTo(0, 0)")
    x, y = tab.run(f"[{PAPER}.right - 20, {PAPER}.y + 4]")
    mouse = {"button": "left", "clickCount": 1, "y": y}
    moves = {"mousePressed": (x, 1), "mouseMoved": (x - 90, 1), "mouseReleased": (x, 0)}
    for kind, (at, buttons) in moves.items():
        tab.send("Input.dispatchMouseEvent", type=kind, x=at, buttons=buttons, **mouse)

    tab.until("document.querySelector('.paper').scrollLeft === 90")


def test_a_report_has_the_same_graph(tab: Tab, server: Served, tmp_path: Path) -> None:
    with LMDBSaver(server.store, readonly=True, codec=InertCodec()) as saver:
        path = tmp_path / "study.html"
        path.write_text(run_report(saver, "study"))
    tab.open(path.as_uri())
    tab.until("document.querySelector('.tabs a[href*=graph]')")
    tab.run("document.querySelector('.tabs a[href*=graph]').click()")
    tab.until("document.querySelector('[data-node]')")

    assert ["find", "fetch", "parse", "score", "notify"] == tab.run(NODES)
    tab.hold('[data-toggle$="fetch"]')
    tab.until("document.querySelector('[data-node$=clean]')")
    tab.hold('[data-node$="parse"] .title')
    tab.until("document.querySelectorAll('.row a').length === 3")


def test_it_fits_a_phone_in_the_dark(tab: Tab, server: Served, tmp_path: Path) -> None:
    open_graph(tab, server, "study", "|study|fetch")
    keep_picture(tab, tmp_path, "graph")
    tab.look(width=390, height=844, dark=True)
    tab.until("document.querySelector('.paper').clientWidth < 390")
    tab.run("document.querySelector('.paper').scrollIntoView({ block: 'center' })")
    keep_picture(tab, tmp_path, "phone")

    assert tab.run("document.documentElement.scrollWidth <= window.innerWidth")
    letters = "document.querySelector('.paper .title').getBoundingClientRect().height"
    assert tab.run(letters) >= 9
