"""People would be sent to a model of last year, or to a file that the next command does not take.

Which model of today is first on a machine, and whether list, `choose` and `best` agree.
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import support
from support import few, slow, swept

from autolayers import bundled
from autolayers.bundled import published
from autolayers.flags.own import own_flags
from autolayers.planner.compare import best, choose
from autolayers.planner.compare.choose import (
    EXPERTS,
    NO,
    WHOLLY,
    advise,
    assess,
    wanted_ctx,
)
from autolayers.planner.plan import Plan
from autolayers.records import replace
from autolayers.request import Request

HERE = Path(__file__).parent
MACHINES = (
    "--gpu rtx-4060 --ram 32GiB",
    "--gpu rtx-3060 --ram 32GiB",
    "--gpu rtx-4090 --ram 64GiB",
    "--gpu m4-pro-24g",
    "--gpu m4-max-64g",
    "--backend cpu --ram 32GiB --cores 8",
)
TODAY = best.candidates()
SEVERAL = [model.stem for model in TODAY if len(model.files) > 1]


def asked(words: str, job: str = "chat") -> Request:
    return best.JOBS[job].asked(Request.of(words.split(), {}))


def row_of(stem: str, words: str, job: str = "chat") -> best.BestRow:
    return best.take(published.MODELS[stem], asked(words, job), best.JOBS[job])


CASES = [(stem, words, "chat") for stem in SEVERAL for words in MACHINES]
CASES += [(stem, words, "code") for stem in SEVERAL for words in MACHINES[:3]]
SAMPLE = [("qwen3.5-4b", MACHINES[5], "code")]


@pytest.mark.slow
@pytest.mark.parametrize("case", swept(CASES, 16, SAMPLE), ids=str)
def test_the_list_takes_the_file_that_choose_takes(case: tuple[str, str, str]) -> None:
    """Though it plans fewer files. Ten of 52 differed."""
    stem, words, job = case
    request = asked(words, job)
    names = list(published.MODELS[stem].files)
    choices = [replace(assess(bundled.read(name), request), family=stem) for name in names]
    advice = advise(choices, wanted_ctx(request), best.JOBS[job].least)
    row = row_of(stem, words, job)
    assert (row.name if row.state != NO else None) == (names[advice.take] if advice else None)
    if advice:
        assert row.choice == choices[advice.take]


@pytest.mark.parametrize(
    ("stem", "words", "most"),
    [
        slow("qwen3.5-4b", MACHINES[0], 2),  # 5 files: the largest is wholly on the GPU
        slow("qwen3.6-35b-a3b", MACHINES[1], 2),  # 6: the largest with experts in RAM
        slow("qwen3.8-27b", MACHINES[1], 5),  # 8: none can be read
        ("qwen3.8-27b", "--gpu 2GiB --ram 6GiB", 0),  # none is small enough
    ],
)
def test_few_files_are_planned(
    stem: str, words: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that could be taken were, which took a browser 10 to 60 seconds for a list."""
    plans, plan = [], choose.plan_request

    def counted(*terms: Any, **more: Any) -> Plan:
        plans.append(terms[0].path)
        return plan(*terms, **more)

    monkeypatch.setattr(choose, "plan_request", counted)
    row_of(stem, words)
    assert len(plans) <= most


def test_a_job_that_needs_more_takes_a_faster_file() -> None:
    """The largest that people can read with is not what an agent can wait for."""
    fast, slower = replace(ROW.choice, size=1), replace(ROW.choice, size=2)
    assert fast.speed and slower.speed
    fast = replace(fast, speed=replace(fast.speed, generation=20.0))
    slower = replace(slower, speed=replace(slower.speed, generation=10.0))
    taken = [advise([fast, slower], least=least) for least in (0.0, best.JOBS["code"].least)]
    assert [advice.take if advice else None for advice in taken] == [1, 0]


def test_jobs_are_the_flags() -> None:
    flag = own_flags("best")["--for"]
    assert flag.choices == tuple(best.JOBS)
    assert {job.n_ctx for job in best.JOBS.values()} == {8192, 16384, 32768, 65536}
    for job in best.JOBS.values():
        assert f"{job.name} ({job.n_ctx >> 10}k)" in flag.help
    # What the user gives counts
    assert wanted_ctx(asked("--gpu 24GiB -c 4096", "agents")) == 4096
    assert wanted_ctx(asked("--gpu 24GiB", "agents")) == 65536


def row(stem: str, state: str, rate: float, few_ram: bool = False) -> best.BestRow:
    speed = replace(ROW.choice.speed, generation=rate) if ROW.choice.speed else None
    choice = replace(ROW.choice, speed=speed, few_ram=few_ram, size=int(rate))
    return replace(ROW, model=published.MODELS[stem], state=state, choice=choice)


