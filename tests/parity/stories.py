"""Tells a thread's story on one engine, and writes down what can be seen of it."""

from __future__ import annotations

import itertools
from typing import Any

from tests.parity.plans import Action, Plan
from tests.parity.sides import Side, build

RECURSION_LIMIT = 14


def told(side: Side, plan: Plan) -> list[Any]:
    """Return everything that can be seen while the story of *plan* happens on *side*."""
    teller = Teller(side, plan)
    return [seen for action in plan.actions for seen in teller.does(action)]


class Teller:
    """One thread on one engine."""

    def __init__(self, side: Side, plan: Plan) -> None:
        self.side = side
        self.plan = plan
        self.app = build(side, plan.graph, side.saver())
        self.config = {"configurable": {"thread_id": "1"}, "recursion_limit": RECURSION_LIMIT}
        self.names = [node.name for node in plan.graph.nodes]

    def does(self, action: Action) -> list[Any]:
        """Do *action*, and return what it showed, and how the thread looks then."""
        shown = _caught(lambda: self._act(action))
        return [(action.kind, shown), ("state", self._state()), ("history", self._history())]

    # ------------------------------------------------------------ actions

    def _act(self, action: Action) -> Any:
        if action.kind == "input":
            start = action.number
            return self._run({"items": ["in"], "total": start, "log": ["in"]}, self.config)
        if action.kind == "go":
            return self._run(None, self.config)
        if action.kind == "command":
            name = self.names[action.number % len(self.names)]
            update = self._values(action, "command")
            return self._run(self.side.types.Command(update=update, goto=name), self.config)
        return getattr(self, f"_{action.kind}")(action)

    def _answer(self, action: Action) -> Any:
        """Answer the only question, or one of several by its id."""
        waiting = sorted(self.app.get_state(self.config).interrupts, key=lambda item: item.value)
        if not waiting:
            return "nothing to answer"
        resume: Any = f"answer {action.number}"
        if len(waiting) > 1:
            resume = {waiting[action.number % len(waiting)].id: resume}
        return self._run(self.side.types.Command(resume=resume), self.config)

    def _update(self, action: Action, config: Any = None) -> Any:
        name: str | None = [*self.names, None][action.number % (len(self.names) + 1)]
        values = self._values(action, "update")
        return _caught(lambda: self.app.update_state(config or self.config, values, name) and None)

    def _replay(self, action: Action) -> Any:
        config = self._past(action.number)
        return "no past" if config is None else self._run(None, config)

    def _fork(self, action: Action) -> Any:
        config = self._past(action.number)
        if config is None:
            return "no past"
        return self._update(action, config)

    def _past(self, number: int) -> Any:
        history = list(self.app.get_state_history(self.config))
        if not history:
            return None
        chosen = history[number % len(history)].config
        return {**chosen, "recursion_limit": RECURSION_LIMIT}

    def _values(self, action: Action, who: str) -> dict[str, Any]:
        all_ = {"items": [who], "total": 1, "last": who, "log": [who]}
        return {key: all_[key] for key in action.values}

    def _run(self, given: Any, config: Any) -> Any:
        events: list[Any] = []

        def stream() -> None:
            for mode, payload in self.app.stream(
                given, config, stream_mode=["values", "updates"], durability="sync"
            ):
                events.append((mode, plain(payload)))

        end = _caught(stream)
        return in_any_order(events), end

    # ------------------------------------------------------------ what is seen

    def _state(self) -> Any:
        return _caught(lambda: self._seen(self.app.get_state(self.config)))

    def _history(self) -> Any:
        return _caught(
            lambda: [self._seen(item) for item in self.app.get_state_history(self.config)]
        )

    def _seen(self, state: Any) -> dict[str, Any]:
        metadata = state.metadata or {}
        return {
            "values": plain(state.values),
            "next": sorted(state.next),
            "step": metadata.get("step"),
            "source": metadata.get("source"),
            "interrupts": sorted(item.value for item in state.interrupts),
            "tasks": sorted(
                (
                    task.name,
                    task.error is not None,
                    sorted(item.value for item in task.interrupts),
                    str(plain(task.result)),
                )
                for task in state.tasks
            ),
            "is first": state.parent_config is None,
        }


def _caught(do: Any) -> Any:
    """Return what *do* returns, or the name of what it raises."""
    try:
        return do()
    except Exception as error:  # noqa: BLE001 - what is raised is what is compared
        return f"raised {type(error).__name__}"


def plain(value: Any) -> Any:
    """Return *value* without what differs between the engines by nature: ids and classes."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in sorted(value.items())}
    if isinstance(value, list | tuple):
        found = [plain(item) for item in value]
        is_questions = bool(found) and all(hasattr(item, "value") for item in value)
        return sorted(found) if is_questions else found
    if type(value).__name__ == "Interrupt":
        return f"asks {value.value}"
    if type(value).__name__ == "Overwrite":
        return f"overwrite {value.value}"
    return value


def in_any_order(events: list[Any]) -> list[Any]:
    """Return events with those of tasks that run side by side sorted: they end in any order."""
    found = []
    for mode, group in itertools.groupby(events, key=lambda event: event[0]):
        payloads = [payload for _, payload in group]
        found.append((mode, sorted(payloads, key=repr) if mode == "updates" else payloads))
    return found
