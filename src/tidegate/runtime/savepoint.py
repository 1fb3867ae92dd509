"""Savepoints: a checkpoint with all of its objects, copied to a URL of its own. Any job with the same plan may start from it.

A savepoint is a store that holds ``savepoint.json``, the manifest, sealed and written last, and the objects that it names under
the paths that they have in the job's store. It needs nothing else, so the job's own store may be gone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.checkpoint.prepare import PlanShape
from tidegate.core.log.codec import seal, unsealed
from tidegate.core.log.view import Commit
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import Epoch
from tidegate.runtime.logstore import LogStore, objects_fault
from tidegate.runtime.snapshotfile import crc32c
from tidegate.store.interface import Store
from tidegate.store.open import absolute_url, check_writable, open_store

MANIFEST = "savepoint.json"


@dataclass(frozen=True, slots=True)
class Savepoint:
    """Where it is and what is in it."""

    url: str
    manifest: CheckpointManifest


def shown_url(url: str) -> str:
    """A savepoint's URL, without the credentials that the URL may have: for the log, which stays for ever, and for people."""
    if "://" not in url:
        return url
    from tidegate.store.objects import bare_url  # late: it loads the clients of remote stores

    return bare_url(url)


def savepoint_url(path: object) -> str:
    """Where to write one. Refuses a URL that can't be written or has one, before there is anything to write. Blocks."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidUseError(f"a savepoint needs a path or a URL path={path!r}")
    url = absolute_url(str(os.fspath(path)))
    store = open_store(url)
    check_writable(store)
    try:
        store.get(MANIFEST)
    except FileNotFoundError:
        return url
    raise _taken(url)


def write_savepoint(log: LogStore, epoch: Epoch, url: str) -> None:
    """Copy a committed checkpoint. Blocks. A savepoint that is there already is refused, whatever it holds."""
    entry = log.entry(epoch)
    if not isinstance(entry, Commit):
        raise InvalidUseError(f"this is not a committed checkpoint epoch={epoch}")
    copy_checkpoint(log.store, entry.manifest, url)


def copy_checkpoint(store: Store, manifest: CheckpointManifest, url: str) -> None:
    """Objects first, the manifest last."""
    target = open_store(url)
    for entry in manifest.objects:
        data = store.get(entry.path)
        if crc32c(data) != entry.crc32c:
            raise CorruptDataError(f"an object of the checkpoint is damaged path={entry.path}", path=entry.path)
        target.put(entry.path, data)
    if not target.create(MANIFEST, seal(manifest.to_json())):
        raise _taken(url)


def _taken(url: str) -> InvalidUseError:
    return InvalidUseError(f"there is a savepoint already, choose another path path={shown_url(url)}")


def read_savepoint(url: str, shape: PlanShape) -> Savepoint:
    """Open a savepoint and check all of it against its checksums and the plan. Blocks."""
    store = open_store(url)
    manifest = _read_manifest(store, url)
    difference = shape.difference(manifest)
    if difference is not None:
        raise InvalidUseError(f"the savepoint does not fit the plan: {difference} path={shown_url(url)}")
    fault = objects_fault(store, manifest)
    if fault is not None:
        raise CorruptDataError(f"the savepoint is damaged: {fault}", path=shown_url(url))
    return Savepoint(url, manifest)


def _read_manifest(store: Store, url: str) -> CheckpointManifest:
    path = f"{shown_url(url)}/{MANIFEST}"
    try:
        body = unsealed(store.get(MANIFEST))
    except FileNotFoundError as error:
        raise InvalidUseError(f"there is no savepoint here path={shown_url(url)}") from error
    if body is None:
        raise CorruptDataError(f"the savepoint is damaged: its checksum differs path={path}", path=path)
    return CheckpointManifest.from_json(body, path)
