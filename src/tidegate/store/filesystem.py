"""What a file system's error means for us: it may pass, or it refuses us. Used by the local store and by sinks in directories.

Knows error numbers and no paths of ours.
"""

from __future__ import annotations

import errno
import os

from tidegate.errors import StorageRefused, StorageUnavailable

_REFUSED = {
    errno.ENOTDIR: "this is not a directory, give the path of one",
    errno.EISDIR: "this is a directory, a file is needed",
    errno.EEXIST: "this exists already and is not a directory",
    errno.EACCES: "permission denied, this must not be read or written by this user: change its permissions",
    errno.EPERM: "operation not permitted, this must not be read or written by this user: change its permissions",
    errno.EROFS: "this file system is read-only: make it writable, or choose another path",
    errno.ENAMETOOLONG: "this name is too long",
    errno.ELOOP: "there are too many symbolic links here",
    errno.ENOTSUP: "this file system can't do what is needed, choose a directory on a disk",
    errno.EOPNOTSUPP: "this file system can't do what is needed, choose a directory on a disk",
}
_UNAVAILABLE = {
    errno.ENOSPC: "the disk is full (no space left on device), make room",
    errno.EDQUOT: "the disk quota is exceeded, make room",
    errno.EIO: "the disk failed (input/output error), look at the system's log",
    errno.ESTALE: "the network file system has lost this file (stale file handle), mount it again",
}


def storage_error(error: OSError, doing: str, path: str) -> StorageRefused | StorageUnavailable:
    """Our error for the system's; ``doing`` may be empty. What is not known to be a refusal may pass."""
    number = error.errno or 0
    known = _REFUSED.get(number) or _UNAVAILABLE.get(number)
    sentence = known or f"the file system failed: {(error.strerror or str(error) or os.strerror(number)).lower()}"
    kind = StorageRefused if number in _REFUSED else StorageUnavailable
    return kind(f"{doing}{': ' if doing else ''}{sentence} path={path}")
