"""What the page shows of a store: as JSON for its server, or as one file that holds all
of it.

Nothing of the user's is imported or unpickled.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeAlias

from flowpregel._core.records import Address
from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import ConfigurationError
from flowpregel.watching.inert import InertCodec
from flowpregel.watching.preview import (
    Limits,
    RecordView,
    ReprText,
    by_public_name,
    channel_values,
    to_json,
)
from flowpregel.watching.reader import StoreReader
from flowpregel.watching.tasks import CallChanges, CallRow

Json: TypeAlias = Any
"""What `json.dumps` takes."""

STATIC = Path(__file__).with_name("static")
MODULES = (
    "dom",
    "format",
    "source",
    "model",
    "values",
    "call",
    "calls",
    "timeline",
    "graph",
    "steps",
    "run",
    "runs",
    "main",
)
"""The page's modules, each after those that it imports."""
MOST_CALLS = 20_000
"""Of the calls, so many are listed, those that failed or wait first."""
MOST_DETAILS = 1_000
"""Of so many all that is kept is shown."""
MOST_STEPS = 200
"""Of the supersteps, the values of the newest ones are shown."""
_URGENCY = ("failed", "waiting", "unfinished", "done")
_SHOWN = Limits(depth=8, count=200, size=20_000, total=5_000)


def json_text(value: Json) -> str:
    """Return JSON that is ASCII, and that ends no element of a page that holds it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def tagged(shown: Any) -> Json:
    """Return what `preview.to_json` made as JSON that tells texts, objects and dicts
    apart.

    Example:
        >>> tagged({"a": [1, ReprText("… 3 more")]})
        {'items': [('a', [1, {'written': '… 3 more'}])]}
    """
    match shown:
        case dict():
            items = [(key, tagged(value)) for key, value in shown.items()]
            return {
                "items": items,
                **({"name": shown.name} if isinstance(shown, RecordView) else {}),
            }
        case list():
            return [tagged(each) for each in shown]
        case ReprText():
            return {"written": str(shown)}
    return shown


def calls_of(changes: CallChanges) -> Json:
    """Return what changed of a run's calls, and the names of the columns."""
    return {"columns": CallRow._fields, **changes._asdict()}


class Pages:
    """Answers what the page asks of a store.

    Args:
        saver: The store, opened to be read, with an `InertCodec`.
    """

    def __init__(self, saver: DurableSaver) -> None:
        self.saver = saver
        self.reader = StoreReader(saver)

    def close(self) -> None:
        """Give the store back."""
        self.reader.close()

    def runs(self) -> Json:
        """Return the list of runs, the one that changed last first."""
        return {
            "store": self.saver.path,
            "runs": [row._asdict() for row in self.reader.runs()],
        }

    def run(self, thread: str) -> Json:
        """Return how a run stands."""
        row = self.reader.run(thread)
        if row is None:
            raise ConfigurationError(f"the store has no thread {thread!r}")
        return row._asdict()

    def calls(self, thread: str, since: int | str = 0) -> Json:
        """Return calls of a run that changed since a mark, as `StoreReader.calls`
        does.
        """
        return calls_of(self.reader.calls(thread, int(since)))

    def call(self, thread: str, call: str, at: str | None = None) -> Json:
        """Return all that is kept of a call; *at* is the checkpoint it started at, if
        known.
        """
        detail = self.reader.call(thread, call, at)
        if detail is None:
            raise ConfigurationError(
                f"the last run of thread {thread!r} has no call {call!r}"
            )
        values = {
            name: tagged(detail[name]) for name in ("arguments", "result", "error")
        }
        questions = [
            {**each, "value": tagged(each["value"])} for each in detail["questions"]
        ]
        told = {"row": detail["row"]._asdict(), "attempts": detail["attempts"]}
        return {**told, **values, "questions": questions}

    def logs(self, thread: str, call: str, at: str | None = None) -> str:
        """Return what a call, given as for `call`, has printed and logged."""
        return self.reader.output(thread, call, at)

    def steps(self, thread: str, most: int | str = 200) -> Json:
        """Return the newest checkpoints of a thread, the newest first."""
        return [
            {
                "id": id_,
                "step": record.step,
                "source": record.source,
                "at": record.at,
                "changed": [*by_public_name(dict.fromkeys(record.changed))],
            }
            for id_, record in self.reader.checkpoints(thread, int(most))
        ]

    def step(self, thread: str, checkpoint: str) -> Json:
        """Return what the channels held at a checkpoint, and before it where that
        changed.
        """
        saved = self.saver.load_channels(Address(thread, "", checkpoint))
        if saved is None:
            raise ConfigurationError(
                f"thread {thread!r} has no checkpoint {checkpoint!r}"
            )
        parent = None
        if saved.checkpoint.parent_id is not None:
            address = Address(thread, "", saved.checkpoint.parent_id)
            parent = self.saver.load_channels(address)
        before = {} if parent is None else by_public_name(channel_values(parent))
        after, changed = (
            by_public_name(channel_values(saved)),
            by_public_name(dict.fromkeys(saved.checkpoint.changed)),
        )
        channels = []
        for name in sorted({*before, *after}):
            is_changed = name in changed or (name in before) != (name in after)
            sides = (
                {"before": before, "value": after} if is_changed else {"value": after}
            )
            held = {
                key: tagged(to_json(side[name], _SHOWN))
                for key, side in sides.items()
                if name in side
            }
            channels.append({"name": name, "changed": is_changed, **held})
        return {"id": checkpoint, "channels": channels}


# ---------------------------------------------------------------- as one file


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
        f"default-src 'none'; script-src {_hashed(script)}; style-src "
        f"{_hashed(style)}; "
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
        page = page.replace(mark, part, 1)
    return page


def notebook_report(saver: Any, thread: str | None) -> str | None:
    """Return the page of a run in a frame that it cannot reach out of; None: it is not
    kept.
    """
    if thread is None or not isinstance(saver, LMDBSaver):
        return None
    codec, options = InertCodec(), saver.options
    with (
        suppress(ConfigurationError),  # nothing is kept of it yet
        LMDBSaver(saver.path, readonly=True, codec=codec, options=options) as inert,
    ):
        page = html.escape(report(inert, thread))
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{page}" title="A run" '
            'style="width: 100%; '
            'height: 640px; border: 1px solid #8885; border-radius: 8px"></iframe>'
        )
    return None


def _script() -> str:
    """Return the page's modules as one, which imports nothing."""
    texts = ((STATIC / f"{name}.js").read_text(encoding="utf-8") for name in MODULES)
    bare = (
        re.sub(r"^import .*;\n|^export ", "", text, flags=re.MULTILINE)
        for text in texts
    )
    return "\n".join(bare)


def _hashed(text: str) -> str:
    """Return the name by which a policy allows an element with this text."""
    return (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    )


def _answers(pages: Pages, thread: str) -> Json:
    """Return what the page asks for, by the names under which ``source.js`` looks it
    up.
    """
    run, steps = pages.run(thread), pages.steps(thread, MOST_CALLS)
    known: dict[str, CallRow] = {}
    for changes in pages.reader.changes(thread):
        known = ({} if changes.is_whole else known) | {
            row.id: row for row in changes.rows
        }
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
