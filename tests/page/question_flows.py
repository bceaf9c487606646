"""Flows that ask, for the tests of the page's forms."""

from __future__ import annotations

from typing import Any, Literal

from flowpregel import entrypoint, interrupt, task
from flowpregel.runtime import AWAITS_SIGNAL

DRAFT = """# A draft

It is **bold**, *slanted* and `code`:

- one
- two

```
x = <b>1</b>
```

> [a link](https://flowpregel.example) <img src=x onerror="window.hit = 1">
"""
PLAN = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tries": {"type": "integer", "title": "How often"},
        "dry": {"type": "boolean"},
        "kind": {"enum": ["quick", "thorough"]},
        "note": {"type": "string"},
    },
    "required": ["name", "tries", "kind"],
}
QUESTIONS: dict[str, tuple[Any, Any]] = {
    "options": ({"question": "Which?", "options": ["left", "right"]}, None),
    "labels": ({"text": "Ok?", "options": [{"label": "Fine", "value": 1}]}, None),
    "enum": ("Which?", {"enum": ["slow", "fast"]}),
    "boolean": ("Really?", {"type": "boolean"}),
    "literal": ("Which?", Literal["slow", "fast"]),
    "number": ("How many?", {"type": "integer"}),
    "text": ("What is its name?", {"type": "string"}),
    "object": ("How?", PLAN),
    "markdown": (DRAFT, None),
    "pause": ({AWAITS_SIGNAL: "go"}, None),
}


@task
def review(page: int) -> str:
    return f"{page}: {interrupt(f'is page {page} good?')}"


@entrypoint(executor="inline")
def book(pages: int) -> list[str]:
    return [future.result() for future in review.map(range(pages))]


@entrypoint(executor="inline")
def ask(name: str) -> Any:
    question, schema = QUESTIONS[name]
    return interrupt(question, response_schema=schema)
