"""A weight would be counted on the wrong device.

Where each weight goes: layers, devices, overrides, copies, skipped blocks; on models small
enough to write down.
"""

from __future__ import annotations

import gc
import re
import weakref

import pytest
from support import HEADERS, blocks, header, place, slow

import autolayers
from autolayers.builds import rules
from autolayers.errors import UsageError
from autolayers.flags.parse import parse
from autolayers.machine import Device
from autolayers.memory.cache import allocate
from autolayers.memory.context import resolve
from autolayers.memory.ecmascript import TensorMatcher, ecmascript
from autolayers.memory.weights import place_weights
from autolayers.model import Model

MiB = 1 << 20


@pytest.fixture
def llama() -> Model:
    return Model(
        header("llama", {**blocks(4), "output.weight": ("f32", (256, 1000))}, block_count=4),
        "m.gguf",
    )


@pytest.mark.parametrize(
    ("words", "mib", "layers"),
    [
        ("-ngl 0", (8192,), "CPU CPU CPU CPU CPU"),
        # the output layer is the first one offloaded
        ("-ngl 1", (8192,), "CPU CPU CPU CPU CUDA0"),
        ("-ngl 3", (8192,), "CPU CPU CUDA0 CUDA0 CUDA0"),
        ("", (8192,), "CUDA0 CUDA0 CUDA0 CUDA0 CUDA0"),
        ("-ngl 99", (8192, 8192), "CUDA0 CUDA0 CUDA0 CUDA1 CUDA1"),
        ("-ngl 99", (24576, 8192), "CUDA0 CUDA0 CUDA0 CUDA0 CUDA1"),
        ("-ngl 99 -ts 1,4", (24576, 8192), "CUDA0 CUDA1 CUDA1 CUDA1 CUDA1"),
        ("-ngl 99 -ts 1,0", (8192, 8192), "CUDA0 CUDA0 CUDA0 CUDA0 CUDA0"),
        # all zero counts as not given
        ("-ngl 99 -ts 0,0", (8192, 8192), "CUDA0 CUDA0 CUDA0 CUDA1 CUDA1"),
        ("-ngl 3 -ts 1,1", (8192, 8192), "CPU CPU CUDA0 CUDA0 CUDA1"),
        ("-ngl 99 -sm none -mg 1", (8192, 8192), "CUDA1 CUDA1 CUDA1 CUDA1 CUDA1"),
        ("-ngl 99 -dev CUDA1,CUDA0 -ts 3,2", (8192, 8192), "CUDA1 CUDA1 CUDA1 CUDA0 CUDA0"),
        ("-ngl 99 -dev none", (8192,), "CPU CPU CPU CPU CPU"),
    ],
)
def test_layers_are_on_their_devices(
    llama: Model, words: str, mib: tuple[int, ...], layers: str
) -> None:
    placement = place(llama, words, *mib)
    assert " ".join((*placement.dev_layer, placement.dev_output)) == layers


def test_which_devices_are_used() -> None:
    llama = Model(header("llama", blocks(2)), "m.gguf")
    igpu = Device("Vulkan1", 1 << 34, 1 << 34, backend="Vulkan", kind="igpu")
    rpc = Device("RPC0", 1 << 34, 1 << 34, backend="RPC", kind="rpc")
    gpu = Device("CUDA0", 1 << 34, 1 << 34, pci_id="0000:01:00.0")
    again = Device("Vulkan0", 1 << 34, 1 << 34, backend="Vulkan", pci_id="0000:01:00.0")

    def used(*devices: Device) -> list[str]:
        return [device.name for device in place_weights(llama, parse([]).params, devices).devices]

    # servers first, each card once, no iGPU with a card
    assert used(gpu, again, igpu, rpc) == ["RPC0", "CUDA0"]
    assert used(igpu, rpc) == ["RPC0", "Vulkan1"]


@pytest.mark.parametrize(
    ("words", "on_cpu"),
    [
        (
            "-ot output=CPU",
            {"output.weight", "output_norm.weight"}
            | {f"blk.{i}.attn_output.weight" for i in range(4)},
        ),
        ("-ot ^output=CPU", {"output.weight", "output_norm.weight"}),
        (
            r"-ot blk\.[01]\.attn_(q|k)=CPU",
            {f"blk.{i}.attn_{x}.weight" for i in (0, 1) for x in "qk"},
        ),
        # the first pattern that is found wins
        (r"-ot blk\.3\.=CUDA0,.*=CPU", None),
        ("-ncffn 2", {f"blk.{i}.ffn_up.weight" for i in (0, 1)}),
    ],
)
def test_overrides_move_tensors(llama: Model, words: str, on_cpu: set[str] | None) -> None:
    placement = place(llama, words)
    found = {placed.name for placed in placement.tensors if placed.buffer != "CUDA0"}
    everything = set(llama.tensors)
    expected = (
        {name for name in everything if not name.startswith("blk.3.")}
        if on_cpu is None
        else on_cpu | {"token_embd.weight"}
    )
    assert found == expected


