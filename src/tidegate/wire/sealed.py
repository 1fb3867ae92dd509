"""A connection in the clear whose bytes can't be changed: every record has a tag (see ``seal``).

``[length u32 LE][bytes][tag 32]``; the tag covers the record's number, its length and its bytes. No byte is passed on
before its record is proved.
"""

from __future__ import annotations

import struct
import threading

from tidegate.errors import RetryableError
from tidegate.wire.connection import Connection
from tidegate.wire.frames import Bytes
from tidegate.wire.seal import TAG_BYTES, SealPair

RECORD_BYTES_MAX = 256 << 10
_LENGTH = struct.Struct("<I")


class SealedConnection:
    """Both directions tagged; what a ``Connection`` may do in which thread holds here too."""

    def __init__(self, plain: Connection, session: SealPair) -> None:
        self._plain = plain
        self._session = session
        self._sending = threading.Lock()
        self._head = memoryview(bytearray(_LENGTH.size))
        self._record = memoryview(bytearray(RECORD_BYTES_MAX + TAG_BYTES))
        self._rest = self._record[:0]

    def receive_into(self, view: memoryview, fully: bool) -> int:
        """Some proved bytes; never waits for all of them."""
        if not self._rest and not self._receive_record():
            return 0
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def send(self, *parts: Bytes) -> None:
        """Tags and sends record by record: small parts together, large ones in pieces."""
        for record in _records(parts):
            with self._sending:
                self._plain.send(*self._sealed(record))

    def send_now(self, data: bytes) -> bool:
        """Tags and sends a small frame, complete or the connection is lost."""
        if not self._sending.acquire(blocking=False):
            return True  # the reader says its last words on this connection: no credit matters any more
        try:
            return self._plain.send_now(b"".join(self._sealed([data])))
        finally:
            self._sending.release()

    def set_deadline(self, deadline: float | None) -> None:
        """The deadline of the connection below."""
        self._plain.set_deadline(deadline)

    def finish(self) -> None:
        """Half close below; the stream's own last frame says that the end is regular."""
        self._plain.finish()

    def cut(self) -> None:
        """Cut the connection below."""
        self._plain.cut()

    def close(self) -> None:
        """Close the connection below."""
        self._plain.close()

    def _sealed(self, record: list[Bytes]) -> list[Bytes]:
        head = _LENGTH.pack(sum(len(part) for part in record))
        return [head, *record, self._session.outgoing.tag(head, *record)]

    def _receive_record(self) -> bool:
        """Fill the record; False when the stream ended, which only its frames can say is right."""
        if not self._fill(self._head):
            return False
        (length,) = _LENGTH.unpack(self._head)
        if not 0 < length <= RECORD_BYTES_MAX:
            raise RetryableError(f"a record over its limit length={length} limit={RECORD_BYTES_MAX}")
        if not self._fill(self._record[: length + TAG_BYTES]):
            return False
        record = self._record[:length]
        self._session.incoming.check(self._record[length : length + TAG_BYTES], self._head, record)
        self._rest = record
        return True

    def _fill(self, view: memoryview) -> bool:
        while view:
            count = self._plain.receive_into(view, True)
            if count == 0:
                return False
            view = view[count:]
        return True


def _records(parts: tuple[Bytes, ...]) -> list[list[Bytes]]:
    records: list[list[Bytes]] = [[]]
    room = RECORD_BYTES_MAX
    for part in parts:
        view = memoryview(part).cast("B")
        while view:
            piece, view = view[:room], view[room:]
            records[-1].append(piece)
            room -= len(piece)
            if room == 0:
                records.append([])
                room = RECORD_BYTES_MAX
    return [record for record in records if record]
