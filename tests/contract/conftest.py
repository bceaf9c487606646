"""What the tests of contracts share."""

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.plugins.langgraph import SaverAdapter


@pytest.fixture(params=["memory", "lmdb"])
def adapter(request, tmp_path):
    """Return one of our savers as LangGraph's."""
    ours = (
        InMemorySaver() if request.param == "memory" else LMDBSaver(tmp_path / "store")
    )
    with ours:
        yield SaverAdapter(ours)
