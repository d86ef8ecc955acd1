"""A draft, a projector or an adapter would take memory that nobody planned.

Companions of the model; sizes of drafts, MTP contexts and LoRA are from llama-server's log.
"""

from __future__ import annotations

import pytest
from support import FIXTURES, blocks, gpus, header, model

from autolayers.api import companions_of
from autolayers.errors import LaunchRefused, UsageError
from autolayers.flags.parse import parse
from autolayers.gguf import FileInfo, Header, TensorInfo, n_bytes
from autolayers.memory import extras
from autolayers.memory.cache import allocate
from autolayers.memory.companions import Companions, with_draft_type
from autolayers.memory.context import resolve
from autolayers.memory.estimate import Estimator
from autolayers.memory.extras import extras_of
from autolayers.memory.graphs.compute import GraphBuffers
from autolayers.memory.loaded import Loaded
from autolayers.memory.server import serving
from autolayers.memory.weights import place_weights
from autolayers.model import Model, read_model

MiB = 1 << 20


def held(
    target: Model, words: str, files: Companions | None = None, *mib: int
) -> tuple[dict[tuple[str, str], int], tuple[str, ...]]:
    files = files or Companions()
    params = with_draft_type(parse(words.split()).params, files)
    devices = gpus(*mib)
    context = resolve(target, params)
    placement = place_weights(target, params, devices, context.load_mtp)
    memory = allocate(target, context, placement)
    loaded = Loaded(target, params, context, placement, memory)
    found, warnings = extras_of(loaded, devices, files)
    always, unlimited = serving(loaded)
    return {(extra.name, extra.device): extra.size for extra in (*found, *always)}, (
        *warnings,
        *unlimited,
    )


def test_a_draft_model_has_caches_of_f16_whatever_the_targets_are() -> None:
    draft = Companions(draft=model("llama-3.2-1b-q8_0"))
    target = model("llama-3.1-8b-q4_k_m")
    found, _ = held(target, "-c 8192 -np 1 -ctk q8_0 -ctv q8_0 -md draft.gguf", draft, 24576)
    assert found["draft context", "CUDA0"] == 16 * 2 * 512 * 2 * 8192
    found, _ = held(target, "-c 8192 -np 1 -md draft.gguf -ctkd q4_0 -ctvd q4_0", draft, 24576)
    assert found["draft context", "CUDA0"] == 16 * 2 * 512 // 32 * 18 * 8192


def test_a_draft_models_weights_follow_its_own_flags() -> None:
    draft = Companions(draft=model("llama-3.2-1b-q8_0"))
    target = model("llama-3.1-8b-q4_k_m")
    everything, _ = held(target, "-c 4096 -ngl 0 -md draft.gguf", draft, 24576)
    nothing, _ = held(target, "-c 4096 -ngl 99 -md draft.gguf -ngld 0", draft, 24576)
    assert ("draft model weights", "CUDA0") in everything
    assert ("draft model weights", "CUDA0") not in nothing
    second, _ = held(target, "-c 4096 -md draft.gguf -devd CUDA1", draft, 24576, 8192)
    assert ("draft model weights", "CUDA1") in second and (
        "draft model weights",
        "CUDA0",
    ) not in second


def test_a_model_that_drafts_for_itself_has_a_second_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # these few tensors make no graph
    monkeypatch.setattr(extras, "measure", lambda *launch, **how: GraphBuffers((0, 0), True))
    target = Model(header("glm4moe", blocks(3), block_count=3, nextn_predict_layers=1), "m.gguf")
    found, _ = held(target, "-c 1024 -np 2 -ctk q8_0 -ctv q8_0 --spec-type draft-mtp", None, 8192)
    # K and V of one block, 2 heads of 64, f16
    assert found["MTP context", "CUDA0"] == 2 * 128 * 2 * 1024


def test_a_drafts_file_says_how_it_drafts() -> None:
    tensors = {**blocks(3), "blk.2.nextn.eh_proj.weight": ("f32", (512, 256))}
    draft = Companions(
        draft=Model(header("glm4moe", tensors, block_count=3, nextn_predict_layers=1), "d.gguf")
    )
    params = parse(["-md", "d.gguf"]).params
    assert with_draft_type(params, draft).spec_type == ("draft-mtp",)
    assert with_draft_type(params, Companions(draft=model("llama-3.2-1b-q8_0"))).spec_type == ()
    asked = parse(["-md", "d.gguf", "--spec-type", "draft-simple"]).params
    assert with_draft_type(asked, draft) is asked


