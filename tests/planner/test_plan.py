"""A plan would ignore a given flag, waste memory, or not say what it does.

The planner, through the library call: what it chooses, what it honours, what it says.
"""

from __future__ import annotations

import json
import re
from math import log2
from typing import Any

import pytest
from support import FIXTURES, RECORDED, few_rows, gpu, model, seldom, slow

import autolayers
from autolayers import Device, UsageError
from autolayers.api import fit_choice
from autolayers.devices import Host
from autolayers.memory.breakdown import Breakdown, LowerBound
from autolayers.memory.estimate import Estimator
from autolayers.planner.prices import LONG
from autolayers.planner.search import Search
from autolayers.units import human
from autolayers.work.rates import SHARED

GiB = 1 << 30


def plan(name: str, flags: str = "", *devices: Device, **more: object) -> autolayers.Plan:
    return autolayers.plan(model(name), flags.split(), devices=list(devices), **more)


DENSE, MOE = "llama-3.2-1b-q8_0", "gpt-oss-20b-mxfp4"
SMALL = "granite-moe"  # of two layers


def decisions() -> list[object]:
    """llama.cpp's own decisions; in every run one of a few models."""
    lines = (FIXTURES / "truth" / "decisions.jsonl").read_text().splitlines()
    return [
        pytest.param(
            case,
            id=f"{case['model']} {case['vram_mib']} MiB {case['args']}",
            marks=() if i % 24 == 0 else pytest.mark.slow,
        )
        for i, case in enumerate(map(json.loads, lines))
    ]


@pytest.mark.parametrize("case", decisions())
def test_the_largest_number_of_layers_is_the_one_that_llama_cpps_own_sizes_allow(
    case: dict[str, object],
) -> None:
    device = Device.hypothetical(f"{case['vram_mib']}MiB")
    words = [
        *str(case["args"]).split(),
        "--strategy",
        "layers",
        "--fit-target",
        str(case["margin_mib"]),
        "--llama-build",
        str(RECORDED),
    ]
    found = autolayers.plan(model(str(case["model"])), words, devices=[device])
    if case["max_ngl"] is None:
        assert not found.fits
    else:
        assert (found.n_gpu_layers, found.fits) == (case["max_ngl"], True)
        assert found.devices[0].used == case["use"][found.n_gpu_layers]  # type: ignore[index]


class TestGivenFlagsStay:
    def test_a_given_n_gpu_layers_is_taken_literally(self) -> None:
        found = plan(DENSE, "-ngl 5 -c 4096", gpu(24))
        assert (found.n_gpu_layers, found.fits) == (5, True)
        assert found.flags == ("-ngl", "5", "-c", "4096")

    def test_llama_cpp_s_own_split_is_followed_to_the_byte(self) -> None:
        found = plan(
            DENSE, "-ngl 17 -c 16384 -np 1 -ub 2048 -fa on", gpu(24), gpu(16, 1), gpu(16, 2)
        )
        # fixtures/truth: the launch of these very flags
        assert [row.model for row in found.devices] == [517079168, 323174528, 472998016]
        assert [row.context for row in found.devices] == [268435456, 167772160, 100663296]

    def test_and_reported_when_it_does_not_fit(self) -> None:
        found = plan(DENSE, "-ngl 99 -c 131072", gpu(2))
        assert (found.n_gpu_layers, found.fits) == (99, False)
        assert found.devices[0].remaining < 0

    def test_with_strategy_auto_the_rest_is_solved_around_it(self) -> None:
        literal = plan(MOE, "-ngl 99 -c 8192", gpu(8))
        solved = plan(MOE, "-ngl 99 -c 8192 --strategy auto", gpu(8))
        assert not literal.fits and solved.fits
        assert solved.params.overrides and solved.flags[:2] == ("-ngl", "99")

    def test_every_memory_flag_comes_back(self) -> None:
        given = "-c 8192 -b 1024 -ub 256 -fa on -ctk q8_0 -ctv q8_0 -np 2 -kvu"
        found = plan(DENSE, given, gpu(24))
        words = " ".join(found.flags)
        assert all(
            part in words
            for part in (
                "-c 8192",
                "-b 1024",
                "-ub 256",
                "-fa on",
                "-ctk q8_0",
                "-ctv q8_0",
                "-np 2",
                "-kvu",
            )
        )

    def test_overrides_that_are_given_are_the_only_ones(self) -> None:
        found = plan(MOE, "-cmoe -c 8192", gpu(4))
        assert found.fits and found.flags[-1] == "-cmoe"

    def test_flags_in_the_environment_count_only_when_it_is_given(self) -> None:
        environ = {"LLAMA_ARG_CTX_SIZE": "2048", "HOME": "/nonexistent"}
        assert plan(DENSE, "", gpu(24), environ=environ).breakdown.n_ctx == 2048
        assert plan(DENSE, "", gpu(24)).breakdown.n_ctx == 131072


