"""Tells a thread's story on one engine, and writes down what can be seen of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from flowpregel.checkpoint.base import BaseCheckpointSaver as OurSaver
from flowpregel.plugins.langgraph import SaverAdapter
from tests.parity.plans import KEYS, Action, Plan
from tests.parity.sides import Side, build

RECURSION_LIMIT = 14
SAME_ERRORS = {"RuntimeError": "UnknownInterruptError"}
"""What LangGraph raises, and we under a name of its own."""
ANSWERS = ("answer", "wrong", "answer and go")
RUN_TASK_ID = "00000000-0000-0000-0000-000000000000"


Note = Callable[[Any], None]
Read = Callable[[Any, Any, Any, dict[str, Any], Note], None]


def read_stream(
    app: Any, given: Any, config: Any, asked: dict[str, Any], note: Note
) -> None:
    """Run *app*, and *note* each item of its stream."""
    for event in app.stream(given, config, **asked):
        note(event)


def read_async_stream(
    app: Any, given: Any, config: Any, asked: dict[str, Any], note: Note
) -> None:
    """Do the same on an event loop."""

    async def read() -> None:
        async for event in app.astream(given, config, **asked):
            note(event)

    asyncio.run(read())


def saved_of(app: Any, config: Any) -> Any:
    """Return the checkpoint that *config* names in LangGraph's shape, or None."""
    saver = app.checkpointer
    return (SaverAdapter(saver) if isinstance(saver, OurSaver) else saver).get_tuple(
        config
    )


def told(
    side: Side, plan: Plan, read: Read = read_stream, durability: str = "sync"
) -> list[Any]:
    """Return everything that can be seen while the story of *plan* happens on
    *side*.
    """
    teller = Teller(side, plan, read, durability)
    return [seen for action in plan.actions for seen in teller.does(action)]


