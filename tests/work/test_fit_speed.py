"""A refit would stop at the first constant that has reached its limit, or leave no source out.

benchmarks/fit_speed.py on a few rows of fixtures/speeds.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from support import FIXTURES

sys.path.insert(0, str(FIXTURES.parent / "benchmarks"))
import fit_speed
import speeds_page

NONE = frozenset[str]()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[fit_speed.Row]:
    """Three of an M4 Max and an M3 Ultra, and three of an RTX 3090."""
    lines = (FIXTURES / "speeds" / "speeds.jsonl").read_text().splitlines()
    kept = [line for line in lines if '"gpt-oss-20b-mxfp4"' in line]
    chosen = [line for name in ('"m4-max"', '"rtx-3090"') for line in kept if name in line]
    file: Path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    file.write_text("\n".join(chosen) + "\n")
    return fit_speed.load([file])


@pytest.mark.slow
def test_a_constant_at_its_limit_does_not_stop_the_others(rows: list[fit_speed.Row]) -> None:
    fit = fit_speed.Fit(rows, None, NONE, NONE)
    constants = fit.constants
    limited = constants.names.index(("rates", ("MTL", ""), "experts"))
    fit.x[limited] = constants.most[limited]
    fit.error = fit.errors(fit.x)
    before = fit.loss(fit.error, fit.x)
    fit.improve(4)
    assert fit.loss(fit.error, fit.x) < 0.8 * before
    assert numpy.all(fit.x <= constants.most) and numpy.all(fit.x >= constants.least)


@pytest.mark.slow
def test_rows_of_one_source_alone_are_predicted_by_the_rest(rows: list[fit_speed.Row]) -> None:
    """A source that was left out moved no constant where the fit stood at a limit: its rows were
    predicted by constants that had seen them."""
    fit = fit_speed.Fit(rows, None, NONE, NONE)
    fit.improve(4)
    near = dict(zip(fit.constants.names, fit.x, strict=True))
    whole = [fit_speed.predict(row, *fit.tables(), plain=True) for row in rows]
    without = fit_speed.without_source(rows, near)
    worst = max(abs(numpy.log(p / q)) for p, q in zip(whole, without, strict=True))
    assert worst > 0.05


def test_rows_whose_ram_is_known_state_a_doubt_too(rows: list[fit_speed.Row]) -> None:
    """--only SYCL ended in KeyError: 'tg'."""
    stated = fit_speed.Stated.of(rows, [0.1] * len(rows))
    assert set(stated.unknown) == set(stated.few) == {"tg", "pp"}


def test_the_page_says_each_word_once(rows: list[fit_speed.Row]) -> None:
    """It had 6,000 words: every source in a row, and pairs of whole commands."""
    predicted = [row.measured * 1.1 for row in rows]
    fit_speed.table("Fitted", rows, predicted, "fitted")
    fit_speed.table("Unseen", rows, predicted, "unseen")
    fit_speed.doubts(rows, predicted)
    source = rows[0].source
    off = [p * (1.5 if row.source == source else 1) for row, p in zip(rows, predicted, strict=True)]
    fit_speed.floors(rows, predicted, predicted)
    fit_speed.sources(rows, off)
    fit_speed.in_order(rows, [1.0] * len(rows))
    run = [fit_speed.weighted(f"all {kind}", [(0.3, 0.1, 1.0)]) for kind in ("tg", "pp")]
    pair = ("tg", "m", "-ngl 9 -fa on -c 512", "-ngl 9 -fa off -c 512", "+9.0%", "-1.0%")
    tables = fit_speed.PAGE | {"same": run, "other": run, "wrong": [pair]}
    page = speeds_page.render(tables, fit_speed.ORDER, len(rows))
    assert "are within x1.10 of the measured tokens" in " ".join(page[:300].split())
    assert "| tg m | -fa on | -fa off | +9.0% | -1.0% |" in page.splitlines()
    named = {line for line in page.splitlines() if "github.com" in line}
    kinds = {row.kind for row in rows if row.source == source}
    assert 0 < len(named) == len(kinds) and all(" 1.65 |" in line for line in named)


def test_two_sources_that_differ_are_no_nearer_than_their_floor(
    rows: list[fit_speed.Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the square of what two sources differ in is each one's: of 1.5 the factor 1.33."""
    monkeypatch.setattr(fit_speed, "PAGE", {})
    prompts = [row for row in rows if row.kind == "pp" and row.keys[0][0] == "CUDA"][:1]
    other = [replace(row, source="another", measured=1.5 * row.measured) for row in prompts]
    alone = [row for row in rows if row.kind == "tg" and row.keys[0][0] == "MTL"][:1]
    known = [*prompts, *other, *alone]
    fit_speed.floors(known, [1.0] * len(known), [row.measured for row in known])
    found = {row[0]: row[1:] for row in fit_speed.PAGE["floors"]}
    assert found["all pp"] == ("2", "1.33", "0 %", "1.00", "100 %", "0", "", "")
    assert found["all tg"] == ("0", "", "", "", "", "1", "1.00", "100 %")
