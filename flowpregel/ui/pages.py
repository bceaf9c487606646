"""What the page shows of a store, as JSON: nothing of the user's is imported or unpickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from flowpregel._core.records import Address
from flowpregel.errors import ConfigurationError
from flowpregel.watching.preview import Fields, Limits, Written, named, plain, values_of
from flowpregel.watching.reader import StoreReader
from flowpregel.watching.tasks import CallChanges, CallRow

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver

Json: TypeAlias = Any
"""What `json.dumps` takes."""

STATIC = Path(__file__).with_name("static")
_SHOWN = Limits(depth=8, count=200, size=20_000, total=5_000)


def json_text(value: Json) -> str:
    """Return JSON that is ASCII, and that ends no element of a page that holds it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def tagged(shown: Any) -> Json:
    """Return what `preview.plain` made as JSON that tells texts, objects and dicts apart.

    Example:
        >>> tagged({"a": [1, Written("… 3 more")]})
        {'items': [('a', [1, {'written': '… 3 more'}])]}
    """
    match shown:
        case dict():
            items = [(key, tagged(value)) for key, value in shown.items()]
            return {"items": items, **({"name": shown.name} if isinstance(shown, Fields) else {})}
        case list():
            return [tagged(each) for each in shown]
        case Written():
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
        return {"store": self.saver.path, "runs": [row._asdict() for row in self.reader.runs()]}

    def run(self, thread: str) -> Json:
        """Return how a run stands."""
        row = self.reader.run(thread)
        if row is None:
            raise ConfigurationError(f"the store has no thread {thread!r}")
        return row._asdict()

    def calls(self, thread: str, since: int | str = 0) -> Json:
        """Return calls of a run that changed since a mark, as `StoreReader.calls` does."""
        return calls_of(self.reader.calls(thread, int(since)))

    def call(self, thread: str, call: str, at: str | None = None) -> Json:
        """Return all that is kept of a call; *at* is the checkpoint it started at, if known."""
        detail = self.reader.call(thread, call, at)
        if detail is None:
            raise ConfigurationError(f"the last run of thread {thread!r} has no call {call!r}")
        values = {name: tagged(detail[name]) for name in ("arguments", "result", "error")}
        questions = [{**each, "value": tagged(each["value"])} for each in detail["questions"]]
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
                "changed": [*named(dict.fromkeys(record.changed))],
            }
            for id_, record in self.reader.checkpoints(thread, int(most))
        ]

    def step(self, thread: str, checkpoint: str) -> Json:
        """Return what the channels held at a checkpoint, and before it where that changed."""
        saved = self.saver.load_channels(Address(thread, "", checkpoint))
        if saved is None:
            raise ConfigurationError(f"thread {thread!r} has no checkpoint {checkpoint!r}")
        parent = None
        if saved.checkpoint.parent_id is not None:
            address = Address(thread, "", saved.checkpoint.parent_id)
            parent = self.saver.load_channels(address)
        before = {} if parent is None else values_of(parent)
        after, changed = values_of(saved), named(dict.fromkeys(saved.checkpoint.changed))
        channels = []
        for name in sorted({*before, *after}):
            is_changed = name in changed or (name in before) != (name in after)
            sides = {"before": before, "value": after} if is_changed else {"value": after}
            held = {
                key: tagged(plain(side[name], _SHOWN))
                for key, side in sides.items()
                if name in side
            }
            channels.append({"name": name, "changed": is_changed, **held})
        return {"id": checkpoint, "channels": channels}
