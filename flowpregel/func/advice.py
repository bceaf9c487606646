"""The advice in errors about methods that tasks and workflows of other libraries
have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_AT_ONCE: Final = (
    "a call starts at once: write {name}(...), and .result() where its result is needed"
)
TASK_ADVICE: Final[Mapping[str, str]] = {
    "submit": _AT_ONCE,
    "delay": _AT_ONCE,
    "apply_async": ("write {name}(...); pass options as {name}.with_options(...)(...)"),
    "apply": "write {name}(...).result()",
    "remote": "write {name}(...)",
    "starmap": "write {name}.map(firsts, seconds): a list for each parameter",
    "map_async": "write {name}.map(items): it returns the futures at once",
    "imap_unordered": "write {name}.imap(items, ordered=False)",
    "invoke": (
        "write {name}(...).result() in a workflow, or {name}.run(...) outside of one"
    ),
    "fn": "its plain function is {name}.func",
}
"""Advice for error messages, by the name of an attribute that tasks of other libraries
have, and a `TaskFunction` does not.
"""
WORKFLOW_ADVICE: Final[Mapping[str, str]] = {
    "map": (
        "write {name}.batch(inputs), or start each: [{name}.start(x, id=...) for x in "
        "inputs]"
    ),
    "imap": (
        "write {name}.batch(inputs), or start each: [{name}.start(x, id=...) for x in "
        "inputs]"
    ),
    "submit": "write {name}.start(...): it returns a handle at once",
    "delay": "write {name}.enqueue(...), and run `flowpregel work`",
    "apply_async": "write {name}.enqueue(...), and run `flowpregel work`",
    "remote": "write {name}.start(...): it returns a handle at once",
    "start_workflow": "write {name}.start(...): it returns a handle at once",
    "result": "write {name}.run(...), which returns the result",
    "options": "write {name}.with_options(...).run(...), or @entrypoint(...)",
    "func": "a workflow has no plain function: write {name}.run(...)",
    "fn": "a workflow has no plain function: write {name}.run(...)",
    "serve": (
        "a run needs no server: write {name}.run(...); `flowpregel ui` shows the runs"
    ),
    "deploy": (
        "a run needs no server: write {name}.run(...); `flowpregel ui` shows the runs"
    ),
}
"""Advice for error messages, by the name of an attribute that workflows of other
libraries have, and a `Flow` does not.
"""
