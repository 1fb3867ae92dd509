"""What is in a checkpoint of a job in one process, and how it is written down.

A checkpoint is data, never code: JSON with a format name, a version and a SHA-256 of its content. Loading
believes nothing: every name, number and path is checked, and whatever is wrong is a ``CorruptDataError``
that names the file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import EPOCH_LIMIT, U64_LIMIT

FORMAT = "tidegate-checkpoint"
VERSION = 1

_I63 = 1 << 63
_NAME = re.compile(r"checkpoint-([0-9]{20})\.json", re.ASCII)
_TOP_FIELDS = {"format", "version", "sha256", "checkpoint"}
_FIELDS = {
    "id", "epoch", "source_sequences", "sink_positions", "operator_states", "watermarks", "wal_lsn",
}  # fmt: skip


def checkpoint_name(checkpoint_id: int) -> str:
    """The file name of a checkpoint. Names sort like ids."""
    _whole("id", checkpoint_id, 1, U64_LIMIT)
    return f"checkpoint-{checkpoint_id:020d}.json"


def parse_checkpoint_name(name: str) -> int | None:
    """The id in a file name; ``None`` when no checkpoint has such a name."""
    found = _NAME.fullmatch(name)
    checkpoint_id = int(found[1]) if found else 0
    return checkpoint_id if 0 < checkpoint_id < U64_LIMIT else None


class OperatorStateType(Enum):
    """What kind of state an operator keeps."""

    WINDOW = "window"
    AGGREGATION = "aggregation"
    JOIN = "join"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class Inline:
    """Small state, kept in the checkpoint itself."""

    data: bytes


@dataclass(frozen=True, slots=True)
class SstFile:
    """Large state, kept in a file beside the checkpoint. The path is relative and stays below its
    directory.
    """

    path: str

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if "\\" in self.path or "\0" in self.path or any(part in ("", ".", "..") for part in parts):
            raise InvalidUseError(f"a state file's path is relative and stays below path={self.path!r}")


SnapshotData: TypeAlias = Inline | SstFile


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """One operator's state at the cut."""

    operator_id: str
    state_type: OperatorStateType
    data: SnapshotData


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A consistent cut. ``wal_lsn`` is the log's position at the cut: replay starts after it."""

    id: int
    epoch: int
    source_sequences: Mapping[str, int] = field(default_factory=dict)
    sink_positions: Mapping[str, int] = field(default_factory=dict)
    operator_states: Mapping[str, OperatorSnapshot] = field(default_factory=dict)
    watermarks: Mapping[str, int] = field(default_factory=dict)
    wal_lsn: int = 0

    def __post_init__(self) -> None:
        _whole("id", self.id, 1, U64_LIMIT)
        _whole("epoch", self.epoch, 0, EPOCH_LIMIT)
        _whole("wal_lsn", self.wal_lsn, 0, U64_LIMIT)
        for name, low, high in (
            ("source_sequences", 0, U64_LIMIT), ("sink_positions", 0, U64_LIMIT), ("watermarks", -_I63, _I63)
        ):  # fmt: skip
            for key, value in getattr(self, name).items():
                _whole(f"{name}.{key}", value, low, high)
            object.__setattr__(self, name, dict(getattr(self, name)))  # nobody else can change the copy
        for key, snapshot in self.operator_states.items():
            if key != snapshot.operator_id:
                raise InvalidUseError(f"state of {snapshot.operator_id} under another name operator={key}")
        object.__setattr__(self, "operator_states", dict(self.operator_states))

    def to_json(self) -> bytes:
        """The checkpoint's file. The same checkpoint always has the same bytes."""
        body = {
            "id": self.id,
            "epoch": self.epoch,
            "source_sequences": self.source_sequences,
            "sink_positions": self.sink_positions,
            "operator_states": {name: _state_json(state) for name, state in self.operator_states.items()},
            "watermarks": self.watermarks,
            "wal_lsn": self.wal_lsn,
        }
        top = {"format": FORMAT, "version": VERSION, "sha256": _digest(body), "checkpoint": body}
        return _canonical(top)

    @classmethod
    def from_json(cls, data: bytes, *, path: str = "") -> Checkpoint:
        """The checkpoint in a file; ``path`` is what errors call it."""
        try:
            return _checkpoint(_loads(data))
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, InvalidUseError) else f"it is no JSON of ours: {error}"
            message = f"the checkpoint cannot be used: {reason} path={path}"
            raise CorruptDataError(message, path=path) from error


# -- writing -----------------------------------------------------------------------------------------


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _digest(body: object) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()


def _state_json(state: OperatorSnapshot) -> dict[str, str]:
    kind = state.state_type.value
    if isinstance(state.data, Inline):
        return {"state_type": kind, "inline": base64.b64encode(state.data.data).decode("ascii")}
    return {"state_type": kind, "sst_file": state.data.path}


# -- reading: everything wrong is a ValueError here --------------------------------------------------


def _loads(data: bytes) -> Any:
    return json.loads(data, object_pairs_hook=_unique, parse_constant=_no_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InvalidUseError("a field comes twice")
    return fields


def _no_constant(text: str) -> None:
    raise InvalidUseError(f"{text} is no number")


def _checkpoint(top: Any) -> Checkpoint:
    if not isinstance(top, dict) or top.get("format") != FORMAT:
        raise InvalidUseError(f"its format is not {FORMAT}")
    if type(top.get("version")) is not int or top["version"] != VERSION:
        raise InvalidUseError(f"another version of tidegate wrote it version={top.get('version')!r}")
    _fields("the file", top, _TOP_FIELDS)
    body = top["checkpoint"]
    if top["sha256"] != _digest(body):
        raise InvalidUseError("its checksum differs")
    _fields("checkpoint", body, _FIELDS)
    return Checkpoint(
        id=body["id"],
        epoch=body["epoch"],
        source_sequences=_table("source_sequences", body["source_sequences"]),
        sink_positions=_table("sink_positions", body["sink_positions"]),
        operator_states=_table("operator_states", body["operator_states"], _state),
        watermarks=_table("watermarks", body["watermarks"]),
        wal_lsn=body["wal_lsn"],
    )


def _fields(where: str, value: Any, names: set[str]) -> None:
    if not isinstance(value, dict) or set(value) != names:
        raise InvalidUseError(f"{where} must have exactly the fields {', '.join(sorted(names))}")


def _table(name: str, value: Any, read: Callable[[str, Any], Any] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidUseError(f"{name} is no table")
    return {key: item if read is None else read(key, item) for key, item in value.items()}


def _state(operator_id: str, value: Any) -> OperatorSnapshot:
    form = "inline" if isinstance(value, dict) and "inline" in value else "sst_file"
    _fields(f"state of operator {operator_id}", value, {"state_type", form})
    if not isinstance(value[form], str) or not isinstance(value["state_type"], str):
        raise InvalidUseError(f"state of operator {operator_id} is no text")
    text = value[form]
    data: SnapshotData = Inline(base64.b64decode(text, validate=True)) if form == "inline" else SstFile(text)
    return OperatorSnapshot(operator_id, OperatorStateType(value["state_type"]), data)


def _whole(name: str, value: object, low: int, limit: int) -> None:
    if type(value) is bool or not isinstance(value, int) or not low <= value < limit:
        raise InvalidUseError(f"{name} must be a whole number from {low} up to {limit - 1} {name}={value!r}")
