"""Two ways to say the same thing would give two plans.

What the search answers by construction: given contexts are filled, the order of devices changes
nothing but -dev, a flag that is given as its own default changes nothing, more context where it is
asked for.
"""

from __future__ import annotations

import itertools
import shlex
from math import log2

import pytest
from support import FIXTURES, few, model, seldom, slow

import autolayers
from autolayers import Device, Plan
from autolayers.devices import Host
from autolayers.errors import LaunchRefused
from autolayers.flags.parse import parse
from autolayers.planner.prices import (
    ENOUGH,
    LONG,
    MOST,
    SHORT,
    SHORT_MIXTURE,
    of_context,
    of_filling,
    worth,
)
from autolayers.planner.problem import Problem
from autolayers.request import Request

GiB = 1 << 30
HUNDREDTH = 1.01
AS_GOOD = 1.015  # half of the regret that the bench of decisions allows
DRAFT = FIXTURES / "headers" / "llama-3.2-1b-q8_0.gguf"


def plan(name: str, *words: str) -> Plan:
    return autolayers.plan(model(name), words)


class TestGivenContext:
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            slow("llama-3.3-70b-q4_k_m", "--gpu rtx-5090 --ram 64GiB -c 32768"),
            ("llama-3.3-70b-q4_k_m", "--gpu rtx-3090 --ram 64GiB -c 16384"),
            slow("llama-3.3-70b-q4_k_m", "--gpu rtx-3090 --ram 64GiB -c 32768 -ctk q4_0 -ctv q4_0"),
            slow("llama-3.3-70b-q4_k_m", "--gpu 2xrtx-3090 --ram 64GiB -c 32768"),
        ],
    )
    def test_a_context_that_is_given_will_be_filled(self, name: str, words: str) -> None:
        """FFN weights in RAM keep the whole cache on the GPU: twice to four times the rate of whole
        layers."""
        found = plan(name, *words.split())
        layers = plan(name, *words.split(), "--strategy", "layers")
        assert found.fits and found.n_gpu_layers == 81 and "-ncffn" in found.flags
        assert found.speed.generation_full > 2 * layers.speed.generation_full

    @pytest.mark.parametrize(
        ("name", "card", "times"),
        [
            slow("llama-3.3-70b-q4_k_m", "rtx-3060", 1.4),
            slow("llama-3.3-70b-q4_k_m", "rtx-4060-ti-16g", 2.5),
            ("qwen2.5-7b-q4_k_m", "3GiB", 1.5),
        ],
    )
    def test_where_no_whole_cache_fits_layers_without_ffn_weights_have_more_of_it(
        self, name: str, card: str, times: float
    ) -> None:
        words = ("--gpu", card, "--ram", "64GiB", "-c", "32768")
        found, layers = plan(name, *words), plan(name, *words, "--strategy", "layers")
        assert found.fits and "-ncffn" in found.flags
        assert layers.n_gpu_layers < found.n_gpu_layers < found.model.n_layer + 1
        assert found.speed.generation_full > times * layers.speed.generation_full

    def test_an_empty_one_is_compared_as_ever(self) -> None:
        """Its rate with a full context is no reason; and so is the workload's own depth."""
        short = plan("llama-3.1-8b-q4_k_m:8", "--gpu", "1500MiB", "-c", "8192")
        assert short.speed.compared == short.speed.request
        deep = plan("llama-3.1-8b-q4_k_m:8", "--gpu", "1500MiB", "-c", "16384")
        assert deep.speed.compared > deep.speed.request
        said = plan(
            "llama-3.1-8b-q4_k_m:8", "--gpu", "1500MiB", "-c", "16384", "--workload", "2048+512@4k"
        )
        assert said.speed.compared == said.speed.request


