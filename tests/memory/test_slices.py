"""Users of -sm tensor would run out of memory on one of their cards.

-sm tensor: what each device holds, on models small enough to cut by hand; launches are in
tests/truth.
"""

from __future__ import annotations

import pytest
from support import FIXTURES, ROOT, blocks, header, model, place, slow

import autolayers
from autolayers import Device, LaunchRefused, estimate
from autolayers.builds import rules
from autolayers.diagnosis.log import LogReader
from autolayers.errors import UsageError
from autolayers.flags.parse import parse
from autolayers.launch.verify import compare
from autolayers.memory.estimate import Estimator
from autolayers.memory.slices import Slices
from autolayers.model import Model

MiB = 1 << 20


def slices(
    tensors: dict, devices: int, *shares: float, build: int = 11549, **keys: object
) -> Slices:
    model = Model(header("llama", tensors, **{"block_count": 4, **keys}), "m.gguf")
    return Slices(model, set(tensors), [f"CUDA{i}" for i in range(devices)], shares, rules(build))


def cut(found: list[tuple[str, tuple[int, int, int, int]]], axis: int) -> list[int]:
    return [ne[axis] for _, ne in found]


LAYERS = {**blocks(4, "f32", "ffn_down"), "output.weight": ("f32", (256, 1000))}


@pytest.mark.parametrize(
    ("shares", "name", "axis", "widths"),
    [
        # 4 heads of 64 in 2 groups: a group is 128 rows
        ((), "blk.0.attn_q.weight", 1, [128, 128]),
        ((), "blk.0.attn_k.weight", 1, [128, 128]),
        ((3, 1), "blk.0.attn_q.weight", 1, [128, 128]),  # three quarters end within a group
        ((3, 1), "blk.0.attn_output.weight", 0, [128, 128]),
        # the next layer leaves the rest to the other device
        ((3, 1), "blk.1.attn_output.weight", 0, [256, 0]),
        ((3, 1), "output.weight", 1, [750, 250]),
        ((0, 1), "output.weight", 1, [0, 1000]),
        ((), "blk.0.attn_norm.weight", 0, [256, 256]),  # whole on each
        ((), "token_embd.weight", 1, [1000, 1000]),  # as an output matrix too
    ],
)
def test_cuts_end_at_groups_of_heads(
    shares: tuple[float, ...], name: str, axis: int, widths: list[int]
) -> None:
    type_, dims = LAYERS[name]
    assert cut(slices(LAYERS, 2, *shares).of(name, type_, (*dims, 1, 1, 1)[:4]), axis) == widths


def test_columns_of_a_quantised_matrix_are_cut_at_128_columns_and_whole_blocks() -> None:
    layers = {
        **blocks(1),
        "blk.0.ffn_down.weight": ("q6_K", (768, 256)),
        "blk.0.ffn_up.weight": ("f32", (256, 768)),
    }
    three = slices(layers, 3, feed_forward_length=768)
    assert cut(three.of("blk.0.ffn_up.weight", "f32", (256, 768, 1, 1)), 1) == [256, 256, 256]
    two = slices(layers, 2, feed_forward_length=768)
    assert cut(two.of("blk.0.ffn_down.weight", "q6_K", (768, 256, 1, 1)), 0) == [256, 512]
    # a bound: more than one device can get
    older = slices(layers, 2, feed_forward_length=768, build=9400)
    assert cut(older.of("blk.0.ffn_down.weight", "q6_K", (768, 256, 1, 1)), 0) == [512, 768]


def test_an_up_matrix_that_holds_the_gate_is_cut_in_both_halves() -> None:
    layers = {
        **blocks(1),
        "blk.0.ffn_down.weight": ("f32", (384, 256)),
        "blk.0.ffn_up.weight": ("f32", (256, 768)),
    }
    now = slices(layers, 2, feed_forward_length=384).of(
        "blk.0.ffn_up.weight", "f32", (256, 768, 1, 1)
    )
    assert cut(now, 1) == [2 * 128, 2 * 256]
    before = slices(layers, 2, feed_forward_length=384, build=10042).of(
        "blk.0.ffn_up.weight", "f32", (256, 768, 1, 1)
    )
    assert cut(before, 1) == [384, 384]


def test_shares_are_equal_whatever_the_memory_and_the_buffer_of_the_graph_is_whole() -> None:
    path = FIXTURES / "headers" / "llama-3.2-1b-q8_0.gguf"
    model = autolayers.read_model(path)
    unequal = [Device("CUDA0", 24 << 30, 24 << 30), Device("CUDA1", 8 << 30, 8 << 30)]
    launch = estimate(model, parse(["-sm", "tensor", "-ngl", "99", "-c", "512"]).params, unequal)
    alone = estimate(model, parse(["-ngl", "99", "-c", "512"]).params, unequal[:1])
    assert launch.exact
    # the real llama-server's
    assert [use.model for use in launch.devices.values()] == [796303488, 796303488]
    assert {use.compute for use in launch.devices.values()} == {alone.devices["CUDA0"].compute}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-ot blk.1.ffn_up=CUDA1", "no buffers of one device; llama.cpp aborts"),
        ("-fa off", "requires flash_attn"),
    ],
)
def test_what_llama_cpp_refuses(words: str, reason: str) -> None:
    with pytest.raises(LaunchRefused, match=reason):
        estimate(
            model("llama-dense"),
            parse(["-sm", "tensor", *words.split()]).params,
            [Device("CUDA0", 8 << 30, 8 << 30), Device("CUDA1", 8 << 30, 8 << 30)],
        )


def test_without_a_device_llama_cpp_refuses() -> None:
    with pytest.raises(LaunchRefused, match="needs at least one device"):
        estimate(model("llama-dense"), parse(["-sm", "tensor"]).params, [])


