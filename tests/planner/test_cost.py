"""Predicted speeds would be off by more than the printed range.

Predicted speed against measured launches: fixtures/speeds/speeds.jsonl, rows of builds since
2025; of some of them, and, marked, of all.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from functools import cache
from statistics import median

import pytest
from speed_rows import machine_of
from support import FIXTURES, WHOLE, few, few_rows, model, of_today, slow

import autolayers
from autolayers.devices import Device
from autolayers.flags.policy import read
from autolayers.flags.workload import Workload
from autolayers.machine import Host, Machine
from autolayers.planner.evaluate import FULL, Evaluator
from autolayers.report.text import plan_text
from autolayers.work.speed import Speed

# What sets of launches of one model on one machine are about, and the launches: the first is the
# fastest measured.
CHOICES = {
    "layers of a 32B, prompt": "s0209 s0207 s0205 s0203 s0201",
    "layers of a 32B": "s0210 s0208 s0206 s0204 s0202",
    "layers of a 14B, prompt": "s0215 s0213 s0211",
    "layers of a 14B": "s0217 s0216 s0218 s0214 s0212",
    "experts of 32 to 48 layers in RAM": "s0224 s0223 s0222 s0221",
    "experts of 34 to 48 layers in RAM, IQ4_XS": "s0231 s0229 s0230",
    "experts in RAM and larger contexts": "s0232 s0233 s0234 s0235",
    "experts of 30 to 40 layers in RAM, prompt of 22k": "s0241 s0238 s0244 s0247 s0250",
    "experts of 30 to 40 layers in RAM behind 22k": "s0242 s0239 s0245 s0248 s0251",
    "micro-batches of 512 to 4096, experts in RAM": "s0253 s0260 s0262 s0258 s0256",
    "all layers, whole layers or experts in RAM, Vulkan": "s0277 s0289 s0275 s0287",
    "FFN or whole layers in RAM at 2k": "s0293 s0292",
    "FFN or whole layers in RAM at 8k": "s0294 s0295",
    "FFN or whole layers in RAM at 16k": "s0296 s0297",
    "FFN or whole layers in RAM at 30k": "s0298 s0299",
    "FFN or whole layers of a 32B in RAM at 8k": "s0300 s0301",
    "FFN or whole layers of a 32B in RAM at 16k": "s0302 s0303",
    "FFN or whole layers of a 32B in RAM at 30k": "s0304 s0305",
    "experts of 32 to 48 layers in a laptop's RAM, prompt": "s0426 s0430 s0428 s0424 s0422",
    "experts of 22 to 24 layers of a 120B in RAM": "s0417 s0418 s0416",
    "flash attention on or off, prompt": "s0415 s0413",
    "experts of 37 to 40 layers in RAM, GTX 1660": "s0469 s0468 s0467 s0466",
}


@cache
def rows() -> dict[str, dict]:
    """The rows that count."""
    found = {}
    for line in (FIXTURES / "speeds" / "speeds.jsonl").read_text().splitlines():
        row = json.loads(line)
        if (
            row["quality"] in ("llama-bench", "server")
            and not row.get("disk_bound")
            and row["date"] >= "2025"
        ):
            found[row["id"]] = row
    return found


def predicted(name: str) -> float:
    """Tokens per second of a row."""
    return speed(name).prompt if rows()[name]["kind"] == "pp" else speed(name).generation


@cache
def speed(name: str) -> Speed:
    row = rows()[name]
    work = row["workload"]
    load = Workload(max(1, work["prompt"]), max(1, work["generate"]), work["depth"])
    params, _ = read(row["words"], None)
    evaluator = Evaluator.of(model(row["model"]), machine_of(row["machine"]))
    use = evaluator.static(params)
    assert use is not None
    return evaluator.cost(load).predict(params, use)


def placed(row: dict) -> list[object]:
    """-ncmoe 32 and 48 of 30 layers are one launch: what is measured of them is noise."""
    return [
        min(int(word), model(row["model"]).hparams.n_layer) if before == "-ncmoe" else word
        for before, word in zip(("", *row["words"]), row["words"], strict=False)
    ]


@pytest.mark.parametrize(
    ("backend", "pipelined"), [("CUDA", True), ("Vulkan", True), ("OpenCL", False), ("CANN", False)]
)
def test_prompts_are_pipelined_over_devices_that_compute_asynchronously(
    backend: str, pipelined: bool
) -> None:
    devices = tuple(
        Device(f"{backend}{i}", 24 << 30, 24 << 30, backend=backend, bandwidth=500e9)
        for i in range(2)
    )
    evaluator = Evaluator.of(
        autolayers.read_model(FIXTURES / "headers" / "llama-3.1-8b-q4_k_m.gguf"),
        Machine(devices, {device.name: device.free for device in devices}),
    )
    params, _ = read(["-ngl", "99", "-c", "8192"], None)
    use = evaluator.static(params)
    assert use is not None and evaluator.cost().clock(params, use).pipelined == pipelined


@pytest.mark.slow
@WHOLE
@pytest.mark.parametrize(("kind", "factor", "within"), [slow("tg", 1.12, 0.80), ("pp", 1.20, 0.65)])
def test_predictions_are_near_to_what_was_measured(
    kind: str, factor: float, within: float, whole: bool
) -> None:
    own = [row for row in rows().values() if row["kind"] == kind]
    some = of_today(own) if whole else own[::32]
    ratios = [predicted(row["id"]) / row["measured"] for row in some]
    off = [math.exp(abs(math.log(ratio))) for ratio in ratios]
    assert median(off) <= factor
    # the share of a sample varies by some points
    assert sum(x <= 1.25 for x in off) / len(off) >= within - 0.05 * (not whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tg", "pp"])
def test_what_is_measured_is_within_the_uncertainty_that_is_stated(kind: str) -> None:
    """Of 8 in 10 of sources that were left out of the fit (docs/speeds.md); of these, which it
    knows, of more."""
    own = of_today([row for row in rows().values() if row["kind"] == kind])
    held = []
    for row in own:
        found = speed(row["id"])
        within = found.prompt_spread if kind == "pp" else found.generation_spread
        held.append(1 / within <= predicted(row["id"]) / row["measured"] <= within)
    assert sum(held) / len(held) >= 0.75


@pytest.mark.parametrize(
    ("ids", "most"),
    few_rows(
        5,
        [
            # MLA without flash attention after 8k to 32k tokens: before 2.0 to 4.6
            ("n0036 n0038 n0040", 1.35),
            ("n0092 n0093", 1.3),  # experts on Intel Arc: before 2.6
            ("s0299 s0303", 1.5),  # layers in RAM after 30k tokens: before 2.5
            ("n0055", 1.5),  # prompts on four GPUs of before: 2.0
            ("n4-p0050 n4-p0098 n4-p0104", 1.12),  # -sm tensor on two and four GPUs: 0.74 on two
            ("n4-p0081 n4-p0089 n4-p0121", 1.3),  # prompts on RDNA2 by ROCm: 0.4 to 0.5
            # experts that prompts of 512 to 4096 tokens copy: 0.70 to 0.74
            ("n0392 n0408 n0416 s0256", 1.3),
            ("n4-p0024 n4-p0030", 1.16),  # IQ2_XXS and IQ3_XXS on a card: 1.22 and 1.27
            ("n4-p0004", 1.1),  # an RTX 3090 at 250 of 350 W: 1.25
            # bf16 by Vulkan: tokens 0.80 to 0.85, prompts 1.4 to 1.5
            ("s0352 s0384 k29-0066 k29-0070", 1.14),
            ("s0345 s0351 k29-0065", 1.2),
            ("n5-0006 n5-0008", 1.20),  # prompts of 4096 tokens on the CPU: 1.4 to 1.7
            # 16 cores without flash attention: prompts at 0 to 15,872 tokens: 0.4 to 0.5 at the end
            ("n6-0001 n6-0003 n6-0005 n6-0007", 1.5),
        ],
    ),
)
def test_terms_that_were_missing(ids: str, most: float) -> None:
    for name in ids.split():
        assert 1 / most < predicted(name) / rows()[name]["measured"] < most, name


@pytest.mark.parametrize(
    ("empty", "deep", "within"),
    [
        # 16 cores without flash attention, after 16,384 tokens 0.50 of the rate after 512;
        # before 0.29
        ("n6-0002", "n6-0008", 0.15),
        # 8 Arm cores with it, after 4096 tokens 0.60: they take longer for it than x86's
        ("n5-0003", "n5-0004", 0.3),
    ],
)
def test_a_deep_cache_slows_the_cpu_as_measured(empty: str, deep: str, within: float) -> None:
    measured = rows()[deep]["measured"] / rows()[empty]["measured"]
    assert predicted(deep) / predicted(empty) == pytest.approx(measured, rel=within)


@pytest.mark.slow
def test_flash_attention_on_the_cpu_is_faster_since_february_2026() -> None:
    """Heads share the cache's cells, and prompts have tiles (llama.cpp's 19012 and 19209)."""
    name = FIXTURES / "headers" / "qwen3-30b-a3b-q4_k_m.gguf"
    words = ["-c", "16384", "--workload", "512+128@8192", "-fa"]
    host = Host(64 << 30, 60 << 30, "given", 60e9, cores=8)

    def rate(fa: str, build: int) -> float:
        flags = [*words, fa, "--llama-build", str(build)]
        return autolayers.plan(name, flags, devices=[], host=host).speed.generation

    assert rate("on", 11549) > 1.5 * rate("on", 6500)
    assert rate("off", 11549) == pytest.approx(rate("off", 6500), rel=0.01)


def test_older_builds_are_slower() -> None:
    """Kernels were fused since, and prompts' kernels rewritten (AGES of work/rates.py)."""
    words, card = ["-ngl", "99", "-c", "4096"], Device.hypothetical("rtx-3090")
    name = FIXTURES / "headers" / "qwen3-30b-a3b-q4_k_m.gguf"
    old, new = (
        autolayers.plan(name, [*words, "--llama-build", str(build)], devices=[card]).speed
        for build in (6500, 11549)
    )
    assert 1.02 < new.generation / old.generation < 1.3 and 1.1 < new.prompt / old.prompt < 1.4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tg", "pp"])