def test_an_override_to_a_device_that_is_not_there(llama: Model) -> None:
    with pytest.raises(UsageError, match="unknown buffer type: CUDA7"):
        place(llama, "-ot output=CUDA7")


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("output$", "output", True),
        ("output$", "output\n", False),
        ("[[:digit:]]+", "blk.12", True),
        (r"blk\.(?:1|2)\.", "blk.2.x", True),
        (r"blk\.(?!0\.)\d+", "blk.0.x", False),
        (r"\d{2,}", "blk.12", True),
        (r"\w", "é", False),
        ("[^a-z.]", "a.b", False),
    ],
)
def test_regexes_mean_what_they_mean_in_cpp(pattern: str, text: str, matches: bool) -> None:
    assert (ecmascript(pattern).search(text) is not None) is matches


NAMES = [
    f"{before}blk.{il}.{name}"
    for before in ("", "enc.")
    for il in (1, 2, 11, 12)
    for name in (
        "ffn_up.weight",
        "ffn_up_exps.weight",
        "ffn_gate_up_exps.weight",
        "ffn_up_chexps.weight",
        "attn_q.weight",
    )
]
NAMES += ["output.weight", "token_embd.weight", "blk.1", "x.blk.1.blk.2.y"]


@pytest.mark.parametrize(
    "pattern",
    [
        r"blk\.1\.ffn_(up|down|gate_up|gate)_(ch|)exps",
        r"blk\.1\.ffn_(gate|up|gate_up|down).*",
        r"blk\.1\.",
        r"blk\.1\.*",
        r"blk\.1\.?",
        r"blk\.1\.ffn|attn_q",
        r"blk\.1\.(ffn|(attn|x)_q)",
        r"blk\.1\.[^|]",
        r"blk\.1\.\(|attn",
        r"blk\.(1|11)\.ffn",
        r"blk\.1.\.ffn",
        r"blk\.1\.^ffn",
        r"blk\.1\.ffn_up\.weight$",
        r"^blk\.1\.",
        r"blk.1.ffn",
        r"blk\.2\.y",
        r"blk\.1\.(f)\1",
        r"blk\.1\.(f)\1n_up",
        "output",
    ],
)
def test_a_regex_that_names_a_layer_is_found_where_a_search_finds_it(pattern: str) -> None:
    """Most of a plan's regexes begin with one layer's name; only that layer's tensors are then
    looked at."""
    assert TensorMatcher(NAMES).find(pattern) == [
        i for i, name in enumerate(NAMES) if ecmascript(pattern).search(name)
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        "(.*)*Q",
        "(([a-z.0-9]+)*)*Q",
        "(a?){30}a{30}",
        ".*a.*a.*a.*a.*a.*Q",
        "(?=(a+)+)x",
        r"((a+)+)\2",
        "((a{1,100}){1,100}){1,100}",
        r"(\w*)*x",
        r"(b|bl|blk|k|\.)+1\b",
        r"blk\.1\.(f+)+(n_.*)*weight$",
        "(?:[a-z]+\\.?)+?x",
        "([^)|]*[)])+x",
        "x(a|[|)]b)*",
        "(a|a)*",
        "(?:(?:a|a){2}){40}b",
    ],
)
def test_patterns_that_could_take_for_ever_are_refused(pattern: str) -> None:
    for find in (ecmascript, TensorMatcher(NAMES).find):
        with pytest.raises(UsageError, match=re.escape(repr(pattern)) + " may take for ever"):
            find(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r".*blk\.\d+\.ffn_.*_(up|down|gate)_exps.*",
        r"blk\.(1[0-9]|2[0-9])\.ffn_(gate|up|gate_up|down).*",
        r"^(?:enc\.)?blk\.([0-9]|[1-3][0-9])\.(?:ffn_.*|attn_q)\.weight$",
        r"blk\.\d{1,3}\..*\..*",
        r"(blk\.1|output){1}",
        r"blk\.(" + "|".join(map(str, range(99))) + r")\.ffn_(gate|up|down)_exps\.weight",
        r"[*+(|]*x",
        r"\(\*\)\*",
    ],
)
def test_patterns_as_users_write_them_are_not(pattern: str) -> None:
    expected = [name for name in NAMES if re.search(pattern, name)]
    assert [NAMES[i] for i in TensorMatcher(NAMES).find(pattern)] == expected