def test_a_layer_whose_output_is_not_there_cannot_be_cut() -> None:
    layers = {name: kind for name, kind in blocks(1).items() if "attn_output" not in name}
    with pytest.raises(LaunchRefused, match="attn_output"):
        slices(layers, 2).of("blk.0.attn_q.weight", "f32", (256, 256, 1, 1))


def test_a_block_that_the_model_has_not_got_is_whole_on_each() -> None:
    two = slices(
        {**blocks(1), "blk.99999999999999999999.attn_q.weight": ("f32", (256, 256))},
        2,
        block_count=1,
    )
    for name in (
        "blk.7.attn_q.weight",
        "blk.99999999999999999999.attn_q.weight",
        "blk.x.attn_q.weight",
        "blk.",
    ):
        assert cut(two.of(name, "f32", (256, 256, 1, 1)), 1) == [256, 256]


def test_every_device_is_used_and_named_ones_alone() -> None:
    model = Model(header("llama", LAYERS, block_count=4), "m.gguf")
    placement = place(model, "-sm tensor", 8192, 8192, 8192)
    assert [device.name for device in placement.devices] == ["CUDA0", "CUDA1", "CUDA2"]
    assert set(placement.buffers) - {"CUDA_Host"} == {"CUDA0", "CUDA1", "CUDA2"}
    assert [
        device.name
        for device in place(model, "-sm tensor -dev CUDA2,CUDA0", 8192, 8192, 8192).devices
    ] == ["CUDA2", "CUDA0"]
    with pytest.raises(UsageError, match="CUDA3"):
        place(model, "-sm tensor -dev CUDA3", 8192)


@pytest.mark.parametrize(("build", "name"), [(10531, "lfm2-dense"), (11311, "qwen4exp-moe")])
def test_architectures_that_came_later_are_refused_before(build: int, name: str) -> None:
    model = autolayers.read_model(FIXTURES / "headers" / f"{name}.gguf")
    devices = [Device(f"CUDA{i}", 8 << 30, 8 << 30) for i in range(2)]
    params = parse(["-sm", "tensor", "-c", "512"]).params
    with pytest.raises(LaunchRefused, match="not implemented for architecture"):
        estimate(model, params, devices, build)
    assert estimate(model, params, devices).exact


def test_an_adapter_lies_whole_on_every_device() -> None:
    model = autolayers.read_model(FIXTURES / "headers" / "llama-3.2-1b-q8_0.gguf")
    devices = [Device(f"CUDA{i}", 8 << 30, 8 << 30) for i in range(2)]
    params = parse(["-sm", "tensor", "-c", "512", "--control-vector", "v.gguf"]).params
    launch = Estimator(model).breakdown(params, devices)
    extras = [extra for extra in launch.extras if extra.name == "control vector"]
    assert {extra.device: extra.size for extra in extras} == dict.fromkeys(
        ("CUDA0", "CUDA1"), 15 * 2048 * 4
    )


def test_the_log_of_a_launch_says_the_most_that_a_device_has() -> None:
    """Lines of the real llama-server b11549 with two RPC servers."""
    reader = LogReader()
    reader.feed(b"""\
load_tensors:   CPU_Mapped model buffer size =   266.16 MiB
load_tensors:       Meta() model buffer size =   759.41 MiB
llama_kv_cache:     Meta() KV buffer size =     8.00 MiB
sched_reserve:     Meta() compute buffer size =    64.51 MiB
sched_reserve:        CPU compute buffer size =    16.52 MiB
""")
    model = autolayers.read_model(FIXTURES / "headers" / "llama-3.2-1b-q8_0.gguf")
    devices = [Device(f"CUDA{i}", 8 << 30, 8 << 30) for i in range(2)]
    found = compare(
        reader.finish(), estimate(model, parse(["-sm", "tensor", "-c", "512"]).params, devices)
    )
    assert {line.part: line.equal for line in found.lines if line.device == "Meta()"} == {
        "model": True,
        "context": True,
        "compute": True,
    }


@pytest.mark.parametrize(
    ("model", "cards", "given", "shares"),
    [
        ("qwen3-8b", "2x24GiB", "", None),
        # 936 and 360 GB/s, and columns in steps of 256
        slow("qwen3-8b", "rtx-3090,rtx-3060", "", "68,32"),
        slow("qwen3-8b", "rtx-3090,rtx-3060", "-ts 1,1", "1,1"),
        # a third of 768 columns; of 31 % every 2nd layer has none
        slow("qwen3-30b-a3b", "12GiB,6GiB", "", "2,1"),
    ],
)
def test_unequal_devices_get_shares_of_their_own(
    model: str, cards: str, given: str, shares: str | None
) -> None:
    path = ROOT / f"fixtures/headers/{model}-q4_k_m.gguf"
    words = ["--gpu", cards, "-sm", "tensor", "-c", "4096", "--ram", "64GiB", *given.split()]
    plan = autolayers.plan(path, words)
    assert plan.fits
    assert (plan.flags[plan.flags.index("-ts") + 1] if "-ts" in plan.flags else None) == shares


@pytest.mark.slow
def test_sums_between_devices_stay_free() -> None:
    path = ROOT / "fixtures/headers/qwen3-30b-a3b-q4_k_m.gguf"
    words = ["--gpu", "4x24GiB", "-sm", "tensor", "-c", "4096", "-ub", "1024"]
    margins = [dict(device.margin_parts) for device in autolayers.plan(path, words).devices]
    assert [margin["sums between devices"] for margin in margins] == [
        2 * 4 * 2048 * 8 * 1024 + 384 * MiB
    ] * 4