def test_of_two_launches_the_faster_is_predicted_faster(kind: str) -> None:
    groups = defaultdict(list)
    for row in rows().values():
        if row["kind"] == kind:
            groups[row["group"]].append(row)
    right, pairs = 0.0, 0
    for group in groups.values():
        for i, a in enumerate(group):
            for b in group[i + 1 :]:
                if placed(a) != placed(b) and abs(
                    math.log(a["measured"] / b["measured"])
                ) > math.log(1.05):
                    pairs += 1
                    first, second = predicted(a["id"]), predicted(b["id"])
                    alike = first == pytest.approx(second, rel=1e-6)
                    right += 0.5 if alike else (first > second) == (a["measured"] > b["measured"])
    # most of the others are prompts of one owner that differ in -ncmoe alone, predicted alike
    assert pairs > 100 and right / pairs >= {"tg": 0.96, "pp": 0.97}[kind]


@pytest.mark.slow
@pytest.mark.parametrize(
    "ids",
    few(
        2,
        [
            pytest.param(ids, id=name, marks=pytest.mark.slow if i % 3 else ())
            for i, (name, ids) in enumerate(CHOICES.items())
        ],
    ),
)
def test_the_placement_predicted_fastest_is_the_fastest_measured(ids: str) -> None:
    launches = [rows()[name] for name in ids.split()]
    best = max(row["measured"] for row in launches)
    assert launches[0]["measured"] == best
    chosen = max(launches, key=lambda row: predicted(row["id"]))
    # measured rates that differ by less than 5 % are alike
    assert chosen["measured"] >= 0.95 * best, (
        f"{' '.join(chosen['words'])}: {chosen['measured']} of {best}"
    )


