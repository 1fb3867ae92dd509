"""Makes the Python code of the control plane's messages from ``control.proto``. Run after a change; the result is committed."""

from __future__ import annotations

from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
WIRE = ROOT / "src" / "tidegate" / "wire"


def main() -> None:
    # The virtual path puts the generated module into the package it is imported from.
    arguments = [
        "protoc",
        f"--proto_path=tidegate/wire/_gen={WIRE}",
        f"--python_out={ROOT / 'src'}",
        f"--pyi_out={ROOT / 'src'}",
        "tidegate/wire/_gen/control.proto",
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")


if __name__ == "__main__":
    main()