class Teller:
    """One thread on one engine."""

    def __init__(self, side: Side, plan: Plan, read: Read, durability: str) -> None:
        self.side = side
        self.read = read
        self.at_exit = durability == "exit"
        self.asked = {
            "stream_mode": ["values", "updates"],
            "subgraphs": True,
            "durability": durability,
        }
        self.plan = plan
        self.app = build(side, plan.graph, side.saver())
        self.config = {
            "configurable": {"thread_id": "1"},
            "recursion_limit": RECURSION_LIMIT,
        }
        self.handled = [node.name for node in plan.graph.nodes if node.handled]
        self.torn = False
        """Whether a superstep failed of which LangGraph keeps a part."""
        self.asks_on = False
        """Whether a task that was given an answer asks something else."""
        self.was_refused = False
        """Whether the last answer was refused."""
        self.names = [node.name for node in plan.graph.nodes]

    def does(self, action: Action) -> list[Any]:
        """Do *action*, and return what it showed, and how the thread looks then."""
        if self.torn or self._is_ambiguous(action):
            return ["not compared"]
        shown = _caught(lambda: self._act(action))
        if self.at_exit and "raised InvalidUpdateError" in repr(shown):
            # Listed as different: LangGraph keeps half of the superstep.
            self.torn = True
            return [(action.kind, shown)]
        if self._hides_tasks():
            self.torn = True
            return [(action.kind, shown)]
        self.was_refused = action.kind == "wrong" and "raised" in repr(shown)
        if action.kind in (*ANSWERS, "input"):
            self.asks_on = action.kind in ANSWERS and bool(self._waiting())
        seen = [(action.kind, shown), ("state", self._state())]
        return seen if self.at_exit else [*seen, ("history", self._history())]

    def _is_ambiguous(self, action: Action) -> bool:
        """Return whether the engines do different things with *action*, as is listed.

        While a task asks on, LangGraph answers its next question with the old
        answer, or with one that was refused. And which tasks have ended when one
        fails is a matter of luck. With durability ``exit`` it keeps checkpoints
        that no superstep made.
        """
        if self.at_exit and action.kind in ("replay", "inside", "fork"):
            return True
        goes_on = ("go", "command", "replay", "inside", "answer and go", "wrong")
        if self.asks_on and action.kind in goes_on:
            return True
        if self.was_refused and any(node.asks > 1 for node in self.plan.graph.nodes):
            return True
        if action.kind == "wrong" and self._has_company():
            return True
        nodes = self.plan.graph.nodes
        # A node that is led to beside the one that is answered may fail before that has
        # ended.
        if action.kind == "answer and go" and any(node.fails for node in nodes):
            return True
        # It asks a handler again when it resumes; after a command that sees another
        # state.
        return action.kind == "command" and any(
            node.fails or node.handled for node in nodes
        )

    def _hides_tasks(self) -> bool:
        """Return whether a task waits that a command beside an answer has sent.

        Listed as different: LangGraph's state shows neither it nor its question.
        """
        saved = saved_of(self.app, self.config)
        return saved is not None and any(
            task_id == RUN_TASK_ID and channel == "__pregel_tasks"
            for task_id, channel, _ in saved.pending_writes or ()
        )

    def _has_company(self) -> bool:
        """Return whether more than the task that asks has to do with a wrong answer.

        Listed as different: LangGraph hands it to an error handler. And which other
        tasks, also those that a command leads to, have ended by then is a matter of
        luck.
        """
        if self.handled or self._holds_command(self.config):
            return True
        found = _caught(lambda: len(self.app.get_state(self.config).next))
        return found != 1

    # ------------------------------------------------------------ actions

    def _act(self, action: Action) -> Any:
        if action.kind == "input":
            start = action.number
            return self._run(
                {"items": ["in"], "total": start, "log": ["in"]}, self.config
            )
        if action.kind == "go":
            return self._run(None, self.config)
        if action.kind == "command":
            name = self.names[action.number % len(self.names)]
            update = self._values(action, "command")
            return self._run(
                self.side.types.Command(update=update, goto=name), self.config
            )
        if action.kind in ANSWERS:
            return self._answer(action)
        return getattr(self, f"_{action.kind}")(action)

    def _answer(self, action: Action) -> Any:
        """Answer the only question, or one of several by its id."""
        waiting = self._waiting()
        if not waiting:
            return "nothing to answer"
        resume: Any = {
            "text": 5 if action.kind == "wrong" else f"answer {action.number}"
        }
        if len(waiting) > 1 or action.number > 3 or action.kind == "answer and go":
            # By its id: an answer for any is also one for what a task asks that is sent
            # now.
            asked = waiting[action.number % len(waiting)].value
            resume = {item.id: resume for item in waiting if item.value == asked}
        goto: Any = ()
        if action.kind == "answer and go":
            goto = self.names[action.number % len(self.names)]
            if "items" in action.values and self.plan.graph.sends:
                goto = self.side.types.Send(goto, {"sent": ["sent"], "total": 2})
        return self._run(self.side.types.Command(resume=resume, goto=goto), self.config)

    def _waiting(self) -> list[Any]:
        found = _caught(lambda: self.app.get_state(self.config).interrupts)
        return (
            [] if isinstance(found, str) else sorted(found, key=lambda item: item.value)
        )

    def _update(self, action: Action, config: Any = None) -> Any:
        config = config or self.config
        name: str | None = [*self.names, None][action.number % (len(self.names) + 1)]
        if self._is_listed(config, name):
            return "not compared"
        values = self._values(action, "update")
        return _caught(lambda: self.app.update_state(config, values, name) and None)

    def _is_listed(self, config: Any, name: str | None) -> bool:
        """Return whether the engines differ in such an update, as is listed.

        LangGraph forgets what a `Command` wrote that no checkpoint holds yet; it
        mixes the update into the record of a task that has ended or was handled;
        and it does not know which node to act as on a replay where none has run.
        """
        if self._holds_command(config) or (name is None and self._none_has_run(config)):
            return True
        state = _caught(lambda: self.app.get_state(config))
        if isinstance(state, str):
            return True
        return any(
            task.result is not None
            or (task.error is not None and task.name in self.handled)
            for task in state.tasks
            if name in (None, task.name)
        )

    def _none_has_run(self, config: Any) -> bool:
        saved = saved_of(self.app, config)
        seen = {} if saved is None else saved.checkpoint["versions_seen"]
        # LangGraph notes snapshots of DeltaChannels there, too: no node was triggered
        # by them.
        return not any(
            channel not in KEYS
            for name in ("__start__", *self.names)
            for channel in seen.get(name, ())
        )

    def _holds_command(self, config: Any) -> bool:
        """Return whether what a `Command` wrote is pending on the newest checkpoint."""
        saved, newest = saved_of(self.app, config), saved_of(self.app, self.config)
        if saved is None or saved.checkpoint["id"] != newest.checkpoint["id"]:
            return False
        return any(
            task_id == RUN_TASK_ID and channel != "__resume__"
            for task_id, channel, _ in saved.pending_writes or ()
        )

    def _replay(self, action: Action) -> Any:
        config = self._past(action.number)
        if config is None:
            return "no past"
        # Listed as different: LangGraph has no place for the results of the second try.
        return (
            "not compared" if self._is_tried_edit(config) else self._run(None, config)
        )

    def _inside(self, action: Action) -> Any:
        """Replay from a checkpoint of a graph inside that waits."""
        shown = _caught(lambda: self.app.get_state(self.config, subgraphs=True))
        tasks = (
            []
            if isinstance(shown, str)
            else sorted(shown.tasks, key=lambda task: task.name)
        )
        states = [task.state for task in tasks if getattr(task.state, "metadata", None)]
        if not states:
            return "nothing inside"
        if self._is_tried_edit(self.config):
            return "not compared"
        inside = states[action.number % len(states)].config["configurable"]
        own = {"thread_id": "1", "checkpoint_ns": inside["checkpoint_ns"]}
        history = list(self.app.get_state_history({"configurable": own}))
        config = history[action.number % len(history)].config
        return self._run(None, {**config, "recursion_limit": RECURSION_LIMIT})

    def _is_tried_edit(self, config: Any) -> bool:
        """Return whether an edit or a fork made a checkpoint, and tasks have ended on
        it since.
        """
        saved = saved_of(self.app, config)
        return saved.metadata["source"] in ("update", "fork") and any(
            task_id != RUN_TASK_ID and channel != "__interrupt__"
            for task_id, channel, _ in saved.pending_writes or ()
        )

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

        def note(event: Any) -> None:
            namespace, mode, payload = event
            if mode == "updates" and any(
                payload.get(name, "") is None for name in self.handled
            ):
                # Listed as different: LangGraph may tell that a task ended which has
                # failed.
                return
            where = tuple(part.split(":")[0] for part in namespace)
            events.append((where, mode, plain(payload)))

        end = _caught(lambda: self.read(self.app, given, config, self.asked, note))
        shown = in_any_order(events)
        if (
            end == "raised InvalidUpdateError"
            and events
            and _tells_of_a_task(events[-1])
        ):
            # Listed as different: LangGraph may not show what led to the error.
            shown.pop()
        return shown, end

    # ------------------------------------------------------------ what is seen

    def _state(self) -> Any:
        return _caught(lambda: self._seen(self.app.get_state(self.config)))

    def _history(self) -> Any:
        return _caught(
            lambda: [
                self._seen(item) for item in self.app.get_state_history(self.config)
            ]
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
                    # Listed as different: a task that is done shows its old failure no
                    # more.
                    task.error is not None and task.result is None,
                    sorted(item.value for item in task.interrupts),
                    str(plain(task.result)),
                )
                for task in state.tasks
            ),
            "is first": state.parent_config is None and not self.at_exit,
        }