@WHOLE
def test_what_windows_would_move_to_ram_does_not_fit(whole: bool) -> None:
    """A 12 GiB card under Windows: experts of 18 layers in RAM are slower than those of 20, as the
    buffers left less than the driver needs. All the others fit, and the fastest predicted of them
    is the fastest measured."""
    launches = [
        row
        for row in rows().values()
        if row["group"].endswith("|6700xt|pp") and (whole or row["id"] in ("s0286", "s0288"))
    ]
    evaluator = Evaluator.of(
        model(launches[0]["model"]), machine_of(launches[0]["machine"], wddm=True)
    )
    fits = {
        row["id"]: evaluator.candidate(read(row["words"], None)[0], FULL).fits for row in launches
    }
    assert [name for name, enough in fits.items() if not enough] == ["s0288"]
    left = [row for row in launches if fits[row["id"]]]
    chosen = max(left, key=lambda row: predicted(row["id"]))
    assert chosen["measured"] >= 0.95 * max(row["measured"] for row in launches)


# --- what a plan says of its figures


@pytest.mark.parametrize(
    ("name", "words", "assumed"),
    [
        slow("llama-3.3-70b-q4_k_m", "--gpu rtx-3090 --ram 64GiB", {"RAM": 42e9, "cores": 8}),
        slow(
            "qwen3-30b-a3b-q4_k_m:8",
            "--gpu 2GiB --ram 64GiB",
            {"CUDA0": 400e9, "RAM": 38e9, "cores": 8},
        ),
        ("llama-3.1-8b-q4_k_m", "--gpu rtx-3090 --ram 64GiB", {}),
    ],
)
def test_defaults_are_said_where_they_count(
    name: str, words: str, assumed: dict[str, float]
) -> None:
    plan = autolayers.plan(model(name), [*words.split(), "-c", "4096"])
    assert plan.speed.to_dict()["assumed"] == assumed
    text = " ".join(plan_text(plan).split())
    for name, rate in assumed.items():
        assert (
            f"{name} assumed to be {rate / 1e9:.0f} GB/s" if name != "cores" else "8 cores assumed"
        ) in text
    assert ("assumed to be" in text) == bool(assumed)


