"""A drawing shows exactly the nodes and edges of its graph: they are read off it
again.
"""

import re

from hypothesis import given
from hypothesis import strategies as st

from flowpregel.pregel.drawing import Graph, NodeShape
from flowpregel.pregel.graph_picture import Edge

LINE = re.compile(
    r"  [├└+][─┄.-](?: (?P<label>\w+) (?P<line>[─┄.-]))?> (?P<target>\w+)"
)
MERMAID = re.compile(r'    (\w+) (-->|-\.->|-- "(\w+)" -->|-\. "(\w+)" \.->) (\w+)')
DOT = re.compile(r'  "(\w+)" -> "(\w+)" \[(?:label="(\w+)")?(?:, )?(style=dashed)?\];')


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 8))
    ids = st.integers(0, count - 1)
    pairs = draw(st.sets(st.tuples(ids, ids), max_size=14))
    label = st.sampled_from([None, "a", "label"])
    edges = [
        Edge(f"n{a}", f"n{b}", draw(label), draw(st.booleans()))
        for a, b in sorted(pairs)
    ]
    return Graph({f"n{index}": NodeShape(f"n{index}") for index in range(count)}, edges)


def read(listed: str) -> tuple[list[str], list[Edge]]:
    """Return the nodes and edges of a list, as a person reads them."""
    nodes: list[str] = []
    edges = []
    for line in listed.splitlines():
        if found := LINE.fullmatch(line):
            label, target, conditional = (
                found["label"],
                found["target"],
                line[3] in "┄.",
            )
            edges.append(Edge(nodes[-1], target, label, conditional))
            assert label is None or line[3] == found["line"]
        else:
            nodes.append(line)
    return nodes, edges


@given(graph=graphs(), charset=st.sampled_from(["unicode", "ascii"]))
def test_nodes_and_edges_can_be_read_off_a_list(graph: Graph, charset: str) -> None:
    nodes, edges = read(graph.draw_ascii(charset=charset))

    assert [*graph.nodes] == nodes
    assert graph.edges == edges


@given(graph=graphs())
def test_nodes_and_edges_can_be_read_off_a_mermaid_chart(graph: Graph) -> None:
    text = graph.draw_mermaid()
    found = [
        Edge(source, target, one or two or None, "." in arrow)
        for source, arrow, one, two, target in MERMAID.findall(text)
    ]

    assert [*graph.nodes] == re.findall(r'    (\w+)\["\1"\]', text)
    assert graph.edges == found


@given(graph=graphs())
def test_nodes_and_edges_can_be_read_off_graphvizs_language(graph: Graph) -> None:
    text = graph.draw_dot()
    found = [
        Edge(source, target, label or None, bool(dashed))
        for source, target, label, dashed in DOT.findall(text)
    ]

    assert [*graph.nodes] == re.findall(r'  "(\w+)" \[label="\1"\];', text)
    assert graph.edges == found
