"""What users give a run, and are given by it, beside plain values."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, Literal, TypeVar

from flowpregel.policies import TimeoutPolicy

Destination = TypeVar("Destination", bound=Hashable)


@dataclass(frozen=True, slots=True, repr=False)
class Send:
    """Ask for one task of *node* with *arg* as its input, in the next superstep.

    Args:
        node: The name of the node to run.
        arg: What the node is given instead of its channels.
        timeout: Overrides the node's timeout for this task (seconds, a
            ``timedelta`` or a `TimeoutPolicy`).

    Example:
        >>> Send("measure", {"path": "a.py"})
        Send(node='measure', arg={'path': 'a.py'})
    """

    node: str
    arg: Any
    timeout: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout", TimeoutPolicy.coerce(self.timeout))

    def __repr__(self) -> str:
        timeout = f", timeout={self.timeout!r}" if self.timeout else ""
        return f"Send(node={self.node!r}, arg={self.arg!r}{timeout})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Command(Generic[Destination]):
    """Tell a graph what to do next: update its state, go to a node, answer a question.

    Args:
        graph: None for this graph, `Command.PARENT` for the one around it.
        update: State to write: a dict, (channel, value) pairs, or an annotated object.
        resume: The answer to the pending interrupt, or a dict of interrupt ids and answers.
        goto: A node name, a `Send`, or several of either.
    """

    graph: str | None = None
    update: Any = None
    resume: Any = None
    goto: Send | Sequence[Send | Destination] | Destination = ()

    PARENT: ClassVar[Literal["__parent__"]] = "__parent__"

    def __repr__(self) -> str:
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return f"Command({', '.join(f'{name}={value!r}' for name, value in said.items() if value)})"


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A question a task asked.

    Args:
        value: What was asked: anything a person or program can answer.
        id: Names the question; an answer can be addressed to it.
        response_schema: The JSON schema of the answers that fit; None: any.
    """

    value: Any
    id: str = "placeholder-id"
    response_schema: Any = field(default=None, compare=False)
