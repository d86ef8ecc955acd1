"""A planned launch would run out of memory by what no buffer shows, or leave a GPU half empty.

The margin's parts against numbers worked out from llama.cpp's source by hand, and against public
measurements.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import LLAMA_OPS as LLAMA
from support import ROOT, slow
from support import model as fixture

import autolayers
from autolayers import Device, Params
from autolayers.flags.parse import parse
from autolayers.memory.breakdown import Breakdown, Extra, Usage
from autolayers.memory.estimate import Estimator
from autolayers.memory.margin import margin, matmuls, ops_of, parts

MiB = 1 << 20
FIXTURES = ROOT / "fixtures/headers"
MODELS = ROOT / "fixtures/speeds/models"


# --- the sum
# --------------------------------------------------------------------------------------------------


def card(capability, **facts):
    return Device("CUDA0", 1 << 34, 1 << 34, compute_capability=capability, **facts)


def total(named):
    return sum(size for _, size in named)


@pytest.mark.parametrize(
    "card, mib, n_ubatch",
    [
        ("t4", 139, 512),
        ("rtx-4060-ti-16g", 164, 512),
        ("rtx-3090", 557, 2048),
        ("rtx-pro-6000", 749, 512),
    ],
)
def test_no_public_measurement_on_an_idle_linux_card_exceeds_it(card, mib, n_ubatch):
    """What the driver reported as used beyond the buffers at the end of a run."""
    device = Device.hypothetical(card)
    named = parts(device, replace(LLAMA, n_tokens=n_ubatch), Usage(1, 1, 300 * MiB))
    assert total(named) >= mib * MiB
    assert total(named) < 1100 * MiB


def test_usual_launches_need_less_than_llama_cpp_s_default():
    named = dict(parts(card((8, 9), n_sm=128), LLAMA, Usage(1, 1, 300 * MiB)))
    threads = 128 * 1536
    assert named["CUDA context"] == 32 * MiB + 2100 * threads
    assert named["CUDA kernels"] == 304 * threads
    assert named["cuBLAS"] == 36 * MiB and named["CUDA graphs"] == 16 * MiB
    assert named["rounding to pages"] == 6 * MiB and named["growth in use"] == 6 * MiB
    assert 500 * MiB < sum(named.values()) < 1024 * MiB


@pytest.mark.parametrize(
    ("capability", "n_sm", "measured"),
    [
        ((7, 5), 40, 105),
        ((8, 9), 34, 127),
        ((8, 6), 84, 285),
        ((9, 0), 132, 527),
        ((12, 0), 188, 561),
    ],
)
def test_a_context_is_what_was_measured_and_little_more(capability, n_sm, measured):
    context = dict(parts(card(capability, n_sm=n_sm), LLAMA))["CUDA context"] / MiB
    assert measured <= context <= 2 * measured


def test_copies_of_a_quantised_cache_lie_in_the_pool_of_older_builds():
    device = card((7, 5), n_sm=40)
    params = parse(
        ["-c", "32768", "-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on", "-ngl", "99"]
    ).params
    room = {}
    for build in (9453, 9496):
        estimator = Estimator(autolayers.read_model(FIXTURES / "llama-3.1-8b-q4_k_m.gguf"), build)
        room[build] = dict(estimator.margin(device, params, estimator.breakdown(params, [device])))
    more = room[9453]["temporaries of operations"] - room[9496]["temporaries of operations"]
    assert more >= 32768 * 1024 * 2 * 2  # keys and values of one layer as f16


def test_a_context_that_was_there_at_measuring_is_not_reserved_again():
    without = parts(card((9, 0), includes_context=True), LLAMA)
    assert total(parts(card((9, 0)), LLAMA)) - total(without) == 32 * MiB + 132 * 2048 * 2100
    assert "CUDA context" not in dict(without) and dict(without)["cuBLAS"] == 120 * MiB


def test_an_unknown_card_is_taken_for_ada():
    named = dict(parts(card(None), LLAMA))
    assert named["CUDA context"] + named["CUDA kernels"] == 500 * MiB


def test_displays_windows_and_shared_memory_have_parts_of_their_own():
    plain = total(parts(card((8, 9)), LLAMA))
    for extra, mib in (
        ({"display": True}, 128),
        ({"wddm": True}, 768),
        ({"wddm": True, "display": True}, 768),
        ({"kind": "igpu"}, 1024),
    ):
        assert total(parts(card((8, 9), **extra), LLAMA)) - plain == mib * MiB


def test_a_window_takes_no_copies_of_the_whole_context():
    """Vulkan copies a layer's quantised cache: Gemma 4 12B's widest layers have a window."""
    card = Device.hypothetical("8GiB", "Vulkan0")
    card = replace(card, backend="Vulkan", limits={"cooperative_matrix2": False})
    params = parse(["-c", "131072", "-ub", "128", "-ctk", "q8_0", "-ctv", "q8_0"]).params
    for name, mib in (
        ("x-gemma4-12b-ud-q4_k_xl-6.3", 256),
        ("x-gemma4-31b-ud-q4_k_xl-17.46", 1024),
    ):
        whole = autolayers.read_model(MODELS / f"{name}.gguf")
        estimator = Estimator(whole)
        use = estimator.breakdown(params, [card])
        with_copies = dict(estimator.margin(card, params, use))["temporaries of operations"]
        plain = replace(params, cache_type_k=None, cache_type_v=None)
        without = dict(estimator.margin(card, plain, estimator.breakdown(plain, [card])))
        assert with_copies - without["temporaries of operations"] == mib * MiB


@pytest.mark.parametrize(
    ("words", "at_load", "a_token"), [slow("", 1220, 3.56), ("-ctk q8_0 -ctv q8_0", 1220, 7.64)]
)
def test_sycl_leaves_what_an_arc_took(words, at_load, a_token):
    """An Arc Pro B70: MiB once loaded, and KiB for each token that the context holds."""
    card = Device("SYCL0", 32 << 30, 32 << 30, backend="SYCL")
    model = autolayers.read_model(MODELS / "qwen3.6-27b-q4_k_m.gguf")
    params = parse(["-c", "65536", "-np", "1", *words.split()]).params
    estimator = Estimator(model)
    parts = dict(estimator.margin(card, params, estimator.breakdown(params, [card])))
    assert parts["SYCL, as measured"] == at_load * MiB
    grown = parts["temporaries of operations"] / 1024 / 65536
    assert a_token <= grown <= 1.15 * a_token


@pytest.mark.parametrize("backend", ["RPC", "OpenCL"])
def test_backends_of_which_nothing_is_known_keep_llama_cpp_s_default(backend):
    assert total(parts(Device("X0", 1, 1, backend=backend), LLAMA, n_buffers=0)) == 1024 * MiB


@pytest.mark.parametrize("engine, mib", [("CUDA", None), ("CPU", 1024), ("RPC", 1024), ("?", 1024)])
def test_a_server_s_own_backend_says_what_it_takes_there(engine, mib):
    server = Device("RPC0", 1, 1, backend="RPC", kind="rpc", engine=engine)
    alone = Device("CUDA0", 1, 1)
    wanted = mib * MiB if mib else total(parts(alone, LLAMA, n_buffers=0))
    assert total(parts(server, LLAMA, n_buffers=0)) == wanted


# --- for a launch
# -----------------------------------------------------------------------------------------------


def bill(**changes):
    usage = Usage(4000 * MiB, 1024 * MiB, 300 * MiB)
    return Breakdown(
        **{
            "devices": {"CUDA0": usage, "CUDA1": usage},
            "host": Usage(),
            "n_ctx": 32768,
            "n_ctx_seq": 32768,
            "n_batch": 2048,
            "n_ubatch": 512,
            "n_seq_max": 4,
            "kv_unified": True,
            "flash_attn": True,
            "exact": True,
            "runtime_peak": {"CUDA0": 7 * MiB},
        }
        | changes
    )


@pytest.fixture(scope="module")
def model():
    path = next(iter(sorted(FIXTURES.glob("*llama*8b*.gguf"))), None)
    assert path, "no header of an 8B Llama in fixtures/headers"
    return autolayers.read_model(str(path))


def test_fit_target_is_exactly_that_and_nothing_else(model):
    device = Device.hypothetical("24GiB")
    assert margin(device, model, Params(fit_target=(300,)), bill()) == (("given", 300 * MiB),)
    second = replace(device, name="CUDA1")
    assert margin(second, model, Params(fit_target=(300, 500)), bill()) == (("given", 500 * MiB),)
    assert margin(second, model, Params(fit_target=(300,)), bill()) == (("given", 300 * MiB),)


def test_a_launch_is_read_from_its_model_and_bill(model):
    device = Device.hypothetical("rtx-3090")
    named = dict(margin(device, model, Params(), bill()))
    assert named["growth in use"] == 7 * MiB + 6 * MiB and named["rounding to pages"] == 6 * MiB
    assert 14 * MiB <= named["temporaries of operations"] <= 24 * MiB
    off = dict(margin(device, model, Params(flash_attn="off"), bill(flash_attn=False)))
    assert off["temporaries of operations"] >= 1028 * MiB
    assert (
        dict(margin(replace(device, name="CUDA1"), model, Params(), bill()))["growth in use"]
        == 6 * MiB
    )


def test_a_draft_has_temporaries_of_its_own(model):
    device = Device.hypothetical("rtx-3090")
    plain = dict(margin(device, model, Params(), bill()))
    drafts = dict(
        margin(device, model, Params(), bill(extras=(Extra("MTP context", "CUDA0", MiB, True),)))
    )
    again = drafts.pop("temporaries of the draft")
    # cuBLAS's workspaces, graphs
    assert drafts == plain and again == plain["temporaries of operations"] + 28 * MiB
    elsewhere = bill(extras=(Extra("MTP context", "CUDA1", MiB, True),))
    assert dict(margin(device, model, Params(), elsewhere)) == plain


def test_a_short_prompt_may_need_more_than_a_whole_micro_batch():
    """With layers in RAM, a prompt's last micro-batch is planned anew: what is copied may not fit
    where it did. A llama-server of b10434 reserved 2.7512 MiB of this model over Vulkan, and had
    2.9230 after prompts of 230 tokens."""
    device = Device("Vulkan0", 2 << 30, 2 << 30, backend="Vulkan")
    params = parse(["-ngl", "1", "-c", "256", "-b", "512", "-ub", "256", "-np", "1"]).params
    model = autolayers.read_model(str(FIXTURES / "minicpm3-dense.gguf"))
    found = autolayers.estimate(model, params, [device], 10434, runtime=True)
    compute = found.devices["Vulkan0"].compute
    assert round(compute / MiB, 4) == 2.7512
    assert 2.9230 * MiB <= compute + found.runtime_peak["Vulkan0"] < 1.3 * compute


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.gguf")), ids=lambda path: path.stem)
def test_every_real_model_has_a_plausible_margin(path):
    model = autolayers.read_model(str(path))
    for device in (
        Device.hypothetical("24GiB"),
        Device.hypothetical("p40"),
        Device.hypothetical("7900xtx"),
        Device("Vulkan0", 1 << 34, 1 << 34, backend="Vulkan"),
    ):
        named = margin(device, model, Params(), bill())
        assert 100 * MiB < total(named) < 6000 * MiB and all(
            size > 0 and name for name, size in named
        )
        assert margin(device, model, Params(), bill()) == named


def test_scratch_is_for_the_matrices_that_a_device_multiplies_with(model):
    """Each shape of its own once, of the body and of the output; of the whole model where its steps
    are not known."""
    mine = frozenset({"blk.0.ffn_up.weight"}), frozenset({"output.weight"})
    some, every = (
        ops_of(model, Params(), bill(), matmuls(model, computed)) for computed in (mine, None)
    )
    assert [(matmul.k, matmul.m) for matmul in some.weights] == [(4096, 14336)]
    assert [(matmul.k, matmul.m) for matmul in some.outputs] == [(4096, 128256)]
    assert set(some.weights) < set(every.weights) and some.outputs == every.outputs


@pytest.mark.parametrize(
    ("words", "same"), [("-ngl 99", True), ("-ngl 99 -ot ffn=CPU --no-op-offload", False)]
)
def test_scratch_is_the_models_where_all_of_it_is_on_the_device(words, same):
    estimator = Estimator(fixture("llama-3.1-8b-f16"))
    device, params = Device.hypothetical("rtx-3090"), parse(["-c", "4096", *words.split()]).params
    use = estimator.breakdown(params, [device])
    assert use.steps is not None
    known, unknown = (
        dict(estimator.margin(device, params, launch))["temporaries of operations"]
        for launch in (use, replace(use, steps=None))
    )
    assert known == unknown if same else known < unknown
