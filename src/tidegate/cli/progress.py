"""A progress bar on a terminal, a line every few seconds anywhere else; always on standard error."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

TERMINAL_INTERVAL_S = 0.1
LINE_INTERVAL_S = 5.0
BAR_WIDTH = 24


class Progress:
    """Shows how far one piece of long work is. Not thread-safe; cheap enough to be called in a tight loop."""

    def __init__(
        self,
        title: str,
        total: int | None = None,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._total = total
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._interval_s = TERMINAL_INTERVAL_S if self._terminal else LINE_INTERVAL_S
        # A line says something only after a while; a bar is there from the start.
        self._next_s = clock() + (0.0 if self._terminal else LINE_INTERVAL_S)
        self._drawn = False

    def update(self, done: int | None = None, note: str = "") -> None:
        """Tell how much is done. Draws ten times a second at most, or prints a line in five seconds."""
        now = self._clock()
        if now < self._next_s:
            return
        self.show(done, note)

    def show(self, done: int | None = None, note: str = "") -> None:
        """The same, at once: for the beginning of something that takes long."""
        self._next_s = self._clock() + self._interval_s
        self._draw(self._line(done, note))

    def event(self, text: str) -> None:
        """Something worth keeping on the screen: a line of its own, whatever the pace."""
        self._wipe()
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Take the bar away. May be called twice."""
        self._wipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _line(self, done: int | None, note: str) -> str:
        parts = [self._title]
        if done is not None and self._total:
            share = min(1.0, done / self._total)
            parts.append(f"[{'#' * int(share * BAR_WIDTH):<{BAR_WIDTH}}] {share:4.0%}")
        elif done is not None:
            parts.append(f"{done:,}")
        return "  ".join([*parts, note] if note else parts)

    def _draw(self, line: str) -> None:
        if not self._terminal:
            print(line, file=self._stream, flush=True)
            return
        # A line that wraps could not be overwritten.
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[K{line[:width]}")
        self._stream.flush()
        self._drawn = True

    def _wipe(self) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False
