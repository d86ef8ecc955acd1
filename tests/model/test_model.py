"""A model would be read with other hyperparameters than llama.cpp's.

llama.cpp's reading of a header: hyperparameters, tensor classes, and what it refuses.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from support import blocks, header, place

from autolayers.errors import ModelError, UsageError
from autolayers.flags.parse import parse
from autolayers.gguf import FileInfo, Header, TensorInfo
from autolayers.memory.cache import allocate
from autolayers.memory.context import resolve
from autolayers.model import NAMES, Model, architecture, architectures
from autolayers.model.tensors import classify
from autolayers.tables import rows


def hparams(architecture: str, **keys: object):  # type: ignore[no-untyped-def]
    return Model(header(architecture, blocks(1), **keys), "m.gguf").hparams


def swa(architecture: str, **keys: object) -> str:
    """One letter per layer: s slides, f is full; then the window's size."""
    hp = hparams(architecture, **{"block_count": 8, **keys})
    letters = "".join("s" if hp.is_swa(il) else "f" for il in range(8))
    return f"{letters} {hp.n_swa}" if hp.swa_type != "none" else "none"


@pytest.mark.parametrize(
    ("facts", "names", "message"),
    [
        (
            {"general.architecture": "clip"},
            ["v.patch_embd.weight"],
            "a projector .* give it with --mmproj",
        ),
        (
            {"general.architecture": "llama", "general.type": "adapter"},
            ["blk.0.attn_q.weight.lora_a"],
            "an adapter; give it with --lora",
        ),
        (
            {"general.architecture": "controlvector"},
            ["direction.1", "direction.31"],
            "a control vector; give it with --control-vector",
        ),
        (
            {"general.type": "imatrix"},
            ["blk.0.attn_q.weight.in_sum2"],
            "what llama-quantize --imatrix takes, not a model",
        ),
        ({}, [], "not a model that llama.cpp can load"),
    ],
)
def test_files_that_are_no_models_are_named(
    facts: dict[str, object], names: list[str], message: str
) -> None:
    tensors = {name: TensorInfo(name, "f32", (32, 1, 1, 1), 1, 0, 128) for name in names}
    with pytest.raises(ModelError, match=f"^m.gguf.*{message}"):
        Model(Header(3, 32, facts, tensors, (FileInfo("m.gguf", None, 0),)), "m.gguf")


@pytest.mark.parametrize(
    ("architecture", "keys", "pattern"),
    [
        ("llama", {"attention__sliding_window": 512}, "none"),
        ("gemma2", {}, "sfsfsfsf 4096"),
        ("gemma3", {"attention__sliding_window": 512}, "sssssfss 512"),
        ("gemma3", {"attention__sliding_window": 0}, "none"),
        ("gemma3", {}, "none"),
        (
            "gemma3",
            {"attention__sliding_window": 512, "attention__sliding_window_pattern": 2},
            "sfsfsfsf 512",
        ),
        ("gpt-oss", {"attention__sliding_window": 128}, "sfsfsfsf 128"),
        ("cohere2", {"attention__sliding_window": 4096}, "sssfsssf 4096"),
        ("laguna", {"attention__sliding_window": 64}, "fsssfsss 64"),  # the first of four is full
        (
            "smallthinker",
            {"attention__sliding_window": 64},
            "fsssfsss 4096",
        ),  # its value is ignored
        ("llama4", {}, "sssfsssf 8192"),
        ("llama4", {"attention__sliding_window": 0}, "none"),
        ("phi3", {"attention__sliding_window": 2047}, "none"),
        ("exaone4", {"attention__sliding_window": 4096}, "none"),
        (
            "step35",
            {
                "attention__sliding_window": 64,
                "attention__sliding_window_pattern": (True, False) * 4,
            },
            "sfsfsfsf 64",
        ),
        ("step35", {"attention__sliding_window": 64}, "ffffffff 64"),
        ("plamo3", {"attention__sliding_window": 32, "nextn_predict_layers": 2}, "ssssssff 32"),
    ],
)
def test_sliding_windows_are_read(architecture: str, keys: dict[str, object], pattern: str) -> None:
    assert swa(architecture, **keys) == pattern


