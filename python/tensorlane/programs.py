"""The programs that the wheel brings: the sidecar and the command."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import Error


def program(name: str) -> str:
    """The path of a program of the wheel, or of one in $TENSORLANE_BIN_DIR."""
    given = os.environ.get("TENSORLANE_BIN_DIR")
    path = (Path(given) if given else Path(__file__).parent / "bin") / name
    if not os.access(path, os.X_OK):
        raise Error(f"there is no program {path}", remedy="install the wheel again, or set TENSORLANE_BIN_DIR to where it is")
    return str(path)
