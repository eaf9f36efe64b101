"""Rows between two network namespaces: rows of a remote tensor, and `net.*`, where a tensor of the other namespace is read."""

from __future__ import annotations

import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Callable, Iterator

import nodes

from contest import Bench, Fetch, interleaved, lanes, rates
from payload import digest, pattern_rows
from local_rows import PLAIN, STATE_DICT_FAR, weights_far
from processes import End, Failed
from rows import GIB, KIB, MIB, SIZES, Measured, Row, at_least, at_most

_ROW = 16 * KIB
_COUNT = 1000
_TCP, _RPC = "the same bytes in one piece over a bare TCP connection", "index_select by torch's RPC, in one call"
ROWS_TCP = at_most("rows.far_tcp", "ms", f"{_TCP}; ours are {_COUNT:,} random rows of 16 KiB of a tensor of 1 GiB, plain", 1.4)
ROWS_RPC = at_most("rows.far_rpc", "ms", f"{_RPC}, of the same rows", 1.0)

_SIZES = ("1m", "64m", "1g")
_PEERS = {
    "gloo": "torch.distributed over gloo, into a warm tensor",
    "rpc": "torch.distributed.rpc (TensorPipe, uv)",
    "mooncake": "Mooncake's transfer engine over TCP, into registered memory",
    "nixl": "NIXL over UCX with tcp, into registered memory",
}
_CABLE = "e0"
_RENDEZVOUS = 29_500


def _row(peer: str, size: str) -> Row:
    limit = f"{_PEERS[peer]}; between two namespaces, plain"
    name = f"net.{peer}_{size}"
    return Row(name, "GB/s", limit) if size == "1m" else at_least(name, "GB/s", limit, 1.0)


NET = {peer: {size: _row(peer, size) for size in _SIZES} for peer in _PEERS}
TLS = {size: Row(f"net.tls_{size}", "GB/s", f"{_PEERS['gloo']}, which encrypts nothing; ours are in TLS 1.3") for size in _SIZES}
REMOTE = [STATE_DICT_FAR, ROWS_TCP, ROWS_RPC]


def all_rows() -> list[Row]:
    """Rows of `net`, in their order."""
    return [row for of in (*NET.values(), TLS) for row in of.values()]


