"""End of a measurement: a process that answers lines of JSON on its standard input, until that ends.

A line is `{"do": NAME, …}` and calls the method of that name; the answer is `{"got": …}`, or `{"error": …}` with what was said. What
libraries print goes to the standard error, also where they write to the descriptor itself.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def serve(handler: Any) -> None:
    """Says that the end is ready, and answers until the input ends."""
    _say({"got": "ready"})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"got": getattr(handler, asked.pop("do"))(**asked)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _say(answer)
    # Libraries with threads of their own are not asked whether they can end.
    os._exit(0)


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=_answers, flush=True)
