"""Plain values that cross processes and lie in stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | dict[str, "Json"] | None

BEGINNING_OF_TIME = -(1 << 63)
"""Event times are 64-bit integers in their column's unit; these are their ends."""
END_OF_TIME = (1 << 63) - 1
