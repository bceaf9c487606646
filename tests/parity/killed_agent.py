"""An agent that is killed in the middle of a tool's call, and resumed.

Run ``python -m tests.parity.killed_agent EXECUTOR`` twice: the first run ends by
SIGKILL, the second one prints the messages. Both write what they do into files of the
folder in ``AGENT_FOLDER``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool

from flowpregel.plugins.langchain import create_agent
from tests.parity.langchain import ScriptedModel, asks, call

FOLDER = Path(os.environ.get("AGENT_FOLDER", "."))


def log(name: str, line: str = "") -> int:
    """Add a line to a file, and return how many lines the file has."""
    path = FOLDER / name
    with path.open("a") as file:
        file.write(f"{line}\n")
    return len(path.read_text().splitlines())


class LoggedModel(ScriptedModel):
    """A model that writes down each question."""

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        log("model")
        return super()._generate(messages, *args, **options)


@tool
def book(hotel: str) -> str:
    """Book a room."""
    log("book", hotel)
    return f"a room at {hotel}"


@tool
def pay(amount: int) -> str:
    """Pay; the first call kills the program."""
    if log("pay", str(amount)) == 1:
        os.kill(int((FOLDER / "pid").read_text()), signal.SIGKILL)
        signal.pause()
    return f"paid {amount}"


def main() -> None:
    """Run the agent, or resume it."""
    (FOLDER / "pid").write_text(str(os.getpid()))
    model = LoggedModel(
        script=[
            asks(call("book", "1", hotel="Ritz")),
            asks(call("book", "2", hotel="Savoy")),
            asks(call("pay", "3", amount=90)),
            AIMessage("Done.", id="done"),
        ]
    )
    agent = create_agent(
        model,
        [book, pay],
        executor=sys.argv[1],
        checkpointer=str(FOLDER / "runs.lmdb"),
    )
    question = {"messages": [HumanMessage("Two rooms, please.", id="question")]}
    result = agent.invoke(question, thread_id="trip", resume="auto", durability="sync")
    print([message.content for message in result["messages"]])


if __name__ == "__main__":
    main()