def adapter(**shapes: tuple[str, tuple[int, int]]) -> Header:
    tensors = {}
    for name, (type_, (a, b)) in shapes.items():
        name = name.replace("__", ".")
        ne = (a, b, 1, 1)
        tensors[name] = TensorInfo(name, type_, ne, 2, 0, n_bytes(type_, ne))
    return Header(3, 32, {"general.type": "adapter"}, tensors, (FileInfo("lora.gguf", None, 0),))


def test_a_lora_lies_where_its_base_lies() -> None:
    target = Model(header("llama", {**blocks(2), "output.weight": ("f32", (256, 1000))}), "m.gguf")
    files = Companions(
        loras=(
            adapter(
                blk__0__attn_q__weight__lora_a=("f16", (256, 8)),
                blk__0__attn_q__weight__lora_b=("f32", (8, 256)),
                blk__1__ffn_up__weight__lora_a=("f16", (256, 8)),
                blk__1__ffn_up__weight__lora_b=("f32", (8, 256)),
            ),
        )
    )
    pair = 256 * 8 * 2 + 8 * 256 * 4
    assert held(target, "-ngl 99", files, 8192)[0]["LoRA", "CUDA0"] == 2 * pair
    split, _ = held(target, "-ngl 2", files, 8192)
    assert (split["LoRA", "CUDA0"], split["LoRA", "Host"]) == (pair, pair)


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        (
            {"blk__0__attn_q__weight": (64, 256)},
            "blk.0.attn_q.weight is 64 x 256, the model's 256 x 256",
        ),
        (
            {"blk__0__attn_q__weight": (256, 512)},
            "blk.0.attn_q.weight is 256 x 512, the model's 256 x 256",
        ),
        ({"blk__5__attn_q__weight": (256, 256)}, "the model has no blk.5.attn_q.weight"),
        ({"token_embd__weight": (256, 128)}, None),
        ({"token_embd__weight": (128, 256)}, "token_embd.weight is 128 x 256"),
    ],
)
def test_a_lora_of_another_model_is_refused(
    shapes: dict[str, tuple[int, int]], why: str | None
) -> None:
    target = model("llama-dense")
    pairs = {
        f"{name}__lora_{part}": ("f16", ne)
        for name, (n_in, n_out) in shapes.items()
        for part, ne in (
            (("a", (8, n_out)), ("b", (8, n_in)))
            if "embd" in name
            else (("a", (n_in, 8)), ("b", (8, n_out)))
        )
    }
    files = Companions(loras=(adapter(**pairs),))
    if why is None:
        Estimator(target, companions=files)
        assert held(target, "-ngl 99", files, 8192)[0]["LoRA", "Host"] == (256 + 128) * 8 * 2
    else:
        with pytest.raises(
            LaunchRefused, match=f"--lora lora.gguf: {why}.*: it is for another model"
        ):
            Estimator(target, companions=files)


def test_control_vectors_have_a_vector_in_every_layer_but_the_first() -> None:
    found, _ = held(model("llama-3.1-8b-q4_k_m"), "-c 4096 --control-vector v.gguf", None, 24576)
    assert found["control vector", "CUDA0"] == 31 * 4096 * 4


def projector(kind: str, **keys: object) -> Header:
    shapes = {
        "v.patch_embd.weight": (14, 14, 3, 1152),
        "v.blk.0.ffn_up.weight": (1152, 4304, 1, 1),
        "mm.input_projection.weight": (1152, 2560, 1, 1),
    }
    tensors = {
        name: TensorInfo(name, "f16", ne, 4, 0, n_bytes("f16", ne)) for name, ne in shapes.items()
    }
    metadata = {
        "general.architecture": "clip",
        "clip.projector_type": kind,
        "clip.has_vision_encoder": True,
        "clip.vision.image_size": 896,
        "clip.vision.patch_size": 14,
        "clip.vision.embedding_length": 1152,
        "clip.vision.feed_forward_length": 4304,
        "clip.vision.attention.head_count": 16,
        **keys,
    }
    return Header(3, 32, metadata, tensors, (FileInfo("mmproj.gguf", None, 0),))


