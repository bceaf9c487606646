"""An agent whose middleware has a lock, so it cannot be sent to another process."""

from __future__ import annotations

import threading
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage

from tests.parity.langchain import ScriptedModel
from tests.parity.programs import print_line


class OneAtATime(AgentMiddleware):
    """Middleware that lets one call of the model run at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        """Call the model while the lock is held."""
        with self._lock:
            return handler(request)


if __name__ == "__main__":
    model = ScriptedModel(script=[AIMessage("Done.")])
    app = create_agent(model, [], middleware=[OneAtATime()])
    output = app.invoke({"messages": [("user", "Hello")]})
    print_line([message.content for message in output["messages"]])