def _caught(do: Any) -> Any:
    """Return what *do* returns, or the name of what it raises."""
    try:
        return do()
    except Exception as error:  # noqa: BLE001 - what is raised is what is compared
        name = type(error).__name__
        return f"raised {SAME_ERRORS.get(name, name)}"


def plain(value: Any) -> Any:
    """Return *value* without what differs between the engines by nature: ids and
    classes.
    """
    if isinstance(value, dict):
        found = {key: plain(item) for key, item in sorted(value.items())}
        if any(str(key).startswith("__error_handler__") for key in found):
            # Listed as different: LangGraph calls a handler again when it resumes.
            found.pop("__metadata__", None)
        return found
    if isinstance(value, list | tuple):
        items = [plain(item) for item in value]
        is_questions = bool(items) and all(hasattr(item, "value") for item in value)
        return sorted(items) if is_questions else items
    if type(value).__name__ == "Interrupt":
        return f"asks {value.value}"
    if type(value).__name__ == "Overwrite":
        return f"overwrite {value.value}"
    return value


def in_any_order(events: list[Any]) -> list[Any]:
    """Return events with those of tasks that run side by side sorted: they end in any
    order.
    """
    found: list[Any] = []
    for of_tasks, group in itertools.groupby(events, key=_tells_of_a_task):
        together = list(group)
        found.append(sorted(together, key=repr) if of_tasks else together)
    return found


def _tells_of_a_task(event: tuple[Any, str, Any]) -> bool:
    namespace, mode, payload = event
    return bool(namespace) or mode == "updates" or "__interrupt__" in payload
