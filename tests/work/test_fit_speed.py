"""A refit would stop at the first constant that has reached its limit, or leave no source out.

benchmarks/fit_speed.py on a few rows of fixtures/speeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import pytest
from support import FIXTURES

sys.path.insert(0, str(FIXTURES.parent / "benchmarks"))
import fit_speed

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
