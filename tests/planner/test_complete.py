"""What stands in `alternatives`, `remedies` and `fit` is what a person types: all flags of that
launch, which give what was promised."""

from __future__ import annotations

from typing import Any

import pytest
from decisions.test_bars import ROWS, request_of
from support import few, model

from autolayers.flags.parse import items
from autolayers.flags.table import Argument
from autolayers.planner.answer import plan_request
from autolayers.planner.plan import Plan

# goals that a launch's own flags then say
GOALS = ("ctx", "ctx-min", "kv-types")


def planned(row: dict[str, Any], words: list[str] | None, explain: bool = False) -> Plan:
    request = request_of(row, words)
    return plan_request(model(row["model"]), request, explain=explain, advise=explain)


@pytest.mark.parametrize(
    "row",
    few(40, [row for row in ROWS if row["ask"] == "plan" and not row.get("budget")][2:]),
    ids=lambda row: f"{row['model']} {len(row['gpus'])} {row['words']}",
)
def test_the_flags_of_every_other_launch_give_what_is_promised_of_it(row: dict[str, Any]) -> None:
    """Of 108 alternatives that were appended to the printed command 45 did not fit, and 52 had not
    the context that the line promised."""
    # Which program and build it is, and other goals: what no flag of a launch says
    goals = [
        word
        for item in items(row["words"].split(), "plan")
        if item.flag is not None
        and not isinstance(item.flag, Argument)
        and item.flag.key not in GOALS
        for word in item.words
    ]
    found = planned(row, None, explain=True)
    others: list[tuple[tuple[str, ...], int, float]] = [
        *((other.flags, other.n_ctx, other.speed.generation) for other in found.alternatives),
        *((fix.flags, fix.n_ctx, fix.speed) for fix in found.remedies if fix.kind == "flags"),
    ]
    for flags, n_ctx, rate in others:
        then = planned(row, [*goals, *flags])
        assert then.fits and then.breakdown.n_ctx == n_ctx, flags
        assert then.speed.generation == pytest.approx(rate, rel=0.01), flags
        # Nothing is left to add: what is typed is the launch (a draft is drafted with)
        assert sorted(then.flags) == sorted(flags) or "-md" in flags
    choice = found.fit_choice
    if choice is not None:
        then = planned(row, [*goals, *choice.flags])
        assert then.breakdown.n_ctx == choice.breakdown.n_ctx
