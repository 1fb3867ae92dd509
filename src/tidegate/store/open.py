"""From a URL to a store, and the question whether a job could live there."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from tidegate.errors import InvalidUseError, TidegateError
from tidegate.store.durable import DurableFileStore
from tidegate.store.interface import Store

REMOTE_SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
PROBE_FOLDER = "_probe"
KERNEL_DIRECTORIES = ("/proc", "/sys", "/dev")
SHARED_MEMORY = "/dev/shm"

_memories: dict[str, Store] = {}
_memories_lock = threading.Lock()


def open_store(url: str | Path, *, options: Mapping[str, str] | None = None) -> Store:
    """The store at this URL: a path, ``file://``, ``s3://``, ``gs://``, ``az://`` or ``memory://``.

    Nothing is contacted yet. ``memory://name`` is one store per name in this process; ``memory://`` is a new
    one each time. ``options`` are the client's (such as ``endpoint`` or ``region``); without them the
    environment counts.
    """
    path = local_path(str(url))
    if path is not None:
        return DurableFileStore(_local(path))
    url = str(url)
    parts = urlsplit(url)
    match parts.scheme.lower():
        case "memory":
            return _memory((parts.netloc + parts.path).strip("/"))
        case scheme if scheme in REMOTE_SCHEMES:
            from tidegate.store.objects import open_object_store  # late: many jobs never need it

            return open_object_store(url, options)
        case scheme:
            raise InvalidUseError(f"no store of this kind, use file, s3, gs, az or memory scheme={scheme or 'none'}")


def local_path(url: str) -> str | None:
    """The path of a local URL, which is a path or a file URL, with or without the slashes of a host; else ``None``."""
    if not url.lower().startswith("file:/"):
        return None if "://" in url else url
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise InvalidUseError(f"a file URL has three slashes and no host url={url}")
    return unquote(parts.path)


def absolute_url(url: str) -> str:
    """The same URL for processes with another working directory too: a local one becomes an absolute path."""
    path = local_path(url)
    return url if path is None else os.path.abspath(_local(path))


def check_writable(store: Store) -> None:
    """Prove by a small object that the store can be reached, written, and refuses to create a thing twice.

    Blocks for a few requests and leaves nothing behind, no directory either. ``InvalidUseError`` says what is wrong.
    """
    path = f"{PROBE_FOLDER}/{uuid4().hex}"
    missing = _missing(local_path(store.url))
    try:
        created, again = store.create(path, b"tidegate"), store.create(path, b"another")
        if not created or again or store.get(path) != b"tidegate":
            raise InvalidUseError("it does not refuse to create an object twice, and checkpoints need that")
        store.delete([path])
    except (TidegateError, OSError) as error:
        raise InvalidUseError(f"the store cannot be used: {error} url={store.url}") from error
    finally:
        for folder in missing:
            with suppress(OSError):  # it was not made, or somebody else has put something into it
                os.rmdir(folder)


def _missing(path: str | None) -> list[Path]:
    """The directories that are not there yet of a local store, innermost first."""
    folder = None if path is None else Path(path)
    missing = []
    while folder is not None and not os.path.lexists(folder):
        missing.append(folder)
        folder = folder.parent
    return missing


def _local(path: str) -> Path:
    if not path.strip("/") or "\0" in path:
        raise InvalidUseError(f"a store needs a directory path={path!r}")
    expanded = Path(path).expanduser()
    if _is_kernels(os.path.realpath(expanded)):
        raise InvalidUseError(f"the store cannot be used: these are not files on a disk, choose another directory path={path}")
    return expanded


def _is_kernels(path: str) -> bool:
    within = next((top for top in KERNEL_DIRECTORIES if path == top or path.startswith(f"{top}/")), None)
    return within is not None and not (path == SHARED_MEMORY or path.startswith(f"{SHARED_MEMORY}/"))


def _memory(name: str) -> Store:
    from tidegate.store.objects import new_memory_store

    if not name:
        return new_memory_store("")
    with _memories_lock:
        return _memories.setdefault(name, new_memory_store(name))