class TestContext:
    def test_by_default_the_largest_that_costs_no_layer(self) -> None:
        found = plan(DENSE, "", gpu(4))
        assert found.n_gpu_layers == 17 and 4096 < found.breakdown.n_ctx < 131072
        more = plan(DENSE, f"-c {found.breakdown.n_ctx + 256} -ngl 17", gpu(4))
        assert found.fits and not more.fits

    def test_the_context_is_never_more_than_the_trained_one(self) -> None:
        assert plan(DENSE, "", gpu(80)).breakdown.n_ctx == 131072

    def test_not_even_the_largest_but_for_what_was_given(self) -> None:
        assert plan(DENSE, "--ctx max", gpu(80)).breakdown.n_ctx == 131072
        assert plan(DENSE, "-np 4 --ctx max", gpu(80)).breakdown.n_ctx == 4 * 131072
        assert plan(DENSE, "-c 262144", gpu(80)).breakdown.n_ctx == 262144

    @pytest.mark.slow
    def test_a_mixture_gets_8192_where_it_fits_and_pays_seven_per_cent_for_twice_as_much(
        self,
    ) -> None:
        found = plan("gpt-oss-20b-mxfp4", "", gpu(8))
        assert found.breakdown.n_ctx >= 8192 and found.params.overrides
        smaller, price = map(
            int,
            re.search(
                r"^context \d+ instead of (\d+) costs (\d+) "
                r"%",
                found.paid,
            ).groups(),
        )
        assert (
            smaller >= 8192
            and 0 < price <= 100 * (1.07 ** log2(found.breakdown.n_ctx / smaller) - 1) + 1
        )
        assert found.paid in found.reasons
        tiny = plan("qwen3-30b-a3b-q4_k_m:8", "", gpu(0.9))
        assert tiny.fits and tiny.breakdown.n_ctx >= 4096

    def test_a_cache_per_slot_has_the_range_per_slot(self) -> None:
        found = plan(DENSE, "-np 2 -no-kvu", gpu(80))
        assert (found.breakdown.n_ctx, found.breakdown.n_ctx_seq) == (2 * 131072, 131072)

    def test_the_floor_where_layers_do_not_fit(self) -> None:
        found = plan("llama-3.1-8b-q4_k_m", "--strategy layers", gpu(3))
        assert 4096 <= found.breakdown.n_ctx < 8192 and 0 < found.n_gpu_layers < 33

    def test_a_higher_floor_costs_layers(self) -> None:
        low = plan("llama-3.1-8b-q4_k_m:8", "--strategy layers", gpu(2))
        high = plan("llama-3.1-8b-q4_k_m:8", "--strategy layers --ctx-min 32768", gpu(2))
        assert high.breakdown.n_ctx >= 32768 and high.n_gpu_layers < low.n_gpu_layers

    def test_the_trained_context_said_as_zero_is_written_as_a_number(self) -> None:
        found = plan(DENSE, "-c 0", gpu(80))
        assert found.flags == ("-ngl", "17", "-c", "131072")

    def test_the_ladder_of_cache_types_is_walked_until_all_layers_fit(self) -> None:
        flags = "-c 65536 --kv-types f16,q8_0,q4_0"
        assert plan(DENSE, flags, gpu(24)).params.cache_type_k == "f16"
        narrow = plan(DENSE, flags, gpu(3.5))
        assert narrow.params.cache_type_k == "q8_0" and narrow.n_gpu_layers == 17
        wide = plan(DENSE, "-c 65536", gpu(3.5))
        assert wide.n_gpu_layers < 17 or wide.params.overrides