def test_a_pattern_that_is_slow_on_hostile_names_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the slowest patterns that are taken, on 10,000 of the longest names: 10 minutes
    without a limit."""
    monkeypatch.setattr("autolayers.memory.ecmascript._SECONDS", 0.1)
    names = [f"{'a' * 56}{number:06}" for number in range(10_000)]
    with pytest.raises(UsageError, match="too long"):
        TensorMatcher(names).find("a.*a.*a.*a.*Q")


@pytest.mark.parametrize("pattern", ["blk\\.1\\.(", "blk\\.1\\.ffn++"])
def test_a_bad_regex_is_named_whole(pattern: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(pattern))):
        TensorMatcher(NAMES).find(pattern)


@pytest.mark.parametrize(
    "pattern", ["(", "[a", "*a", "(?P<n>a)", "(?i)a", "a++", r"\Aa", "[[:nothing:]]"]
)
def test_regexes_that_cpp_refuses(pattern: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(pattern))):
        ecmascript(pattern)


def test_tied_embeddings_are_copied_to_the_output_layers_device() -> None:
    tied = Model(header("llama", blocks(2)), "m.gguf")
    copies = [placed.buffer for placed in place(tied).tensors if placed.name == "token_embd.weight"]
    assert copies == ["CUDA_Host", "CUDA0"]
    assert place(tied).output.buffer == "CUDA0"  # type: ignore[union-attr]
    copies = [
        placed.buffer
        for placed in place(tied, "-ngl 0").tensors
        if placed.name == "token_embd.weight"
    ]
    assert copies == ["CUDA_Host"]


def test_tied_embeddings_are_stored_twice_where_the_processor_repacks_them() -> None:
    tied = Model(header("llama", blocks(2, "q4_K")), "m.gguf")
    copies = [
        placed.buffer
        for placed in place(tied, "-dev none").tensors
        if placed.name == "token_embd.weight"
    ]
    assert copies == ["CPU", "CPU_REPACK"]
    copies = [
        placed.buffer
        for placed in place(tied, "-dev none -nr").tensors
        if placed.name == "token_embd.weight"
    ]
    assert copies == ["CPU"]


@pytest.mark.parametrize(
    ("words", "mib", "copies"),
    [
        ("", (8192,), {"CUDA0"}),
        ("-ngl 2", (8192,), {"CUDA0", "CUDA_Host"}),
        # the other device has nothing but the output layer
        ("-ngl 2 -ts 1,1", (8192, 8192), {"CUDA0", "CUDA_Host"}),
        ("", (8192, 8192), {"CUDA0", "CUDA1"}),
    ],
)
def test_rope_factors_are_copied_to_every_device_that_uses_them(
    words: str, mib: tuple[int, ...], copies: set[str]
) -> None:
    model = Model(
        header("llama", {**blocks(4), "rope_freqs.weight": ("f32", (32,))}, block_count=4), "m.gguf"
    )
    found = [
        placed.buffer
        for placed in place(model, words, *mib).tensors
        if placed.name == "rope_freqs.weight"
    ]
    assert len(found) == len(set(found))
    assert set(found) == copies


def test_mtp_blocks_are_skipped_unless_they_draft() -> None:
    tensors = {
        **blocks(3),
        "blk.2.nextn.eh_proj.weight": ("f32", (512, 256)),
        "blk.2.nextn.enorm.weight": ("f32", (256,)),
    }
    model = Model(header("glm4moe", tensors, block_count=3, nextn_predict_layers=1), "m.gguf")
    assert not any(placed.name.startswith("blk.2.") for placed in place(model).tensors)
    assert any(placed.name.startswith("blk.2.") for placed in place(model, load_mtp=True).tensors)
    # n_gpu_layers counts them all the same
    assert place(model, "-ngl 2").dev_layer == ("CPU", "CPU", "CUDA0")
    never = Model(header("exaone4", tensors, block_count=3, nextn_predict_layers=1), "m.gguf")
    assert not any(
        placed.name.startswith("blk.2.") for placed in place(never, load_mtp=True).tensors
    )


def test_mtp_tensors_that_llama_cpp_loads_all_the_same() -> None:
    tensors = {
        **blocks(3, "f32"),
        "blk.2.exp_probs_b.bias": ("f32", (8,)),
        "blk.2.nextn.embed_tokens.weight": ("f32", (256, 1000)),
    }
    model = Model(header("hy_v3", tensors, block_count=3, nextn_predict_layers=1), "m.gguf")
    leaked = {placed.name for placed in place(model).tensors if placed.name.startswith("blk.2.")}
    assert leaked == {
        "blk.2.ffn_up.weight",
        "blk.2.exp_probs_b.bias",
        "blk.2.nextn.embed_tokens.weight",
    }


def test_an_mtp_context_keeps_the_drafting_blocks_only() -> None:
    model = Model(header("glm4moe", blocks(3), block_count=3, nextn_predict_layers=1), "m.gguf")
    params = parse(["-c", "1024", "-np", "2", "--spec-type", "draft-mtp"]).params
    for kind, layers in (("default", [0, 1]), ("mtp", [2])):
        context = resolve(model, params, kind=kind)
        memory = allocate(model, context, place(model, load_mtp=True))
        assert [layer.il for layer in memory.caches[0].layers] == layers


# backends


@pytest.mark.parametrize(
    ("tensor", "type_", "ne", "buffer"),
    [
        ("blk.0.ffn_up.weight", "tq2_0", (256, 256), "CPU"),  # CUDA has no kernel for it
        ("blk.0.ffn_up.weight", "q4_K", (256, 256), "CUDA0"),
        ("blk.0.attn_norm.weight", "bf16", (256,), "CPU"),  # nor for multiplying f32 with bf16
        ("blk.0.ssm_conv1d.weight", "f32", (4, 128), "CUDA0"),
        ("blk.0.ssm_conv1d.weight", "f32", (4, 100), "CPU"),  # 128 channels at a time
    ],
)
def test_ops_that_a_backend_lacks_move_their_weight_to_the_host(
    tensor: str, type_: str, ne: tuple[int, ...], buffer: str
) -> None:
    model = Model(header("llama", {**blocks(2), tensor: (type_, ne)}), "m.gguf")
    assert place(model).lookup(tensor).buffer == buffer  # type: ignore[union-attr]


def test_split_mode_row_is_an_upper_bound(llama: Model) -> None:
    devices = [Device(name, 1 << 33, 1 << 33) for name in ("CUDA0", "CUDA1")]
    placement = place_weights(llama, parse(["-sm", "row"]).params, devices, rules=rules(9886))
    assert not placement.exact and placement.warnings
    matrices = sum(
        info.n_bytes
        for name, info in llama.tensors.items()
        if info.ne[1] > 1 and name != "token_embd.weight"
    )
    assert all(placement.buffers[name] >= matrices // 2 for name in ("CUDA0", "CUDA1"))


def test_what_must_stay_in_ram_of_mapped_weights(llama: Model) -> None:
    embedding = llama.tensors["token_embd.weight"].n_bytes
    assert place(llama).resident == embedding
    assert place(llama, "-lm none").resident == place(llama, "-lm none").host


@pytest.mark.parametrize(
    ("words", "maps"),
    [
        ("", False),
        ("-lm auto", False),
        ("-lm mmap", True),
        ("-lm mmap+mlock", True),
        ("-lm none", False),
        ("-lm mlock", False),
        ("-lm dio", False),
    ],
)
def test_a_given_load_mode_maps_beside_an_integrated_gpu(
    llama: Model, words: str, maps: bool
) -> None:
    """load_tensors asks devices whether they support mmap with `auto` alone."""
    device = Device("Vulkan0", 1 << 33, 1 << 33, backend="Vulkan", kind="igpu")
    params = parse([*words.split(), "-ngl", "1"]).params
    placement = place_weights(llama, params, [device], rules=rules(11549))
    assert (placement.mapped > 0) is maps
    assert placement.resident < placement.host if maps else placement.resident == placement.host


def test_sizes_on_backends_that_nobody_compared_are_called_upper_bounds() -> None:
    llama = Model(header("llama", blocks(2)), "m.gguf")
    for name, exact in (
        ("CUDA", True),
        ("Vulkan", False),
        ("MTL", False),
        ("RPC", False),
        ("NEXT", False),
    ):
        device = Device(
            f"{name}0", 1 << 34, 1 << 34, backend=name, kind="rpc" if name == "RPC" else "gpu"
        )
        placement = place_weights(llama, parse([]).params, [device])
        assert placement.exact is exact
        said = {"MTL": "Metal"}.get(name, name)
        assert exact or said in placement.warnings[0]
        assert placement.buffers[device.name] > 0


@pytest.mark.parametrize("words", ["", slow("--engine ik_llama.cpp")])
def test_a_model_and_its_placements_are_freed_with_their_plan(words: str) -> None:
    """A server that plans for days holds no more: nothing waits for the garbage collector."""
    whole = autolayers.read_model(HEADERS / "llama-3.2-1b-q8_0.gguf")
    gone = weakref.ref(whole)
    gc.disable()
    try:
        autolayers.plan(whole, ["--gpu", "1GiB", "--ram", "8GiB", *words.split()])
        del whole
        assert gone() is None
    finally:
        gc.enable()
