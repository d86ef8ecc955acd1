"""Anyone who has a model that does not fit would get advice that does not help.

What would make a launch fit: there is always something, and followed to the letter it fits.
"""

from __future__ import annotations

import pytest
from hypothesis import note
from hypothesis import strategies as st
from support import gpus, many, model, slow

import autolayers
from autolayers import Device, LaunchRefused
from autolayers.devices import Host
from autolayers.planner import plan_in_steps, plan_request
from autolayers.planner.advice import CTX_STEP, Remedy
from autolayers.records import replace
from autolayers.report.text import plan_text
from autolayers.request import Request

GiB, MiB = 1 << 30, 1 << 20
# of two layers
SMALL = ("olmoe-moe", "granite-moe", "qwen2-dense", "gemma3-dense", "llama-dense")
LARGER = ("llama-3.2-1b-q8_0", "gemma-3-4b-q8_0")
WORDS = (
    "",
    "-ngl 99",
    "-c 65536",
    "-ngl 99 -c 65536",
    "-c 16384 -np 4 -no-kvu",
    "-cram 4096 -c 4096",
    "-nkvo -c 32768",
    "--ctx 65536",
    "--strategy layers",
    "-ngl 5 -ts 1,1",
    "-fa off -c 32768",
)


def followed(
    remedy: Remedy,
    target: autolayers.Model,
    words: list[str],
    devices: list[Device],
    ram: int | None,
) -> autolayers.Plan:
    """The plan of someone who does what is said."""
    more = dict(remedy.devices)
    devices = [
        replace(device, total=device.total + size, free=device.free + size)
        for device in devices
        for size in [more.get(device.name, 0)]
    ]
    if remedy.file:
        target = target.quantised(remedy.type, larger=True)
        assert target.size == remedy.file
    if remedy.change[:1] == ("--ctx",):  # the same flag, given once
        words = []
    host = None if ram is None else Host(ram + remedy.ram, ram + remedy.ram, "given")
    return autolayers.plan(target, [*words, *remedy.change], devices=devices, host=host)


MACHINES = (
    st.sampled_from(WORDS),
    st.lists(st.floats(0.01, 1), min_size=0, max_size=2),
    st.one_of(st.none(), st.floats(0.05, 1)),
)


def test_advice_that_is_followed_fits(
    name: str, text: str, cards: list[float], ram: float | None
) -> None:
    target, words = model(name), text.split()
    if "-ts" in words and len(cards) != 2:
        return
    size = max(target.size, GiB)
    devices = [
        Device(f"CUDA{i}", round(size * part), round(size * part)) for i, part in enumerate(cards)
    ]
    if not devices and ram is None:
        return
    left = None if ram is None else round(size * ram)
    host = None if left is None else Host(left, left, "given")
    try:
        found = autolayers.plan(target, words, devices=devices, host=host, advise=True)
    except LaunchRefused:
        return
    note(
        f"{name} {words} {[d.free >> 20 for d in devices]} {left and left >> 20} -> {found.flags} "
        f"{found.remedies}"
    )
    assert bool(found.remedies) == (not found.fits)
    for remedy in found.remedies:
        after = followed(remedy, target, words, devices, left)
        note(f"{remedy} -> {after.flags} {after.host} {after.devices}")
        assert after.fits


test_advice_on_larger_models = many(
    25, test_advice_that_is_followed_fits, st.sampled_from(LARGER), *MACHINES, parts=3
)
test_advice_that_is_followed_fits = many(
    100, test_advice_that_is_followed_fits, st.sampled_from(SMALL), *MACHINES, parts=8
)


