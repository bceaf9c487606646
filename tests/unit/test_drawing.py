"""Drawings: what they show, in each of their forms."""

import json
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from flowpregel.channels import LastValue
from flowpregel.errors import ConfigurationError
from flowpregel.graph import StateGraph
from flowpregel.pregel import NodeBuilder, Pregel
from flowpregel.pregel.definition import END, START
from flowpregel.pregel.drawing import Graph, NodeShape
from flowpregel.pregel.graph_drawing import graph_of
from flowpregel.pregel.graph_picture import Edge

KINDS: dict[str, Any] = {START: "start", END: "end"}


def graph(*edges: Edge | tuple[Any, ...], **inside: Graph) -> Graph:
    made = [edge if isinstance(edge, Edge) else Edge(*edge) for edge in edges]
    names = dict.fromkeys(name for edge in made for name in (edge.source, edge.target))
    shapes = {n: NodeShape(n, KINDS.get(n, "node"), inside.get(n)) for n in names}
    return Graph(shapes, made)


def art(text: str) -> str:
    return dedent(text).strip("\n")


def every_pair(drawn: Graph) -> list[tuple[str, str]]:
    return [(edge.source, edge.target) for edge in drawn.all_edges()]


def pairs(drawn: Graph) -> list[tuple[str, str]]:
    return [(edge.source, edge.target) for edge in drawn.edges]


class TestTerminal:
    def test_each_node_is_followed_by_the_edges_that_leave_it(self) -> None:
        fan = [(START, "plan"), ("plan", "a"), ("plan", "b"), ("a", END), ("b", END)]

        assert graph(*fan).draw_ascii() == art("""
            __start__
              └─> plan
            plan
              ├─> a
              └─> b
            a
              └─> __end__
            b
              └─> __end__
            __end__
        """)

    def test_labels_stand_on_their_edges(self) -> None:
        assert graph(
            ("a", "b", "more"), ("b", "a"), ("b", "b", "again")
        ).draw_ascii() == art("""
            a
              └─ more ─> b
            b
              ├─> a
              └─ again ─> b
        """)

    def test_conditional_edges_are_dashed(self) -> None:
        drawing = graph(
            Edge("a", "b", conditional=True), Edge("a", "c", "else", conditional=True)
        )

        assert drawing.draw_ascii() == art("""
            a
              ├┄> b
              └┄ else ┄> c
            b
            c
        """)
        assert drawing.draw_ascii(charset="ascii").split("\n")[1:3] == [
            "  +.> b",
            "  +. else .> c",
        ]

    def test_ascii_is_nothing_but_ascii(self) -> None:
        drawn = graph(("a", "b", "x"), ("b", "a"), Edge("a", "c", None, True))

        assert drawn.draw_ascii(charset="ascii").isascii()

    def test_a_name_of_several_lines_is_shown_in_one(self) -> None:
        assert Graph({"a": NodeShape("a\nb")}).draw_ascii() == "a b"

    def test_an_empty_graph_says_so(self) -> None:
        assert Graph({}).draw_ascii() == "(no nodes)"

    def test_it_can_be_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        graph(("a", "b")).print_ascii()

        assert capsys.readouterr().out == graph(("a", "b")).draw_ascii() + "\n"


class TestNested:
    INNER = graph((START, "x"), ("x", "y"), ("y", END, "ok"))

    def test_its_nodes_stand_in_the_place_of_its_node(self) -> None:
        drawn = graph(("a", "sub", "in"), ("sub", "b"), sub=self.INNER)

        assert list(drawn.leaves()) == [
            "a",
            f"sub:{START}",
            "sub:x",
            "sub:y",
            f"sub:{END}",
            "b",
        ]

    def test_it_is_entered_at_its_start_and_left_at_its_end(self) -> None:
        drawn = graph(("a", "sub", "in"), Edge("sub", "b", None, True), sub=self.INNER)

        assert [*drawn.all_edges()] == [
            Edge(f"sub:{START}", "sub:x"),
            Edge("sub:x", "sub:y"),
            Edge("sub:y", f"sub:{END}", "ok"),
            Edge("a", f"sub:{START}", "in"),
            Edge(f"sub:{END}", "b", None, True),
        ]

    def test_one_without_markers_is_entered_at_its_first_node_and_left_at_its_last(
        self,
    ) -> None:
        drawn = graph(("a", "sub"), ("sub", "b"), sub=graph(("x", "y")))

        assert every_pair(drawn) == [("sub:x", "sub:y"), ("a", "sub:x"), ("sub:y", "b")]

    def test_nesting_has_no_end(self) -> None:
        middle = graph((START, "in"), ("in", END), **{"in": self.INNER})
        drawn = graph(("a", "sub"), ("sub", "a"), sub=middle)

        assert (f"sub:{START}", f"sub:in:{START}") in every_pair(drawn)
        assert ("a", f"sub:{START}") in every_pair(drawn)

    def test_nested_graphs_may_follow_each_other(self) -> None:
        drawn = graph(("s", "t"), s=self.INNER, t=self.INNER)

        assert (f"s:{END}", f"t:{START}") in every_pair(drawn)