def remote(bench: Bench) -> Iterator[Measured]:
    """Weights and rows of the other namespace."""
    with nodes.with_sidecars(_directory(bench), "3Gi", **PLAIN) as two:
        if bench.wants(STATE_DICT_FAR):
            yield from weights_far(bench, two)
        nbytes = min(GIB, bench.largest)
        with ExitStack() as stack:
            ours = _ours(stack, two, {})
            token = ours.others[0].ask("hold", nbytes=nbytes, row=_ROW)
            ours.tokens[nbytes] = token

            def index_of(turn: int) -> list[int]:
                return random.Random(turn).choices(range(nbytes // _ROW), k=min(_COUNT, nbytes // _ROW))

            def value(turn: int) -> float:
                index = index_of(turn)
                took = ours.reader.ask("get_rows", token=token, index=index)
                ours.check(digest(pattern_rows(index, _ROW)), f"rows of turn {turn}")
                return took * 1e3

            if bench.wants(ROWS_TCP):
                with ExitStack() as peer:
                    bare = _tcp(peer, two, nbytes)
                    size = len(index_of(0)) * _ROW
                    pairs = interleaved(bench.count(MIB), lambda _: bare.seconds(size) * 1e3, value)
                yield Measured(ROWS_TCP, pairs)
            if bench.wants(ROWS_RPC):
                yield from _beside_rpc(bench, two, nbytes, index_of, value)


def _beside_rpc(
    bench: Bench, two: list[nodes.Node], nbytes: int, index_of: Callable[[int], list[int]], value: Callable[[int], float]
) -> Iterator[Measured]:
    try:
        with ExitStack() as peer:
            rpc = _rpc(peer, two, nbytes)

            def limit(turn: int) -> float:
                index = index_of(turn)
                took = rpc.reader.ask("get_rows", index=index)
                rpc.check(digest(pattern_rows(index, _ROW)), f"rows of turn {turn}")
                return took * 1e3

            pairs = interleaved(bench.count(MIB), limit, value)
            yield Measured(ROWS_RPC, pairs, rpc.reader.ask("about"))
    except Failed as error:
        yield Measured.missing(ROWS_RPC, str(error))


def net(bench: Bench) -> Iterator[Measured]:
    """Tensors of the other namespace, beside each of those that move them over TCP."""
    starts = {"gloo": _gloo, "rpc": _rpc, "mooncake": _mooncake, "nixl": _nixl}
    sizes = bench.sizes(*_SIZES)
    largest = max((SIZES[size] for size in sizes), default=MIB)
    with nodes.with_sidecars(_directory(bench), "3Gi", **PLAIN) as two, ExitStack() as stack:
        ours = _ours(stack, two, {SIZES[size]: "" for size in sizes})
        for peer, of in NET.items():
            rows = {size: row for size, row in of.items() if size in sizes and bench.wants(row)}
            if not rows:
                continue
            bench.progress(f"net.{peer}: all cores, both alike")
            try:
                with ExitStack() as started:
                    start = starts[peer]
                    if peer in ("gloo", "rpc"):
                        theirs = start(started, two, largest)
                    elif isinstance(bench.peers, str):
                        raise Failed(bench.peers)
                    else:
                        theirs = start(started, two, largest, bench.peers)
                    for size in list(rows):
                        yield _fetched(bench, rows[size], ours, theirs, SIZES[size])
                        del rows[size]
            except Failed as error:
                for row in rows.values():
                    yield Measured.missing(row, str(error))
    rows = {size: row for size, row in TLS.items() if size in sizes and bench.wants(row)}
    if rows:
        bench.progress("net.tls: all cores, both alike")
        with nodes.with_sidecars(_directory(bench), "3Gi", TENSORLANE_GC_COPY_IDLE="1ms") as two, ExitStack() as stack:
            ours, theirs = _ours(stack, two, {SIZES[size]: "" for size in sizes}), _gloo(stack, two, largest)
            for size, row in rows.items():
                yield _fetched(bench, row, ours, theirs, SIZES[size])


def _fetched(bench: Bench, row: Row, ours: Fetch, theirs: Fetch, nbytes: int) -> Measured:
    most = 30 if nbytes <= MIB else 15
    pairs = interleaved(bench.count(nbytes, most), lambda _: theirs.seconds(nbytes), lambda _: ours.seconds(nbytes))
    about = theirs.reader.ask("about")
    note = "; ".join(one for one in (ours.reader.ask("route"), about) if one)
    return rates(row, nbytes, [(pair.value, pair.limit or 0.0) for pair in pairs], note)


def _directory(bench: Bench) -> Path:
    return Path(tempfile.mkdtemp(dir=bench.scratch))


# Each of them: the first node holds, the second one reads.


def _ours(stack: ExitStack, two: list[nodes.Node], tokens: dict[int, str]) -> Fetch:
    sockets = [node.sidecar.directory for node in two if node.sidecar]
    both = lanes(stack, (sockets[0], two[0]), (sockets[1], two[1]))
    held = {nbytes: both.maker.ask("hold", nbytes=nbytes, row=4 * KIB) for nbytes in tokens}
    return Fetch(both.taker, [both.maker], held)


def _tcp(stack: ExitStack, two: list[nodes.Node], nbytes: int) -> Fetch:
    where = (two[0].address, str(_RENDEZVOUS), str(nbytes))
    holder = stack.enter_context(End("bare_tcp", "hold", *where, node=two[0])).ready()
    return Fetch(stack.enter_context(End("bare_tcp", "read", *where, node=two[1])).ready(), [holder])


def _gloo(stack: ExitStack, two: list[nodes.Node], nbytes: int) -> Fetch:
    return _ranks(stack, two, "gloo_pair", nbytes, _RENDEZVOUS + 1, {"GLOO_SOCKET_IFNAME": _CABLE})


def _rpc(stack: ExitStack, two: list[nodes.Node], nbytes: int) -> Fetch:
    return _ranks(stack, two, "torch_rpc", nbytes, _RENDEZVOUS + 2, {"TP_SOCKET_IFNAME": _CABLE, "GLOO_SOCKET_IFNAME": _CABLE})


def _ranks(stack: ExitStack, two: list[nodes.Node], program: str, nbytes: int, port: int, environment: dict[str, str]) -> Fetch:
    words = (two[0].address, str(port), str(nbytes))
    environment = {"OMP_NUM_THREADS": "1", **environment}
    ends = [stack.enter_context(End(program, str(rank), *words, node=two[rank], environment=environment)) for rank in range(2)]
    # Each waits for the other one.
    for end in ends:
        end.ready()
    return Fetch(ends[1], [ends[0]])


def _mooncake(stack: ExitStack, two: list[nodes.Node], nbytes: int, python: Path) -> Fetch:
    def end(role: str, node: nodes.Node) -> End:
        return stack.enter_context(End("mooncake_engine", role, node.address, str(nbytes), python=python, node=node)).ready()

    holder, reader = end("hold", two[0]), end("read", two[1])
    port, remote = holder.ask("place")
    reader.ask("meet", peer=f"{two[0].address}:{port}", remote=remote)
    return Fetch(reader, [holder])


def _nixl(stack: ExitStack, two: list[nodes.Node], nbytes: int, python: Path) -> Fetch:
    # Without it two namespaces of one kernel find ways that two hosts do not have.
    environment = {"UCX_TLS": "tcp"}

    def end(role: str, node: nodes.Node) -> End:
        return stack.enter_context(
            End("nixl_agent", role, str(nbytes), python=python, node=node, environment=environment)
        ).ready()

    holder, reader = end("hold", two[0]), end("read", two[1])
    of_reader, _ = reader.ask("place")
    metadata, remote = holder.ask("place")
    reader.ask("meet", metadata=metadata, remote=remote)
    holder.ask("meet", metadata=of_reader, remote=0)
    return Fetch(reader, [holder])