class TestWhatDoesNotFit:
    def test_experts_go_to_ram_before_layers(self) -> None:
        found = plan(f"{MOE}:8", "-c 8192", gpu(2.8))
        assert found.fits and found.n_gpu_layers == 9
        assert "-ncmoe" in found.flags
        whole = plan(f"{MOE}:8", "-c 8192 --strategy layers", gpu(2.8))
        assert whole.n_gpu_layers < 9 and not whole.params.overrides

    def test_part_of_one_more_layer_uses_what_is_left(self) -> None:
        found = plan("qwen3-30b-a3b-q4_k_m:8", "-c 8192", gpu(2.45))
        assert "-ot" in found.flags
        pattern = found.params.overrides[-1][0]
        layer = len(found.params.overrides) - 1
        assert pattern.startswith(rf"blk\.{layer}\.ffn_(") and "down" in pattern

    @pytest.mark.slow
    def test_the_plan_is_never_predicted_slower_than_fits_own(self) -> None:
        for name, size in (
            (f"{MOE}:8", 3),
            ("llama-3.1-8b-q4_k_m:8", 1.8),
            ("llama-3.3-70b-q4_k_m:8", 3),
        ):
            found, rival = plan(name, "", gpu(size)), fit_choice(model(name), [], [gpu(size)])
            assert rival
            assert not rival.fits or found.speed.request <= rival.speed.request

    def test_nothing_fits_on_a_card_that_is_full(self) -> None:
        found = plan(DENSE, "--strategy layers", gpu(0.1))
        assert not found.fits


class TestSystemMemory:
    def test_a_plan_that_would_swap_does_not_fit_and_says_so(self) -> None:
        host = Host(2 * GiB, 1 * GiB, "given")
        found = plan("llama-3.3-70b-q4_k_m:8", "-c 4096", gpu(2), host=host)
        assert not found.fits
        assert any("would swap" in warning for warning in found.warnings)

    def test_without_a_host_it_is_not_limited(self) -> None:
        assert plan("llama-3.3-70b-q4_k_m:8", "-c 4096", gpu(2)).fits

    def test_ram_can_be_given_in_words(self) -> None:
        found = plan("llama-3.3-70b-q4_k_m:8", "-c 4096 --ram 64GiB", gpu(2))
        assert found.host.free == 62 * GiB  # the rest is the system's

    def test_no_gpu_is_the_cpu(self) -> None:
        found = plan(DENSE, "", host=Host(64 * GiB, 64 * GiB, "given"))
        assert (found.n_gpu_layers, found.fits, found.devices) == (0, True, ())