class TestMermaid:
    def test_it_is_a_flowchart(self) -> None:
        drawn = graph(
            (START, "a"), ("a", "b", "go"), Edge("b", "a", "no", True), ("b", END)
        )

        assert drawn.draw_mermaid() == dedent("""\
            flowchart TD
                __start__(["__start__"])
                a["a"]
                b["b"]
                __end__(["__end__"])
                __start__ --> a
                a -- "go" --> b
                b -. "no" .-> a
                b --> __end__
                classDef marker fill:#eceff1,stroke:#90a4ae,color:#37474f
                class __start__,__end__ marker
            """)

    def test_it_has_a_direction(self) -> None:
        assert (
            graph(("a", "b")).draw_mermaid(direction="LR").startswith("flowchart LR\n")
        )

    def test_edges_without_label_may_be_conditional(self) -> None:
        assert "a -.-> b" in graph(Edge("a", "b", conditional=True)).draw_mermaid()

    def test_names_that_mermaid_would_not_take_get_ids(self) -> None:
        text = graph(("end", "n0"), ("n0", 'a "b" <c>\n#1`\\')).draw_mermaid()

        assert 'n1["end"]' in text
        assert "n1 --> n0" in text
        assert 'n2["a #quot;b#quot; #lt;c#gt;<br/>#35;1#96;#92;"]' in text
        assert "n0 --> n2" in text

    def test_nested_graphs_are_boxes_around_their_nodes(self) -> None:
        inner = graph((START, "x"), ("x", END))
        text = graph(("a", "sub"), ("sub", "a"), sub=inner).draw_mermaid()

        boxed = (
            '    subgraph sub["sub"]\n'
            '        n0(["__start__"])\n'
            '        n1["x"]\n'
            '        n2(["__end__"])\n'
            "    end\n"
        )
        assert boxed in text
        assert "a --> n0" in text
        assert "n2 --> a" in text


class TestGraphviz:
    def test_its_language_has_all_there_is(self) -> None:
        inner = graph(("x", "x"))
        talk = Edge("a", 'say "hi"', "x\\y", True)
        text = graph((START, "a"), talk, ("a", "s"), ("s", "a"), s=inner).draw_dot()

        assert '"__start__" [label="__start__", shape=oval];' in text
        assert '"a" -> "say \\"hi\\"" [label="x\\\\y", style=dashed];' in text
        assert (
            'subgraph "cluster s" {\n    label="s";\n    "s:x" [label="x"];\n  }'
            in text
        )


class TestOtherForms:
    def test_json_has_all_there_is(self) -> None:
        inner = Graph({"x": NodeShape("x")})
        made = graph(
            ("a", "s", "in"), Edge("s", "a", conditional=True), s=inner
        ).to_json()
        plain = {"kind": "node", "subgraph": None}

        assert json.loads(json.dumps(made)) == {
            "nodes": {
                "a": {"name": "a", **plain},
                "s": {
                    "name": "s",
                    **plain,
                    "subgraph": {"nodes": {"x": {"name": "x", **plain}}, "edges": []},
                },
            },
            "edges": [
                {"source": "a", "target": "s", "data": "in", "conditional": False},
                {"source": "s", "target": "a", "data": None, "conditional": True},
            ],
        }

    def test_a_notebook_gets_text_html_and_mermaid(self) -> None:
        drawn = graph(("<a>", "b"))
        bundle = drawn._repr_mimebundle_()

        assert bundle["text/plain"] == drawn.draw_ascii()
        assert bundle["text/vnd.mermaid"] == drawn.draw_mermaid()
        assert "&lt;a&gt;" in bundle["text/html"]
        assert "<a>" not in bundle["text/html"]

    def test_an_edge_needs_its_nodes(self) -> None:
        with pytest.raises(
            ConfigurationError, match="from 'a' to 'b' needs a node 'b'"
        ):
            Graph({"a": NodeShape("a")}, [Edge("a", "b")])