@pytest.mark.parametrize(
    ("card", "words", "slow"),
    [
        ("rtx-2070-super", "-ctk q8_0 -ctv q8_0", "CUDA0 has no fast kernel for a q8_0 cache"),
        ("rtx-2070-super", "", ""),
        ("rtx-2070-super", "-ctk q8_0 -ctv q8_0 -nkvo", ""),
        ("rtx-3090", "-ctk q8_0 -ctv q8_0", ""),
    ],
)
def test_a_quantised_cache_is_warned_of_where_it_is_slow(card: str, words: str, slow: str) -> None:
    plan = autolayers.plan(
        FIXTURES / "headers" / "llama-3.1-8b-q4_k_m.gguf", ["--gpu", card, *words.split()]
    )
    said = [line for line in plan.warnings if "fast kernel" in line]
    assert bool(said) == bool(slow) and all(line.startswith(slow) for line in said)


@pytest.mark.slow
def test_cache_types_are_proposed_with_what_they_buy_and_never_chosen() -> None:
    plan = autolayers.plan(
        FIXTURES / "headers" / "llama-3.1-8b-q4_k_m.gguf", ["--gpu", "8GiB"], explain=True
    )
    assert "-ctk" not in plan.flags
    other = next(other for other in plan.alternatives if "-ctk" in other.flags)
    assert other.n_ctx > plan.breakdown.n_ctx or other.speed.generation > plan.speed.generation


@pytest.mark.parametrize(
    ("name", "words", "proposed"),
    [
        slow("llama-3.3-70b-q4_k_m:8", "--gpu 4x3090", True),
        ("llama-3.3-70b-q4_k_m:8", "--gpu a100-80g", False),
        ("llama-3.3-70b-q4_k_m:8", "--gpu 4x3090 --llama-build 8000", False),
        slow("llama-3.3-70b-q4_k_m:8", "--gpu 4x3090 -fa off", False),
        ("mamba2-2.7b-q4_k_m:8", "--gpu 4x3090", False),
    ],
)
def test_tensors_are_split_where_that_is_asked_for_and_proposed_where_it_pays(
    name: str, words: str, proposed: bool
) -> None:
    plan = autolayers.plan(model(name), [*words.split(), "-c", "8192"], explain=True)
    assert "tensor" not in plan.flags
    found = [
        other for other in plan.alternatives if other.change == ("-ngl", "all", "-sm", "tensor")
    ]
    assert bool(found) == proposed
    if proposed:
        assert found[0].speed.generation > 1.5 * plan.speed.generation