class TestSeveralDevices:
    def test_the_split_is_written_as_layer_counts(self) -> None:
        found = plan("llama-3.1-8b-q4_k_m", "-c 4096", gpu(4, 0), gpu(4, 1))
        assert found.fits and found.params.tensor_split is not None
        assert sum(found.params.tensor_split) == 33 and "-ts" in found.flags

    def test_the_faster_card_is_filled_first(self) -> None:
        slow, fast = 300e9, 1000e9
        found = plan(
            "llama-3.1-8b-q4_k_m", "-c 4096", gpu(8, 0, bandwidth=slow), gpu(8, 1, bandwidth=fast)
        )
        assert found.fits and found.n_gpu_layers == 33
        assert not found.devices[0].model and found.devices[1].model

    def test_a_card_too_small_for_its_share_by_free_memory_gets_what_it_can_hold(self) -> None:
        found = plan("llama-3.3-70b-q4_k_m:16", "-c 4096", gpu(6, 0), gpu(2.5, 1), gpu(4, 2))
        assert found.fits and found.n_gpu_layers == 17

    def test_a_given_split_stays(self) -> None:
        found = plan("llama-3.1-8b-q4_k_m", "-c 4096 -ts 1,2", gpu(8, 0), gpu(8, 1))
        assert found.params.tensor_split == (1, 2)

    def test_one_device_only_leaves_the_other_empty(self) -> None:
        found = plan("llama-3.1-8b-q4_k_m", "-c 4096 -sm none -mg 1", gpu(8, 0), gpu(8, 1))
        assert found.fits and not found.devices[0].used and found.devices[1].used

    def test_a_budget_is_a_limit(self) -> None:
        free = plan("llama-3.1-8b-q4_k_m", "-c 4096", gpu(24))
        bounded = plan("llama-3.1-8b-q4_k_m", "-c 4096 --budget CUDA0=4GiB", gpu(24))
        assert free.n_gpu_layers == 33 and not free.params.overrides
        assert bounded.devices[0].used + bounded.devices[0].margin <= 4 * GiB

    def test_a_budget_for_a_device_that_is_not_there(self) -> None:
        with pytest.raises(UsageError, match=r"no device CUDA7 \(devices: CUDA0\)"):
            plan(DENSE, "--budget CUDA7=1GiB", gpu(24))

    @pytest.mark.slow
    def test_more_memory_on_the_slower_card_moves_no_layers_there(self) -> None:
        """Without flash attention on the GPUs the largest context takes much more compute memory
        than the smallest.
        """
        flags = "-ctk q8_0 -ctv q8_0 -nkvo -ncmoe 3"
        small, large = (
            plan(
                "gemma-4-26b-a4b-q4_k_m",
                flags,
                gpu(8.63, 0, bandwidth=900e9),
                gpu(size, 1, bandwidth=300e9),
            )
            for size in (9.68, 19.29)
        )
        # at the price of a longer context
        longer = log2(large.breakdown.n_ctx / small.breakdown.n_ctx)
        assert longer >= 0
        hop = SHARED.hop * 1e-6 * (512 + 2048 / 512)
        assert large.speed.request <= small.speed.request * LONG.factor**longer + hop

    @pytest.mark.slow
    def test_parts_of_layers_are_spread_over_the_cards(self) -> None:
        cards = [gpu(2.8, i) for i in range(2)]
        spread = plan("lfm2-8b-a1b-q4_k_m", "-c 8192", *cards)
        assert spread.fits and spread.params.overrides
        leading = [
            plan("lfm2-8b-a1b-q4_k_m", f"-c 8192 -ngl 25 --strategy auto -ncmoe {count}", *cards)
            for count in (4, 5, 6)
        ]
        assert leading[-1].fits
        for other in leading:
            assert not other.fits or (spread.speed.request < other.speed.request * 0.98)

    @pytest.mark.slow
    def test_many_rules_are_written_as_few(self) -> None:
        found = plan("lfm2-8b-a1b-q4_k_m", "-c 8192", gpu(2.8, 0), gpu(2.8, 1))
        rules = found.flags[found.flags.index("-ot") + 1].split(",")
        assert len(rules) < len(found.params.overrides)
        again = plan("lfm2-8b-a1b-q4_k_m", " ".join(found.flags), gpu(2.8, 0), gpu(2.8, 1))
        assert (again.breakdown, again.flags, again.placement) == (
            found.breakdown,
            found.flags,
            found.placement,
        )


