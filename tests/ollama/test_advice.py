"""Users of Ollama would set num_gpu to a number that is slower than Ollama's own, or fails.

num_gpu, num_ctx and num_batch with Ollama's own settings, on the real planner; and when to leave
num_gpu alone.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support import HEADERS, ROOT, gguf, gpu, says, write_gguf

import autolayers
from autolayers import api
from autolayers.devices import Device, Host, hypothetical
from autolayers.errors import UsageError
from autolayers.flags.parse import parse
from autolayers.ollama import settings as rules
from autolayers.ollama.advice import OllamaAdvice, _in_ollamas_words
from autolayers.ollama.advice import advise as explained
from autolayers.ollama.settings import Settings
from autolayers.ollama.target import Target, from_file
from autolayers.units import GiB, MiB

PLAIN = Settings()


def target(name: str, **more) -> Target:
    return replace(from_file(str(HEADERS / f"{name}.gguf")), **more)


def advise(*args, **options) -> OllamaAdvice:
    return explained(*args, explain=False, **options)


@pytest.fixture(scope="module")
def llama() -> Target:
    return target("llama-3.1-8b-q4_k_m")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Settings()),
        (
            {"OLLAMA_NUM_PARALLEL": "4", "OLLAMA_CONTEXT_LENGTH": "16384"},
            Settings(parallel=4, context_length=16384),
        ),
        (
            {"OLLAMA_NUM_PARALLEL": "9" * 5000},
            Settings(
                ignored=(
                    f"OLLAMA_NUM_PARALLEL={'9' * 40} is not a number: Ollama uses its default",
                )
            ),
        ),
        (
            {"OLLAMA_NUM_PARALLEL": "0", "OLLAMA_CONTEXT_LENGTH": "64k"},
            Settings(
                ignored=("OLLAMA_CONTEXT_LENGTH=64k is not a number: Ollama uses its default",)
            ),
        ),
        (
            {"OLLAMA_KV_CACHE_TYPE": ' "Q8_0" ', "OLLAMA_FLASH_ATTENTION": "1"},
            Settings(kv_cache_type="q8_0", flash_attention=True),
        ),
        (
            {
                "OLLAMA_FLASH_ATTENTION": "false",
                "OLLAMA_SCHED_SPREAD": "yes",
                "OLLAMA_GPU_OVERHEAD": "1024",
            },
            Settings(flash_attention=False, spread=True, gpu_overhead=1024),
        ),
    ],
)
def test_the_server_s_environment_is_read_as_ollama_does(environ, expected):
    assert Settings.from_environment(environ) == expected


@pytest.mark.parametrize(
    ("sizes", "n_ctx"),
    [
        ((), 4096),
        ((12,), 4096),
        ((22.9,), 4096),
        ((23,), 32768),
        ((12, 12), 32768),
        ((46,), 32768),
        ((24, 24), 262144),
        ((80,), 262144),
    ],
)
def test_the_default_context_follows_total_vram(sizes, n_ctx):
    assert rules.default_context(PLAIN, [gpu(size) for size in sizes]) == n_ctx
    assert (
        rules.default_context(Settings(context_length=7000), [gpu(size) for size in sizes]) == 7000
    )


def test_overhead_counts_for_the_default_context_alone():
    assert rules.default_context(Settings(gpu_overhead=GiB), [gpu(23.5)]) == 4096


@pytest.mark.parametrize(
    ("n_ctx", "size", "flash", "batch"),
    [
        (4096, 24, "auto", 512),
        (4097, 24, "auto", 1024),
        (32768, 24, "auto", 1024),
        (32769, 24, "auto", 2048),
        (32769, 14, "auto", 1024),
        (32769, 8, "auto", 512),
        (8192, 6, "auto", 512),
        (8192, 24, "off", 512),
        (8192, 8, "off", 256),
        (4096, 8, "off", 512),
    ],
)
def test_the_batch_is_chosen_as_ollama_does(llama, n_ctx, size, flash, batch):
    assert rules.automatic_batch(llama.model, llama.size, n_ctx, [gpu(size)], flash) == batch


def test_ollama_s_own_guess_is_computed_as_ollama_does(llama):
    assert rules.predicted(llama.model, 0, 8192) == 2 * 32 * 8 * 128 * 8192 * 2
    assert rules.predicted(llama.model, llama.size, 0) == llama.size == 4912916224


def test_embedding_models_have_one_slot_and_a_batch_of_their_context():
    base = from_file(str(HEADERS / "llama-3.2-1b-q8_0.gguf"))
    header = base.model.header
    metadata = {**header.metadata, "llama.pooling_type": 1}
    model = type(base.model)(type(header)(3, 32, metadata, header.tensors, header.files), "x")
    assert (
        rules.parallel(model, Settings(parallel=4)) == 1
        and rules.parallel(base.model, Settings(parallel=4)) == 4
    )
    assert rules.automatic_batch(model, 0, 1024, [gpu(8)], "auto") == 1024
    assert rules.automatic_batch(model, 0, 8192, [gpu(8)], "auto") == 2048


def test_flash_attention_where_the_card_cannot():
    assert rules.flash_attention(PLAIN, [gpu(8, compute_capability=(8, 6))]) == "auto"
    assert (
        rules.flash_attention(
            PLAIN, [gpu(8, compute_capability=(8, 6)), gpu(8, compute_capability=(5, 2))]
        )
        == "off"
    )
    assert rules.flash_attention(PLAIN, [gpu(8, compute_capability=(7, 2))]) == "off"
    assert (
        rules.flash_attention(Settings(flash_attention=True), [gpu(8, compute_capability=(5, 2))])
        == "on"
    )


def test_which_gpus_a_model_is_put_on(llama):
    two = [gpu(12), gpu(16, "CUDA1")]
    assert rules.visible_devices(llama.model, llama.size, 4096, PLAIN, two) == [two[1]]
    assert rules.visible_devices(llama.model, llama.size, 4096, Settings(spread=True), two) == two
    assert rules.visible_devices(llama.model, 20 * GiB, 4096, PLAIN, two) == two
    mixed = [gpu(64, "Vulkan0", backend="Vulkan", kind="igpu"), gpu(8)]
    assert rules.visible_devices(llama.model, llama.size, 4096, PLAIN, mixed) == [mixed[1]]
    assert rules.visible_devices(llama.model, llama.size, 4096, PLAIN, []) == []


def test_a_model_that_fits_gets_all_its_layers_and_its_context(llama):
    advice = advise(llama, PLAIN, [gpu(24)])
    assert (advice.num_gpu, advice.everything, advice.num_ctx, advice.num_batch) == (
        33,
        33,
        32768,
        1024,
    )
    assert advice.parameters == {"num_gpu": 33, "num_ctx": 32768} and not advice.server
    assert (
        advice.plan.fits and advice.plan.breakdown.n_ubatch == advice.plan.breakdown.n_batch == 1024
    )
    use = advice.plan.breakdown.devices["CUDA0"]
    # What llama.cpp's own cache of that size takes: K and V of 32 layers, 8 heads of 128, f16.
    assert use.context == 2 * 32 * 8 * 128 * 32768 * 2


def test_the_model_s_own_parameters_come_before_ollama_s_defaults(llama):
    own = replace(llama, parameters={"num_ctx": 8192, "num_batch": 256, "num_gpu": 5})
    advice = advise(own, Settings(context_length=4096), [gpu(24)])
    assert advice.parameters == {"num_gpu": 33, "num_ctx": 8192, "num_batch": 256}
    assert advise(own, PLAIN, [gpu(24)], num_ctx=2048, num_batch=64).parameters == {
        "num_gpu": 33,
        "num_ctx": 2048,
        "num_batch": 64,
    }


def test_slots_cache_type_and_flash_attention_are_the_server_s(llama):
    settings = Settings(parallel=3, kv_cache_type="q8_0", flash_attention=True)
    advice = advise(llama, settings, [gpu(24)], num_ctx=8192)
    use = advice.plan.breakdown
    assert (use.n_seq_max, use.n_ctx, use.n_ctx_seq, use.flash_attn) == (3, 3 * 8192, 8192, True)
    assert use.devices["CUDA0"].context == 2 * 32 * 8 * 128 * 3 * 8192 * 34 // 32
    assert advice.num_ctx == 8192


@pytest.mark.slow
def test_a_dense_model_gets_as_many_layers_as_fit(llama):
    advice = advise(llama, PLAIN, [gpu(4)], num_ctx=4096)
    fixed = ["-c", "4096", "-np", "1", "-b", "512", "-ub", "512"]
    exact = autolayers.plan(llama.model, [*fixed, "--strategy", "layers"], devices=[gpu(4)])
    one_more = autolayers.plan(
        llama.model, [*fixed, "-ngl", str(exact.n_gpu_layers + 1)], devices=[gpu(4)]
    )
    assert 0 < advice.num_gpu == exact.n_gpu_layers < 33 and not one_more.fits
    assert advice.num_ctx == 4096


def test_the_largest_context_that_stays_on_the_gpu(llama):
    advice = advise(llama, PLAIN, [gpu(8)], num_ctx="max")
    assert advice.num_gpu == 33 and advice.plan.fits
    assert advice.parameters == {"num_gpu": 33, "num_ctx": advice.num_ctx, "num_batch": 512}
    words = ["-np", "1", "-b", "512", "-ub", "512", "-ngl", "33", "-c"]
    assert autolayers.plan(llama.model, [*words, str(advice.num_ctx)], devices=[gpu(8)]).fits
    assert not autolayers.plan(
        llama.model, [*words, str(advice.num_ctx + 256)], devices=[gpu(8)]
    ).fits
    assert advise(llama, Settings(parallel=2), [gpu(8)], num_ctx="max").num_ctx == pytest.approx(
        advice.num_ctx / 2, abs=512
    )


@pytest.mark.slow
def test_a_context_that_would_keep_all_on_the_gpu_is_named(llama):
    advice = advise(llama, PLAIN, [gpu(8)], num_ctx=65536)
    best = advise(llama, PLAIN, [gpu(8)], num_ctx="max").num_ctx
    assert advice.num_gpu < 33 and any(
        f"all 33 layers fit with num_ctx {best}" in note for note in advice.notes
    )


@pytest.mark.slow
def test_the_batch_is_pinned_where_the_plan_depends_on_it():
    model = target("gemma-2-9b-q4_k_m")
    seen = set()
    for size in (6, 10):
        advice = advise(model, PLAIN, [gpu(size)], num_ctx=8192)
        largest = rules.automatic_batch(model.model, 0, 8192, (), "auto")
        unpinned = advise(model, PLAIN, [gpu(size)], num_ctx=8192, num_batch=largest)
        assert advice.pin_batch == (
            advice.num_batch < largest and unpinned.num_gpu < advice.num_gpu
        )
        seen.add(advice.pin_batch)
    assert seen == {True, False}


@pytest.mark.slow
def test_a_mixture_of_experts_that_does_not_fit_is_left_to_ollama():
    model = target("gpt-oss-20b-mxfp4")
    advice = advise(model, PLAIN, [gpu(8)])
    assert advise(model, PLAIN, [gpu(8)], num_ctx=4096).parameters == {"num_ctx": 4096}
    # nothing says how much: context and batch as the plain plan's, and each thing once
    plain = autolayers.plan(model.model, ["-np", "1"], devices=[gpu(8)]).breakdown
    assert advice.num_gpu is None and advice.num_ctx == plain.n_ctx > 4096
    assert advice.num_batch == plain.n_ubatch
    assert advice.over({"num_gpu": 12}) == {"num_gpu": -1, **advice.parameters}
    assert sum("mixture of experts" in note for note in advice.notes) == 1
    assert sum("LLAMA_ARG_FIT_TARGET" in note for note in advice.notes) == 1
    assert "LLAMA_ARG_N_GPU_LAYERS=25" in advice.server
    experts = next(
        int(line.partition("=")[2])
        for line in advice.server
        if line.startswith("LLAMA_ARG_N_CPU_MOE=")
    )
    # What is printed fits as it stands, fed back to the planner.
    words = [
        "-c",
        str(advice.num_ctx),
        "-np",
        "1",
        "-b",
        "512",
        "-ub",
        "512",
        "-ngl",
        "25",
        "-ncmoe",
        str(experts),
    ]
    assert autolayers.plan(model.model, words, devices=[gpu(8)]).fits
    pinned = advise(model, PLAIN, [gpu(8)], pin=True)
    assert 0 < pinned.num_gpu < 25 and pinned.parameters["num_gpu"] == pinned.num_gpu
    whole = advise(model, PLAIN, [gpu(24)])
    assert whole.num_gpu == 25 and not whole.server


@pytest.fixture
def projector(tmp_path) -> str:
    """128 MiB of zeros that call themselves one."""
    import gguf
    import numpy

    path = tmp_path / "mmproj.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_tensor("v.patch_embd.weight", numpy.zeros((64, 1 << 20), numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.mark.slow
def test_a_partial_vision_model_sends_its_projector_to_the_cpu(projector):
    model = target("gemma-3-4b-q8_0", projectors=(projector,))
    whole = advise(model, PLAIN, [gpu(12)], num_ctx=4096)
    assert whole.num_gpu == whole.everything and not any(
        "projector to the CPU" in note for note in whole.notes
    )
    partial = advise(model, PLAIN, [gpu(3.5)], num_ctx=4096)
    assert 0 < partial.num_gpu < partial.everything and partial.plan.devices[0].extra == 0
    assert any("projector to the CPU" in note for note in partial.notes)


def test_a_projector_is_counted_or_said_not_to_be(projector):
    advice = advise(
        target("gemma-3-4b-q8_0", projectors=(projector,)), PLAIN, [gpu(12)], num_ctx=4096
    )
    counted = advice.plan.devices[0].extra >= 128 * MiB
    assert counted != any(
        f"the memory of {projector} is not in these numbers" in note for note in advice.notes
    )


def test_what_cannot_be_seen_is_set_aside(llama):
    free = advise(llama, PLAIN, [gpu(6)], num_ctx=4096)
    less = advise(replace(llama, hidden=GiB), PLAIN, [gpu(6)], num_ctx=4096)
    assert less.plan.devices[0].free == free.plan.devices[0].free - GiB
    assert less.num_gpu < free.num_gpu


@pytest.mark.slow
def test_two_gpus_are_split_as_llama_cpp_does_without_being_told():
    model = target("llama-3.3-70b-q4_k_m")
    two = [gpu(24), gpu(12, "CUDA1")]
    advice = advise(model, PLAIN, two, num_ctx=8192)
    assert [row.name for row in advice.plan.devices] == ["CUDA0", "CUDA1"]
    words = ["-c", "8192", "-np", "1", "-b", "512", "-ub", "512", "-ngl"]
    split = ["-ts", "2,1"]
    assert autolayers.plan(model.model, [*words, str(advice.num_gpu), *split], devices=two).fits
    assert not autolayers.plan(
        model.model, [*words, str(advice.num_gpu + 1), *split], devices=two
    ).fits


def test_without_a_gpu_everything_is_on_the_cpu(llama):
    advice = advise(llama, PLAIN, [], Host.hypothetical("32GiB"))
    assert advice.plan.n_gpu_layers == 0 and advice.num_ctx == 4096 and advice.plan.fits
    # never written: Ollama may see a GPU that was not found here
    assert advice.num_gpu is None and advice.parameters == {"num_ctx": 4096} == advice.over(
        {"num_gpu": 20}
    )
    assert advise(llama, PLAIN, [], Host.hypothetical("32GiB"), pin=True).num_gpu == 0
    assert not advise(llama, PLAIN, [], Host.hypothetical("2GiB")).plan.fits
    with pytest.raises(UsageError, match="--gpu"):
        advise(llama, PLAIN, [], num_ctx="max")


def test_contexts_are_clamped_as_ollama_clamps_them(llama):
    advice = advise(llama, PLAIN, [gpu(80)], num_ctx=10_000_000)
    assert advice.num_ctx == 131072 and any("131072" in note for note in advice.notes)
    assert advise(llama, PLAIN, [gpu(80)]).num_ctx == 131072  # the tier says 262144
    assert advise(llama, PLAIN, [gpu(80)], num_ctx=0).num_ctx == 131072


def test_old_servers_dead_settings_and_far_clients_are_mentioned(llama):
    notes = " ".join(advise(llama, Settings(gpu_overhead=GiB), [gpu(24)], version="0.24.1").notes)
    assert (
        "0.24.1" in notes
        and "OLLAMA_GPU_OVERHEAD reserves nothing" in notes
        and "send their own num_ctx" in notes
    )
    assert "engines of its own" not in " ".join(
        advise(llama, PLAIN, [gpu(24)], version="0.33.0").notes
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "words", "fit_target"),
    [
        (4, ("-fitt", "2048"), ()),
        (5, (), (300,)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((5, ("-fitt", "300"), ()), (4, (), ()))
        ),
    ],
)
def test_ollama_s_own_choice_has_ollama_s_own_margins(llama, size, words, fit_target):
    """1024 MiB, or what the server was told; a margin of the user's own is not Ollama's."""
    settings = Settings(fit_target=fit_target)
    short = advise(llama, settings, [gpu(size)], num_ctx=4096, words=words)
    launch = [
        "-c",
        "4096",
        "-np",
        "1",
        "-b",
        "512",
        "-ub",
        "512",
        "-fitt",
        str(*fit_target or (1024,)),
    ]
    own = api.fit_choice(llama.model, launch, [gpu(size)]).params.layers_wanted(33)
    notes = " ".join(short.notes)
    assert (f"Ollama would choose {own} layers too" in notes) == (own == short.num_gpu)
    assert (
        own == short.num_gpu or f"without num_gpu Ollama would offload {own} of 33 layers" in notes
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes", "n_ctx", "by_free", "own"),
    [
        ("llama-3.1-8b-q4_k_m", (4, 2), None, 23, 25),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("gemma-2-9b-q4_k_m", (5, 2), None, 20, 29),
                ("gemma-2-9b-q4_k_m", (4, 2), None, 17, 22),
                ("llama-3.1-8b-q4_k_m", (6, 2), 32768, 19, 21),
                ("qwen3-8b-q4_k_m", (4, 2), 16384, 17, 19),
            )
        ),
    ],
)
def test_unlike_gpus_are_left_to_ollama_where_it_places_more(name, sizes, n_ctx, by_free, own):
    """What a real Ollama server placed on these GPUs without num_gpu, and what a split by free
    memory fits."""
    devices = [gpu(size, f"CUDA{i}") for i, size in enumerate(sizes)]
    words = ["--llama-build", "11311"]  # the llama.cpp that it ran
    advice = advise(target(name), PLAIN, devices, num_ctx=n_ctx, words=words)
    assert advice.num_gpu is None and advice.parameters.get("num_gpu") is None and advice.plan.fits
    assert advice.own_choice.params.n_gpu_layers == own == advice.plan.n_gpu_layers
    assert f"fits {by_free} of" in " ".join(advice.notes)
    assert (
        advise(target(name), PLAIN, devices, num_ctx=n_ctx, words=words, pin=True).num_gpu
        == by_free
    )


@pytest.mark.slow
def test_main_gpu_chooses_the_gpu(llama):
    two = [gpu(8), gpu(3, "CUDA1")]
    advice = advise(replace(llama, parameters={"main_gpu": 1}), PLAIN, two, num_ctx=4096)
    assert [device.name for device in advice.devices] == ["CUDA1"] and 0 < advice.num_gpu < 33
    assert advise(llama, PLAIN, two, num_ctx=4096).devices[0].name == "CUDA0"


@pytest.mark.parametrize(
    ("parameters", "vision", "n_ctx"),
    [
        ({"num_ctx": 0}, False, 4),
        ({"num_ctx": -5}, False, 4),
        ({"num_ctx": 1000}, False, 1000),
        ({"num_ctx": 1000}, True, 2048),
    ],
)
def test_a_context_of_the_modelfile_is_clamped(llama, parameters, vision, n_ctx):
    """Something hidden is no projector by itself: an adapter has no smallest context."""
    hidden = replace(llama, parameters=parameters, hidden=1 << 20, hidden_projector=vision)
    assert advise(hidden, PLAIN, [gpu(12)]).num_ctx == n_ctx


@pytest.mark.parametrize(
    ("parameters", "drafting"),
    [
        ({}, ("", 0)),
        ({"draft_num_predict": 4}, ("draft-mtp", 4)),
        ({"draft_num_predict": 0}, ("", 0)),
    ],
)
def test_mtp_blocks_draft_where_ollama_is_told_how_many(parameters, drafting):
    """A second context, which takes memory of its own."""
    path = next(ROOT.glob("fixtures/**/*qwen35*.gguf"))
    found = replace(from_file(str(path)), parameters=parameters)
    assert found.model.hparams.n_layer_nextn and found.drafting == drafting
    plain = advise(replace(found, parameters={}), PLAIN, [gpu(12)], num_ctx=1024).plan.devices[0]
    row = advise(found, PLAIN, [gpu(12)], num_ctx=1024).plan.devices[0]
    assert (row.used > plain.used) == bool(drafting[0])


@pytest.mark.parametrize(
    ("draft", "kind"),
    [("more/headers/dflash-8b", "draft-dflash"), ("headers/llama-3.2-1b-q8_0", "draft-mtp")],
)
def test_a_draft_layer_drafts_four_tokens_unless_told_otherwise(llama, draft, kind):
    found = replace(llama, draft=str(ROOT / f"fixtures/{draft}.gguf"))
    assert found.drafting == (kind, 4)
    assert replace(found, parameters={"draft_num_predict": 9}).drafting == (kind, 9)
    assert replace(found, parameters={"draft_num_predict": 0}).drafting == ("", 0)


@pytest.mark.slow
def test_advice_is_in_ollama_s_words(llama):
    advice = explained(llama, Settings(parallel=2), [gpu(6)], num_ctx=8192)
    reasons = " ".join(advice.reasons)
    assert (
        "OLLAMA_KV_CACHE_TYPE=q8_0 on the server would free" in reasons
        and "num_ctx 4096 would free" in reasons
    )
    assert "-ctk" not in reasons and "-np" not in reasons
    # where nobody says how large a context is wanted, the largest is named
    roomy = explained(llama, PLAIN, [gpu(8)])
    best = advise(llama, PLAIN, [gpu(8)], num_ctx="max").num_ctx
    assert (
        roomy.num_ctx == 4096
        and f"all 33 layers fit with num_ctx {best} (--ctx max)" in roomy.notes
    )


def test_a_servers_setting_has_the_name_of_its_variable():
    line = "-cram 6144: saved prompts and checkpoints could grow to 8.00 GiB"
    assert _in_ollamas_words(line) == f"LLAMA_ARG_CACHE_RAM={line[6:]}"
    assert _in_ollamas_words("-ub 512: less") == "-ub 512: less"


def test_cards_by_name_work_too(llama):
    assert advise(llama, PLAIN, hypothetical("rtx-3060"), num_ctx=8192).num_gpu == 33


@pytest.mark.parametrize(
    ("said", "backend", "kind", "description", "kept"),
    [
        ({}, "Vulkan", "igpu", "AMD Radeon 780M", False),
        ({"OLLAMA_IGPU_ENABLE": "1"}, "Vulkan", "igpu", "AMD Radeon 780M", True),
        ({}, "CUDA", "igpu", "Orin", True),
        ({}, "ROCm", "igpu", "AMD Radeon 8060S (gfx1151)", True),
        ({}, "ROCm", "igpu", "AMD Radeon 780M (gfx1103)", False),
        ({}, "Vulkan", "gpu", "AMD Radeon RX 7900", True),
        ({"OLLAMA_VULKAN": "0"}, "Vulkan", "gpu", "AMD Radeon RX 7900", False),
        ({"OLLAMA_LLM_LIBRARY": "cuda_v12"}, "CUDA", "gpu", "RTX 3090", True),
        ({"OLLAMA_LLM_LIBRARY": "cuda_v12"}, "Vulkan", "gpu", "RTX 3090", False),
        ({"OLLAMA_LLM_LIBRARY": "cpu"}, "CUDA", "gpu", "RTX 3090", False),
    ],
)
def test_devices_that_its_server_does_not_use(
    said: dict[str, str], backend: str, kind: str, description: str, kept: bool
) -> None:
    from autolayers.ollama.settings import used

    device = Device("GPU0", 8 << 30, 8 << 30, description, backend, kind)
    devices, notes = used(Settings.from_environment(said), [device])
    assert devices == [device] * kept and len(notes) == (not kept)


@pytest.mark.slow
def test_a_mixture_has_the_context_and_batch_of_the_plain_plan(tmp_path: Path) -> None:
    machine = ("--gpu", "1500MiB", "--ram", "32GiB")
    path = write_gguf(tmp_path / "moe.gguf", *gguf("qwen3-30b-a3b-q4_k_m:4"))
    plain = parse(says(path, *machine, "-np", "1").stdout.split(), command=None).params
    written = says("ollama", "modelfile", path, *machine).stdout
    assert plain.n_ctx is not None and plain.n_ctx > 16384
    assert f"\nPARAMETER num_ctx {plain.n_ctx}\n" in written
    assert f"\nPARAMETER num_batch {plain.n_ubatch}\n" in written
    assert written.count("LLAMA_ARG_N_CPU_MOE=") == 1
    given = says("ollama", "modelfile", path, *machine, "--num-batch", "512").stdout
    assert "\nPARAMETER num_batch 512\n" in given


def test_a_described_machine_keeps_the_devices_that_ollama_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = {"name": "Vulkan0", "backend": "Vulkan", "kind": "igpu", "total": 16 << 30}
    machine = tmp_path / "machine.json"
    machine.write_text(json.dumps({"devices": [device], "host": {"total": 32 << 30}}))
    words = ("ollama", "plan", HEADERS / "llama-3.2-1b-q8_0.gguf", "--machine", machine)
    assert "OLLAMA_IGPU_ENABLE=1" in says(*words, "--ctx", "4096").stderr
    monkeypatch.setenv("OLLAMA_IGPU_ENABLE", "1")
    assert "num_gpu 17 of 17" in says(*words, "--ctx", "4096").stdout
    monkeypatch.setenv("OLLAMA_VULKAN", "0")
    assert "OLLAMA_VULKAN turns Vulkan off" in says(*words, "--ctx", "4096").stderr
