"""The command `tensorlane`, which comes with the wheel."""

from __future__ import annotations

import os
import sys

from .programs import program


def main() -> None:
    """Becomes the command."""
    command = program("tensorlane")
    os.execv(command, ["tensorlane", *sys.argv[1:]])


if __name__ == "__main__":
    main()