class TestChosenContext:
    @pytest.mark.parametrize(
        ("words", "n_ctx", "share"),
        [
            slow("--gpu rtx-3060", 4096, 0.8),
            slow("--gpu rtx-3090", 4096, 0.8),
            ("--gpu rtx-3060 --ctx-min 16k", 16384, 0.7),
        ],
    )
    def test_a_full_context_does_not_crawl(self, words: str, n_ctx: int, share: float) -> None:
        """A cache in RAM would allow 32k, at a quarter of the rate or less."""
        found = plan("llama-3.3-70b-q4_k_m", *words.split(), "--ram", "64GiB")
        assert found.fits and found.breakdown.n_ctx >= n_ctx
        assert found.speed.generation_full > share * found.speed.generation

    def test_a_cache_in_ram_counts_as_far_as_it_pays_to_fill_it(self) -> None:
        asked = Problem(
            model("llama-3.3-70b-q4_k_m"), Request.of(["--gpu", "rtx-3060", "--ram", "64GiB"])
        )

        def factor(words: str) -> float:
            params = parse(words.split()).params
            use = asked.evaluator.static(params)
            assert use is not None
            return of_filling(asked, params, use) / of_context(asked, use.n_ctx_seq)[1]

        short, longer = factor("-ngl 20 -c 4096"), factor("-ngl 17 -c 32768")
        assert 1 < short < 1.05 and 1.1 < longer < SHORT.factor**3 * 1.05
        assert factor("-ngl 81 -ncffn 78 -c 8192") == 1


def same(one: Plan, other: Plan) -> bool:
    """Whether two plans are worth the same, within half of what the search may miss."""
    return 1 / AS_GOOD <= priced(one) / priced(other) <= AS_GOOD


def priced(found: Plan) -> float:
    """The seconds of the request times the price of a context below 32k a sequence."""
    row = SHORT_MIXTURE if found.model.is_moe else SHORT
    return found.speed.request * row.factor ** max(0.0, log2(ENOUGH / found.breakdown.n_ctx_seq))


class TestDevices:
    @seldom
    @pytest.mark.parametrize(
        ("name", "cards"),
        [
            slow("qwen3-30b-a3b-q4_k_m:12", ("rtx-3090@1800MiB", "rtx-3060@1400MiB")),
            ("llama-3.1-8b-q4_k_m:12", ("rtx-3090@1500MiB", "rtx-3060@1300MiB")),
            pytest.param(
                "qwen3-30b-a3b-q4_k_m:12",
                ("rtx-3090@1200MiB", "rtx-3060@1400MiB", "gtx-1070@1500MiB"),
                marks=pytest.mark.slow,
            ),
        ],
    )
    def test_in_any_order_unequal_gpus_give_one_answer(
        self, name: str, cards: tuple[str, ...]
    ) -> None:
        answers = []
        for order in itertools.permutations(cards):
            devices = [device for i, card in enumerate(order) for device in [sized(card, i)]]
            answers.append(autolayers.plan(model(name), ["--ram", "64GiB"], devices=devices))
        assert all(same(answers[0], other) for other in answers[1:])
        # the order is what makes them equal; a mixture may do without
        if name.startswith("llama"):
            assert len({(answer.params.device, answer.params.main_gpu) for answer in answers}) > 1

    @pytest.mark.parametrize(
        "words", few(2, ["-dev CUDA0,CUDA1", "-sm layer", "-mg 0", "-ngl auto", "-np -1"])
    )
    def test_a_flag_that_is_given_as_its_own_default_changes_nothing(self, words: str) -> None:
        machine = ("--gpu", "2xrtx-3090", "-c", "16384")
        free, given = (plan("llama-3.1-8b-q4_k_m", *machine, *more) for more in ((), words.split()))
        assert given.speed.request == free.speed.request
        assert given.breakdown.devices == free.breakdown.devices
        assert given.params.tensor_split == free.params.tensor_split

    @pytest.mark.slow
    def test_an_order_that_is_given_stays_and_one_of_them_alone_is_a_choice(self) -> None:
        words = ("--gpu", "1070,3060,3090", "-dev", "CUDA2,CUDA1,CUDA0")
        found, free = plan("qwen3-30b-a3b-q4_k_m", *words), plan("qwen3-30b-a3b-q4_k_m", *words[:2])
        assert (
            found.params.device == ("CUDA2", "CUDA1", "CUDA0") and found.params.split_mode == "none"
        )
        assert found.speed.generation == free.speed.generation

    @pytest.mark.parametrize(
        ("name", "words", "least"),
        [
            ("gpt-oss-120b-mxfp4", "--gpu 36.1GiB,36.1GiB", 131072),
            slow("qwen3-next-80b-a3b-q4_k_m", "--gpu 43.7GiB,20GiB", 262144),
            slow("llama-3.1-8b-f16", "--gpu 14.6GiB,7.3GiB -ctk q8_0 -ctv q8_0", 61952),
            slow(
                "gemma-3-27b-q4_k_m",
                "--gpu 7.3GiB,17.5GiB -ctk q8_0 -ctv q8_0 -fitt 512",
                105728,
            ),
        ],
    )
    def test_the_split_is_chosen_with_the_context(self, name: str, words: str, least: int) -> None:
        """At least the context that --fit was seen to choose."""
        found = plan(name, *words.split())
        assert found.fits and not found.params.overrides and found.breakdown.n_ctx >= least

    def test_a_split_that_is_given_stays_where_a_part_of_a_layer_is_in_ram(self) -> None:
        """A part of the first layer, not of one that would have to move to another GPU."""
        words = "--gpu 41.9GiB,16.7GiB -np 1 -fa off --swa-full -fitt 512 -ts 37,12 -c 36864"
        found = plan("qwen3-next-80b-a3b-q4_k_m", *words.split())
        assert found.fits and found.params.tensor_split == (37.0, 12.0)
        assert any("exps" in pattern for pattern, _ in found.params.overrides)

    @pytest.mark.parametrize(("mib", "other"), [(2880, "CPU"), slow(2900, "CUDA0")])
    def test_two_of_three_matrices_of_a_layer_lie_on_a_second_gpu(
        self, mib: int, other: str
    ) -> None:
        """Room for less than a whole layer's experts, on a device that holds the last layers: the
        third matrix is in RAM or on the first GPU."""
        devices = [Device(f"CUDA{i}", mib << 20, mib << 20) for i in range(2)]
        found = autolayers.plan(model("lfm2-8b-a1b-q4_k_m"), ["-c", "8192"], devices=devices)
        *leading, (pattern, buffer) = found.params.overrides
        layer = int(pattern.removeprefix(r"blk\.").partition("\\")[0])
        assert found.fits and buffer == other and layer > len(leading)
        assert found.layers[layer + 1].device == "CUDA1" and found.layers[layer].device == "CUDA0"
        on = found.layers[layer + 1].buffers
        assert on["CUDA1"] > 0 and any(name != "CUDA1" for name in on)


