"""The picture of a graph: XML that a browser shows, with the nodes in layers."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

from flowpregel.pregel.drawing import Graph, NodeShape
from flowpregel.pregel.graph_picture import Edge

SVG = "{http://www.w3.org/2000/svg}"


def graph(*edges: Edge) -> Graph:
    names = dict.fromkeys(name for edge in edges for name in (edge.source, edge.target))
    return Graph({name: NodeShape(name) for name in names}, list(edges))


def heights(drawn: Graph) -> dict[str, float]:
    """Return the vertical position of each label."""
    root = ElementTree.fromstring(drawn.draw_svg())
    return {str(text.text): float(text.attrib["y"]) for text in root.iter(f"{SVG}text")}


def test_a_node_is_below_all_nodes_that_lead_to_it() -> None:
    """Also where a shorter way leads to it."""
    drawn = graph(Edge("a", "d"), Edge("a", "b"), Edge("b", "c"), Edge("c", "d"))

    found = heights(drawn)

    assert found["a"] < found["b"] < found["c"] < found["d"]


def test_an_edge_that_leads_back_moves_no_node() -> None:
    """It goes round the nodes, within the picture."""
    drawn = graph(Edge("a", "b"), Edge("b", "a"), Edge("b", "b"), Edge("b", "c"))

    found = heights(drawn)
    picture = drawn.draw_svg()

    assert found["a"] < found["b"] < found["c"]
    width = float(re.findall(r'width="([\d.]+)"', picture)[0])
    curves = re.findall(r"C([\d.]+) [\d.]+ ([\d.]+)", picture)
    assert 6 == len(curves)  # two for each edge that leads back
    assert all(float(x) <= width for curve in curves for x in curve)


def test_a_decision_is_dashed_and_has_its_answer() -> None:
    picture = graph(Edge("a", "b", "yes", conditional=True), Edge("a", "c")).draw_svg()

    assert 1 == picture.count("stroke-dasharray")
    assert ">yes</text>" in picture


def test_an_edge_that_passes_a_layer_crosses_no_node() -> None:
    """It has room of its own beside the nodes, and for its label."""
    label = "a rather long answer"
    drawn = graph(
        Edge("a", "b"), Edge("b", "c"), Edge("c", "d"), Edge("a", "d", label, True)
    )

    root = ElementTree.fromstring(drawn.draw_svg())
    paths = root.iter(f"{SVG}path")
    (dashed,) = (path for path in paths if "stroke-dasharray" in path.attrib)
    straight = [float(x) for x in re.findall(r"L([\d.]+) ", dashed.attrib["d"])]
    (text,) = (text for text in root.iter(f"{SVG}text") if text.text == label)
    boxes = {float(box.attrib["y"]): box.attrib for box in root.iter(f"{SVG}rect")}
    passed = [boxes[y] for y in sorted(boxes)[1:3]]

    assert 2 == len(straight)
    for x, box in zip(straight, passed, strict=True):
        assert not float(box["x"]) <= x <= float(box["x"]) + float(box["width"])
    end = float(text.attrib["x"]) + 8 * len(label)
    assert straight[0] < float(text.attrib["x"])
    assert end <= float(root.attrib["width"])


def test_nodes_of_a_layer_do_not_overlap() -> None:
    drawn = graph(*[Edge("a", f"node {number} of several") for number in range(5)])

    root = ElementTree.fromstring(drawn.draw_svg())
    boxes = sorted(
        (float(box.attrib["x"]), float(box.attrib["width"]))
        for box in root.iter(f"{SVG}rect")
        if float(box.attrib["y"]) > 50
    )

    assert 5 == len(boxes)
    for (x, width), (following, _) in pairwise(boxes):
        assert x + width < following


def test_a_graph_without_nodes_has_a_picture() -> None:
    assert ElementTree.fromstring(Graph({}).draw_svg()).tag == f"{SVG}svg"


def test_nested_graphs_are_drawn_with_their_nodes() -> None:
    inner = graph(Edge("x", "y"))
    nodes = {"a": NodeShape("a"), "s": NodeShape("s", subgraph=inner)}

    assert {"a", "s:x", "s:y"} == {*heights(Graph(nodes, [Edge("a", "s")]))}
