"""The arguments of calls that failed: kept to make the calls again, until they succeed.

Each is encoded by itself, so that one which cannot be kept does not cost the others.
They are decoded only to be used: nobody who reads a checkpoint needs their classes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from flowpregel._core.ids import FailedCall
from flowpregel._core.records import Address
from flowpregel.checkpoint.layout import (
    ARGUMENTS,
    Tables,
    beside,
    checkpoint_key,
    digest,
)
from flowpregel.errors import ValueEncodingError
from flowpregel.storage.codec import ValueCodec


class NotKept(NamedTuple):
    """Stands for an argument that was not kept."""

    why: str


class KeptArguments(NamedTuple):
    """What a call that failed was given."""

    function: str
    """The module and the name of its task; of many calls made as one, with ``.map``
    after it.
    """
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def missing(self) -> dict[int | str, str]:
        """The positions and names of arguments that were not kept, and why."""
        every: dict[Any, Any] = {**dict(enumerate(self.args)), **self.kwargs}
        return {
            place: each.why
            for place, each in every.items()
            if isinstance(each, NotKept)
        }


def encoded(call: FailedCall, limit: int, codec: ValueCodec) -> bytes | None:
    """Return what is kept of the arguments of a call that failed; None: nothing.

    Args:
        call: The call.
        limit: The most bytes that its arguments may take.
        codec: Encodes values.
    """
    left = limit

    def kept(place: int | str, value: Any) -> bytes | str:
        """Return an argument encoded, or why it is not kept."""
        nonlocal left
        kind = type(value).__name__
        if place in call.redacted:
            return "it is redacted"
        size = 0
        with suppress(Exception):  # of a large array it is known before it is copied
            size = int(value.nbytes)
        try:
            data = b"" if size > left else codec.encode(value, "it")
        except ValueEncodingError as error:
            return str(error)
        size = max(size, len(data))
        if size > left:
            return (
                f"a {kind} of {size:,} bytes is too large beside the others: "
                f"StoreOptions(kept_arguments={limit}) says how many are kept of a call"
            )
        left -= size
        return data

    if limit <= 0:
        return None
    # they may be unpickled for it, which runs code of their classes
    with suppress(Exception):
        args = [kept(index, value) for index, value in enumerate(call.given.args)]
        kwargs = {name: kept(name, value) for name, value in call.given.kwargs.items()}
        return bytes(codec.record_of((call.home, args, kwargs)))
    return None


def stored_arguments(
    tables: Tables, transaction: Any, address: Address, task_id: str
) -> bytes | None:
    """Return what is kept of the arguments of a call that was made from *address*,
    encoded.
    """
    namespace = tables.namespace(transaction, address)
    if namespace is None or address.checkpoint_id is None:
        return None
    pending = checkpoint_key(namespace.prefix, address.checkpoint_id)
    return tables.writes.get(transaction, beside(ARGUMENTS, pending) + digest(task_id))


def decoded(data: bytes, codec: ValueCodec) -> KeptArguments:
    """Return what was kept of a call's arguments; needs the classes of them.

    Raises:
        ValueEncodingError: An argument cannot be read back.
    """

    def value(kept: bytes | str, place: int | str) -> Any:
        return (
            NotKept(kept)
            if isinstance(kept, str)
            else codec.decode(kept, f"argument {place!r}")
        )

    function, args, kwargs = codec.fields_of(data)
    return KeptArguments(
        function,
        tuple(value(each, index) for index, each in enumerate(args)),
        {name: value(each, name) for name, each in kwargs.items()},
    )
