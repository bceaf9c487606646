"""A run's page as one file, which holds all that it shows and asks for nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import ConfigurationError
from flowpregel.ui.pages import STATIC, Json, Pages, calls_of, json_text
from flowpregel.watching.inert import InertCodec
from flowpregel.watching.tasks import CallRow

MODULES = (
    "dom", "format", "source", "model", "values", "call", "calls", "timeline", "graph", "steps",
    "run", "runs", "main",
)  # fmt: skip
"""The page's modules, each after those that it imports."""
MOST_CALLS = 20_000
"""Of the calls, so many are listed, those that failed or wait first."""
MOST_DETAILS = 1_000
"""Of so many all that is kept is shown."""
MOST_STEPS = 200
"""Of the supersteps, the values of the newest ones are shown."""
_URGENCY = ("failed", "waiting", "unfinished", "done")


def report(saver: DurableSaver, thread: str) -> str:
    """Return the page of a thread's last run, as one HTML file.

    Args:
        saver: The store, opened to be read, with an `InertCodec`.
        thread: Whose run.

    Raises:
        ConfigurationError: The store has no such thread.
    """
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    style = (STATIC / "style.css").read_text(encoding="utf-8")
    script = _script()
    policy = (
        f"default-src 'none'; script-src {_hashed(script)}; style-src {_hashed(style)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    with closing(Pages(saver)) as pages:
        answers = json_text(_answers(pages, thread))
    parts = {
        '<meta charset="utf-8">': '<meta charset="utf-8">\n'
        f'<meta http-equiv="content-security-policy" content="{policy}">',
        '<link rel="icon" href="static/icon.svg" type="image/svg+xml">\n': "",
        '<link rel="stylesheet" href="static/style.css">': f"<style>{style}</style>",
        '<script type="module" src="static/main.js"></script>': (
            f'<script type="application/json" id="answers">{answers}</script>\n'
            f'<script type="module">{script}</script>'
        ),
    }
    for mark, part in parts.items():
        before, _, after = page.partition(mark)
        page = before + part + after
    return page


def notebook_report(saver: Any, thread: str | None) -> str | None:
    """Return the page of a run in a frame that it cannot reach out of; None: it is not kept."""
    if thread is None or not isinstance(saver, LMDBSaver):
        return None
    codec, options = InertCodec(), saver.options
    with (
        suppress(ConfigurationError),  # nothing is kept of it yet
        LMDBSaver(saver.path, readonly=True, codec=codec, options=options) as inert,
    ):
        page = html.escape(report(inert, thread))
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{page}" title="A run" style="width: 100%; '
            'height: 640px; border: 1px solid #8885; border-radius: 8px"></iframe>'
        )
    return None


def _script() -> str:
    """Return the page's modules as one, which imports nothing."""
    texts = ((STATIC / f"{name}.js").read_text(encoding="utf-8") for name in MODULES)
    bare = (re.sub(r"^import .*;\n|^export ", "", text, flags=re.MULTILINE) for text in texts)
    return "\n".join(bare)


def _hashed(text: str) -> str:
    """Return the name by which a policy allows an element with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _answers(pages: Pages, thread: str) -> Json:
    """Return what the page asks for, by the names under which ``source.js`` looks it up."""
    run, steps = pages.run(thread), pages.steps(thread, MOST_CALLS)
    known: dict[str, CallRow] = {}
    for changes in pages.reader.changes(thread):
        known = ({} if changes.is_whole else known) | {row.id: row for row in changes.rows}
    rows = sorted(known.values(), key=lambda row: _URGENCY.index(row.state))
    run["calls"] = len(rows)
    calls = {**calls_of(changes), "rows": rows[:MOST_CALLS], "limit": MOST_CALLS}
    store = {"store": Path(pages.saver.path).name, "runs": [run], "actions": False}
    # Each is looked up at its own checkpoint: the run may have very many.
    ids = {row.id: row.checkpoint_id for row in rows[:MOST_DETAILS]}
    newest = [step["id"] for step in steps[:MOST_STEPS]]
    return {
        "runs:": store,
        "run:": run,
        "calls:": calls,
        "steps:": steps,
        **{f"call:{id_}": pages.call(thread, id_, at) for id_, at in ids.items()},
        **{f"logs:{id_}": pages.logs(thread, id_, at) for id_, at in ids.items()},
        **{f"step:{id_}": pages.step(thread, id_) for id_ in newest},
    }
