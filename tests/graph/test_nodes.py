"""An operation would be lost unseen, until a launch has its peak there.

Each architecture's graphs, operation by operation, beside those recorded: most tensors lie below
the peak of memory, where launches do not see them.

    # records them: read the difference
    AUTOLAYERS_WRITE=1 python -m pytest tests/graph/test_nodes.py
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from functools import cache

import pytest
from support import FIXTURES, ROOT, WRITES, few, gpus
from support import model as fixture

from autolayers.builds import rules
from autolayers.errors import LaunchRefused
from autolayers.flags.parse import parse
from autolayers.ggml.tensor import Tensor
from autolayers.graph import builder
from autolayers.graph.llm import Llm
from autolayers.graph.outputs import done
from autolayers.memory.cache import allocate
from autolayers.memory.context import resolve
from autolayers.memory.graphs.laid_out import GraphCache
from autolayers.memory.graphs.prepare import prepare
from autolayers.memory.loaded import Loaded
from autolayers.memory.weights import place_weights
from autolayers.model import NAMES, Model, architecture, read_model
from autolayers.records import replace

PATH = ROOT / "tests" / "graph" / "nodes.json"
FUSED = "flash_attn", "lid", "gdn_ar", "gdn_ch", "hc_comb", "hc_pre", "hc_post"
# what they draft for
TARGETS = {"eagle3": "llama-3.1-8b-q4_k_m", "gemma4-assistant": "gemma-4-e4b-q4_k_m"}
# their graphs have what the smallest's lack: a selector, an indexer that chooses among the cells
LARGER = {
    "deepseek32": "mtp-ds32",
    "dflash": "dflash2",
    "glm-dsa": "mtp-glmdsa",
    "glm5-next": "glm5-next-all",
    "qwen4exp": "qwen4exp-80b",
}
# none in fixtures/, or of a build after the newest (fixtures/builds/headers)
NO_HEADER = {"apertus", "deepseek2-ocr", "plm", "beam", "kolibri1", "maion-coder", "muse-spark"}
# (tokens, whether operations are fused, build)
GRAPHS = {
    "prompt": (96, True, None),
    "token": (3, True, None),
    "not fused": (96, False, None),
    "b11400": (96, True, 11400),
    "b10000": (96, True, 10000),
    "b6000": (96, False, 6000),
}


@cache
def models() -> tuple[dict[str, Model], dict[str, Model]]:
    """The model of each architecture with the fewest layers, of those the most tensors; the same
    with an MTP block."""
    found: tuple[dict[str, Model], dict[str, Model]] = {}, {}
    chosen = {name: fixture(header) for name, header in LARGER.items()}
    for path in sorted(FIXTURES.glob("**/headers/*.gguf")):
        model = read_model(path)
        for models in found[: 1 + (model.hparams.n_layer_nextn > 0)]:
            least = models.setdefault(model.architecture, model)
            if (model.hparams.n_layer_all, -len(model.tensors)) < (
                least.hparams.n_layer_all,
                -len(least.tensors),
            ):
                models[model.architecture] = model
    return {**found[0], **chosen}, found[1]


def what_a_node_is(t: Tensor) -> str:
    return " ".join(
        map(str, (t.type, t.ne, t.nb, t.view_offs, *((s.op, s.type, s.ne) for s in t.src)))
    )


def graph(name: str, mtp: bool, n_tokens: int, fused: bool, build: int | None) -> dict[str, str]:
    """How many nodes of each operation there are, and a hash of their shapes and their sources'
    shapes."""
    known = rules(build)
    model = models()[mtp][name].read_by(known)
    mtp = mtp or name == "gemma4-assistant"
    params = parse(f"-ngl 99 -c 24576 -ub 96 -np {1 if name == 't5' else 3}".split()).params
    devices, target = gpus(1 << 20), None
    placement = place_weights(model, params, devices, mtp, known)
    if name in TARGETS:
        whose = fixture(TARGETS[name])
        theirs, of = (
            resolve(whose, params, known),
            place_weights(whose, params, devices, False, known),
        )
        placement, target = (
            replace(placement, target=of),
            (whose.hparams, theirs, allocate(whose, theirs, of)),
        )
    context = resolve(model, params, known, "mtp" if mtp else "default")
    build_graph = builder(name, mtp=mtp)
    assert build_graph is not None
    memory = allocate(model, context, placement, target)
    loaded = Loaded(model, params, context, placement, memory)
    setting = prepare(loaded, build_graph, GraphCache())
    n_seqs = context.n_seq_max
    llm = Llm(
        setting.hparams,
        context,
        n_tokens=n_tokens,
        n_seqs=n_seqs,
        n_outputs=n_seqs,
        fused_ops=dict.fromkeys(FUSED, fused),
        lookup=setting.weights(),
        backends=setting.backends,
        dev_layer=setting.dev_layer,
        full_offload=setting.full_offload,
    )
    llm.caches, llm.states = setting.caches(llm)
    done(llm, build_graph(llm))
    rows: dict[str, list[str]] = {}
    for node in llm.graph.nodes:
        rows.setdefault(node.op, []).append(what_a_node_is(node))
    llm.release()
    return {
        op: f"{len(of)} "
        f"{hashlib.sha256(repr(sorted(Counter(of).items())).encode()).hexdigest()[:6]}"
        for op, of in sorted(rows.items())
    }


def graphs(name: str) -> dict[str, dict[str, str]]:
    """The graphs of an architecture; what is as in "prompt" is left out of the others."""
    found: dict[str, dict[str, str]] = {}
    for mtp in (False, True):
        for which, (n_tokens, fused, build) in GRAPHS.items():
            if name not in models()[mtp] or (mtp and name in TARGETS):
                continue
            try:
                found[f"MTP {which}" if mtp else which] = graph(name, mtp, n_tokens, fused, build)
            except LaunchRefused:
                assert build or mtp, (name, which)  # a build that does not know it
    assert found, (
        f"{name} has no header in fixtures/: give its row in model/architectures.tsv proven=no "
        "until launches of it are recorded, or its name to NO_HEADER"
    )
    first = found["prompt"]
    return {"prompt": first} | {
        which: {op: of.get(op, "0") for op in sorted({*first, *of}) if first.get(op) != of.get(op)}
        for which, of in found.items()
        if which != "prompt"
    }


PROVEN = {name for name in NAMES if architecture(name).proven}
CASES = sorted({*PROVEN, *json.loads(PATH.read_text())} - NO_HEADER)
OWN = {"plamo2", "qwen4exp"}  # whose code no other quick test runs
QUICK = [*sorted(OWN), *few(3, [name for name in CASES if name not in OWN], 1)]


@pytest.mark.parametrize("name", QUICK)
def test_graphs_are_as_recorded(name: str) -> None:
    found = graphs(name)
    if WRITES:
        pytest.skip("recorded")
    recorded = json.loads(PATH.read_text()).get(name, {})  # test_all_are_recorded says how
    differs = [
        f"{which}: {op} is {of.get(op)}, recorded {recorded.get(which, {}).get(op)}"
        for which, of in found.items()
        for op in sorted({*of, *recorded.get(which, {})})
        if of.get(op) != recorded.get(which, {}).get(op)
    ]
    assert not differs and found.keys() == recorded.keys(), "\n".join(differs)


def test_a_temperature_of_attention_scales_each_layers_queries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ministral 3: build_inp_attn_scale of llama-graph.cpp, which the recorded header lacks."""
    name, plain = "mistral3", models()[0]["mistral3"]
    before = graph(name, False, 3, True, None)
    monkeypatch.setattr(plain.hparams, "f_attn_temp_scale", 0.1)
    after = graph(name, False, 3, True, None)
    layers = plain.hparams.n_layer
    assert int(after["MUL"].split()[0]) == int(before["MUL"].split()[0]) + layers


def test_all_are_recorded() -> None:
    if WRITES:
        rows = [
            f" {json.dumps(name)}: {{\n"
            + ",\n".join(
                f"  {json.dumps(which)}: {json.dumps(of)}" for which, of in graphs(name).items()
            )
            + "}"
            for name in CASES
        ]
        PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    recorded = json.loads(PATH.read_text())
    assert sorted(recorded) == CASES, (
        f"{sorted(PROVEN - NO_HEADER - {*recorded})}: record their graphs with "
        "AUTOLAYERS_WRITE=1 .venv/bin/python -m pytest tests/graph/test_nodes.py"
    )
    assert {name for name, of in recorded.items() if "MTP prompt" in of} == {
        name for name in NAMES if architecture(name).mtp
    } - {"gemma4-assistant"}
