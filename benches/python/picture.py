"""Picture of a file of `bench python`: how many times as fast as each of the others, by size, as one SVG.

    python3 benches/python/picture.py FILE.json FILE.svg
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

Rows = dict[str, dict[str, Any]]

_SIZES = {"4k": "4 KiB", "64k": "64 KiB", "1m": "1 MiB", "16m": "16 MiB", "64m": "64 MiB", "256m": "256 MiB", "1g": "1 GiB"}
_PARTS: list[tuple[str, list[tuple[str, str]]]] = [
    (
        "from one process to another of a host: put, get, every page read",
        [
            ("Ray's object store, first transfer", "vs.ray_first"),
            ("Ray's object store, warm", "vs.ray_warm"),
            ("vineyard, first transfer", "vs.vineyard_first"),
            ("vineyard, warm", "vs.vineyard_warm"),
            ("vineyard, warm, the put alone", "vs.vineyard_put"),
            ("vineyard, warm, the get alone", "vs.vineyard_get"),
            ("torchstore", "vs.torchstore"),
            ("torch.multiprocessing", "vs.torch_mp"),
            ("Ray's object store, between actors", "ray.transport_node_whole"),
        ],
    ),
    (
        "between two network namespaces, nobody encrypts",
        [
            ("Ray's object store, first transfer", "vs.ray_nodes_first"),
            ("Ray's object store, warm", "vs.ray_nodes_warm"),
            ("Ray's object store, between actors", "ray.transport_whole"),
            ("gloo", "net.gloo"),
            ("torch RPC (TensorPipe)", "net.rpc"),
            ("Mooncake's transfer engine", "net.mooncake"),
            ("NIXL over UCX", "net.nixl"),
            ("gloo, while Tensorlane encrypts", "net.tls"),
        ],
    ),
]
_FACTS = [
    ("py.get_local_4k", "get of 4 KiB in the pod, by the client in Rust"),
    ("py.get_local_1g", "get of 1 GiB in the pod, by one of 4 KiB"),
    ("py.put_64m", "put of 64 MiB, by numpy.copyto"),
    ("py.state_dict_get", "weights of a model (103 tensors, 90.9 MB) in the pod: get"),
    ("py.state_dict_put", "weights of a model: put"),
    ("py.state_dict_far", "weights of a model from the other namespace, by one tensor of that size"),
    ("rows.far_tcp", "1,000 random rows of 16 KiB of a remote 1 GiB, by as many bytes over bare TCP"),
    ("rows.far_rpc", "the same rows, by torch RPC's index_select"),
]

_LEFT, _TOP, _COLUMN, _LINE, _WIDTH = 290, 96, 96, 36, 980
_STYLE = """
    text { fill: #1f2328; font-size: 13.5px }
    .head { font-size: 18px; font-weight: 600 } .part { font-size: 13.5px; font-weight: 600 }
    .note { fill: #57606a; font-size: 11.5px } .ratio { font-size: 14px; font-weight: 600 } .small { font-size: 10.5px; fill: #57606a }
    .rule { stroke: #d0d7de }
    .far { fill: #7fd394 } .fast { fill: #b4e6c0 } .same { fill: #e3f4e7 } .slow { fill: #fbe3c0 } .none { fill: #f0f2f4 }
    .miss { stroke: #cf222e; stroke-width: 2 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .note, .small { fill: #9da7b1 } .rule { stroke: #30363d }
      .far { fill: #1a6b34 } .fast { fill: #17502a } .same { fill: #123420 } .slow { fill: #5a3d0c } .none { fill: #161b22 }
      .miss { stroke: #ff7b72 }
    }"""


def drawn(document: dict[str, Any]) -> str:
    """The SVG of a file."""
    rows: Rows = {row["name"]: row for row in document["rows"]}
    body, y = _head(document), _TOP
    said: list[str] = []
    for title, lines in _PARTS:
        present = [line for line in lines if any(f"{line[1]}_{size}" in rows for size in _SIZES)]
        if not present:
            continue
        body.append(_text(20, y + 14, title, "part"))
        y += 26
        for label, prefix in present:
            body.extend(_line(rows, label, prefix, y, said))
            y += _LINE
        y += 16
    facts = [(rows[name], label) for name, label in _FACTS if name in rows]
    if facts:
        body.append(_text(20, y + 14, "Python by itself", "part"))
        y += 26
        for row, label in facts:
            body.extend(_fact(row, label, y))
            y += 22
        y += 12
    for number, words in enumerate(said, 1):
        body.append(_text(20, y + 8, f"{number}: {words}", "note"))
        y += 17
    return _framed(body, y + 16, document)


def _framed(body: list[str], height: int, document: dict[str, Any]) -> str:
    title = f"Tensorlane beside others, {document['date']}"
    words = "A table: how many times as fast as each other way Tensorlane was, by the size of the tensor. The same numbers are in the file."
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="title desc"'
            " font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\">",
            f'  <title id="title">{escape(title)}</title>',
            f'  <desc id="desc">{escape(words)}</desc>',
            f"  <style>{_STYLE}\n  </style>",
            *(f"  {one}" for one in body),
            "</svg>\n",
        ]
    )


def _head(document: dict[str, Any]) -> list[str]:
    """The heading, what it was measured on, and the columns."""
    counted = "one run" if document["runs"] == 1 else f"median of {document['runs']} runs"
    runs = f"{document['date']}; {counted}, in turns, bytes hashed at both ends; red: a bound is missed"
    head = [
        _text(20, 28, "Tensorlane from Python: how many times as fast as…", "head"),
        _text(20, 47, f"{runs}; {document['versions']}", "note"),
        _text(20, 63, document["machine"], "note"),
    ]
    columns = [_text(_center(at), 86, label, "note", "middle") for at, label in enumerate(_SIZES.values())]
    return [*head, *columns, f'<path class="rule" d="M20 92H{_WIDTH - 20}"/>']


def _line(rows: Rows, label: str, prefix: str, y: int, said: list[str]) -> list[str]:
    """The cells of one other way, and a note where one of them could not be measured."""
    found = [_text(20, y + 22, label)]
    for at, size in enumerate(_SIZES):
        row = rows.get(f"{prefix}_{size}")
        if row is None:
            continue
        x, fast = _LEFT + at * _COLUMN, speed(row)
        miss = " miss" if row["passes"] is False else ""
        found.append(f'<rect class="{_shade(fast)}{miss}" x="{x}" y="{y + 2}" width="{_COLUMN - 6}" height="{_LINE - 5}" rx="4"/>')
        if fast is None:
            why = row["note"] or "not measured"
            if why not in said:
                said.append(why)
            found.append(_text(_center(at), y + 22, f"none ({said.index(why) + 1})", "note", "middle"))
        else:
            found.append(_text(_center(at), y + 17, f"{_digits(fast)} ×", "ratio", "middle"))
            found.append(_text(_center(at), y + 29, f"{_digits(row['value'])} {row['unit']}", "small", "middle"))
    return found


def _fact(row: dict[str, Any], label: str, y: int) -> list[str]:
    """A line of text: the value, and the ratio where there is a limit."""
    if row["value"] is None:
        words = row["note"] or "not measured"
    else:
        words = f"{_digits(row['value'])} {row['unit']}"
        words += f", {_digits(row['ratio'])} of {_digits(row['limit'])}" if row["ratio"] is not None else ""
    missed = " (missed)" if row["passes"] is False else ""
    return [_text(20, y + 14, label), _text(_WIDTH - 20, y + 14, words + missed, "ratio", "end")]


def speed(row: dict[str, Any]) -> float | None:
    """Speed of a row by its limit, of times as of rates; None if it was not measured."""
    if not row["ratio"]:
        return None
    return row["ratio"] if row["unit"].endswith("/s") else 1 / row["ratio"]


def _shade(fast: float | None) -> str:
    if fast is None:
        return "none"
    return "far" if fast >= 5 else "fast" if fast >= 1.5 else "same" if fast >= 1 else "slow"


def _center(at: int) -> int:
    return _LEFT + at * _COLUMN + (_COLUMN - 6) // 2


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}" if value >= 0.095 else f"{value:.3f}"


def _text(x: int, y: int, words: str, kind: str = "", anchor: str = "") -> str:
    given = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x}" y="{y}"{given}>{escape(words)}</text>'


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(drawn(json.loads(Path(sys.argv[1]).read_text())))