@pytest.mark.parametrize(
    ("words", "device"),
    [
        ("", "CUDA0"),
        ("-ngl 0", "CUDA0"),
        ("-dev CUDA1", "CUDA1"),
        ("--no-mmproj-offload", "Host"),
        ("-dev none", "Host"),
        ("-mmdev CUDA1", "CUDA1"),
    ],
)
def test_a_projector_goes_to_one_device(words: str, device: str) -> None:
    files = Companions(mmproj=projector("gemma3"))
    found, _ = held(model("gemma-3-4b-q8_0"), f"-c 4096 --mmproj p.gguf {words}", files, 8192, 8192)
    weights = {where for name, where in found if name == "mmproj weights"}
    assert weights == {device}
    assert files.mmproj is not None
    assert found["mmproj weights", device] == sum(
        info.n_bytes for info in files.mmproj.tensors.values()
    )


@pytest.mark.parametrize(
    ("kind", "sizes", "flash", "plain"),
    [
        # kind; patch, side, width, feed forward, heads; MiB with flash attention and without
        ("qwen3vl_merger", (16, 768, 1152, 4304, 16), 248.10, 4657.81),
        ("qwen3vl_merger", (16, 768, 1024, 4096, 16), 223.30, None),
        ("gemma3", (14, 896, 1152, 4304, 16), 121, 1132),
        ("qwen2vl_merger", (14, 560, 1280, 5120, 16), 267, 4598),
        ("qwen2.5vl_merger", (14, 560, 1280, 3420, 16), 705, 4872),
    ],
)
def test_a_projector_s_graph_is_bounded_by_what_was_measured(
    kind: str, sizes: tuple[int, ...], flash: float, plain: float | None
) -> None:
    """Logs of CUDA, of the CPU (the second) and of an MI300X (the rest)."""
    names = ("patch_size", "image_size", "embedding_length", "feed_forward_length")
    keys = (*names, "attention.head_count")
    file = projector(kind, **{f"clip.vision.{k}": v for k, v in zip(keys, sizes, strict=True)})
    # Qwen2.5's feed forward is gated
    if kind == "qwen2.5vl_merger":
        up = file.tensors["v.blk.0.ffn_up.weight"]
        file.tensors["v.blk.0.ffn_gate.weight"] = up
    for words, measured in (("", flash), ("-fa off", plain)):
        for place in ("", "--no-mmproj-offload"):
            found = held(
                model("gemma-3-4b-q8_0"),
                f"-c 4096 --mmproj p.gguf {words} {place}",
                Companions(mmproj=file),
                65536,
            )[0]
            said = found["mmproj compute", "Host" if place else "CUDA0"] / MiB
            assert measured is None or measured <= said <= 1.2 * measured
            # the image: 24.93 MiB of RAM beside the first one's GPU
            if (kind, place, sizes[2]) == ("qwen3vl_merger", "", 1152):
                assert round(found["mmproj compute", "Host"] / MiB, 2) == 24.93


def test_attention_is_in_ram_until_a_device_has_declined_it() -> None:
    """One head of 1152: b11549 had 54.00 MiB of RAM and 172.00 of the device."""
    file = projector("gemma3", **{"clip.vision.attention.head_count": 1})
    found, _ = held(model("gemma-3-4b-q8_0"), "-c 4096 --mmproj p", Companions(mmproj=file), 65536)
    assert 54 <= found["mmproj compute", "Host"] / MiB < 65
    assert 172 <= found["mmproj compute", "CUDA0"] / MiB < 230
    off, _ = held(
        model("gemma-3-4b-q8_0"), "-c 4096 --mmproj p -fa off", Companions(mmproj=file), 65536
    )
    assert 9.19 <= off["mmproj compute", "Host"] / MiB < 10


