"""A state whose classes are local to a function that holds what cannot be pickled."""

import operator
import threading
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.graph import START, StateGraph
from tests.runs.conftest import Drive


@pytest.mark.parametrize("where", ["inline", "processes"])
def test_a_local_pydantic_class_is_kept_and_sent(
    drive: Drive, saver: BaseCheckpointSaver, where: str
) -> None:
    """Pydantic notes the function's variables in the class; a lock among them is left
    out.
    """
    lock = threading.Lock()

    class Part(BaseModel):
        size: int

    class State(BaseModel):
        part: Part
        found: Annotated[list[Any], operator.add] = []

    def find(state: State) -> dict[str, Any]:
        return {"found": [state.part.size]}

    app = (
        StateGraph(State)
        .add_node(find)
        .add_edge(START, "find")
        .compile(saver, executor=where)
    )

    with lock:
        ended = drive.invoke(app, State(part=Part(size=3)), thread_id="1")

    assert {"part": Part(size=3), "found": [3]} == ended
    assert ended == app.get_state(thread_id="1").values