def test_heads_are_read_for_each_layer() -> None:
    hp = hparams(
        "llama",
        block_count=2,
        attention__head_count=8,
        attention__head_count_kv=(4, 2),
        attention__key_length=96,
    )
    assert [hp.n_embd_k_gqa(il) for il in (0, 1)] == [384, 192]
    assert [hp.n_embd_v_gqa(il) for il in (0, 1)] == [128, 64]
    assert hp.n_embd_v_gqa_max == 128
    hp = hparams("llama")
    assert hparams("llama", attention__head_count=4).n_head_kv(0) == 2
    assert (hp.n_expert_shared, hp.f_norm_rms_eps, hp.get("no.such.key", 7)) == (0, 1e-5, 7)
    with pytest.raises(AttributeError):
        _ = hp.no_such_parameter


def test_recurrent_layers_are_read() -> None:
    ssm = {
        "ssm__conv_kernel": 4,
        "ssm__inner_size": 512,
        "ssm__state_size": 16,
        "ssm__group_count": 2,
        "ssm__time_step_rank": 8,
    }
    hp = hparams("qwen3next", block_count=8, **ssm)
    assert [il for il in range(8) if not hp.is_recr(il)] == [3, 7]
    assert (hp.n_embd_r(), hp.n_embd_s()) == (3 * (512 + 2 * 2 * 16), 16 * 512)
    hp = hparams("jamba", block_count=4, attention__head_count_kv=(0, 2, 0, 2), **ssm)
    assert [il for il in range(4) if hp.is_recr(il)] == [0, 2]
    assert hp.n_embd_r() == 3 * 512  # jamba never reads the group count
    hp = hparams("rwkv6", wkv__head_size=64)
    assert (hp.n_embd_r(), hp.n_embd_s()) == (2 * 256, 256 * 64)


SECTIONS = {"rope__dimension_sections": (16, 24, 24, 0)}
KDA = {
    "ssm__conv_kernel": 4,
    "kda__head_dim": 64,
    "attention__key_length_mla": 96,
    "attention__value_length_mla": 64,
}


@pytest.mark.parametrize(
    ("architecture", "keys", "name", "value"),
    [
        ("hunyuan-dense", {"expert_count": 1, "expert_used_count": 1}, "n_expert", 0),
        ("hunyuan-moe", {"expert_count": 1, "expert_used_count": 1}, "n_expert", 1),
        ("wavtokenizer-dec", {"features_length": 512}, "n_embd", 512),
        ("wavtokenizer-dec", {"features_length": 512}, "n_embd_out", 256),
        (
            "step35",
            {"attention__sliding_window": 64, "rope__dimension_count": 64},
            "n_rot_full",
            32,
        ),
        ("step35", {"attention__sliding_window": 64, "rope__dimension_count": 64}, "n_rot_swa", 64),
        ("kimi-k3", {**KDA, "attention__kv_lora_rank": 128}, "n_embd_head_v_full", 128),
        ("kimi-linear", {**KDA, "attention__kv_lora_rank": 128}, "n_embd_head_v_full", 64),
        ("nanbeige", {"num_loops": 3}, "n_layer_all", 6),
        ("nanbeige", {"num_loops": 3}, "n_layer_phys", 2),
        ("graniteswitch", {}, "router_layer", 2),
        ("graniteswitch", {}, "n_layer", 2),
        ("granite", {"deepstack_mapping": (-1, 0, 1, 1)}, "n_embd_inp", 3 * 256),
        ("qwen3vl", {"n_deepstack_layers": 3}, "n_embd_inp", 4 * 256),
        ("hunyuan_vl", SECTIONS, "rope_type", "mrope"),
        ("hunyuan_vl", {}, "rope_type", "neox"),
        ("dflash", {}, "rope_type", "neox"),
        ("dflash", {"hyper_connection__count": 4}, "rope_type", "norm"),
        ("dflash", {"hyper_connection__count": 4, **SECTIONS}, "rope_type", "mrope"),
    ],
)
def test_what_architectures_do_differently(
    architecture: str, keys: dict[str, object], name: str, value: object
) -> None:
    assert getattr(hparams(architecture, **keys), name) == value