def sized(card: str, i: int) -> Device:
    """A card of which only this much memory is there."""
    from dataclasses import replace

    name, _, size = card.partition("@")
    free = int(size.removesuffix("MiB")) << 20
    return replace(Device.hypothetical(name), name=f"CUDA{i}", total=free, free=free)


class TestContext:
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            slow("gpt-oss-20b-mxfp4", "--gpu rtx-3060 --ram 32GiB"),
            slow("llama-3.1-8b-q4_k_m", "--gpu rtx-4060"),
            slow("qwen3-30b-a3b-q4_k_m:12", "--gpu 3GiB --ram 32GiB"),
            ("gemma-2-9b-q4_k_m:12", "--gpu 2GiB --ram 32GiB"),
        ],
    )
    def test_as_much_as_there_is_is_no_less_than_the_default(self, name: str, words: str) -> None:
        found, most = plan(name, *words.split()), plan(name, *words.split(), "--ctx", "max")
        assert found.fits and most.fits and most.breakdown.n_ctx >= found.breakdown.n_ctx

    @pytest.mark.slow
    def test_as_much_as_there_is_does_not_crawl_when_it_is_full(self) -> None:
        """Layers without FFN weights hold the cache on the GPU; the whole RAM full of it is no
        better."""
        words = ["--gpu", "rtx-3060", "--ram", "64GiB", "--ctx", "max"]
        found = autolayers.plan(model("llama-3.3-70b-q4_k_m"), words, explain=True)
        assert found.fits and found.breakdown.n_ctx >= 32768
        assert found.speed.generation < 3 * found.speed.generation_full
        (line,) = [line for line in found.warnings if line.startswith("--ctx max")]
        assert f"{found.speed.generation_full:.2g} tokens/s with a full context" in line
        (less,) = [other for other in found.alternatives if other.change[0] == "--ctx"]
        assert less.change == ("--ctx", "16384") and less.n_ctx == 16384
        assert less.speed.generation_full > 1.5 * found.speed.generation_full

    def test_each_halving_costs_a_factor(self) -> None:
        def factor(n_ctx: int, *words: str) -> float:
            return of_context(Problem(dense, Request.of(["--gpu", "24GiB", *words])), n_ctx)[1]

        dense = model("llama-3.1-8b-q4_k_m")
        assert dense.n_ctx_train == 131072
        assert factor(131072) == 1.0
        assert factor(65536) == pytest.approx(LONG.factor) and factor(32768) == pytest.approx(
            LONG.factor**2
        )
        assert factor(8192) == pytest.approx(SHORT.factor**2 * LONG.factor**2)
        assert factor(8192, "--ctx", "max") == pytest.approx(MOST.factor**4)
        assert factor(8192, "--ctx-min", "8k") == pytest.approx(LONG.factor**4)
        assert factor(8192, "-c", "8192") == 1.0


