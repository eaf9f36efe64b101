"""Rows `py.*`: Python beside a sidecar, and what the same costs without one, or from Rust."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Iterator

import nodes
import tensorlane

from contest import WARM, Bench, compare, interleaved, lanes, populated
from processes import End, on_core
from rows import GIB, KIB, MIB, Measured, Pair, Row, at_least, at_most, within

GET_LOCAL_4K = at_most("py.get_local_4k", "us", "the client in Rust, of the same tensor of 4 KiB, on the same core", 1.5)
GET_LOCAL_1G = at_most("py.get_local_1g", "us", "py.get_local_4k", 1.3)
PUT_64M = at_least("py.put_64m", "GB/s", "numpy.copyto of as much into memory that is warm", 1.2)
STATE_DICT_GET = within("py.state_dict_get", "ms", "none; 103 tensors, 90.9 MB, until all are mapped in another process", 2.0)
STATE_DICT_PUT = within("py.state_dict_put", "ms", "none; the same, put as one dict", 30.0)
STATE_DICT_TORCH = Row("py.state_dict_torch", "ms", "none; making tensors of torch of all that was got, as a second map of each")
STATE_DICT_GET_SET = Row("py.state_dict_get_set", "ms", "none; the same, the latest version of a name")
STATE_DICT_PUBLISH = Row("py.state_dict_publish", "ms", "none; the same, published as the next version of a name")
STATE_DICT_FAR = at_least("py.state_dict_far", "GB/s", "one tensor of as many bytes, got from the same namespace, plain", 0.8)

SMALL = [GET_LOCAL_4K, GET_LOCAL_1G, PUT_64M]
WEIGHTS = [STATE_DICT_GET, STATE_DICT_PUT, STATE_DICT_TORCH, STATE_DICT_GET_SET, STATE_DICT_PUBLISH]

_GETS = 500
_NAME = "bench/policy"
PLAIN = {"TENSORLANE_ENCRYPTION": "none", "TENSORLANE_GC_COPY_IDLE": "1ms"}


def small(bench: Bench) -> Iterator[Measured]:
    """Gets at any size: the caller on one core, the sidecar on another one. And a put, on all cores."""
    cores = sorted(os.sched_getaffinity(0))
    near, far = cores[0], cores[-1]
    with ExitStack() as stack:
        with on_core(far):
            sidecar = stack.enter_context(tensorlane.Sidecar(arena="3Gi"))
        maker = stack.enter_context(End("lane", sidecar.directory)).ready()
        taker = stack.enter_context(End("lane", sidecar.directory, core=near)).ready()
        little, large = (maker.ask("hold", nbytes=nbytes, row=4 * KIB) for nbytes in (4 * KIB, min(GIB, bench.largest)))
        populated(sidecar.directory)

        def ours(token: str) -> float:
            return taker.ask("get_us", token=token, count=_GETS)

        if bench.programs is None:
            yield Measured.missing(GET_LOCAL_4K, "the programs are not here: `cargo xtask bench python` builds them")
        else:
            program = [str(bench.programs / "bench"), "py-get", sidecar.directory]
            with End.of_program("bench py-get", program, core=near) as rust:
                rust.ready()
                limit = interleaved(
                    bench.count(KIB), lambda _: rust.ask("get_us", token=little, count=_GETS), lambda _: ours(little)
                )
            yield Measured(GET_LOCAL_4K, limit)
        yield Measured(GET_LOCAL_1G, interleaved(bench.count(KIB), lambda _: ours(little), lambda _: ours(large)))
    with ExitStack() as stack:
        sidecar = stack.enter_context(tensorlane.Sidecar(arena="1Gi"))
        maker = stack.enter_context(End("lane", sidecar.directory)).ready()
        nbytes = min(64 * MIB, bench.largest)

        def put(_: int) -> float:
            took, _token = maker.ask("put")
            maker.ask("drop")
            maker.ask("rest")
            return nbytes / took / 1e9

        maker.ask("make", nbytes=nbytes, turn=1)
        populated(sidecar.directory)
        yield Measured(PUT_64M, interleaved(bench.count(KIB), lambda _: nbytes / maker.ask("copy") / 1e9, put))


def weights(bench: Bench) -> Iterator[Measured]:
    """Weights of a model in one pod: put as a dict, and published."""
    rows: dict[str, list[float]] = {row.name: [] for row in WEIGHTS}
    with tensorlane.Sidecar(arena="1Gi") as sidecar, ExitStack() as stack:
        maker, taker = (stack.enter_context(End("model", sidecar.directory)).ready() for _ in range(2))
        for turn in range(WARM + bench.count(KIB)):
            count, nbytes = maker.ask("make", turn=turn)
            populated(sidecar.directory)
            put, token = maker.ask("put")
            get, torch = taker.ask("get", token=token)
            compare(maker, taker, f"turn {turn} of weights")
            for end in (taker, maker):
                end.ask("drop")
            populated(sidecar.directory)
            publish = maker.ask("publish", name=_NAME)
            get_set = taker.ask("get_set", name=_NAME)
            compare(maker, taker, f"turn {turn} of published weights")
            taker.ask("drop")
            maker.ask("unname", name=_NAME)
            if turn >= WARM:
                for row, took in zip(WEIGHTS, (get, put, torch, get_set, publish), strict=True):
                    rows[row.name].append(took * 1e3)
    note = f"{count} tensors, {nbytes / 1e6:.1f} MB"
    for row in WEIGHTS:
        yield Measured(row, [Pair(value) for value in rows[row.name]], note)


def weights_far(bench: Bench, two: list[nodes.Node]) -> Iterator[Measured]:
    """Weights of a model of the other namespace, beside one tensor of as many bytes."""
    sockets = [node.sidecar.directory for node in two if node.sidecar]
    with ExitStack() as stack:
        maker, taker = (stack.enter_context(End("model", at, node=node)).ready() for at, node in zip(sockets, two, strict=True))
        one = lanes(stack, (sockets[0], two[0]), (sockets[1], two[1]))
        _, nbytes = maker.ask("make", turn=1)
        _, token = maker.ask("put")
        one.maker.ask("make", nbytes=nbytes // 8 * 8, turn=1)
        _, whole = one.maker.ask("put")

        def theirs(_: int) -> float:
            # A get alone does not touch pages, and neither does that of the weights.
            took = one.taker.ask("map", token=whole)
            compare(one.maker, one.taker, "one tensor")
            one.taker.ask("drop")
            one.taker.ask("rest")
            return nbytes / took / 1e9

        def ours(_: int) -> float:
            took, _ = taker.ask("get", token=token)
            compare(maker, taker, "weights")
            taker.ask("drop")
            one.taker.ask("rest")
            return nbytes / took / 1e9

        yield Measured(STATE_DICT_FAR, interleaved(bench.count(KIB), theirs, ours))