def test_features_that_a_projector_keeps_are_counted() -> None:
    """Qwen3-VL 8B: 323 and 4728 MiB on an MI300X."""
    file = projector(
        "qwen3vl_merger", **{"clip.vision.patch_size": 16, "clip.vision.image_size": 768}
    )
    for name in ("mm.2.bias", *(f"v.deepstack.{il}.fc1.weight" for il in (8, 16, 24))):
        ne = (4096, 1, 1, 1)
        file.tensors[name] = TensorInfo(name, "f16", ne, 1, 0, n_bytes("f16", ne))
    target = Model(header("qwen3vl", {**blocks(2)}, embedding_length=4096), "m.gguf")
    for words, measured in (("", 323), ("-fa off", 4728)):
        found, _ = held(target, f"-c 4096 --mmproj p {words}", Companions(mmproj=file), 65536)
        assert measured <= found["mmproj compute", "CUDA0"] / MiB <= 1.25 * measured


def test_a_projector_s_warm_up_takes_memory_unless_off() -> None:
    files = Companions(mmproj=projector("gemma3"))
    target = model("gemma-3-4b-q8_0")
    flash, warnings = held(target, "-c 4096 --mmproj p.gguf", files, 8192)
    plain, _ = held(target, "-c 4096 --mmproj p.gguf -fa off", files, 8192)
    none, _ = held(target, "-c 4096 --mmproj p.gguf --no-warmup", files, 8192)
    # 64 * 64 patches
    assert 4097 * 4304 * 4 < flash["mmproj compute", "CUDA0"] < plain["mmproj compute", "CUDA0"]
    assert ("mmproj compute", "CUDA0") not in none
    assert any("upper bound" in warning for warning in warnings)
    with pytest.raises(UsageError, match="mmproj device CUDA5"):
        held(target, "-c 4096 --mmproj p.gguf -mmdev CUDA5", files, 8192)


def test_context_checkpoints_exist_only_where_a_cache_cannot_be_rolled_back() -> None:
    plain, _ = held(model("llama-3.1-8b-q4_k_m"), "-c 8192", None, 24576)
    assert ("context checkpoints", "Host") not in plain
    hybrid, _ = held(model("qwen3-next-80b-a3b-q4_k_m"), "-c 8192 -np 4", None, 81920)
    assert hybrid["context checkpoints", "Host"] == 4 * 32 * (
        8 + 20 + 36 * (24 + 4 * (24576 + 524288))
    )
    off, _ = held(model("qwen3-next-80b-a3b-q4_k_m"), "-c 8192 -np 4 -ctxcp 0", None, 81920)
    assert ("context checkpoints", "Host") not in off


def test_the_prompt_cache_is_as_large_as_it_is_allowed_to_be() -> None:
    target = model("llama-3.1-8b-q4_k_m")
    assert held(target, "-c 4096", None, 24576)[0]["prompt cache", "Host"] == 8192 * MiB
    assert held(target, "-c 4096 -cram 100", None, 24576)[0]["prompt cache", "Host"] == 100 * MiB
    assert ("prompt cache", "Host") not in held(target, "-c 4096 -cram 0", None, 24576)[0]
    assert any(
        "--cache-ram -1" in warning for warning in held(target, "-c 4096 -cram -1", None, 24576)[1]
    )


def test_the_output_buffer_holds_a_row_of_logits_per_slot() -> None:
    target = model("llama-3.1-8b-q4_k_m")
    # 1.96 MiB
    assert held(target, "-c 4096", None, 24576)[0]["output buffer", "Host"] == 4 * 128256 * 4
    found = held(target, "-c 4096 --embedding", None, 24576)[0]
    row = (128256 + 4096) * 4
    assert (found["output buffer", "Host"], found["more outputs", "Host"]) == (4 * row, 508 * row)


def test_companions_are_read_from_their_files() -> None:
    path = str(FIXTURES / "headers" / "llama-3.2-1b-q8_0.gguf")
    found = companions_of(parse(["-m", "m.gguf", "-md", path]).params)
    assert found.draft is not None and found.draft.architecture == read_model(path).architecture
    assert not found.loras and found.mmproj is None
    with pytest.raises(LaunchRefused, match="not an adapter"):
        companions_of(parse(["-m", "m.gguf", "--lora", path]).params)
