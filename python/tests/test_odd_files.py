"""Odd safetensors files: each gives the right tensors or a typed error, and a refused one leaves no name, no tensor and no lease."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import safetensors
import torch

import tensorlane
from conftest import until


def file_of(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file with that header, as JSON or as bytes as they are, which may claim another length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


A = entry("U8", [4], 0, 4)
DATA = bytes(range(16))

# Each with what its error says.
REFUSED = {
    "an empty file": (b"", "it is empty"),
    "less than the length of a header": (b"\x08\0\0", "not a safetensors file"),
    "a header longer than the file": (file_of({"a": A}, DATA[:4], length=1 << 20), "header"),
    "a header of 100 MB that is not there": (file_of({"a": A}, DATA[:4], length=100_000_000), "header"),
    "a header of more than 100 MB": (file_of({"a": A}, DATA[:4], length=100_000_001), "header"),
    "a header of 2^64 bytes less one": (file_of({"a": A}, DATA[:4], length=2**64 - 1), "header"),
    "a header of no bytes": (file_of(b"", DATA), "header"),
    "a header that is not UTF-8": (file_of(b'{"\xff\xfe":1}'), "unicode"),
    "a header that is no JSON": (file_of(b'{"a": '), "header"),
    "a header that is a list": (file_of([A], DATA[:4]), "header"),
    "a header with something behind it": (file_of(json.dumps({"a": A}).encode() + b"}", DATA[:4]), "header"),
    "a header that is filled up with zeros": (file_of(json.dumps({"a": A}).encode() + b"\0\0", DATA[:4]), "zero bytes"),
    "tensors that overlap": (file_of({"a": A, "b": entry("U8", [4], 2, 6)}, DATA[:6]), "begin inside"),
    "the same bytes twice": (file_of({"a": A, "b": A}, DATA[:4]), "begin inside"),
    "a hole": (file_of({"a": A, "b": entry("U8", [4], 6, 10)}, DATA[:10]), "belong to no tensor"),
    "a hole at the beginning": (file_of({"a": entry("U8", [4], 1, 5)}, DATA[:5]), "belong to no tensor"),
    "bytes behind the last tensor": (file_of({"a": A}, DATA[:5]), "belong to no tensor"),
    "bytes and no tensor": (file_of({}, DATA[:5]), "belong to no tensor"),
    "a file that was cut": (file_of({"a": A}, DATA[:3]), "not inside the file"),
    "offsets the wrong way round": (file_of({"a": entry("U8", [4], 4, 0)}, DATA[:4]), "a"),
    "a negative offset": (file_of({"a": entry("U8", [4], -4, 0)}, DATA[:4]), "`-4`"),
    "the same key twice": (
        file_of(b'{"a":%s,"a":%s}' % (json.dumps(A).encode(), json.dumps(entry("U8", [4], 4, 8)).encode()), DATA[:8]),
        "a",
    ),
    "an unknown type": (file_of({"a": entry("U7", [4], 0, 4)}, DATA[:4]), "U7"),
    "a type that is a number": (file_of({"a": {**A, "dtype": 7}}, DATA[:4]), "`7`"),
    "a wrong size": (file_of({"a": entry("F32", [2], 0, 7)}, DATA[:7]), "F32 of shape"),
    "a shape whose size is no number": (file_of({"a": entry("F64", [2**62, 2**62], 0, 8)}, DATA[:8]), "a"),
    "a negative length": (file_of({"a": entry("U8", [-4], 0, 4)}, DATA[:4]), "`-4`"),
    "33 dimensions": (file_of({"a": entry("U8", [1] * 33, 0, 1)}, DATA[:1]), "33"),
    "metadata twice": (
        file_of(b'{"__metadata__":{"x":"1"},"__metadata__":{"x":"2"},"a":%s}' % json.dumps(A).encode(), DATA[:4]),
        "duplicate field `__metadata__`",
    ),
    "no shape": (file_of({"a": {"dtype": "U8", "data_offsets": [0, 4]}}, DATA[:4]), "shape"),
    "elements that fill no byte": (file_of({"a": entry("F4", [3], 0, 2)}, DATA[:2]), "bits"),
    "metadata that are no texts": (file_of({"__metadata__": {"step": 7}, "a": A}, DATA[:4]), "step"),
    "a good tensor before a bad one": (file_of({"a": A, "b": entry("F32", [2], 4, 8)}, DATA[:8]), "F32 of shape"),
}

# Keys of a set, and no names.
NO_NAMES = {
    "a control character": (file_of({"a\nb": A}, DATA[:4]), "cannot be named"),
    "600 letters": (file_of({"n" * 600: A}, DATA[:4]), "cannot be named"),
    "a slash at the end": (file_of({"n/": A}, DATA[:4]), "cannot be named"),
    "nothing": (file_of({"": A}, DATA[:4]), "cannot be named"),
}


def refused(client, put, path, words: str) -> None:
    """The given put refuses a file, and nothing of it is there."""
    before = client.status()
    with pytest.raises(tensorlane.Error) as caught:
        put(path, "odd")
    error = str(caught.value)
    assert words in error and path.name in error
    assert "panicked" not in error and "ended with code" not in error
    assert client.names("odd") == {}
    until("nothing is left", lambda: (client.status().tensors, client.status().leases) <= (before.tensors, before.leases))


@pytest.mark.parametrize("what", REFUSED)
def test_an_odd_file_is_refused_as_a_whole_with_what_is_wrong(client, tmp_path, what):
    content, words = REFUSED[what]
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    # What the format's own library refuses, and a tensor that an exchange cannot have.
    if what != "33 dimensions":
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(content)
    for put in (client.put_file, client.publish_file):
        refused(client, put, path, words)


@pytest.mark.parametrize("what", NO_NAMES)
def test_a_file_with_a_key_that_is_no_name_is_refused(client, tmp_path, what):
    content, words = NO_NAMES[what]
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    refused(client, client.put_file, path, words)


def test_a_header_of_more_than_the_format_has_is_refused_though_the_file_has_it(client, tmp_path):
    path = tmp_path / "odd.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001))
        # No block of the disk is taken.
        file.truncate(100_000_009)
    refused(client, client.put_file, path, "100000000 at most")


# Each with the arrays that it has.
TAKEN = {
    "no tensor": (file_of({}), {}),
    "no tensor, by a header of spaces": (file_of(b"{}      "), {}),
    "a tensor of no dimensions": (file_of({"a": entry("I32", [], 0, 4)}, struct.pack("<i", -7)), {"a": np.array(-7, "i4")}),
    "a tensor of no elements": (file_of({"a": entry("F32", [0, 3], 0, 0)}), {"a": np.zeros((0, 3), "f4")}),
    "one without elements between others": (
        file_of({"a": A, "b": entry("F32", [0], 4, 4), "c": entry("U8", [2], 4, 6)}, DATA[:6]),
        {"a": np.arange(4, dtype="u1"), "b": np.zeros(0, "f4"), "c": np.array([4, 5], "u1")},
    ),
    "an unaligned one": (
        file_of({"a": entry("U8", [1], 0, 1), "b": entry("I64", [1], 1, 9)}, b"\x01" + struct.pack("<q", -5)),
        {"a": np.ones(1, "u1"), "b": np.array([-5])},
    ),
    "the same key twice, of which the last one counts": (
        file_of(b'{"a":%s,"a":%s}' % tuple(json.dumps(one).encode() for one in (entry("U8", [8], 0, 8), A)), DATA[:4]),
        {"a": np.arange(4, dtype="u1")},
    ),
    "others first in the header": (
        file_of({"b": entry("U8", [2], 2, 4), "a": entry("U8", [2], 0, 2)}, DATA[:4]),
        {"a": np.array([0, 1], "u1"), "b": np.array([2, 3], "u1")},
    ),
    "a key that is not ASCII": (file_of({"größe": A}, DATA[:4]), {"größe": np.arange(4, dtype="u1")}),
    "32 dimensions": (file_of({"a": entry("U8", [1] * 32, 0, 1)}, b"\x05"), {"a": np.full([1] * 32, 5, "u1")}),
}


@pytest.mark.filterwarnings("ignore:.* has no tensors")
@pytest.mark.parametrize("what", TAKEN)
def test_an_unusual_file_is_right_and_is_written_again(client, tmp_path, what):
    content, arrays = TAKEN[what]
    (tmp_path / "in.safetensors").write_bytes(content)
    assert {key for key, _ in safetensors.deserialize(content)} == set(arrays)
    references = client.put_file(tmp_path / "in.safetensors", "unusual")
    assert set(references) == set(arrays) and client.names("unusual/") == {f"unusual/{key}": one for key, one in references.items()}
    for key, array in arrays.items():
        got = client.get(f"unusual/{key}").torch()
        assert (got.numpy().dtype, got.shape) == (array.dtype, array.shape) and torch.equal(got, torch.from_numpy(array))
    if arrays:
        assert set(client.get_file("unusual", tmp_path / "out.safetensors")) == set(arrays)
        client.unname(*client.names("unusual/"))
        assert set(client.put_file(tmp_path / "out.safetensors", "unusual")) == set(arrays)
        client.unname(*client.names("unusual/"))
