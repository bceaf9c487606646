"""The arguments of failed calls, stored for further attempts until the calls succeed.

Each argument is encoded separately, so that all other arguments can be stored even if
one cannot be encoded. Arguments are decoded only when a call is made again, so reading
a checkpoint does not import their classes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from flowpregel._core.ids import FailedCall
from flowpregel._core.records import Address
from flowpregel.checkpoint.layout import (
    ARGUMENTS,
    checkpoint_key,
    digest,
    sidecar_key,
)
from flowpregel.checkpoint.tables import Tables
from flowpregel.errors import ValueEncodingError
from flowpregel.storage.codec import ValueCodec


class ArgumentNotStored(NamedTuple):
    """A placeholder for an argument that was not stored."""

    why: str


class StoredArguments(NamedTuple):
    """The arguments of a call that failed."""

    function: str
    """The module and the name of the task, followed by ``.map`` if the call is of a
    chunk of several items.
    """
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def missing(self) -> dict[int | str, str]:
        """The reasons why arguments were not stored, by the arguments' positions and
        names.
        """
        arguments: dict[Any, Any] = {**dict(enumerate(self.args)), **self.kwargs}
        return {
            key: argument.why
            for key, argument in arguments.items()
            if isinstance(argument, ArgumentNotStored)
        }


def encoded(call: FailedCall, limit: int, codec: ValueCodec) -> bytes | None:
    """Return the encoded arguments of a failed call, or None if none can be stored.

    Args:
        call: The failed call.
        limit: The size limit on all encoded arguments together, in bytes.
        codec: The codec that encodes values.
    """
    free_bytes = limit

    def encode(key: int | str, value: Any) -> bytes | str:
        """Return an encoded argument, or the reason why it is not stored."""
        nonlocal free_bytes
        kind = type(value).__name__
        if key in call.redacted:
            return "it is redacted"
        size = 0
        # The size is checked first, because the encoding would copy a large array.
        with suppress(Exception):
            size = int(value.nbytes)
        try:
            data = b"" if size > free_bytes else codec.encode(value, "it")
        except ValueEncodingError as error:
            return str(error)
        size = max(size, len(data))
        if size > free_bytes:
            return (
                f"a {kind} of {size:,} bytes is too large to be stored with the "
                f"others: StoreOptions(kept_arguments={limit}) limits the bytes of "
                "one call"
            )
        free_bytes -= size
        return data

    if limit <= 0:
        return None
    # Reading `call.arguments` may unpickle them. This runs code of their classes, which
    # may raise any error.
    with suppress(Exception):
        args = [encode(index, value) for index, value in enumerate(call.arguments.args)]
        kwargs = {
            name: encode(name, value) for name, value in call.arguments.kwargs.items()
        }
        return bytes(codec.record_of((call.home, args, kwargs)))
    return None


def stored_arguments(
    tables: Tables, transaction: Any, address: Address, task_id: str
) -> bytes | None:
    """Return the encoded arguments of a failed call, or None if none are stored.

    Args:
        tables: The tables of the store.
        transaction: An open transaction.
        address: The checkpoint from which the call started.
        task_id: The id of the call.
    """
    namespace = tables.namespace(transaction, address)
    if namespace is None or address.checkpoint_id is None:
        return None
    pending = checkpoint_key(namespace.prefix, address.checkpoint_id)
    key = sidecar_key(ARGUMENTS, pending) + digest(task_id)
    return tables.writes.get(transaction, key)


def decoded(data: bytes, codec: ValueCodec) -> StoredArguments:
    """Decode the arguments of a call, which imports their classes.

    Raises:
        ValueEncodingError: An argument cannot be decoded.
    """

    def decode(argument: bytes | str, key: int | str) -> Any:
        if isinstance(argument, str):
            return ArgumentNotStored(argument)
        return codec.decode(argument, f"argument {key!r}")

    function, args, kwargs = codec.fields_of(data)
    return StoredArguments(
        function,
        tuple(decode(argument, index) for index, argument in enumerate(args)),
        {name: decode(argument, name) for name, argument in kwargs.items()},
    )
