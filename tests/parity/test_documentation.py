"""The program that runs a folder of documentation on both engines finds what
differs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.parity.documentation import compare, pages_of, plain, swapped

SAME = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict):
    word: str

graph = StateGraph(State).add_node("say", lambda state: {"word": state["word"].upper()})
graph.add_edge(START, "say").compile().invoke({"word": "hi"})
"""
DIFFERENT = (
    "import langgraph.graph\nlanggraph.graph.StateGraph.__name__ + "
    "langgraph.__name__[:4]\n"
)
BROKEN = "import a_package_that_nobody_has\n"


def test_examples_are_found_in_pages_notebooks_and_docstrings(tmp_path: Path) -> None:
    """Indented ones too; cells that are commands of a notebook are left out."""
    (tmp_path / "page.md").write_text(
        "# Page\n\n  ```python\n  one = 1\n  ```\n```text\nno\n```\n"
    )
    cells = [
        {"cell_type": "code", "source": [text]}
        for text in ("two = 2", "%pip install it")
    ]
    (tmp_path / "book.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "code.py").write_text(
        'def f():\n    """F.\n\n    ```python\n    f()\n    ```\n    """\n'
    )

    found = dict(pages_of(tmp_path))

    assert {
        "page.md": ["one = 1\n"],
        "book.ipynb": ["two = 2"],
        "code.py:f": ["f()\n"],
    } == found


def test_imports_are_swapped_as_the_guide_says() -> None:
    """Module paths stay, but for what concerns LangChain."""
    assert "from flowpregel.types import Send" == swapped(
        "from langgraph.types import Send"
    )
    theirs = "from langgraph.prebuilt.chat_agent_executor import AgentState"
    assert "from flowpregel.plugins.langchain import AgentState" == swapped(theirs)


def test_what_changes_from_run_to_run_is_left_out() -> None:
    """Ids, times and addresses."""
    assert "id='ID' TIME <f at ADDRESS>" == plain(
        "id='0a1b2c3d-0000-1111-2222-0123456789ab' 2026-01-01T10:00:00+00:00 <f at "
        "0x7f>"
    )


@pytest.mark.slow
def test_blocks_are_compared_on_both_engines() -> None:
    """One that does the same, one that does not, and one that needs what nobody has."""
    name, differing, counted = compare("page", [SAME, DIFFERENT, BROKEN])

    assert ("page", 2) == (name, counted)
    assert [1] == [index for index, *_ in differing]
