"""Rows of `bench python`: what each is measured against, what it must reach, and the table and file of all."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field, replace
from typing import Any, Literal

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = {"4k": 4 * KIB, "64k": 64 * KIB, "1m": MIB, "16m": 16 * MIB, "64m": 64 * MIB, "256m": 256 * MIB, "1g": GIB}

Of = Literal["ratio", "value"]
Sign = Literal["<=", ">="]


@dataclass(frozen=True)
class Bound:
    """A number that a row must not exceed, or must reach: value by limit, or the value itself."""

    of: Of
    sign: Sign
    number: float


@dataclass(frozen=True)
class Row:
    """A row of the table. Its name is for good; without a bound it is told and not judged."""

    name: str
    unit: str
    limit: str
    bound: Bound | None = None


@dataclass(frozen=True)
class Pair:
    """A value of ours, and the limit's that was measured beside it."""

    value: float
    limit: float | None = None


@dataclass
class Measured:
    """Measurements of a row in one run."""

    row: Row
    pairs: list[Pair] = field(default_factory=list)
    note: str | None = None

    @classmethod
    def missing(cls, row: Row, why: str) -> Measured:
        """A row that could not be measured here, which reaches no bound."""
        return cls(row, note=f"not measured: {why}")

    def value(self) -> float | None:
        """Median of ours."""
        return statistics.median(pair.value for pair in self.pairs) if self.pairs else None

    def limit(self) -> float | None:
        """Median of the limit's."""
        limits = [pair.limit for pair in self.pairs if pair.limit is not None]
        return statistics.median(limits) if limits else None

    def ratio(self) -> float | None:
        """Median of value by limit, pair by pair."""
        ratios = [pair.value / pair.limit for pair in self.pairs if pair.limit]
        return statistics.median(ratios) if ratios else None

    def judged(self) -> float | None:
        """The number that is judged, or told."""
        if self.row.bound:
            return self.ratio() if self.row.bound.of == "ratio" else self.value()
        return self.ratio() or self.value()

    def passes(self) -> bool | None:
        """True if the row reaches what it must; None where nothing is asked of it."""
        bound, judged = self.row.bound, self.judged()
        if bound is None:
            return None
        if judged is None:
            return False
        return judged <= bound.number if bound.sign == "<=" else judged >= bound.number


def at_most(name: str, unit: str, limit: str, ratio: float) -> Row:
    """A row of times: value by limit."""
    return Row(name, unit, limit, Bound("ratio", "<=", ratio))


def at_least(name: str, unit: str, limit: str, ratio: float) -> Row:
    """A row of rates: value by limit."""
    return Row(name, unit, limit, Bound("ratio", ">=", ratio))


def within(name: str, unit: str, limit: str, value: float) -> Row:
    """A row of times that are judged alone."""
    return Row(name, unit, limit, Bound("value", "<=", value))


def median_of_runs(runs: list[list[Measured]]) -> list[Measured]:
    """Of every row the run in the middle, of those that have numbers if any has."""
    by_name: dict[str, list[Measured]] = {}
    for run in runs:
        for one in run:
            by_name.setdefault(one.row.name, []).append(one)
    return [_middle(same) for same in by_name.values()]


def _middle(same: list[Measured]) -> Measured:
    measured = [one for one in same if one.pairs]
    if not measured:
        return same[0]
    measured.sort(key=lambda one: one.judged() or 0.0)
    middle = measured[(len(measured) - 1) // 2]
    if len(measured) == len(same):
        return middle
    missed = f"{len(same) - len(measured)} of {len(same)} runs could not measure it"
    return replace(middle, note=f"{middle.note}; {missed}" if middle.note else missed)


def missed(rows: list[Measured]) -> list[str]:
    """Names of the rows that do not reach their bound."""
    return [one.row.name for one in rows if one.passes() is False]


# For people.


def table(rows: list[Measured]) -> str:
    """The table: medians, in brackets the lowest and the highest."""
    lines = [f"{'row':30}{'unit':6}  {'value':>28}  {'limit':>28}  {'ratio':>6}  {'must be':>8}  result"]
    for one in rows:
        ratio = one.ratio()
        lines.append(
            f"{one.row.name:30}{one.row.unit:6}  {_spread([pair.value for pair in one.pairs]):>28}"
            f"  {_spread([pair.limit for pair in one.pairs if pair.limit is not None]):>28}"
            f"  {'' if ratio is None else f'{ratio:.2f}':>6}  {_bound(one.row.bound):>8}  {verdict(one)}"
        )
        if one.note:
            lines.append(f"    {one.note}")
    return "\n".join(lines)


def legend(rows: list[Measured]) -> str:
    """Limits in words, once for rows that have the same."""
    names: dict[str, list[str]] = {}
    for one in rows:
        names.setdefault(one.row.limit, []).append(one.row.name)
    return "\n".join(["limits", *(f"  {limit}: {', '.join(of)}" for limit, of in names.items())])


def verdict(one: Measured) -> str:
    """PASS, MISS, or that it is told and not judged."""
    return {None: "reported", True: "PASS", False: "MISS"}[one.passes()]


def digits(value: float) -> str:
    """Three digits that count."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}" if size >= 0.0995 else f"{value:.3g}"


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{digits(statistics.median(values))} [{digits(min(values))} .. {digits(max(values))}]"


def _bound(bound: Bound | None) -> str:
    return f"{bound.sign} {bound.number:g}" if bound else ""


# For programs.


def document(rows: list[Measured], about: dict[str, Any]) -> str:
    """The file: what it was measured on, and one row a line; the names of fields are read by others."""
    lines = ",\n    ".join(json.dumps(_line(one)) for one in rows)
    head = json.dumps(about, indent=2)[:-2]
    return f'{head},\n  "rows": [\n    {lines}\n  ]\n}}\n'


def _line(one: Measured) -> dict[str, Any]:
    return {
        "name": one.row.name,
        "value": one.value(),
        "unit": one.row.unit,
        "limit": one.limit(),
        "ratio": one.ratio(),
        "n": len(one.pairs),
        "passes": one.passes(),
        "beside": one.row.limit,
        "note": one.note,
    }