@pytest.mark.parametrize(
    ("name", "words", "gib", "ram", "kinds"),
    [
        ("llama-3.1-8b-q4_k_m:8", "-ngl 99 -c 131072", 3, None, {"flags", "vram"}),
        slow("llama-3.3-70b-q4_k_m:8", "", 1.5, 2, {"ram", "vram", "file"}),
        slow("llama-3.1-8b-q4_k_m:8", "-c 131072", 3, 1.5, {"flags", "ram", "vram"}),
        slow("llama-3.2-1b-q8_0:4", "-c 8192 -cram 4000", 24, 2, {"flags", "ram"}),
    ],
)
def test_each_kind_is_given_where_it_helps(
    name: str, words: str, gib: float, ram: float | None, kinds: set[str]
) -> None:
    host = None if ram is None else Host(round(ram * GiB), round(ram * GiB), "given")
    found = autolayers.plan(
        model(name), words.split(), devices=gpus(gib * 1024), host=host, advise=True
    )
    assert not found.fits and {remedy.kind for remedy in found.remedies} == kinds
    assert found.to_dict()["remedies"] == [remedy.to_dict() for remedy in found.remedies]


def test_the_first_fix_of_a_mixture_with_all_layers_given_is_experts_in_ram_with_its_speed() -> (
    None
):
    words = ["--gpu", "2GiB", "--ram", "32GiB", "-ngl", "99", "-c", "8k"]
    short = autolayers.plan(model("qwen3-30b-a3b-q4_k_m:8"), words, explain=True)
    assert not short.fits
    flag, count = short.remedies[0].change
    assert flag == "-ncmoe" and short.remedies[0].speed > 0
    assert autolayers.plan(model("qwen3-30b-a3b-q4_k_m:8"), [*words, flag, count]).fits
    assert "tokens/s" not in plan_text(short).split("fits with")[0].split("does not fit")[0]


def test_the_context_of_a_fix_is_the_largest_that_fits() -> None:
    words = ["--gpu", "2GiB", "--ram", "4GiB", "-ngl", "99"]
    short = autolayers.plan(model("llama-3.2-1b-q8_0:6"), [*words, "-c", "4m"], explain=True)
    (fix,) = [remedy for remedy in short.remedies if remedy.change[:1] == ("-c",)]
    assert autolayers.plan(model("llama-3.2-1b-q8_0:6"), [*words, "-c", fix.change[1]]).fits
    more = str(int(fix.change[1]) + 512)
    assert (
        int(more) > 131072
        or not autolayers.plan(model("llama-3.2-1b-q8_0:6"), [*words, "-c", more]).fits
    )


@pytest.mark.slow
def test_the_advised_context_is_the_largest() -> None:
    """With more of its experts in RAM, to an eighth: qwen3-30b-a3b on an RTX 3060 has half a
    million."""
    plan = autolayers.plan(
        model("qwen3-30b-a3b-q4_k_m"),
        ["--gpu", "rtx-3060", "--ram", "64GiB", "-c", "1048576"],
        explain=True,
    )
    (remedy,) = [remedy for remedy in plan.remedies if "-c" in remedy.change]
    n_ctx = int(remedy.change[1])
    assert n_ctx > 500_000
    fits = [
        autolayers.plan(
            model("qwen3-30b-a3b-q4_k_m"), ["--gpu", "rtx-3060", "--ram", "64GiB", "-c", str(n)]
        ).fits
        for n in (n_ctx, n_ctx * 9 // 8 + CTX_STEP)
    ]
    assert fits == [True, False]


@pytest.mark.slow
def test_reasons_come_one_after_the_other() -> None:
    """The last of the steps is the whole plan; the first has no reasons."""
    for words in (
        ["--gpu", "12GiB", "--ram", "32GiB"],
        ["--gpu", "4GiB", "--ram", "4GiB", "-c", "32768"],
    ):
        request = Request.of(words)
        steps = list(plan_in_steps(model("qwen3-8b-q4_k_m"), request))
        whole = plan_request(model("qwen3-8b-q4_k_m"), request, explain=True)
        assert (
            steps[-1].to_dict() == whole.to_dict()
            and steps[0].fit_choice is None
            and len(steps) > 2
        )
        assert steps[0].to_dict()["launch"] == whole.to_dict()["launch"]
