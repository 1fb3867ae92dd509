"""Which paths an object may have: the same rule for every store, so that a job can move from one to
another.
"""

from __future__ import annotations

from tidegate.errors import CorruptDataError, InvalidUseError

PATH_BYTES_MAX = 900


def check_path(path: str) -> str:
    """A relative path of plain parts. Nothing may climb out of the store or hide among its temporary
    files.
    """
    parts = path.split("/")
    if len(path.encode()) > PATH_BYTES_MAX or any(_is_bad(part) for part in parts):
        raise InvalidUseError(f"not a path of a store's object path={path!r}")
    return path


def check_prefix(prefix: str) -> str:
    """A prefix of complete path parts; empty for all. A slash at its end does not matter."""
    bare = prefix.removesuffix("/")
    return check_path(bare) if bare else ""


def check_range(path: str, start: int, length: int) -> None:
    """Refuse a range that no object has."""
    if start < 0 or length < 0:
        raise InvalidUseError(f"a range is not negative path={path} start={start} length={length}")


def check_length(path: str, data: bytes, length: int) -> bytes:
    """The bytes of a range, all of them: an object that is too short is not the one that was written."""
    if len(data) != length:
        raise CorruptDataError(
            f"an object is shorter than it should be path={path} expected={length} found={len(data)}",
            path=path,
        )
    return data


def _is_bad(part: str) -> bool:
    return part in ("", ".", "..") or not part.isprintable() or "\\" in part or part.startswith(".tmp-")
