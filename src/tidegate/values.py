"""Plain values that cross processes and lie in stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | dict[str, "Json"] | None
