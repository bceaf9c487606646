"""How nodes look that are more than nodes: the markers, and those of a run."""

from __future__ import annotations

from typing import Final, NamedTuple


class Style(NamedTuple):
    """The colours of a node."""

    fill: str
    stroke: str
    text: str
    dashed: bool = False

    def to_mermaid(self) -> str:
        """Return it in Mermaid's language."""
        dashes = ",stroke-dasharray:4" if self.dashed else ""
        return f"fill:{self.fill},stroke:{self.stroke},color:{self.text}{dashes}"

    def to_dot(self) -> str:
        """Return it in Graphviz's language."""
        lines = "rounded,filled,dashed" if self.dashed else "rounded,filled"
        return (
            f'style="{lines}", fillcolor="{self.fill}", color="{self.stroke}", '
            f'fontcolor="{self.text}"'
        )


STYLES: Final = {
    "marker": Style("#eceff1", "#90a4ae", "#37474f"),
    "done": Style("#e8f5e9", "#43a047", "#1b5e20"),
    "failed": Style("#ffebee", "#e53935", "#b71c1c"),
    "waiting": Style("#fff8e1", "#ffb300", "#ff6f00"),
    "open": Style("#e3f2fd", "#1e88e5", "#0d47a1"),
    "idle": Style("#fafafa", "#bdbdbd", "#9e9e9e", dashed=True),
}
"""By the name of the class."""