def drawn(*outputs: str, **nodes: tuple[list[str], list[str]]) -> Graph:
    """Return the drawing of a program: what triggers each node, and what it writes."""
    built = {}
    for name, (triggers, written) in nodes.items():
        built[name] = NodeBuilder().subscribe_to(*triggers).write_to(*written).build()
    channels = {key: LastValue(str) for key in "abcd"}
    return Pregel(
        nodes=built,
        channels=channels,
        input_channels="a",
        output_channels=outputs,
        auto_validate=False,
    ).get_graph()


class TestProgram:
    def test_channels_are_the_edges(self) -> None:
        made = drawn("d", "b", one=(["a"], ["c", "b"]), two=(["b", "c"], ["d"]))

        assert list(made.nodes) == [START, "one", "two", END]
        assert made.edges == [
            Edge(START, "one", "a"),
            Edge("one", "two", "b, c"),
            Edge("one", END, "b"),
            Edge("two", END, "d"),
        ]

    def test_a_node_may_trigger_itself(self) -> None:
        made = drawn("a", one=(["a"], ["a"]))

        assert pairs(made) == [(START, "one"), ("one", "one"), ("one", END)]

    def test_markers_are_there_only_where_something_leads_to_them(self) -> None:
        assert list(drawn("b", one=([], [])).nodes) == ["one"]

    def test_nodes_keep_what_is_inside(self) -> None:
        inner = graph(("x", "y"))

        assert graph_of(["one"], [], {"one": inner}).nodes["one"].subgraph is inner


def test_a_node_of_a_drawing_has_what_the_node_calls() -> None:
    """As in LangGraph. It is left out of JSON, which cannot hold it."""

    def act(state: dict[str, int]) -> dict[str, int]:
        return state

    inner = StateGraph(dict).add_node("act", act).add_edge(START, "act").compile()
    outer = StateGraph(dict).add_node("inner", inner).add_edge(START, "inner").compile()

    drawing = outer.get_graph(xray=True)

    assert inner is drawing.nodes["inner"].data
    assert act is drawing.nodes["inner"].subgraph.nodes["act"].data
    assert None is drawing.nodes[START].data
    fields = json.loads(json.dumps(drawing.to_json()))
    assert {"name", "kind", "subgraph"} == fields["nodes"]["inner"].keys()


class TestPNG:
    """Pictures, converted by one of two packages."""

    def test_the_picture_is_converted_by_resvg(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[Any] = []

        def convert(**options: Any) -> list[int]:
            calls.append(options)
            return [1, 2]

        monkeypatch.setitem(
            sys.modules, "resvg_py", SimpleNamespace(svg_to_bytes=convert)
        )
        drawn = graph(("a", "b"))

        assert b"\1\2" == drawn.draw_png(background_color="red")
        svg = drawn.draw_svg()
        assert [{"svg_string": svg, "background": "red", "zoom": 2}] == calls

    def test_without_resvg_cairosvg_converts_it(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        calls: list[Any] = []

        def convert(data: bytes, **options: Any) -> bytes:
            calls.append((data, options))
            return b"png"

        monkeypatch.setitem(sys.modules, "resvg_py", None)
        monkeypatch.setitem(sys.modules, "cairosvg", SimpleNamespace(svg2png=convert))
        drawn = graph(("a", "b"))
        path = tmp_path / "graph.png"

        assert b"png" == drawn.draw_mermaid_png(output_file_path=path, max_retries=5)
        assert b"png" == path.read_bytes()
        options = {"background_color": "white", "scale": 2}
        assert [(drawn.draw_svg().encode(), options)] == calls

    def test_without_either_the_error_names_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("resvg_py", "cairosvg"):
            monkeypatch.setitem(sys.modules, name, None)

        with pytest.raises(ConfigurationError, match="pip install resvg-py"):
            graph(("a", "b")).draw_png()

    def test_an_option_that_langchain_lacks_is_refused(self) -> None:
        with pytest.raises(TypeError, match="no option 'max_retry'"):
            graph(("a", "b")).draw_mermaid_png(max_retry=5)

    def test_resvg_makes_a_png(self) -> None:
        pytest.importorskip("resvg_py", reason="resvg-py is not installed")

        data = graph((START, "a"), ("a", "b", "x"), ("b", END)).draw_png()

        assert data.startswith(b"\x89PNG\r\n")
        assert 500 < len(data)
