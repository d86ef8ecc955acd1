"""Readers of the rules of thumb would compute other numbers than the program.

The published rules of thumb: every worked example, what is refused, the command and its
document.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support import ROOT, slow

from autolayers import bundled, read_model, rules
from autolayers.cli.rules import main
from autolayers.errors import UsageError
from autolayers.rules.table import RULES

LLAMA_8B = str(ROOT / "fixtures/headers/llama-3.1-8b-q4_k_m.gguf")
CACHE = {"layers": 32, "hidden": 4096, "sequence": 2048}
LLAMA_6B = {
    **CACHE,
    "params": "6B",
    "bits": "int8",
    "intermediate": 11008,
    "batch": 50,
    "optimizer": "adamw",
}


def test_figures_without_flags_are_shown_with_them() -> None:
    with pytest.raises(UsageError, match=r"rules --params 70B --type q4_k_m$"):
        main(["70b", "q4"])
    with pytest.raises(UsageError, match=r"rules --params 1\.5B --type q8_0$"):
        main(["1.5b", "Q8_0"])
    with pytest.raises(UsageError, match="one model at most"):
        main(["a.gguf", "b.gguf"])


# What the sources print, in their words and decimals.
WORKED = [
    # serving, M = P x 4 bytes / (32 / Q) x 1.2
    ("serving", {"params": "70B", "bits": 16}, "168 GB"),
    # layers that fit: (available - extra) / memory per layer
    ("layers_that_fit", {"gpu": "14GB", "extra": "4GB", "layer_size": "400MB"}, "25 layers"),
    ("layers_that_fit", {"params": "7B", "bits": 4, "layers": 80, "gpu": "8GB"}, "80 layers"),
    # bytes per parameter
    ("holding", {"params": "1B", "bits": "fp32"}, "4 GB"),
    ("holding", {"params": "1B", "bits": "fp16"}, "2 GB"),
    ("holding", {"params": "1B", "bits": "int8"}, "1 GB"),
    ("holding", {"params": "1B", "bits": "int4"}, "0.5 GB"),
    # 13B float: 52, 208, 52, 104, 364, 437 GB
    ("inference", {"params": "13B", "bits": "float"}, "52 GB"),
    ("training", {"params": "13B", "bits": "float"}, "208 GB"),
    ("gradients", {"params": "13B", "bits": "float"}, "52 GB"),
    ("optimizer", {"params": "13B", "bits": "float", "optimizer": "adamw"}, "104 GB"),
    ("optimizer", {"params": "13B", "bits": "float", "optimizer": "sgd"}, "52 GB"),
    ("training_sum", {"params": "13B", "bits": "float"}, "364 GB"),
    ("training_margin", {"params": "13B", "bits": "float"}, "437 GB"),
    # 1B parameters FP32: 20 more bytes a parameter to train
    ("training_fp32", {"params": "1B"}, "24 GB"),
    # mixed precision 16 bytes a parameter, full FP16 8, LoRA 2, QLoRA 0.5
    ("training_mixed", {"params": "8B"}, "128 GB"),
    ("training_fp16", {"params": "7B"}, "56 GB"),
    ("lora", {"params": "7B"}, "14 GB"),
    ("qlora", {"params": "7B"}, "3.5 GB"),
    # KV cache 2 x 2 bytes x layers x hidden x sequence x batch
    ("kv_cache", {**CACHE, "batch": 64}, "68.7 GB"),
    ("kv_cache", {**CACHE, "batch": 1}, "1 GB"),
    ("kv_cache", {**CACHE, "batch": 64, "heads": 32, "kv_heads": 32}, "68.7 GB"),
    ("kv_cache", {**CACHE, "batch": 64, "heads": 32, "kv_heads": 8}, "17.2 GB"),
    ("kv_cache", {**CACHE, "batch": 64, "heads": 32, "kv_heads": 1}, "2.1 GB"),
    # training LLaMA-6B int8 with AdamW, batch 50, in one unit
    ("training_batch", LLAMA_6B, "74.8 GB"),
]
UNITS = {"GB": 1e9, "MB": 1e6, "layers": 1}


def _same(value: float, figure: str) -> bool:
    """`value` is `figure` at the decimals the figure is written with."""
    number, unit = figure.split()
    decimals = len(number.partition(".")[2])
    return round(value / UNITS[unit], decimals) == float(number)


@pytest.mark.parametrize(
    ("rule", "given", "figure"), WORKED, ids=[f"{rule} {figure}" for rule, _, figure in WORKED]
)
def test_a_worked_example_has_its_published_figure(
    rule: str, given: dict[str, object], figure: str
) -> None:
    assert _same(rules.evaluate(rule, **given).value, figure)


@pytest.mark.parametrize(
    ("rule", "example"), [(r.name, e) for r in RULES.values() for e in r.examples]
)
def test_a_documented_example_prints_what_it_says(rule: str, example: rules.Example) -> None:
    result = rules.evaluate(rule, **example.given)
    value = result.as_published if example.published else result.value
    assert value is not None
    assert _same(value, example.figure)
    if example.gpus is not None:
        assert result.gpus == example.gpus


def test_70b_at_16_bit_takes_two_a100() -> None:
    """An A100 80 GB holds 80 GiB; 80 x 10^9 bytes would take three."""
    assert rules.evaluate("serving", params="70B", bits=16, gpu="80GiB").gpus == 2
    assert rules.evaluate("serving", params="70B", bits=16, gpu="80GB").gpus == 3


def test_a_7b_of_80_layers_fits_whole_at_4_bits() -> None:
    result = rules.evaluate("layers_that_fit", params="7B", bits=4, layers=80, gpu="8GB")
    assert "43.75 MB a layer" in result.working
    assert result.as_published == 183  # its source rounds 182.86 up
    assert "space for 182" in result.note
    assert result.value == 80


def test_llama_6b_gives_the_sources_figure_and_the_right_one() -> None:
    result = rules.evaluate("training_batch", **LLAMA_6B)
    assert (round(result.value / 1e9, 1), round((result.as_published or 0) / 1e9, 1)) == (
        74.8,
        73.6,
    )


def test_what_is_typed_and_what_is_computed_are_the_same() -> None:
    typed = rules.evaluate("serving", params="1.5e9", bits="q4_0", overhead="20%")
    computed = rules.evaluate("serving", params=1_500_000_000, bits=4.5, overhead=0.2)
    assert typed.value == computed.value == pytest.approx(1.5e9 * 4.5 / 8 * 1.2)


@pytest.mark.parametrize(
    "name",
    [
        "devstral-2-123b-q3_k_s",
        "llama-3.1-8b-q4_k_m",
        "llama-3.3-70b-q4_k_m",
        "llama-3.1-8b-q5_k_m",
        "qwen3-14b-q5_k_m",
        "qwen3-30b-a3b-q4_k_m",
        "qwen3.6-27b-q3_k_m",
    ],
)
def test_a_file_of_mixed_types_has_the_bits_of_its_name(name: str) -> None:
    """Within 5 %."""
    model = bundled.read(name)
    mixture = name.rpartition("-")[2]
    bits = rules.inputs.TYPES[mixture]
    assert bits == pytest.approx(model.bits_per_weight, rel=0.05)


def test_every_rule_says_what_it_is() -> None:
    for name, rule in RULES.items():
        assert name == rule.name
        assert all(
            (
                rule.title,
                rule.formula,
                rule.needs,
                rule.assumes,
                rule.leaves_out,
                rule.source,
                rule.examples,
            )
        )


@pytest.mark.parametrize(
    ("rule", "given", "word"),
    [
        ("serving", {"bits": 16}, "--params"),
        ("serving", {"params": "70B"}, "--bits"),
        ("kv_cache", {"layers": 32}, "--hidden, --sequence"),
        (
            "layers_that_fit",
            {"gpu": "8GB", "params": "7B"},
            "--layer-size, or --params, --bits and --layers",
        ),
        ("layers_that_fit", {"gpu": "4GB", "extra": "8GB", "layer_size": "40MB"}, "--extra"),
        ("training_mixed", {"params": "8B", "optimizer": "sgd"}, "AdamW only"),
        ("flops", {"params": "8B"}, "no such rule"),
        ("serving", {"params": "70Q", "bits": 16}, "7B, 350M or 1.5e9"),
        ("serving", {"params": "8x7B", "bits": 16}, "'8x7B'"),
        ("serving", {"params": "-7B", "bits": 16}, "parameter count"),
        ("serving", {"params": "nan", "bits": 16}, "parameter count"),
        ("serving", {"params": "1e400", "bits": 16}, "parameter count"),
        ("serving", {"params": 0, "bits": 16}, "parameter count"),
        ("serving", {"params": True, "bits": 16}, "parameter count"),
        ("serving", {"params": "7B", "bits": 0}, "bits"),
        ("serving", {"params": "7B", "bits": "q99"}, "fp16"),
        ("serving", {"params": "7B", "bits": 16, "overhead": "-1"}, "overhead"),
        ("serving", {"params": "7B", "bits": 16, "gpu": "80"}, "80GiB"),
        ("serving", {"params": "7B", "bits": 16, "gpu": "24GiB,24GiB"}, "one GPU size"),
        ("serving", {"params": "7B", "bits": 16, "color": "red"}, "'color'"),
        ("optimizer", {"params": "7B", "bits": 16, "optimizer": "lion"}, "adamw, sgd"),
        ("kv_cache", {**CACHE, "batch": 1.5}, "whole number"),
        ("kv_cache", {**CACHE, "kv_heads": 8}, "--heads"),
        ("kv_cache", {**CACHE, "heads": 32, "kv_heads": 5}, "do not divide"),
        ("kv_cache", {**CACHE, "heads": 8, "kv_heads": 16}, "do not divide"),
        ("kv_cache", {**CACHE, "hidden": 16, "heads": 32}, "hidden size"),
    ],
)
def test_impossible_inputs_are_refused(rule: str, given: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError) as caught:
        rules.evaluate(rule, **given)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_rules_that_can_be_computed_and_why_not_the_others() -> None:
    results, left_out = rules.evaluate_all(params="70B", bits=16)
    assert {"serving", "holding", "lora", "qlora", "total"} <= results.keys()
    assert left_out["kv_cache"] == "kv_cache needs --layers, --hidden, --sequence"
    assert results.keys() | left_out.keys() == RULES.keys()


def test_the_total_is_serving_and_cache() -> None:
    results, _ = rules.evaluate_all(params="7B", bits=16, **CACHE)
    assert results["total"].value == results["serving"].value + results["kv_cache"].value


def test_one_scheme_hides_the_others() -> None:
    results, _ = rules.evaluate_all(params="7B", bits=16, scheme="qlora")
    assert "qlora" in results
    assert not {"lora", "training_mixed", "training_fp16", "training_fp32"} & results.keys()


def test_command_prints_one_line_per_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--params", "70B", "--bits", "16", "--gpu", "80GiB"]) == 0
    out, err = capsys.readouterr()
    lines = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert "168.00 GB" in lines["serving"]
    assert "2 GPUs" in lines["serving"]
    assert "1120.00 GB" in lines["training_mixed"]
    assert lines["total"].split()[:2] == ["total", "168.00"]
    assert "kv_cache needs --layers" in err


def test_the_command_explains_its_rules(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--params", "70B", "--bits", "16", "--explain"])
    out = capsys.readouterr().out
    assert "70B × 4 bytes / (32 / 16) × 1.2" in out
    assert "assumes:" in out and "leaves out:" in out


def test_json_is_keyed_by_the_rules_names(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--params", "70B", "--type", "fp16", "--gpu", "80GiB", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["serving"]["bytes"] == 168 * 10**9
    assert answer["serving"]["GB"] == 168
    assert answer["serving"]["gpus"] == 2
    assert answer["inputs"]["params"] == 70e9
    assert set(answer) == {"schema", "inputs", "left_out"} | (
        RULES.keys() - answer["left_out"].keys()
    )


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--json"],
        ["--bits", "16"],
        ["--params"],
        ["--colour", "red"],
        ["--params", "7Q"],
        ["--params", "8"],
    ],
)
def test_the_command_refuses_in_one_line(words: list[str]) -> None:
    with pytest.raises(UsageError):
        main(words)


@pytest.mark.parametrize(
    "words",
    [["--params", "70B", "--bits", "16", "--gpu", "80GiB"], slow([LLAMA_8B, "--gpu", "24GiB"])],
)
def test_a_card_is_known_in_a_new_process(words: list[str]) -> None:
    """--gpu was an AttributeError where nothing had asked for devices before."""
    done = subprocess.run(
        [sys.executable, "-m", "autolayers", "rules", *words], capture_output=True, text=True
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    (serving,) = (line for line in done.stdout.splitlines() if line.startswith("serving"))
    assert " GPU" in serving


def test_document_says_where_sources_err() -> None:
    text = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    assert "21 GB for 70B" in text and "84 GB" in text  # the FP8 "training" figure
    # gradients and optimiser states in inference
    assert "Inference keeps neither" in text
    assert "73.6" in text and "74.8" in text  # the batch rule's mixed units


def test_rules_stand_next_to_the_exact_figures_of_a_file() -> None:
    """llama.cpp's own numbers for `-ngl 33 -c 2048 -np 1` (fixtures/truth/cases_models.jsonl)."""
    model = read_model(LLAMA_8B)
    rows, left_out, inputs = rules.compare(model, sequence=2048, gpu="24GiB")
    weights = 4617396480 + 295501824
    assert rows["holding"].exact == weights
    assert rows["kv_cache"].exact == 268435456
    assert (
        rows["serving"].exact == rows["total"].exact == weights + 268435456 + 123746432 + 35670048
    )
    assert rows["layers_that_fit"].exact == rows["layers_that_fit"].result.value == 32
    assert rows["training_mixed"].exact is None
    assert not left_out
    assert (inputs.bits, inputs.layers, inputs.heads, inputs.kv_heads) == (4, 32, 32, 8)
    # The GQA rule is exact for this model; 4 bits are not what q4_K_M takes.
    assert rows["kv_cache"].error == 0
    assert rows["holding"].error == pytest.approx((inputs.params or 0) / 2 / weights - 1)
    assert -0.25 < rows["holding"].error < -0.1


def test_command_shows_error_beside_exact(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([LLAMA_8B, "--sequence", "2048", "--gpu", "24GiB"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert "exact 4.91 GB" in lines["holding"]
    assert "+0%" in lines["kv_cache"]
    assert "exact" not in lines["training"]


def test_what_the_file_says_is_not_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="--params comes from the model file"):
        main([LLAMA_8B, "--params", "8B"])


def test_the_rule_says_more_layers_than_the_plan() -> None:
    """The rule knows neither the KV cache nor the graph buffers, so it says too much."""
    row = rules.compare(read_model(LLAMA_8B), gpu="4GiB")[0]["layers_that_fit"]
    assert row.exact is not None
    assert 0 < row.exact < row.result.value


def test_recurrent_models_have_rules_too() -> None:
    rows, _, _ = rules.compare(read_model(str(ROOT / "fixtures/headers/mamba2-2.7b-q4_k_m.gguf")))
    assert rows["holding"].exact
    # there is no KV cache, only a small state
    assert rows["kv_cache"].error is not None and rows["kv_cache"].error > 1
