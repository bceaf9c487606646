"""The preparation of writes by the channels that they go to, before the writes are
stored or shown.

Some channels add parts that a write lacks. A list of messages, for example, gives an id
to each message that has none. If the id were made only when a barrier folds the write
into the channel, then the stored write, the stream and each later read of the thread
would have different ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowpregel._core.records import Write
from flowpregel.channels.base import PrepareWrite


def prepared_writes(
    preparations: Mapping[str, PrepareWrite],
    author: str,
    writes: Sequence[Write],
) -> Sequence[Write]:
    """Return *writes* after their channels have prepared them: the same object if no
    channel has changed a write.

    Args:
        preparations: The functions that prepare writes, by channel.
        author: A string that identifies these writes in the thread, such as the id of
            the task that makes them.
        writes: The writes, each a name of a channel and a value.

    Raises:
        Exception: The exception of a function that refuses a write.
    """
    if not preparations:
        return writes
    prepared: list[Write] = []
    is_changed = False
    for position, (channel, value) in enumerate(writes):
        new_value = value
        prepare = preparations.get(channel)
        if prepare is not None:
            new_value = prepare(value, f"{author}, {channel}, {position}")
        is_changed = is_changed or new_value is not value
        prepared.append((channel, new_value))
    return tuple(prepared) if is_changed else writes
