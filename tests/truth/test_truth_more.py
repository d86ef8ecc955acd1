"""Users of encoders, drafts and rare models would get plans that are not exact.

Encoders, drafts and rare architectures against llama.cpp's own numbers (fixtures/more).

launches.jsonl: models launched alone. drafts.jsonl: what a draft model, or the model's own MTP
block, takes in addition to a target once it samples on its backend, and the graph buffers of the
target whose states it reads.
"""

from __future__ import annotations

import json
from functools import cache

import pytest
from support import FIXTURES, RECORDED, WHOLE, sample, some_and_whole

import autolayers
from autolayers import Device, estimate
from autolayers.flags.parse import parse

PARTS = ("model", "context", "compute")
Grouped = dict[str, list[dict]]


def grouped(name: str, *keys: str) -> Grouped:
    groups: Grouped = {}
    for line in (FIXTURES / "more" / f"{name}.jsonl").read_text().splitlines():
        case = json.loads(line)
        groups.setdefault(" + ".join(case[key] or "MTP" for key in keys), []).append(case)
    return groups


def header(name: str) -> str:
    path = FIXTURES / "more" / "headers" / f"{name}.gguf"
    return str(path if path.exists() else FIXTURES / "headers" / f"{name}.gguf")


@cache
def model(name: str) -> autolayers.Model:
    return autolayers.read_model(header(name))


def gpus(case: dict) -> list[Device]:
    return [
        Device.hypothetical(f"{size}MiB", f"CUDA{i}") for i, size in enumerate(case["gpus_mib"])
    ]


LAUNCHES, DRAFTS = grouped("launches", "model"), grouped("drafts", "target", "draft")
CACHED = grouped("expert_cache", "model")


@WHOLE
@pytest.mark.parametrize("name", LAUNCHES)
def test_every_launch_is_equal_to_the_byte(name: str, whole: bool) -> None:
    compare((LAUNCHES if whole else sample(LAUNCHES, 6))[name])


@some_and_whole("name", CACHED, 3)
def test_every_expert_cache_is_equal_to_the_byte(name: str, whole: bool) -> None:
    """--moe-cache-mib: the banks, the slot maps and the graphs that read them."""
    compare((CACHED if whole else sample(CACHED, 6))[name])


def compare(cases: list[dict]) -> None:
    for case in cases:
        params = parse(case["args"].split()).params
        if "error" in case:
            with pytest.raises(autolayers.LaunchRefused):
                estimate(model(case["model"]), params, gpus(case), build=RECORDED)
            continue
        found = estimate(model(case["model"]), params, gpus(case), build=RECORDED, measuring=True)
        uses = {**found.devices, "Host": found.host}
        got = {
            device: {part: getattr(uses[device], part) for part in PARTS}
            for device in case["devices"]
        }
        assert got == case["devices"], case["args"]


@WHOLE
@pytest.mark.parametrize("name", DRAFTS)
def test_every_draft_is_equal_to_the_byte(name: str, whole: bool) -> None:
    for case in (DRAFTS if whole else sample(DRAFTS, 3))[name]:
        words = case["args"].split()
        if case["draft"]:
            words += ["-md", header(case["draft"])]
        found = estimate(
            model(case["target"]), parse(words).params, gpus(case), build=RECORDED, measuring=True
        )
        got = {device: dict.fromkeys(sizes, 0) for device, sizes in case["devices"].items()}
        theirs = {device: dict(sizes) for device, sizes in case["devices"].items()}
        for extra in found.extras:
            whose, _, what = extra.name.partition(" ")
            # llama.cpp's breakdown has no output buffers
            if whose not in ("draft", "MTP") or what == "output buffer" or extra.upper_limit:
                continue
            part = what.partition(" ")[0]
            got[extra.device][part] += extra.size
            # vocabularies mapped to the target's
            if not extra.exact:
                assert (
                    part == "compute" and 0 <= extra.size - theirs[extra.device][part] <= 32768
                ), case["args"]
                theirs[extra.device][part] = extra.size
        assert got == theirs, case["args"]
        uses = {**found.devices, "Host": found.host}
        for device, compute in case["target_compute"].items():
            assert uses[device].compute == compute or (
                not found.exact and uses[device].compute > compute
            ), case["args"]


def test_slots_of_t5_share_a_cache() -> None:
    with pytest.raises(autolayers.LaunchRefused, match="--kv-unified"):
        estimate(
            model("flan-t5-xl-q4_k_m"),
            parse(["-ngl", "99", "-c", "2048", "-np", "2"]).params,
            gpus({"gpus_mib": [24576]}),
        )


@pytest.mark.parametrize(("name", "layers"), [("dflash2", "1"), ("llama-3.2-1b-q8_0", "10")])
def test_one_slot_at_work_sees_its_own_stream_of_the_cache(name: str, layers: str) -> None:
    """Also in the last micro-batch of its prompt, whose tokens may be an odd number (llama, whose
    weights in RAM are copied)."""
    params = parse(["-ngl", layers, "-c", "4096", "-np", "2"]).params
    found = estimate(model(name), params, gpus({"gpus_mib": [8192]}), runtime=True)
    assert found.exact and found.runtime_peak is not None


def test_a_draft_without_embeddings_is_refused_them() -> None:
    with pytest.raises(autolayers.LaunchRefused, match="eagle3 has no embeddings"):
        estimate(
            model("eagle3-l31"),
            parse(["-ngl", "99", "-c", "4096", "--embedding"]).params,
            gpus({"gpus_mib": [8192]}),
        )
