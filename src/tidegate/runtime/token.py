"""The job's key, in a file that only its owner can read: whoever has it may lead the job, join its gang and operate it."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from tidegate.errors import InvalidUseError

SECRET_BYTES = 32
HOME = "TIDEGATE_HOME"


def token_path(store_url: str, job: str) -> Path:
    """Where the key of this job is unless somebody says otherwise: below ``TIDEGATE_HOME``, or ``~/.tidegate``."""
    home = Path(os.environ.get(HOME) or Path.home() / ".tidegate")
    name = hashlib.sha256(f"{store_url.rstrip('/')}\n{job}".encode()).hexdigest()[:32]
    return home / "tokens" / name


def job_secret(path: Path) -> bytes:
    """The key in this file, which is made if it is not there. Blocks a moment."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileExistsError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as opened:
            opened.write(secrets.token_hex(SECRET_BYTES))
    return read_secret(path)


def read_secret(path: Path) -> bytes:
    """The key in this file. One that others can read is refused."""
    try:
        mode = path.stat().st_mode
        text = path.read_text().strip()
    except OSError as error:
        raise InvalidUseError(
            f"the job's token can't be read: give --token-file with a copy of the one that its driver made: {error} path={path}"
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise InvalidUseError(f"others can read the job's token: chmod 600 it path={path}")
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise InvalidUseError(f"this is no token of a job: it has 64 hexadecimal digits path={path}")
    return secret
