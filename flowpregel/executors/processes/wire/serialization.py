"""The messages between the ends of a link: pickles, and their large buffers.

A message is the body of a frame, or a part of the body. The frame's header begins with
the link's random number. If user code writes bytes to the descriptor of the link by
mistake, they do not begin with this number, and are refused before anything is decoded.
The module `flowpregel._pickling.crossing` makes the pickles.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from flowpregel._pickling.crossing import SHARE_FROM, dumps

_COUNT: Final = Struct("<I")
_REF: Final = Struct("<QQQ")
_LARGEST_PLAIN: Final = 1 << 16
_NAMING: Final = re.compile(rb"[\x93\x82\x83\x84]")
"""The pickle opcodes by which a message can refer to a class or function: STACK_GLOBAL,
and the three opcodes for extension codes of `copyreg`.
"""


class BufferRef(NamedTuple):
    """A reference to a part of a message that was written to shared memory for one
    reader.
    """

    id: int
    """The id of the buffer, unique in the process that wrote it, or 0 if the part is in
    the message itself.
    """
    segment: int
    """The id of the segment that contains the buffer."""
    size: int


class Message(NamedTuple):
    """A pickle and its large buffers, some of them in shared memory::

    count of parts | ref, ref, ... | the parts that are not in shared memory

    The first part is the pickle. If the count is 0, the pickle alone follows.
    """

    data: bytes
    refs: Sequence[BufferRef] = ()
    """The references to the parts in shared memory."""


Share: TypeAlias = Callable[[memoryview], BufferRef | None]
"""A function that copies a buffer to shared memory and returns a reference to it, or
None if there is no room.
"""
Open: TypeAlias = Callable[[BufferRef], memoryview]
"""A function that opens a buffer in shared memory."""


def pack(value: Any, share: Share | None = None) -> Message:
    """Return *value* as a message. Its large buffers are passed to *share*.

    Raises:
        Exception: *value* cannot be pickled.
    """
    large: list[memoryview] = []
    data = dumps(value, None if share is None else large)
    if share is None or not (large or len(data) >= SHARE_FROM):
        return Message(_COUNT.pack(0) + data)
    parts: list[BufferRef | memoryview] = []
    for part in (memoryview(data), *large):
        ref = share(part) if part.nbytes >= SHARE_FROM else None
        parts.append(part if ref is None else ref)
    return _joined(parts)


def _joined(parts: Iterable[BufferRef | memoryview]) -> Message:
    """Return the message that consists of *parts*. A `BufferRef` among them stands for
    a part in shared memory.
    """
    refs: list[BufferRef] = []
    inside: list[memoryview] = []
    for part in parts:
        if isinstance(part, memoryview):
            inside.append(part)
            refs.append(BufferRef(0, 0, part.nbytes))
        else:
            refs.append(part)
    packed_refs = [_REF.pack(*ref) for ref in refs]
    data = b"".join((_COUNT.pack(len(refs)), *packed_refs, *inside))
    shared_refs = [ref for ref in refs if ref.id]
    return Message(data, shared_refs)


def _parts_in(
    view: memoryview, at: int, count: int
) -> Iterator[BufferRef | memoryview]:
    """Yield the *count* parts of a message whose references begin at the offset *at*. A
    part in shared memory is yielded as its reference.
    """
    end = at + count * _REF.size
    for ref in map(BufferRef._make, _REF.iter_unpack(view[at:end])):
        if ref.id:
            yield ref
        else:
            yield view[end : end + ref.size]
            end += ref.size


def unpack(data: bytes | memoryview, open_ref: Open | None = None, at: int = 0) -> Any:
    """Return the value that `pack` has packed.

    Args:
        data: The bytes, with the message at the end.
        open_ref: A function that opens a buffer in shared memory, or None.
        at: The position at which the message begins.

    Raises:
        BaseException: Any error that unpickling a part raises.
    """
    view = memoryview(data)
    (count,) = _COUNT.unpack_from(view, at)
    if not count:
        return pickle.loads(view[at + _COUNT.size :])
    parts, _ = read_message(data, open_ref, at)
    return pickle.loads(parts[0], buffers=parts[1:])


def read_message(
    data: bytes | memoryview, open_ref: Open | None = None, at: int = 0
) -> tuple[Sequence[Any], bool]:
    """Return the pickle in a message and its large buffers, without unpickling, so that
    no user code runs.

    Args:
        data: The bytes, with the message at the end.
        open_ref: A function that opens a buffer in shared memory, or None.
        at: The position at which the message begins.

    Returns:
        The pickle and the buffers, and True if unpickling the pickle is certain to run
            no user code.

    Raises:
        ValueError: The message refers to shared memory, and *open_ref* is None.
    """
    view = memoryview(data)
    (count,) = _COUNT.unpack_from(view, at)
    at += _COUNT.size
    if not count:
        pickled = view[at:]
        if len(pickled) > _LARGEST_PLAIN:
            return (pickled,), False
        text = bytes(pickled)
        return (text,), _NAMING.search(text) is None
    parts: list[Any] = []
    for part in _parts_in(view, at, count):
        if isinstance(part, memoryview):
            # The buffers in the message are copied to writable memory, because a task
            # may write to the unpickled values.
            parts.append(bytearray(part) if parts else part)
        elif open_ref is None:
            raise ValueError(
                "the message refers to shared memory, but this end has none"
            )
        else:
            parts.append(open_ref(part))
    return parts, False


def is_plain(pickled: bytes) -> bool:
    """Return whether *pickled* is small and certainly refers to no class or function,
    so that unpickling it runs no user code.
    """
    return len(pickled) <= _LARGEST_PLAIN and _NAMING.search(pickled) is None


def moved(
    data: bytes, move: Callable[[BufferRef], BufferRef | memoryview], at: int = 0
) -> Message:
    """Return the message in *data* with its buffers moved for another reader, without
    unpickling it.

    Args:
        data: The bytes, with the message at the end.
        move: A function that takes the reference to a part in shared memory, and
            returns a reference for the other reader, or the part itself.
        at: The position at which the message begins.
    """
    view = memoryview(data)
    (count,) = _COUNT.unpack_from(view, at)
    if not count:
        return Message(data[at:])
    parts = _parts_in(view, at + _COUNT.size, count)
    return _joined(
        move(part) if isinstance(part, BufferRef) else part for part in parts
    )
