"""Hand-over of a CUDA tensor from one process to another: by Tensorlane, and by PyTorch's own CUDA IPC (torch.multiprocessing).

    python benches/python/gpu_torch.py [--runs 15] [--json FILE]

It needs a GPU, torch and the package `tensorlane`, and nothing else. Both ways take turns, with a new tensor each time. One turn begins
when the tensor is there and ends when the other process has read its last element on the device and said so.

Tensorlane copies the tensor once, on the device, so that it is immutable and outlives its producer. PyTorch copies nothing and shares
the producer's own memory: what the producer writes later, and its death, reach the reader. Of 8 GiB Tensorlane makes new memory each
time, PyTorch uses its block again. The rows are told and not judged.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import Any

MIB = 1 << 20
WARM = 3
PATIENCE = 60
ROWS = {"gpu.torch_2m": 2 * MIB, "gpu.torch_64m": 64 * MIB, "gpu.torch_1g": 1024 * MIB, "gpu.torch_8g": 8192 * MIB}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=15, help="turns of each way (15)")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("no measurement: torch is not installed", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("no measurement: torch sees no GPU", file=sys.stderr)
        return 2
    import tensorlane

    name = torch.cuda.get_device_name(0)
    print(f"{name}, torch {torch.__version__}; median of {options.runs} turns, in milliseconds")
    torch.cuda.init()
    with tensorlane.local() as client:
        rows = [measured(client, name, nbytes, options.runs) for name, nbytes in ROWS.items()]
    for row in rows:
        print(shown(row))
    if options.json:
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        options.json.write_text(f"[\n  {lines}\n]\n")
    return 0


def measured(client: Any, name: str, nbytes: int, runs: int) -> dict[str, Any]:
    """A row: medians of both ways, and the median of their ratios."""
    import torch
    import torch.multiprocessing

    context = torch.multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    reader = context.Process(target=read, args=(theirs, str(client.directory)), daemon=True)
    reader.start()
    # So that the end of the reader is the end of the pipe.
    theirs.close()

    def heard() -> Any:
        assert ours.poll(PATIENCE), f"{name}: the reader does not answer"
        return ours.recv()

    assert heard() == "ready"
    seconds: dict[str, list[float]] = {"tensorlane": [], "torch": []}
    for turn in range(runs + WARM):
        for way in ("torch", "tensorlane"):
            tensor = torch.full((nbytes,), turn % 251, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            began = time.perf_counter()
            if way == "tensorlane":
                stored = client.put(tensor)
                ours.send(str(stored.reference))
            else:
                ours.send(tensor)
            seen = heard()
            took = time.perf_counter() - began
            assert seen == turn % 251, (name, way, seen)
            ours.send("drop")
            assert heard() == "dropped"
            stored = None
            del tensor
            if turn >= WARM:
                seconds[way].append(took)
    ours.send("end")
    reader.join()
    ratio = statistics.median(a / b for a, b in zip(seconds["tensorlane"], seconds["torch"], strict=True))
    value, limit = (statistics.median(seconds[way]) for way in ("tensorlane", "torch"))
    note = "limit: torch.multiprocessing, which shares the producer's own memory"
    return {"name": name, "value": value * 1e3, "unit": "ms", "limit": limit * 1e3, "ratio": ratio, "n": runs, "note": note}


def shown(row: dict[str, Any]) -> str:
    return f"{row['name']:14} tensorlane {row['value']:8.3f}   torch {row['limit']:8.3f}   ratio {row['ratio']:.2f}"


# In the reader's process.


def read(pipe: Any, sockets: str) -> None:
    """Answers each tensor with its last element, until it is told to end."""
    import torch

    import tensorlane

    torch.cuda.init()
    client = tensorlane.connect(sockets)
    pipe.send("ready")
    while (given := pipe.recv()) != "end":
        tensor = client.get(given).torch() if isinstance(given, str) else given
        pipe.send(int(tensor[-1].item()))
        assert pipe.recv() == "drop"
        del tensor, given
        pipe.send("dropped")


if __name__ == "__main__":
    multiprocessing.freeze_support()
    sys.exit(main())
