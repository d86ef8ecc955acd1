"""The words of a plan would say another placement than its flags.

What a plan says of its placement is what the memory model places.
"""

import pytest
from support import few, model, slow

import autolayers

MIXTURE = "qwen3-30b-a3b-q4_k_m:8"
GPU = ["--gpu", "24GiB", "--ram", "64GiB", "-c", "4096"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (r"-ngl 99 -ot \.ffn_.*_exps\.=CPU", "9 of 9 layers on the GPU, all experts in RAM"),
        (
            r"-ngl 99 -ot blk\.[2-4]\.ffn_.*_exps.*=CPU",
            "9 of 9 layers on the GPU, experts of 3 layers in RAM",
        ),
        (
            r"-ngl 99 -ot blk\.([0-9]|1[0-9])\.ffn_.*_exps.*=CPU",
            "9 of 9 layers on the GPU, all experts in RAM",
        ),
        ("-ngl 99 -ncmoe 99", "9 of 9 layers on the GPU, all experts in RAM"),
        ("-ngl 99 -ncmoe 1", "9 of 9 layers on the GPU, experts of 1 layer in RAM"),
        (r"-ngl 99 -ot blk\.[3-7]\.=CPU", "9 of 9 layers on the GPU, weights of 5 layers in RAM"),
        (
            r"-ngl 99 -ot blk\.3\.attn_(q|k)\.=CPU",
            "9 of 9 layers on the GPU, 2 more tensors in RAM",
        ),
        ("-ngl 4", "4 of 9 layers on the GPU"),
        ("-ngl 4 -cmoe", "4 of 9 layers on the GPU, all experts in RAM"),
        ("-ngl 0", "0 of 9 layers on the GPU"),
    ],
)
def test_layers_are_counted_as_they_are_placed(words: str, said: str) -> None:
    plan = autolayers.plan(model(MIXTURE), [*GPU, *words.split()])
    assert plan.placement == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-ncmoe 3", "9 of 9 layers on the GPU"),
        ("-ncffn 3", "9 of 9 layers on the GPU, FFN weights of 3 layers in RAM"),
    ],
)
def test_a_dense_model_has_no_experts_to_count(words: str, said: str) -> None:
    plan = autolayers.plan(model("llama-3.1-8b-q4_k_m:8"), [*GPU, "-ngl", "99", *words.split()])
    assert plan.placement == said


def test_more_experts_in_ram_than_needed_are_told_of() -> None:
    words = ["--gpu", "2500MiB", "--ram", "64GiB", "-c", "4096"]
    plan = autolayers.plan(model(MIXTURE), [*words, "-ncmoe", "7"], explain=True)
    (other,) = [other for other in plan.alternatives if "-ncmoe" in other.change]
    better = autolayers.plan(model(MIXTURE), [*words, *other.change])
    assert better.fits and better.speed.request < plan.speed.request
    assert better.speed.request == pytest.approx(other.speed.request, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    few(
        2,
        [
            "-cmoe",
            "-ngl 99 -cmoe",
            "-ngl 99 -ot exps=CPU",
            r"-ngl all -ot \.ffn_.*_exps\.=CPU",
            r"-ot "
            r"blk\.[0-6]\.ffn_.*_exps.=CPU",
        ],
    ),
)
def test_experts_in_ram_by_any_flag_are_told_how_many_need_be(given: str) -> None:
    words = ["--gpu", "2500MiB", "--ram", "64GiB", "-c", "4096"]
    plan = autolayers.plan(model(MIXTURE), [*words, *given.split()], explain=True)
    (other,) = [other for other in plan.alternatives if "-ncmoe" in other.change]
    assert other.note == "in place of the given -ncmoe, -cmoe or -ot"
    better = autolayers.plan(model(MIXTURE), [*words, *other.change])
    assert (
        better.fits
        and better.speed.request < plan.speed.request
        and better.placement == other.placement
    )


def test_a_launch_without_the_given_experts_in_ram_says_so() -> None:
    words = ["--gpu", "24GiB", "--ram", "64GiB", "-c", "4096"]
    plan = autolayers.plan(model(MIXTURE), [*words, "-ncmoe", "99"], explain=True)
    (other,) = [other for other in plan.alternatives if "-ncmoe" in other.change]
    better = autolayers.plan(model(MIXTURE), [*words, *other.change])
    assert (
        other.change[-2:] == ("-ncmoe", "0")
        and better.placement == other.placement == "9 of 9 layers on the GPU"
    )


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        (
            "llada-dense",
            "",
            "llada has no KV cache: llama-server answers embeddings alone, with --embedding (or "
            "--reranking)",
        ),
        (
            "llada-dense",
            "--embedding -c 256 -ub 64",
            "llama-server refuses inputs of more than 64 tokens (256 with -b 256 -ub 256)",
        ),
        ("llada-dense", "--embedding -c 256 -b 256 -ub 256", ""),
        ("llada-dense", "--reranking -c 256", ""),
        ("llama-dense", "", ""),
        ("llama-dense", "--embedding -c 256 -ub 64", ""),
    ],
)
def test_what_llama_server_refuses_of_a_model_without_a_cache_is_named(
    name: str, words: str, said: str
) -> None:
    warnings = autolayers.plan(model(name), ["--gpu", "4GiB", *words.split()]).warnings
    assert [line for line in warnings if "llama-server" in line] == ([said] if said else [])


@pytest.mark.parametrize(
    ("name", "contexts"),
    [
        # trained with 40960, which is little more than 32768
        slow("qwen3-30b-a3b-q4_k_m:8", ["8192", "16384", "40960"]),
        # trained with 131072
        ("llama-3.1-8b-q4_k_m:8", ["8192", "16384", "32768", "131072"]),
    ],
)
def test_a_common_context_that_is_nearly_the_trained_one_is_no_alternative(
    name: str, contexts: list[str]
) -> None:
    size = "2200MiB" if name.startswith("llama") else "1200MiB"
    words = ["--gpu", size, "--ram", "64GiB", "-ub", "512"]
    plan = autolayers.plan(model(name), words, explain=True)
    assert plan.fits and plan.breakdown.n_ctx < 8192
    found = [other.change[1] for other in plan.alternatives if other.change[0] == "-c"]
    assert found == contexts