ROW = best.BestRow(
    published.MODELS["qwen3.5-4b"],
    "qwen3.5-4b-q4_k_m",
    best.WELL,
    assess(support.model("llama-3.2-1b-q8_0:1"), asked("--gpu 24GiB")),
)


def test_quality_orders_what_runs_well_and_then_speed() -> None:
    rows = [
        row("qwen3.5-9b", best.WELL, 40),
        row("gemma-4-12b", best.WELL, 50),  # of the same index
        row("qwen3.8-27b", best.SLOW, 5),
        row("gpt-oss-120b", best.TIGHT, 60, few_ram=True),
        row("gemma-4-31b", best.TIGHT, 30),
        row("deepseek-v4-flash", NO, 2),
        row("minimax-m2.5-230b-a10b", NO, 1),
    ]
    stems = [each.model.stem for each in best.ordered(rows)]
    assert stems == [
        # tight on the GPU is slower at worst; tight in RAM swaps
        "gemma-4-31b",
        "gemma-4-12b",
        "qwen3.5-9b",
        "gpt-oss-120b",
        "qwen3.8-27b",
        # the one that needs least
        "minimax-m2.5-230b-a10b",
        "deepseek-v4-flash",
    ]


def test_files_below_q4_are_poor() -> None:
    kinds = {kind: replace(ROW, name=f"x-{kind}").poor for kind in ("q4_k_m", "q3_k_m", "iq2_xxs")}
    assert kinds == {"q4_k_m": 0, "q3_k_m": 1, "iq2_xxs": 2}


@pytest.mark.slow
def test_a_file_below_q4_is_worth_less_than_its_model() -> None:
    """An index is of the whole model, and of three bits nobody published one. It came after a model
    of 2 billion parameters in 8 bits, though: 66.8 after 53."""
    three = row_of("qwen3.6-35b-a3b", "--gpu rtx-4060 --ram 16GiB")
    assert three.state == best.WELL and three.poor == 1 and "Q3" in three.kind
    others = [row("gemma-4-26b-a4b", best.WELL, 30), row("qwen3.5-9b", best.WELL, 30)]
    others.append(row("gpt-oss-20b", best.WELL, 30))
    names = [each.model.stem for each in best.ordered([three, *others])]
    assert names == ["gemma-4-26b-a4b", "qwen3.5-9b", "qwen3.6-35b-a3b", "gpt-oss-20b"]
    # 16 GB hold it in four bits, which is better than Q5_K_M with a third of it in RAM
    wider = row_of("qwen3.8-27b", "--gpu rtx-5060-ti-16g --ram 32GiB")
    assert (wider.kind, wider.choice.verdict, wider.poor) == ("UD-IQ4_XS", WHOLLY, False)


@pytest.mark.slow
def test_what_nearly_fills_the_memory_is_tight() -> None:
    """It was the first of its Mac, in green, with 0.02 GiB left."""
    mac = row_of("gpt-oss-120b", "--gpu m4-max-64g")
    assert mac.state == best.TIGHT and mac.choice.few_ram and (mac.choice.few or 0) < 1 << 30
    assert row_of("gpt-oss-20b", "--gpu m4-max-64g").state == best.WELL
    # 12 GB hold Qwen3.5 9B as Q8_0 with 32k of context, and little more
    small = row_of("qwen3.5-9b", "--gpu rtx-3060 --ram 32GiB", "code")
    assert small.choice.verdict == WHOLLY and not small.choice.few_ram
    assert (small.state == best.TIGHT) == (small.choice.few is not None)


@pytest.mark.slow
def test_a_file_that_would_swap_is_not_taken_for_its_bits() -> None:
    """34.4 GiB of experts fit 32 GB of RAM and 8 of the card with 1.0 GiB to spare."""
    row = row_of("qwen3.6-35b-a3b", "--gpu rtx-4060 --ram 32GiB")
    assert row.choice.verdict == EXPERTS and not row.choice.few_ram and row.choice.rate > 20
    largest = assess(bundled.read("qwen3.6-35b-a3b-q8_0"), asked("--gpu rtx-4060 --ram 32GiB"))
    assert largest.fluent and largest.few_ram and largest.size > row.choice.size


@pytest.mark.slow
def test_the_first_is_a_model_that_people_take() -> None:
    """Qwen3.8 27B was tenth on an RTX 4090, behind models of 2025."""
    words = "--gpu rtx-4090 --ram 32GiB"
    stems = ("qwen3.8-27b", "qwen3.6-27b", "qwen3.5-9b", "gpt-oss-20b")
    rows = best.ordered(row_of(stem, words) for stem in stems)
    assert [row.model.stem for row in rows] == list(stems)
    assert rows[0].choice.verdict == WHOLLY and rows[0].state in (best.WELL, best.TIGHT)