def test_caches_that_stay_in_ram_may_leave_the_output_alone_on_a_gpu() -> None:
    """Five layers would fit, and each of them makes a token slower."""
    cards = ("rtx-2070-super@928MiB", "rtx-5070-ti@600MiB", "rtx-3090@1025MiB")
    devices, host = (
        [sized(card, i) for i, card in enumerate(cards)],
        Host(4 * GiB, 4 * GiB, "given"),
    )
    words = ["-nkvo", "-ub", "512", "-c", "4096", "-sm", "none", "-mg", "2"]
    found, more = (
        autolayers.plan(model("phi-3-mini-q4_k_m:8"), [*words, *ngl], devices=devices, host=host)
        for ngl in ((), ("-ngl", "5"))
    )
    assert found.n_gpu_layers == 1 and more.fits
    assert found.speed.request < more.speed.request


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    few(
        2,
        [
            ("--gpu", "rtx-3090@3GiB"),
            ("--gpu", "2GiB,2GiB"),
            ("--ram", "64GiB"),
            ("--kv-types", "f16,q8_0"),
        ],
    ),
)
def test_more_memory_and_more_permission_are_worth_no_less(more: tuple[str, ...]) -> None:
    dense = model("gemma-2-9b-q4_k_m:12")
    words = {"--gpu": "2GiB", "--ram": "32GiB"}
    poor, rich = words, {**words, more[0]: more[1].replace("rtx-3090@", "")}
    found = []
    for asked in (poor, rich):
        request = Request.of([word for pair in asked.items() for word in pair])
        problem = Problem(dense, request)
        answer = autolayers.plan(dense, [word for pair in asked.items() for word in pair])
        found.append(worth(problem, answer.params, answer.breakdown))
    assert found[1] <= found[0] * HUNDREDTH


@pytest.mark.slow
def test_heads_without_a_flash_kernel_stay_on_their_gpus() -> None:
    """-fa auto is off then, and attention on the GPUs, however the launch is priced before its
    graph is there."""
    # DeepSeek-V3, 297 GiB
    large = autolayers.read_model(FIXTURES / "real/headers/ea77b9a348b0.gguf")
    answer = autolayers.plan(large, ["--gpu", "8x80GiB", "--ram", "512GiB"])
    assert answer.n_gpu_layers == 62 and not answer.params.overrides


@pytest.mark.parametrize(
    ("name", "words"),
    [
        slow("qwen3-30b-a3b-q4_k_m:8", "--gpu 3GiB --ram 32GiB"),
        slow("gpt-oss-20b-mxfp4:8", "--gpu 1700MiB,2500MiB --ram 32GiB"),
        slow("llama-3.1-8b-q4_k_m:8", "--gpu 1800MiB --ram 32GiB"),
        ("gemma-2-9b-q4_k_m:8", "--gpu 3GiB --ram 32GiB"),
    ],
)
def test_the_context_of_an_answer_is_no_other_question(name: str, words: str) -> None:
    free = autolayers.plan(model(name), words.split())
    given = autolayers.plan(model(name), [*words.split(), "-c", str(free.breakdown.n_ctx)])
    assert given.flags == free.flags


@pytest.mark.parametrize(
    "words",
    [
        "",
        "-c 4096",
        "--kv-types f16,q8_0",
        "--ctx max",
        "--strategy layers",
        "-np 2",
        "--workload 512+128x4",
        "--workload agent",
        f"-md '{DRAFT}'",
        "--users 4",
        "--fit off",
        "-ngl 3",
        "-cmoe",
        "--embedding",
        "-dev CUDA1,CUDA0",
        "-ts 2,1",
    ],
)
def test_what_llama_cpp_refuses_has_no_plan_whatever_else_is_asked(words: str) -> None:
    two = ["--gpu", "1500MiB,1200MiB", "--ram", "64GiB", "-sm", "tensor", *shlex.split(words)]
    with pytest.raises(LaunchRefused, match="tensor is not implemented for architecture deepseek2"):
        autolayers.plan(model("deepseek-v2-lite-q4_k_m:4"), two)
