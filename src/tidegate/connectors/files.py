"""Local files for connectors: from a path or URL of a user to an absolute path, and from the system's errors to ours.

Knows nothing of formats, splits or epochs.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from tidegate.errors import CorruptDataError, InvalidUseError, RetryableError, TidegateError
from tidegate.store.filesystem import storage_error

# Hadoop and Spark also write ``file:/path``.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|file:/", re.IGNORECASE)


def local_path(path: str | os.PathLike[str], *, name: str = "path") -> str:
    """The absolute path of something local: a path or a ``file://`` URL. Other schemes are refused."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidUseError(f"{name} must be a path, not {type(path).__name__} {name}={path!r}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidUseError(f"{name} must be a path of at least one character {name}={path!r}")
    if not _SCHEME.match(text):
        return os.path.abspath(text)
    url = urlsplit(text)
    if url.scheme.lower() != "file" or url.netloc not in ("", "localhost") or not url.path:
        raise InvalidUseError(f"only local paths and file:/// URLs can be used here {name}={text}")
    return os.path.abspath(unquote(url.path))


@contextmanager
def file_errors(path: str) -> Iterator[None]:
    """Turn what the system and Arrow raise about this file into our errors. Ours pass unchanged."""
    try:
        yield
    except TidegateError:
        raise
    except OSError as error:
        raise _translated(error, path) from error
    except pa.ArrowNotImplementedError as error:
        raise InvalidUseError(f"this file format can't hold the data: {_first_line(error)} path={path}") from error
    except pa.ArrowException as error:
        raise CorruptDataError(f"the file can't be read: {_first_line(error)} path={path}", path=path) from error


def sync_file(path: str) -> None:
    """Return when a file's bytes, or a directory's names, are on the disk. Blocks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_file(path: str) -> None:
    """Delete a file; one that is gone already does not matter."""
    with file_errors(path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


def moved(source: str, target: str) -> bool:
    """Rename; False when there is nothing to rename."""
    with file_errors(source):
        try:
            os.rename(source, target)
        except FileNotFoundError:
            if not os.path.lexists(source):
                return False
            raise RetryableError(f"the directory to move a file to is not there any more path={target}") from None
    return True


def file_names(directory: str, *, directories: bool = False) -> list[str]:
    """The names of the files, or of the directories, in this one, sorted; none when it is not there."""
    with file_errors(directory):
        try:
            entries = list(os.scandir(directory))
        except FileNotFoundError:
            return []
        return sorted(entry.name for entry in entries if (entry.is_dir() if directories else entry.is_file()))


def _translated(error: OSError, path: str) -> TidegateError:
    if error.errno is None:
        # Arrow reports damaged pages as an OSError that has no number.
        return CorruptDataError(f"the file is damaged: {_first_line(error)} path={path}", path=path)
    if error.errno == errno.ENOENT:
        return InvalidUseError(f"there is no such file or directory path={path}")
    return storage_error(error, "", path)


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0].strip().rstrip(".")
    return f"{text[:1].lower()}{text[1:]}"