@pytest.mark.slow
def test_slow_is_below_the_jobs_rate() -> None:
    words = "--gpu rtx-4060 --ram 32GiB"
    dense = row_of("qwen3.8-27b", words)
    assert dense.state == best.SLOW and dense.choice.rate < best.JOBS["chat"].least
    assert row_of("deepseek-v4-flash", words).state == NO
    missing = row_of("deepseek-v4-flash", words).least
    # of 97 GiB, with 37.6 GiB in the machine
    assert 45 << 30 < missing < 60 << 30


def test_a_model_is_not_compared_beyond_its_trained_context() -> None:
    request = asked("--gpu 24GiB -c 262144")
    trained = published.MODELS["gpt-oss-20b"]
    assert best.take(trained, request, best.JOBS["chat"]).state == NO


# --- the table


def test_every_index_has_a_source_and_a_month() -> None:
    for model in published.MODELS.values():
        assert bool(model.index) == bool(model.source) == bool(model.dated), model.stem
        assert not model.index or (model.source.startswith("https://") and 20 < model.index < 100)
        for month in filter(None, (model.dated, model.released)):
            assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", month), model.stem


def test_todays_models_have_what_the_list_shows() -> None:
    for model in TODAY:
        assert model.released and model.repository and model.files, model.stem
        assert set(model.jobs) <= set(best.JOBS), model.stem
        assert published.quality(model) > 0
        # A vision model's projector is known, so that it can be counted
        if "pictures" in model.jobs:
            assert best.projectors.size(next(iter(model.files))), model.stem


def test_a_guess_is_no_reason_to_be_first() -> None:
    """Ornith 1.5 9B, of which no index is published, was the best for an RTX 4060: it stood above
    Qwen3.5 9B and Gemma 4 26B. And MiniCPM5 2B above gpt-oss 20B."""
    at = {stem: published.quality(model) for stem, model in published.MODELS.items()}
    assert at["ornith-1.5-9b"] < at["qwen3.5-9b"] and at["minicpm5-2b"] < at["gpt-oss-20b"]
    # Of those whose index is known most are better than the guess
    known = [model for model in TODAY if model.index]
    worse = [model for model in known if published.quality(replace(model, index=0)) > model.index]
    assert len(worse) < len(known) / 4


def test_a_model_without_an_index_is_placed_by_size_and_age() -> None:
    """Between what is smaller or older and what is larger and newer, and marked in the row."""
    known = [model for model in TODAY if model.index]
    placed = [replace(model, index=0.0) for model in known]
    errors = sorted(
        abs(published.quality(without) - model.index)
        for without, model in zip(placed, known, strict=True)
    )
    assert errors[len(errors) // 2] < 6  # of a scale from 50 to 75
    newer = replace(placed[0], released="2026-12")
    assert published.quality(newer) > published.quality(replace(newer, released="2025-12"))
    row = replace(ROW, model=placed[0]).to_dict()
    assert row["index"] is None and row["placed"] and ROW.to_dict()["placed"] is None


FILES = [(name, size) for model in TODAY for name, size in model.files.items()]


@pytest.mark.parametrize("file", few(12, [file for file in FILES if file[1]]))
def test_a_file_has_its_published_size(file: tuple[str, int]) -> None:
    """Qwen3.8 27B was 4.5 % too large. What is not known but the size is not called exact."""
    name, size = file
    model = bundled.read(name)
    assert abs(model.size / size - 1) < 0.003
    assert model.path == f"{name}.gguf"


def test_no_two_headers_are_equal() -> None:
    """Two files of Qwen3.6 35B-A3B were, and had equal rows in the list."""
    headers = [bundled.data(name) for name in bundled._names()]
    assert len(set(headers)) == len(headers)


def test_a_file_without_its_header_is_not_exact() -> None:
    model = bundled.read("qwen3.5-9b-q6_k")
    assert any("types of its tensors are not" in line for line in model.inexact)
    assert not bundled.read("qwen3-8b-q4_k_m").inexact


def test_the_table_was_looked_at_within_two_months() -> None:
    """Look for newer models and indices, then date the rows anew.

    The age is that at this version's own day, its last commit's: what is committed later than 60
    days after the newest row fails, and a commit that passed passes for ever.
    """
    told = run(["git", "log", "-1", "--format=%cs"], cwd=HERE, capture_output=True, text=True)
    if told.returncode or not told.stdout.strip():
        pytest.skip("not a checkout: this version's day is not known")
    newest = max(max(model.dated, model.released) for model in TODAY)
    age = days_between(newest, told.stdout.strip())
    assert age <= 60, f"bundled/models.csv: its newest row is of {newest}: look for newer models"
    # A checkout of January would be told
    assert days_between(newest, "2099-01-01") > 60


def days_between(month: str, day: str) -> int:
    """Return the days from the last one of a month."""
    year, number = map(int, month.split("-"))
    last = date(year + number // 12, number % 12 + 1, 1).toordinal() - 1
    return date.fromisoformat(day).toordinal() - last