def test_rope_can_be_turned_off() -> None:
    pattern = {"attention__sliding_window": 64, "attention__rope_pattern": (True, False)}
    assert [hparams("granite_swa", **pattern).has_rope(il) for il in (0, 1)] == [True, False]
    assert not hparams("granite", rope__scaling__finetuned=False).has_rope(0)
    assert hparams("granitemoe", rope__scaling__finetuned=False).has_rope(0)


def test_layers_that_share_a_cache_have_one() -> None:
    keys = {
        "block_count": 6,
        "attention__shared_kv_layers": 2,
        "attention__sliding_window": 512,
        "attention__key_length_swa": 64,
        "attention__value_length_swa": 64,
        "attention__sliding_window_pattern": (True, False) * 3,
    }
    model = Model(header("gemma4", blocks(6), **keys), "m.gguf")
    memory = allocate(model, resolve(model, parse(["-c", "1024"]).params), place(model))
    full, sliding = memory.cache("attn"), memory.cache("swa")
    assert full is not None and sliding is not None
    assert [layer.il for layer in full.layers] == [1, 3]
    assert [layer.il for layer in sliding.layers] == [0, 2]
    assert full.layer(5) is full.layer(3) and sliding.layer(4) is sliding.layer(2)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("token_embd.weight", ("input", -1, "GET_ROWS")),
        ("output.weight", ("output", -1, "MUL_MAT")),
        ("output_norm.weight", ("output", -1, "MUL")),
        ("token_embd_norm.weight", ("repeating", 0, "MUL")),
        ("blk.7.attn_q.weight", ("repeating", 7, "MUL_MAT")),
        ("blk.7.attn_q.bias", ("repeating", 7, "ADD")),
        ("blk.7.ffn_up_exps.weight", ("repeating", 7, "MUL_MAT_ID")),
        ("blk.7.ffn_up_exps.bias", ("repeating", 7, "ADD_ID")),
        ("blk.7.ssm_a", ("repeating", 7, "SSM_SCAN")),
        ("rope_freqs.weight", ("repeating", 0, "ROPE")),
        ("dec.blk.3.cross_attn_rel_b.weight", ("repeating", 3, "NONE")),
    ],
)
def test_tensors_have_their_classes(name: str, found: tuple[str, int, str]) -> None:
    assert classify(architecture("llama"), name) == (*found, True)


def test_names_that_mean_something_else_in_one_architecture() -> None:
    assert classify(architecture("lfm2"), "token_embd_norm.weight")[0] == "output"
    assert classify(architecture("qwen3next"), "blk.0.ssm_a")[2] == "MUL"
    assert classify(architecture("llama"), "blk.0.brand_new.weight") == (
        "repeating",
        0,
        "MUL_MAT",
        False,
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"context_length": None}, "key not found in model: llama.context_length"),
        ({"block_count": 0}, "block_count is 0"),
        ({"block_count": 1 << 31}, "block_count is 2147483648"),
        ({"block_count": -1}, "impossible value: -1"),
        ({"embedding_length": "wide"}, "impossible value: 'wide'"),
        ({"attention__head_count": (4, 4, 4)}, "head_count has 3 values, expected 2"),
        ({"nextn_predict_layers": 3}, "nextn_predict_layers exceeds block_count"),
        ({"expert_count": 5000}, "expert_count is 5000"),
    ],
)
def test_headers_that_llama_cpp_would_not_load(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message) as refused:
        hparams("llama", **keys)
    assert "\n" not in str(refused.value) and "m.gguf" in str(refused.value)


