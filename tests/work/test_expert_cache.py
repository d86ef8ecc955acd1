"""The cache of experts would be chosen where it is slower.

The cache of experts against public measurements (fixtures/speeds/expert_cache.jsonl): the law of
its hits, each source predicted without its own rows, and whether it pays, with the upload rate of
the machine.
"""

import json
import math
import re
from pathlib import Path
from statistics import mean

import pytest
from support import FIXTURES, model

import autolayers
from autolayers.devices.given import hypothetical, numbered
from autolayers.flags.parse import parse
from autolayers.flags.workload import Workload
from autolayers.ggml.tensor import row_size
from autolayers.machine import Host, Machine
from autolayers.planner.evaluate import Evaluator
from autolayers.work.expert_cache import DOUBT, LEAST, OFF, POWER, RATE, hit_rate, loses

ROWS = [
    json.loads(line)
    for line in (FIXTURES / "speeds" / "expert_cache.jsonl").read_text().splitlines()
]
HITS = [row for row in ROWS if "hit" in row]
PAIRS = [row for row in ROWS if "with" in row]


def share(row: dict) -> float:
    return row["tokens_held"] * row["n_expert_used"] / row["n_expert"]


def missed_by(rows: list[dict], rate: float, power: float) -> float:
    """The mean error of the law, in points."""
    return 100 * mean(
        abs(1 - 2.718281828 ** (-rate * share(row) ** power) - row["hit"] / 100) for row in rows
    )


def fitted(rows: list[dict]) -> tuple[float, float]:
    tried = [(rate / 5, power / 40) for rate in range(15, 36) for power in range(24, 41)]
    return min(tried, key=lambda law: missed_by(rows, *law))


def test_hits_of_a_source_left_out_are_within_5_points() -> None:
    groups = {row["group"] for row in HITS}
    errors = []
    for group in groups:
        law = fitted([row for row in HITS if row["group"] != group])
        own = [row for row in HITS if row["group"] == group]
        errors += [missed_by([row], *law) for row in own]
    assert len(errors) == 18 and mean(errors) <= 5
    assert sum(error <= 5 for error in errors) >= 12
    # what a plan says beside it
    assert 0.76 <= sum(error <= 100 * OFF for error in errors) / len(errors) <= 0.86
    assert missed_by(HITS, RATE, POWER) <= 4


def test_fewer_slots_than_experts_of_a_token_never_hit() -> None:
    assert hit_rate(LEAST * 384 - 1, 6144, 384) == 0
    assert hit_rate(384, 6144, 384) == pytest.approx(0.42, abs=0.01)
    assert hit_rate(6144, 6144, 384) > 0.99


def machine_file(tmp_path: Path, cards: list[str], **host: float) -> list[str]:
    path = tmp_path / "machine.json"
    path.write_text(
        json.dumps(
            {
                "devices": [{"card": name, "free": 3 << 30} for name in cards],
                "host": {"total": 64 << 30, "bandwidth": 70e9, "cores": 8, **host},
            }
        )
    )
    return ["--machine", str(path)]


def test_whether_a_cache_pays_is_right_in_nine_of_ten_pairs() -> None:
    """With the machine's own upload rate, and its -cmoe launch without a cache as measured in the
    same source."""
    right = 0
    for row in PAIRS:
        measured = row["with"] > row["without"]
        if row["header"] is None:  # what no launch is known of
            machine = Machine.of(hypothetical(row["machine"][0]), None, None, {})
            right += measured is not bool(loses(machine))
            continue
        devices = numbered([card for name in row["machine"] for card in hypothetical(name)])
        host = Host(64 << 30, 64 << 30, "given", 70e9, cores=8, expert_upload=row["upload"])
        evaluator = Evaluator.of(model(row["header"]), Machine.of(devices, host, None, {}))
        cost, whole = evaluator.cost(Workload(128, 512)), []
        for more in ((), ("--moe-cache-mib", str(row["cache_mib"]))):
            params = parse(["-ngl", "49", "-cmoe", "-c", "4096", "-np", "1", *more]).params
            whole.append(cost.predict(params, evaluator.static(params)).generation)
        right += measured is (whole[1] > DOUBT * whole[0])
    assert len(PAIRS) == 13 and right >= 12


CARD, MODEL = ["rtx-3060"], "qwen3-30b-a3b-q4_k_m:12"


@pytest.mark.slow
def test_a_measured_rate_chooses_the_cache_or_none(tmp_path: Path) -> None:
    chosen = autolayers.plan(model(MODEL), [*machine_file(tmp_path, CARD, expert_upload=26e9)])
    cache = chosen.params.moe_cache_mib
    assert (
        cache
        and chosen.fits
        and chosen.exact
        and f"--moe-cache-mib {cache}" in " ".join(chosen.flags)
    )
    assert any("of a token's experts are there" in reason for reason in chosen.reasons)
    for rate, more in (
        (1e9, ()),
        (26e9, ("--moe-cache-mib", "0")),
        (26e9, ("--llama-build", "11434")),
    ):
        words = [*machine_file(tmp_path, CARD, expert_upload=rate), *more]
        assert not autolayers.plan(model(MODEL), words).params.moe_cache_mib


def test_without_a_measured_rate_it_is_proposed_with_its_doubt(tmp_path: Path) -> None:
    words = [*machine_file(tmp_path, CARD, bandwidth=40e9), "--workload", "128+1k", "-c", "8192"]
    plan = autolayers.plan(model(MODEL), words, explain=True)
    assert plan.params.moe_cache_mib is None
    other = next(other for other in plan.alternatives if other.change[0] == "--moe-cache-mib")
    assert other.speed.generation > plan.speed.generation and other.speed.generation_spread > 2
    assert dict(other.speed.assumed)["expert upload"] < 12e9


def test_it_is_not_used_where_it_lost(tmp_path: Path) -> None:
    for card in ("rx-7900-xt", "vega-8-32g"):
        words = [*machine_file(tmp_path, [card], expert_upload=26e9)]
        assert not autolayers.plan(model(MODEL), words).params.moe_cache_mib
    given = autolayers.plan(
        model(MODEL), ["--gpu", "rx-7900-xt", *["-cmoe", "-c", "4096", "--moe-cache-mib", "900"]]
    )
    assert given.params.moe_cache_mib == 900 and any(
        "on AMD GPUs" in warning for warning in given.warnings
    )


def test_what_is_not_there_is_uploaded() -> None:
    """Of the experts that a token uses, those that miss."""
    moe = model(MODEL)
    words = ["--gpu", "rtx-3060", "-cmoe", "-c", "4096", "--moe-cache-mib", "900"]
    said = " ".join(autolayers.plan(moe, words).reasons)
    hit, sent = re.search(r"about (\d+) % .* are there, ([\d.]+) MiB are uploaded", said).groups()
    experts = [tensor for name, tensor in moe.header.tensors.items() if "_exps" in name]
    used = sum(row_size(t.type, t.ne[0]) * math.prod(t.ne[1:]) for t in experts) * 8 / 128
    assert float(sent) * 2**20 / used == pytest.approx(1 - int(hit) / 100, abs=0.006)
