"""Rows of `cargo xtask bench python`, and the picture of them: what is computed, not what is measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

sys.path.append(str(Path(__file__).resolve().parents[2] / "benches/python"))

import picture  # noqa: E402
from rows import Measured, Pair, Row, at_least, at_most, document, median_of_runs, missed, table, within  # noqa: E402

TIME = at_most("vs.ray_first_4k", "ms", "Ray", 1.0)
RATE = at_least("net.gloo_64m", "GB/s", "gloo", 1.0)
ALONE = within("py.state_dict_get", "ms", "none", 2.0)
TOLD = Row("net.gloo_1m", "GB/s", "gloo")


def test_times_must_not_be_long_and_rates_not_low():
    assert Measured(TIME, [Pair(0.3, 0.6)]).passes() is True
    assert Measured(TIME, [Pair(0.7, 0.6)]).passes() is False
    assert Measured(RATE, [Pair(3.0, 3.0)]).passes() is True
    assert Measured(RATE, [Pair(2.9, 3.0)]).passes() is False
    assert Measured(ALONE, [Pair(1.9)]).passes() is True
    assert Measured(ALONE, [Pair(2.1)]).passes() is False
    assert Measured(TOLD, [Pair(1.0, 9.0)]).passes() is None


def test_the_ratio_is_the_median_of_the_pairs_and_not_of_the_sides():
    measured = Measured(RATE, [Pair(1.0, 1.0), Pair(4.0, 2.0), Pair(9.0, 3.0)])
    assert (measured.value(), measured.limit(), measured.ratio()) == (4.0, 2.0, 2.0)


def test_a_row_that_could_not_be_measured_is_missed_unless_another_run_has_it():
    missing = Measured.missing(TIME, "Ray said no")
    assert missed(median_of_runs([[missing], [missing]])) == [TIME.name]
    (middle,) = median_of_runs([[missing], [Measured(TIME, [Pair(1.0, 2.0)])]])
    assert middle.passes() and middle.note == "1 of 2 runs could not measure it"


def test_the_run_in_the_middle_counts():
    runs = [[Measured(RATE, [Pair(value, 1.0)])] for value in (0.9, 1.3, 1.1)]
    (middle,) = median_of_runs(runs)
    assert middle.ratio() == 1.1


def test_the_table_says_what_was_missed_and_why():
    rows = [Measured(RATE, [Pair(1.0, 2.0)], "by 2 lanes"), Measured.missing(TIME, "Ray said no")]
    head, first, note, second, why = table(rows).splitlines()
    assert head.startswith("row") and first.split()[0] == RATE.name and first.split()[-4:] == ["0.50", ">=", "1", "MISS"], first
    assert (note.strip(), why.strip()) == ("by 2 lanes", "not measured: Ray said no")
    assert second.endswith("MISS")


def test_the_picture_is_made_of_the_file_and_says_how_many_times_as_fast():
    rows = [
        Measured(TIME, [Pair(0.2, 0.8)]),
        Measured(RATE, [Pair(3.0, 2.0)]),
        Measured.missing(at_least("net.nixl_64m", "GB/s", "NIXL", 1.0), "it said <no> & ended"),
        Measured(ALONE, [Pair(1.5)]),
    ]
    about = {"date": "2026-01-02", "machine": "a machine", "versions": "tensorlane 0", "runs": 1, "pairs": 1}
    read = json.loads(document(rows, about))
    assert [row["name"] for row in read["rows"]] == [one.row.name for one in rows] and read["date"] == "2026-01-02"
    drawn = picture.drawn(read)
    texts = [text.text for text in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert "4.00 ×" in texts and "1.50 ×" in texts and "none (1)" in texts, texts
    assert "1: not measured: it said <no> & ended" in texts and "1.50 ms" in texts
