"""The coordinator's end of a link: it never blocks."""

from __future__ import annotations

import socket
import threading
from collections import deque

from flowpregel.executors.processes.frames import UP, Frame, Parser, pack

_CHUNK = 1 << 18


class Link:
    """Frames to and from one worker.

    Args:
        connection: A connected stream socket; the link owns it now.
        mark: What every frame on this link begins with.
    """

    def __init__(self, connection: socket.socket, mark: int) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._mark = mark
        self._parser = Parser(mark, UP)
        self._lock = threading.Lock()
        # Received into one buffer: to make a large one for each call costs more than the call.
        self._inbox = memoryview(bytearray(_CHUNK))
        self._outbox: deque[memoryview] = deque()

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._socket.fileno()

    def send(self, kind: int, number: int = 0, body: bytes = b"", flags: int = 0) -> bool:
        """Send a frame, or as much as fits now; return whether nothing is left over."""
        frame = pack(self._mark, kind, number, body, flags)
        with self._lock:
            if not self._outbox:
                sent = self._write(frame)
                if sent == len(frame):
                    return True
                self._outbox.append(memoryview(frame)[sent:])
                return False
            self._outbox.append(memoryview(frame))
            return False

    @property
    def has_rest(self) -> bool:
        """Whether something is left over."""
        return bool(self._outbox)

    def flush(self) -> bool:
        """Send what is left over; return whether nothing is left."""
        with self._lock:
            while self._outbox:
                part = self._outbox[0]
                sent = self._write(part)
                if sent < len(part):
                    self._outbox[0] = part[sent:]
                    return False
                self._outbox.popleft()
            return True

    def _write(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            # The worker is gone. Its death is found, and told, by who watches it.
            return len(data)

    def receive(self) -> tuple[list[Frame], bool]:
        """Return the frames that have arrived, and whether the other end is still there.

        Raises:
            GarbageError: What arrived is no frame.
        """
        try:
            size = self._socket.recv_into(self._inbox)
        except BlockingIOError:
            return [], True
        except OSError:
            return [], False
        return self._parser.feed(bytes(self._inbox[:size])), size > 0

    def close(self) -> None:
        """Close this end: an idle worker takes it as the order to leave."""
        with self._lock:
            self._socket.close()