def test_files_that_are_no_model() -> None:
    with pytest.raises(ModelError, match=r"no general\.architecture"):
        Model(Header(3, 32, {}, {}, (FileInfo("m.gguf", 0, 0),)), "m.gguf")
    with pytest.raises(ModelError, match="--mmproj"):
        Model(
            Header(3, 32, {"general.architecture": "clip"}, {}, (FileInfo("m.gguf", 0, 0),)),
            "m.gguf",
        )


def test_overridden_keys_count() -> None:
    model = Model(header("llama", blocks(2)), "m.gguf")
    other = model.overridden((("llama.context_length", "int:1024"), ("general.name", "str:other")))
    assert (other.n_ctx_train, other.name, model.n_ctx_train, model.name) == (
        1024,
        "other",
        4096,
        "m",
    )
    assert model.overridden(()) is model
    # of two for one key llama.cpp keeps the first
    two = (("llama.context_length", "int:1024"), ("llama.context_length", "int:2048"))
    assert model.overridden(two).hparams.n_ctx_train == 1024
    with pytest.raises(UsageError, match="KEY=int:N"):
        model.overridden((("llama.context_length", "number:1024"),))
    with pytest.raises(UsageError, match="int:1_024"):  # of which llama.cpp's atol reads 1
        model.overridden((("llama.context_length", "int:1_024"),))


def test_an_unknown_architecture_is_an_upper_bound_never_zero() -> None:
    known = Model(header("llama", blocks(2)), "m.gguf")
    unknown = Model(header("tomorrow", blocks(2)), "m.gguf")
    assert known.inexact == () and "tomorrow" in unknown.inexact[0]
    params = parse(["-c", "4096"]).params
    sizes = [
        sum(allocate(model, resolve(model, params), place(model)).buffers.values())
        for model in (known, unknown)
    ]
    assert sizes[1] >= sizes[0] > 0
    bare = Model(
        Header(
            3, 32, {"general.architecture": "tomorrow"}, dict(known.tensors), known.header.files
        ),
        "m.gguf",
    )
    assert bare.n_layer == 2
    assert sum(allocate(bare, resolve(bare, params), place(bare)).buffers.values()) >= sizes[0]


def test_every_architecture_has_one_row() -> None:
    names = [row["name"] for row in rows("model/architectures.tsv")]
    assert not [name for name, count in Counter(names).items() if count > 1], "two rows of a name"
    assert all(architecture(name).known for name in NAMES)


def fields(of: type) -> dict[str, set[str] | None]:
    """The words that each field of a record may have, as its annotation says; None: another type"""
    (record,) = (
        node
        for node in ast.walk(ast.parse(Path(architectures.__file__).read_text()))
        if isinstance(node, ast.ClassDef) and node.name == of.__name__
    )
    words: dict[str, set[str] | None] = {}
    for node in record.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = ast.unparse(node.annotation)
            literal = text.startswith("Literal[")
            words[node.target.id] = set(ast.literal_eval(text[7:])) if literal else None
    return words


@pytest.mark.slow
def test_every_word_of_the_table_is_one_that_its_field_has() -> None:
    wrong = []
    for name in NAMES:
        row = architecture(name)
        for one in (row, *filter(None, [row.window])):
            for field, words in fields(type(one)).items():
                value, plain = getattr(one, field), getattr(type(one)(*ARGUMENTS[type(one)]), field)
                if words is not None and value not in words:
                    wrong.append((name, field, value))
                if isinstance(plain, (bool, int, str, tuple, dict)):
                    wrong += [(name, field, value)] * (type(value) is not type(plain))
    assert not wrong
    before = {field for name in NAMES for _, other in architecture(name).before for field in other}
    assert before <= fields(architectures.Architecture).keys()


ARGUMENTS: dict[type, tuple[str, ...]] = {
    architectures.Architecture: ("",),
    architectures.SlidingWindow: (),
}