class TestSearch:
    """A search measures launches by their prompt graphs; its answer is measured to the end."""

    @pytest.mark.parametrize(
        ("name", "mib"),
        few_rows(
            1,
            [
                pytest.param(
                    "kimi-linear-48b-a3b-q4_k_m", (13679, 13679, 5211), marks=pytest.mark.slow
                ),
                pytest.param("kimi-linear-48b-a3b-q4_k_m", (15576, 15576), marks=pytest.mark.slow),
                slow("kimi-linear-48b-a3b-q4_k_m:6", (4715, 4715, 1791)),
                ("kimi-linear-48b-a3b-q4_k_m:6", (4642, 4642)),
            ],
        ),
    )
    def test_an_answer_that_only_the_prompt_graph_allows_gets_less_context(
        self, name: str, mib: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cards = [gpu(size / 1024, i) for i, size in enumerate(mib)]
        believed = []
        grown = Search._grown

        def seen(self: Search, *args: Any) -> Any:
            believed.append(grown(self, *args))
            return believed[-1]

        monkeypatch.setattr(Search, "_grown", seen)
        found = plan(name, "", *cards)
        n_ctx = found.breakdown.n_ctx
        assert (
            believed[0].fits
            and isinstance(believed[0].breakdown, LowerBound)
            and believed[0].params.n_ctx >= n_ctx
        )
        assert found.fits and isinstance(found.breakdown, Breakdown)
        shape = " ".join(found.flags[4:])
        assert not plan(name, f"-ngl {found.n_gpu_layers} -c {n_ctx + 256} {shape}", *cards).fits

    @seldom
    def test_a_first_card_too_small_for_anything_is_soon_given_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        measured = []
        at_least = Estimator.at_least

        def counted(self: Estimator, *args: object, **more: object) -> object:
            measured.append(args)
            return at_least(self, *args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(Estimator, "at_least", counted)
        size = model("qwen4exp-80b").size / GiB
        found = plan(
            "qwen4exp-80b",
            "",
            *[
                gpu(size * part, i, bandwidth=speed)
                for i, (part, speed) in enumerate(((0.056, 300e9), (0.161, 300e9), (0.265, 900e9)))
            ],
        )
        assert len(measured) < 80  # one search for each of the two others alone
        # the largest and fastest
        assert found.params.main_gpu == 2 and found.fits and found.n_gpu_layers == 49


class TestMargin:
    def test_given_means_exactly_that(self) -> None:
        for flags in ("-fitt 100", "--margin 100MiB"):
            assert plan(DENSE, flags, gpu(24)).devices[0].margin == 100 << 20

    def test_not_given_it_is_built_from_named_parts(self) -> None:
        row = plan(DENSE, "", gpu(24)).devices[0]
        assert row.margin == sum(size for _, size in row.margin_parts) > 0
        assert "CUDA context" in dict(row.margin_parts)


class TestReasons:
    def test_the_next_layers_price_and_what_is_missing(self) -> None:
        found = plan("llama-3.1-8b-q4_k_m:8", "-c 8192 --strategy layers", gpu(2), explain=True)
        assert any(
            f"layer {found.n_gpu_layers + 1} of 9 would take" in r and "missing" in r
            for r in found.reasons
        )

    def test_levers_as_numbers_that_are_true(self) -> None:
        found = plan(DENSE, "-c 32768", gpu(24), explain=True)
        by_name = {lever.name: lever for lever in found.levers}
        smaller = plan(DENSE, "-c 16384", gpu(24))
        assert by_name["half the context"].saves == found.devices[0].used - smaller.devices[0].used
        quantised = plan(DENSE, "-c 32768 -ctk q8_0 -ctv q8_0", gpu(24))
        assert by_name["a q8_0 cache"].saves == found.devices[0].used - quantised.devices[0].used

    def test_flash_attention_is_a_lever_where_it_is_off(self) -> None:
        found = plan(DENSE, "-c 32768 -fa off", gpu(24), explain=True)
        assert {lever.name: lever.saves > 0 for lever in found.levers}["flash attention"]

    @pytest.mark.parametrize(
        ("words", "flags"),
        [
            ("", ("-lm", "none")),
            slow("--llama-build 9100", ("--no-mmap",)),
            slow("-lm mmap", None),  # given
            slow("--no-op-offload", None),  # nothing is copied
            slow("--budget CUDA0=20GiB", None),  # all weights are on the GPU
        ],
    )
    def test_pinned_weights_are_named_where_prompts_gain(
        self, words: str, flags: tuple[str, ...] | None
    ) -> None:
        """Weights that are mapped from the file are copied by the CPU before the bus."""
        machine = "--gpu rtx-3090 --budget CUDA0=3GiB --ram 64GiB -c 8192"
        found = autolayers.plan(
            model("qwen3-30b-a3b-q4_k_m:12"), [*machine.split(), *words.split()], explain=True
        )
        pinned = [other for other in found.alternatives if "pinned" in other.note]
        assert [other.change for other in pinned] == [flags][: flags is not None]
        assert found.fits and found.speed
        assert all(other.speed.prompt > 1.25 * found.speed.prompt for other in pinned)
        assert all(other.n_ctx == 8192 for other in pinned)


def test_the_json_has_the_keys_that_are_promised() -> None:
    answer = plan(DENSE, "-c 8192", gpu(24)).to_dict()
    assert json.loads(json.dumps(answer)) == answer
    assert answer["schema"] == 1 and answer["fits"] is True and answer["exact"] is True
    assert set(answer) >= {
        "autolayers",
        "model",
        "launch",
        "devices",
        "host",
        "flags",
        "reasons",
        "warnings",
    }
    assert set(answer["launch"]) == {  # type: ignore[call-overload]
        "engine",
        "n_gpu_layers",
        "n_ctx",
        "n_ctx_seq",
        "n_batch",
        "n_ubatch",
        "n_seq_max",
        "kv_unified",
        "flash_attn",
        "cache_type_k",
        "cache_type_v",
        "tensor_split",
        "overrides",
    }
    assert set(answer["devices"][0]) >= {  # type: ignore[index]
        "name",
        "description",
        "total",
        "free",
        "margin",
        "model",
        "context",
        "compute",
        "used",
        "remaining",
    }
    host: Any = answer["host"]
    assert set(host) >= {"model", "context", "compute", "used", "free"}


@pytest.mark.parametrize(
    ("sizes", "layers"),
    [
        ("700MiB,200MiB", "5"),
        ("600MiB,200MiB", "5"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("1GiB,500MiB", "all"),
                ("1200MiB,400MiB", "12"),
                ("500MiB,1GiB", "all"),
                ("1GiB,500MiB", "12"),
                ("1200MiB,400MiB", "all"),
                ("500MiB,1GiB", "12"),
            )
        ),
    ],
)
def test_given_layers_are_split_so_that_they_fit(sizes: str, layers: str) -> None:
    """With llama.cpp's own split where that fits, else with another one where there is one."""
    flags = ["--gpu", sizes, "--ram", "64GiB", "-fitt", "0", "-c", "2048", "-ngl", layers]
    target = model("llama-3.2-1b-q8_0:6" if layers == "5" else "llama-3.2-1b-q8_0")
    count = 17 if layers == "all" else int(layers)
    possible = [
        n
        for n in range(count + 1)
        if autolayers.plan(target, [*flags, "-ts", f"{n},{count - n}"]).fits
    ]
    found = autolayers.plan(target, flags)
    assert found.fits == bool(possible) and found.n_gpu_layers == count
    assert (
        not possible
        or found.params.device
        or found.params.tensor_split
        in {(float(n), float(count - n)) if n < count else (float(n),) for n in possible}
    )


@pytest.mark.slow
def test_the_same_question_has_the_same_answer() -> None:
    cards = gpu(8 / 1024, 0), gpu(6 / 1024, 1)
    first = plan(SMALL, "-fitt 0 -np 2", *cards, explain=True).to_dict()
    model.cache_clear()
    assert plan(SMALL, "-fitt 0 -np 2", *cards, explain=True).to_dict() == first


@pytest.mark.parametrize(
    ("name", "words", "mib"),
    few_rows(
        1,
        [
            (SMALL, "-fitt 0 -np 2", 8),
            (SMALL, "-fitt 0", 4),
            *(
                pytest.param(*case, marks=pytest.mark.slow)
                for case in ((MOE, "", 8192), (DENSE, "", 1536), (DENSE, "", 100))
            ),
        ],
    ),
)
def test_processes_explain_a_plan_as_one_does(name: str, words: str, mib: float) -> None:
    alone, shared = (
        plan(name, words, gpu(mib / 1024), explain=True, processes=count).to_dict()
        for count in (1, 3)
    )
    assert shared == alone and {"levers", "alternatives", "fit", "reasons"} < alone.keys()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--ctx many", "--ctx 'many': expected a number of tokens such as 8192 or 16k, or max"),
        ("--ctx-min 0", "--ctx-min '0': expected a number of tokens"),
        ("--kv-types f16,q3", "--kv-types 'f16,q3': expected cache types, which 'q3' is not"),
        ("--budget 10GiB", "--budget '10GiB': expected a device and a size"),
        ("--llama-build new", "--llama-build 'new': expected a build number"),
        ("--ram lots", "--ram 'lots': expected a size such as 24GiB or 512MiB"),
        ("model.gguf", "not a flag: 'model.gguf'"),
    ],
)
def test_what_makes_no_sense_is_said(flags: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        plan(DENSE, flags, gpu(24))
    assert message in str(error.value)


def test_a_launch_that_llama_cpp_refuses_is_refused_with_its_reason() -> None:
    with pytest.raises(autolayers.LaunchRefused, match="quantized V cache requires"):
        plan(DENSE, "-ctv q8_0 -fa off", gpu(24))


@pytest.mark.parametrize(
    ("flags", "gib"), [slow("--margin 30GiB", 24), ("-ngl 0", 0.1), slow("-fitt 9000", 8)]
)
def test_a_margin_that_is_more_than_what_is_free_is_named(flags: str, gib: float) -> None:
    found = plan(DENSE, flags, gpu(gib))
    margin, free = found.devices[0].margin, found.devices[0].free
    assert margin > free and any(
        f"CUDA0: the margin alone, {human(margin)}, is more than the {human(free)}" in line
        for line in found.warnings
    )
