"""Makes sure that there is an etcd for the tests: PATH first, else Debian's package, unpacked inside this checkout.

Nothing is installed and no root is needed. Where neither is to be had, tests that need etcd are skipped, and CI fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNPACKED = ROOT / ".cache" / "etcd"
PACKAGE = "etcd-server"
LIMIT_S = 300


def find_etcd() -> str | None:
    """The program, if it is here already."""
    ours = UNPACKED / "usr" / "bin" / "etcd"
    return shutil.which("etcd") or (str(ours) if ours.exists() else None)


def fetch_etcd() -> str:
    """Download and unpack the package; ``RuntimeError`` says why that can't be done."""
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise RuntimeError(f"there is no etcd in PATH and no {missing[0]} to fetch {PACKAGE} with")
    UNPACKED.mkdir(parents=True, exist_ok=True)
    try:
        _download()
        package = next(UNPACKED.glob(f"{PACKAGE}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=UNPACKED, check=True, timeout=LIMIT_S)
    except (OSError, subprocess.SubprocessError, StopIteration) as error:
        raise RuntimeError(f"there is no etcd in PATH and {PACKAGE} can't be fetched: {error}") from error
    return str(UNPACKED / "usr" / "bin" / "etcd")


def _download() -> None:
    command = ["apt-get", "download", PACKAGE]
    if subprocess.run(command, cwd=UNPACKED, capture_output=True, timeout=LIMIT_S).returncode == 0:
        return
    if os.geteuid() == 0:  # a machine that has never asked what there is
        subprocess.run(["apt-get", "update"], capture_output=True, check=True, timeout=LIMIT_S)
    subprocess.run(command, cwd=UNPACKED, capture_output=True, check=True, timeout=LIMIT_S)


def main() -> None:
    try:
        print(f"etcd: {find_etcd() or fetch_etcd()}")
    except RuntimeError as error:
        print(f"etcd: {error}")


if __name__ == "__main__":
    main()
