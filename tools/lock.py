"""Makes ``requirements.lock``: the exact versions of this environment, with the hashes of every file that the index has of them.

Run in the environment that is to be locked, with the address of the index's simple pages. The file names no index.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
LEFT_OUT = {"tidegate", "pip"}
HEADER = """\
# Exact versions of everything in the development environment, with the hashes of all their files, for every platform.
# Made with: python tools/lock.py INDEX (pip freeze --all, tidegate and pip left out). Install with pip install --require-hashes.
"""
_FILE = re.compile(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})"')


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: lock.py INDEX")
    index = sys.argv[1]
    pins = [pin for pin in frozen() if pin.partition("==")[0].lower() not in LEFT_OUT]
    with ThreadPoolExecutor(8) as pool:
        hashes = list(pool.map(lambda pin: hashes_of(index, pin), pins))
    LOCK.write_text(HEADER + "".join(entry(pin, found) for pin, found in zip(pins, hashes, strict=True)))


def frozen() -> list[str]:
    """Name and version of every package that is installed."""
    command = [sys.executable, "-m", "pip", "freeze", "--all", "--exclude-editable"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if not line.startswith("#")]


def hashes_of(index: str, pin: str) -> list[str]:
    """The hashes of the files of this version."""
    name, _, version = pin.partition("==")
    if not version:
        raise SystemExit(f"not installed from an index: {pin}")
    page = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', name).lower()}/"
    with urllib.request.urlopen(page) as answer:
        files = _FILE.findall(answer.read().decode())
    found = sorted({digest for file, digest in files if _is_of(file, name, version)})
    if not found:
        raise SystemExit(f"the index has no file of {pin}")
    return found


def _is_of(file: str, name: str, version: str) -> bool:
    stem = re.sub(r"[-_.]+", "[-_.]+", re.escape(name).replace(r"\-", "-").replace(r"\.", "."))
    return re.fullmatch(rf"(?i){stem}-{re.escape(version)}(-[^/]*\.whl|\.tar\.gz|\.zip)", file) is not None


def entry(pin: str, hashes: list[str]) -> str:
    """The lines of one package."""
    return " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in hashes)]) + "\n"


if __name__ == "__main__":
    main()
