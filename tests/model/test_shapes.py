"""A file that llama.cpp refuses would get a plan.

Files that llama.cpp's loader refuses: tensors that contradict the keys or the tokens, too many,
too few.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support import FIXTURES, few, gguf, gpus, model, says, with_tensors, write_gguf

import autolayers
from autolayers import bundled
from autolayers.flags.parse import parse
from autolayers.gguf import ArrayInfo, FileInfo, Header, TensorInfo, n_bytes
from autolayers.memory.companions import Companions
from autolayers.memory.estimate import Estimator
from autolayers.model import NAMES, Model, architecture
from autolayers.model.created import CREATED, SHAPES
from autolayers.model.shapes import _created, _extents, _sizes

PARAMS = parse(["-c", "512", "-ngl", "99"]).params


def changed(
    name: str,
    keys: dict[str, object] | None = None,
    tensors: dict[str, tuple[int, ...] | None] | None = None,
) -> Model:
    """A model of the fixtures with other keys (without the architecture) and tensors (None: without
    that one)."""
    whole = model(name).header
    prefix = f"{whole.metadata['general.architecture']}."
    metadata = {
        **whole.metadata,
        **{
            key if "." in key and key.startswith("tokenizer") else prefix + key: value
            for key, value in (keys or {}).items()
        },
    }
    there = dict(whole.tensors)
    for tensor, dims in (tensors or {}).items():
        there.pop(tensor, None)
        if dims is not None:
            ne = (*dims, 1, 1, 1, 1)[:4]
            there[tensor] = TensorInfo(tensor, "f32", ne, len(dims), 0, n_bytes("f32", ne))
    return Model(Header(3, 32, metadata, there, whole.files), "m.gguf")


def refused(broken: Model) -> str:
    with pytest.raises(autolayers.ModelError) as error:
        autolayers.estimate(broken, PARAMS, gpus(8192))
    return str(error.value)


# what llama.cpp b11549 says of these files, without its spaces and the name of its function
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (
            ("llama-dense", {"tokenizer.ggml.tokens": ArrayInfo("str", 126)}, {}),
            "tensor 'token_embd.weight' has wrong shape; expected 256, 126, got 256, 128, 1, 1",
        ),
        (
            ("llama-dense", {}, {"blk.0.ffn_gate.weight": (256, 999)}),
            "tensor 'blk.0.ffn_gate.weight' has wrong shape; expected 256, 384, got 256, 999, 1, 1",
        ),
        (
            ("llama-dense", {"feed_forward_length": 7}, {}),
            "tensor 'blk.0.ffn_gate.weight' has wrong shape; expected 256, 7, got 256, 384, 1, 1",
        ),
        (
            ("llama-dense", {"feed_forward_length": 0}, {}),
            "tensor 'blk.0.ffn_gate.weight' has wrong shape; expected 256, 0, got 256, 384, 1, 1",
        ),
        (
            ("llama-dense", {"embedding_length": 128}, {}),
            "tensor 'token_embd.weight' has wrong shape; expected 128, 128, got 256, 128, 1, 1",
        ),
        (("llama-dense", {"block_count": 1}, {}), "wrong number of tensors; expected 64, got 34"),
        (("llama-dense", {"rope.dimension_count": 64}, {}), "invalid n_rot: 64, expected 128"),
        (
            ("qwen3-30b-a3b-q4_k_m", {"attention.head_count_kv": 3}, {}),
            "tensor 'blk.0.attn_k.weight' has wrong shape; expected 2048, 384, got 2048, 512, 1, 1",
        ),
        (
            ("qwen3-30b-a3b-q4_k_m", {"expert_count": 64}, {}),
            "tensor 'blk.0.ffn_gate_inp.weight' has wrong shape; expected 2048, 64, got 2048, 128, "
            "1, 1",
        ),
        (
            ("qwen3-8b-q4_k_m", {"vocab_size": 151000}, {}),
            "tensor 'token_embd.weight' has wrong shape; expected 4096, 151000, got 4096, 151936, "
            "1, 1",
        ),
    ],
)
def test_a_file_is_refused_with_the_words_of_llama_cpp(
    broken: tuple[str, dict[str, object], dict[str, tuple[int, ...]]], words: str
) -> None:
    try:
        found = refused(changed(*broken))
    except autolayers.ModelError as error:  # of the keys alone
        found = str(error)
    assert words in found


@pytest.mark.parametrize(
    ("header", "tensor"),
    [
        ("llama-dense", "output_norm.weight"),
        ("llama-dense", "token_embd.weight"),
        ("llama-dense", "blk.1.attn_norm.weight"),
        ("minimax-01-moe", "blk.0.attn_norm_2.weight"),
        ("kimi-linear-moe", "blk.0.attn_kv_a_norm.weight"),
    ],
)
def test_a_file_without_a_tensor_is_refused(header: str, tensor: str) -> None:
    found = refused(changed(header, {}, {tensor: None}))
    assert f"model without {tensor}: llama.cpp does not load it" in found


def test_one_that_a_graph_of_few_layers_does_not_meet_is_not_exact() -> None:
    """Layers that are alike are laid out once, so that block 22 is not looked at."""
    whole = changed("qwen3-8b-q4_k_m")
    lacking = changed("qwen3-8b-q4_k_m", {}, {"blk.22.ffn_down.weight": None})
    assert autolayers.estimate(whole, PARAMS, gpus(24576)).exact
    found = autolayers.estimate(lacking, PARAMS, gpus(24576))
    assert not found.exact and any(
        "blk.22.ffn_down.weight is missing" in warning for warning in found.warnings
    )


@pytest.mark.parametrize(
    ("tensor", "dims"), [("v.blk.0.attn_q.weight", (8, 8)), ("blk.0.attn_q_norm.weight", (128,))]
)
def test_a_tensor_too_many_is_never_exact(tensor: str, dims: tuple[int, ...]) -> None:
    """Unknown to llama.cpp, and known but not read for this architecture."""
    found = autolayers.estimate(changed("llama-dense", {}, {tensor: dims}), PARAMS, gpus(8192))
    assert not found.exact
    assert any(
        "wrong number of tensors; expected 65, got 64" in warning for warning in found.warnings
    )


def test_ollama_is_not_refused_for_what_llama_cpp_refuses() -> None:
    broken = changed("llama-dense", {"tokenizer.ggml.tokens": ArrayInfo("str", 126)})
    theirs = Model(broken.header, "m.gguf", checked=False)
    assert (
        broken.refusal and not theirs.refusal and not theirs.overridden((("a", "int:1"),)).refusal
    )
    assert autolayers.estimate(theirs, PARAMS, gpus(8192)).host.total


def test_a_key_that_is_overridden_mends_the_file() -> None:
    broken = changed("llama-dense", {"feed_forward_length": 7})
    words = ["-c", "512", "--override-kv", "llama.feed_forward_length=int:384"]
    assert autolayers.estimate(broken, parse(words).params, gpus(8192)).exact


def test_a_vocabulary_without_tokens_has_the_size_that_its_key_says() -> None:
    """llama_vocab of tokenizer.ggml.model "none" does not read the list."""
    none = {
        "tokenizer.ggml.model": "none",
        "tokenizer.ggml.tokens": ArrayInfo("str", 9),
        "vocab_size": 128,
    }
    assert not changed("llama-dense", none).refusal
    assert not changed(
        "llama-dense",
        {
            **none,
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ArrayInfo("str", 128),
            "vocab_size": 9,
        },
    ).refusal


def every_header() -> list[Path]:
    return [
        path
        for path in sorted(FIXTURES.glob("**/*.gguf"))
        if path.name != "types.gguf" and "split" not in path.name
    ]


@pytest.mark.slow
def test_no_file_that_llama_cpp_loads_is_refused() -> None:
    """Its own loader takes each of these: fixtures/README.md."""
    known = [autolayers.read_model(path) for path in every_header()]
    assert len(known) > 350
    assert {each.path: each.refusal for each in known if each.refusal} == {}
    assert {
        each.path: each.inexact
        for each in known
        if any("tensors that" in why or "missing" in why for why in each.inexact)
    } == {}


@pytest.mark.parametrize("path", every_header()[::16], ids=lambda path: path.stem)
def test_a_file_that_llama_cpp_loads_is_not_refused(path: Path) -> None:
    known = autolayers.read_model(path)
    assert known.refusal == "" and not any("tensors that" in why for why in known.inexact)


@pytest.mark.slow
@pytest.mark.parametrize("name", few(16, bundled.models()))
def test_one_wrong_dimension_is_refused_or_not_exact(name: str) -> None:
    chance = random.Random(f"dimension of {name}")
    whole = bundled.read(name)
    names = [each for each in whole.tensors if not each.startswith("rope_")]
    for _ in range(20):
        info = whole.tensors[chance.choice(names)]
        ne = list(info.ne)
        i = chance.randrange(info.n_dims)
        ne[i] = max(
            1,
            chance.choice([ne[i] + 1, ne[i] * 2, ne[i] // 2, ne[i] + 32, ne[i] - 32])
            - (ne[i] == 1),
        )
        ne[i] += ne[i] == info.ne[i]
        wrong = TensorInfo(info.name, "f32", (ne[0], ne[1], ne[2], ne[3]), info.n_dims, 0, 4)
        header = Header(
            3, 32, whole.header.metadata, {**whole.tensors, info.name: wrong}, whole.header.files
        )
        broken = Model(header, "m.gguf")
        assert broken.refusal or broken.inexact, (info.name, info.ne, ne)


# --- all that reads a model says the same


@pytest.fixture
def broken_file(tmp_path: Path) -> Path:
    start, _ = gguf("llama-dense")
    tensors = [
        TensorInfo(
            each.name,
            each.type,
            (256, 999, 1, 1) if each.name == "blk.0.ffn_gate.weight" else each.ne,
            each.n_dims,
        )
        for each in model("llama-dense").tensors.values()
    ]
    first = tensors[0].name.encode()
    head = start[: start.index(len(first).to_bytes(8, "little") + first)]
    return write_gguf(tmp_path / "broken.gguf", *with_tensors(head, tensors, 32))


@pytest.mark.parametrize(
    "words",
    [["{}", "--json"], ["inspect", "{}"], ["explain", "{}"], ["sweep", "{}"], ["choose", "{}"]],
    ids=lambda words: words[0],
)
def test_every_command_refuses_it_alike(words: list[str], broken_file: Path) -> None:
    machine = [] if words[0] == "inspect" else ["--gpu", "8GiB", "--ram", "8GiB"]
    done = says(*[word.format(broken_file) for word in words], *machine)
    assert done.returncode == 3
    said = "tensor 'blk.0.ffn_gate.weight' has wrong shape; expected 256, 384, got 256, 999, 1, 1"
    assert said in done.stderr + done.stdout and "Traceback" not in done.stderr


def test_the_page_refuses_it_too(broken_file: Path) -> None:
    from autolayers.web.engine import Engine

    engine = Engine()
    engine.add("broken.gguf", broken_file.stat().st_size, broken_file.read_bytes()[: 1 << 20])
    answer = engine.call("plan", {"model": "broken.gguf", "gpu": "8", "ram": "8"})
    assert (
        answer["kind"] == "ModelError" and "has wrong shape; expected 256, 384" in answer["error"]
    )


# --- the files that come with a model


@pytest.mark.parametrize(
    ("kind", "tensor", "ne"),
    [
        ("gemma3", "mm.input_projection.weight", lambda width: (width, 64)),
        ("gemma4v", "mm.input_projection.weight", lambda width: (64, width)),
        ("pixtral", "mm.2.weight", lambda width: (64, width)),
        ("qwen2.5vl_merger", "mm.2.bias", lambda width: (width,)),
        ("internvl", "mm.model.mlp.3.weight", lambda width: (64, width)),
    ],
)
def test_a_projector_of_another_width_is_refused(
    kind: str, tensor: str, ne: Callable[[int], tuple[int, ...]]
) -> None:
    def projector(width: int) -> Companions:
        dims = (*ne(width), 1, 1, 1)[:4]
        info = TensorInfo(tensor, "f32", (dims[0], dims[1], dims[2], dims[3]), 2, 0, 4)
        keys = {"general.architecture": "clip", "clip.projector_type": kind}
        return Companions(
            mmproj=Header(3, 32, keys, {tensor: info}, (FileInfo("p.gguf", None, 0),))
        )

    eight = model("qwen3-8b-q4_k_m")
    Estimator(eight, companions=projector(4096))
    with pytest.raises(
        autolayers.LaunchRefused,
        match=re.escape("mismatch between text model (n_embd = 4096) and mmproj (n_embd = 2560)"),
    ):
        Estimator(eight, companions=projector(2560))


def test_a_draft_that_llama_cpp_does_not_load_is_named() -> None:
    draft = changed("qwen3-0.6b-q8_0", {"feed_forward_length": 7})
    with pytest.raises(
        autolayers.ModelError,
        match=r"^m\.gguf: tensor 'blk.0.ffn_gate.weight' has "
        r"wrong shape",
    ):
        Estimator(model("qwen3-8b-q4_k_m"), companions=Companions(draft=draft))


# --- the table


def test_the_table_has_every_architecture_that_is_loaded() -> None:
    """Of one that is not proven yet, shapes are not compared."""
    missing = [name for name in NAMES if architecture(name).proven and name not in CREATED]
    assert not missing, (
        f"{missing}: write what load_arch_tensors creates as a line of model/created.tsv, "
        "or proven=no into its row of model/architectures.tsv until then"
    )
    assert set(CREATED) <= set(NAMES), "lines of model/created.tsv without an architecture"


@pytest.mark.parametrize("architecture", sorted(CREATED))
def test_each_row_can_be_read(architecture: str) -> None:
    """Of names that llama.cpp has, and of sizes that are known."""
    hp = model("llama-dense").hparams
    sizes = {**_sizes(hp, 0, {}), "n_ff_exp": 1, "ratio": 1}
    created = _created(architecture)
    assert "token_embd.weight" in created
    for name, entry in created.items():
        assert len(entry.dims) <= 4, name
        for dimension in entry.dims:
            assert isinstance(_extents(dimension, sizes), tuple)


def test_no_usual_shape_is_without_a_user() -> None:
    words = " ".join(CREATED.values()).split()
    used = {word.rstrip("!*") for word in words if ":" not in word}
    assert {text.partition(":")[0] for text in SHAPES.split()} <= used
