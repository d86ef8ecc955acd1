"""A server would run out of RAM after hours.

System memory over the life of a launch: what grows while it serves, what -q leaves to
llama-server, what a processor serves well.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import strategies as st
from support import few_and_many, few_rows, many, model, slow

import autolayers
from autolayers import Device
from autolayers.api import fit_choice
from autolayers.devices import Host
from autolayers.flags.parse import parse
from autolayers.machine import Machine
from autolayers.planner.evaluate import FULL, RAM_MARGIN, Evaluator
from autolayers.planner.one.fit import fit
from autolayers.records import replace

GiB = 1 << 30
NAMES = (
    "llama-3.2-1b-q8_0",
    "gemma-3-4b-q8_0:8",
    "qwen3-next-80b-a3b-q4_k_m:8",
    "mamba2-2.7b-q4_k_m:8",
)


def plan(name: str, words: str, gib: float | None, ram: float | None) -> autolayers.Plan:
    devices = [] if gib is None else [Device("CUDA0", round(gib * GiB), round(gib * GiB))]
    host = None if ram is None else Host(round(ram * GiB), round(ram * GiB), "given")
    return autolayers.plan(model(name), words.split(), devices=devices, host=host)


def test_what_fits_still_fits_when_everything_has_grown(name: str, ram: float, words: str) -> None:
    found = plan(name, f"-c 8192 {words}", 80, ram)
    assert found.fits == (found.host.remaining >= 0)  # type: ignore[operator]
    assert found.host.needed == found.host.resident + RAM_MARGIN + sum(
        extra.size for extra in found.breakdown.extras if extra.upper_limit
    )
    assert all(word in " ".join(found.flags) for word in words.split())
    again = plan(name, " ".join(found.flags), 80, ram)
    assert (again.flags, again.host, again.fits) == (found.flags, found.host, found.fits)


test_what_fits_still_fits_when_everything_has_grown = many(
    50,
    test_what_fits_still_fits_when_everything_has_grown,
    st.sampled_from(NAMES),
    st.floats(0.6, 80),
    st.sampled_from(["", "-cram 100", "-ctxcp 3", "-np 1"]),
)


class TestWhatGrows:
    @pytest.mark.parametrize(
        ("name", "ram", "flags"),
        [
            ("llama-3.2-1b-q8_0", 16, ()),
            ("llama-3.2-1b-q8_0", 4, ("-cram",)),
            slow("gemma-3-4b-q8_0", 16, ("-ctxcp",)),
            slow("gemma-3-4b-q8_0", 8, ("-ctxcp", "-cram")),
        ],
    )
    def test_is_limited_by_as_few_flags_as_needed(
        self, name: str, ram: float, flags: tuple[str, ...]
    ) -> None:
        found = plan(name, "-c 8192", 80, ram)
        assert (
            found.fits
            and tuple(word for word in found.flags if word in ("-cram", "-ctxcp")) == flags
        )
        assert all(any(flag in reason for reason in found.reasons) for flag in flags)

    def test_a_limit_that_was_given_is_part_of_the_bill(self) -> None:
        found = plan("llama-3.2-1b-q8_0", "-c 8192 -cram 8192", 80, 4)
        assert not found.fits and found.host.remaining < 0  # type: ignore[operator]

    @pytest.mark.slow
    def test_without_ram_the_plan_says_how_much_it_needs(self) -> None:
        found = plan("qwen3-next-80b-a3b-q4_k_m:8", "", 1.5, None)
        host = found.to_dict()["host"]
        needed, free = host["needed"], host["free"]  # type: ignore[index]
        assert needed == found.host.resident + RAM_MARGIN > 4 * GiB and free is None
        known = plan("qwen3-next-80b-a3b-q4_k_m:8", " ".join(found.flags), 1.5, needed / GiB + 1)
        assert known.fits

    def test_old_builds_keep_one_prompt_whatever_the_limit_and_older_ones_keep_none(self) -> None:
        def saved(build: int) -> int:
            found = plan(
                "llama-3.2-1b-q8_0",
                f"-c 131072 -np 1 -cram 100 --strict-flags off --llama-build {build}",
                80,
                None,
            )
            return sum(
                extra.size for extra in found.breakdown.extras if extra.bounded_by == "cache_ram"
            )

        assert [saved(build) >> 20 for build in (6000, 9713, 10068)] == [0, 4096, 100]


# --- -q: the number that llama-server can be given with nothing but the flags that were given here


def test_a_number_is_right_by_itself(name: str, shares: list[float], words: str) -> None:
    if words == "-cmoe" and not model(name).is_moe:
        return
    cards = [
        Device(f"CUDA{i}", size, size)
        for i, size in enumerate(round(model(name).size * share) + GiB for share in shares)
    ]
    found = autolayers.plan(model(name), [*words.split(), "-q"], devices=cards)
    if not found.fits:
        return
    evaluator = Evaluator.of(
        model(name), Machine(tuple(cards), {card.name: card.free for card in cards})
    )
    given_ = replace(parse(words.split()).params, n_gpu_layers=found.n_gpu_layers)
    launched = fit(evaluator, given_, FULL)
    assert launched is not None and launched.fits


test_a_number_is_right_by_itself, test_more_numbers = few_and_many(
    4,
    40,
    test_a_number_is_right_by_itself,
    st.sampled_from(["llama-3.2-1b-q8_0", "gpt-oss-20b-mxfp4:8", "olmoe-moe", "gemma-3-4b-q8_0:8"]),
    st.lists(st.floats(0.2, 1.2), min_size=1, max_size=2),
    st.sampled_from(
        ["", "-c 16384", "-np 2", "-ctk q8_0 -ctv q8_0", "-cmoe", "--strategy auto", "--ctx max"]
    ),
)


def test_a_mixture_of_experts_gets_whole_layers() -> None:
    alone, all_flags = (plan("gpt-oss-20b-mxfp4:8", words, 3.3, None) for words in ("-q", ""))
    assert 0 < alone.n_gpu_layers < all_flags.n_gpu_layers == 9 and alone.fits


class TestProcessor:
    """No GPU: the context grows to 32k, and further while tokens come quickly, as long as memory is
    left."""

    @pytest.mark.parametrize(
        "name", ["llama-3.1-8b-q4_k_m", "llama-3.2-1b-q8_0", "qwen3-30b-a3b-q4_k_m"]
    )
    @pytest.mark.parametrize("ram", [24, 400])
    def test_keeps_a_token_under_seconds_and_memory_free(self, name: str, ram: float) -> None:
        host = Host(round(ram * GiB), round(ram * GiB), "given")
        found = autolayers.plan(model(name), [], devices=[], host=host)
        assert found.fits and found.speed
        slowest = max(0.5, 1.5 / found.speed.generation)
        assert found.breakdown.n_ctx <= 32768 or 1 / found.speed.generation_full <= slowest
        assert found.host.resident <= ram * GiB * 7 / 8
        assert found.breakdown.n_ctx >= 32768 or found.host.resident > ram * GiB * 3 / 4

    @pytest.mark.slow
    def test_a_largest_context_that_keeps_no_model_on_the_gpus_says_so(self) -> None:
        def said(gib: float) -> bool:
            return any(
                "--ctx max" in line
                for line in plan("llama-3.1-8b-q4_k_m", "--ctx max", gib, None).warnings
            )

        assert said(4) and not said(12)

    def test_what_is_asked_for_is_given(self) -> None:
        assert plan("llama-3.1-8b-q4_k_m", "-c 65536", None, 24).breakdown.n_ctx == 65536
        assert plan("llama-3.2-1b-q8_0", "--ctx max", None, 400).breakdown.n_ctx == 131072


class TestMoreThanMemory:
    """Models that system memory does not suffice for."""

    @pytest.mark.parametrize(
        ("name", "gib", "ram"),
        few_rows(
            1,
            [
                slow("qwen3-30b-a3b-q4_k_m:8", (1.5,), 1.5),
                slow("gpt-oss-20b-mxfp4:8", (1.5, 1.2), 1.5),
                ("llama-3.3-70b-q4_k_m:8", (2,), 2),
                *(
                    pytest.param(*case, marks=pytest.mark.slow)
                    for case in (
                        ("qwen3-next-80b-a3b-q4_k_m", (12,), 32),
                        ("llama-4-scout-q4_k_m", (12,), 32),
                        ("qwen3-30b-a3b-q4_k_m", (4,), 8),
                        ("gpt-oss-20b-mxfp4", (3, 2), 4),
                        ("llama-3.3-70b-q4_k_m", (8,), 16),
                    )
                ),
            ],
        ),
    )
    def test_lack_no_more_of_it_than_fits_own_answer_and_are_no_slower(
        self, name: str, gib: tuple[float, ...], ram: float
    ) -> None:
        cards = [
            Device(f"CUDA{i}", round(size * GiB), round(size * GiB)) for i, size in enumerate(gib)
        ]
        host = Host(round(ram * GiB), round(ram * GiB), "given")
        found = autolayers.plan(model(name), [], devices=cards, host=host)
        rival = fit_choice(model(name), [], cards, host)
        assert not found.fits and rival is not None and found.speed and rival.speed
        assert found.breakdown.resident <= rival.breakdown.resident
        assert found.speed.request <= rival.speed.request * 1.005  # what a search may miss
        if model(name).is_moe:
            assert found.n_gpu_layers == found.n_layer + 1 and found.params.overrides


# --- what an agent's next request reuses


@pytest.mark.parametrize(
    ("name", "words", "flags", "reason"),
    few_rows(
        2,
        [
            ("llama-3.1-8b-q4_k_m", "", ["--cache-reuse", "256"], "--cache-reuse 256: "),
            ("llama-3.1-8b-q4_k_m", "--cache-reuse 0", ["--cache-reuse", "0"], ""),
            ("gemma-3-4b-q8_0", "", [], "no --swa-full (the request would take "),
            (
                "gemma-3-4b-q8_0",
                "--swa-full",
                ["--swa-full", "--cache-reuse", "256"],
                "--cache-reuse 256: ",
            ),
            ("mamba2-2.7b-q4_k_m", "", [], "the model's state cannot be rolled back: "),
        ],
    ),
)
def test_an_agents_prefix_is_reused_as_far_as_the_cache_allows(
    name: str, words: str, flags: list[str], reason: str
) -> None:
    asked = ["--gpu", "rtx-3090", "--ram", "96GiB", *words.split()]
    launch = autolayers.plan(model(name), [*asked, "--workload", "agent"])
    assert [
        word for word in launch.flags if word in ("--swa-full", "--cache-reuse", "256", "0")
    ] == flags
    assert any(line.startswith(reason) for line in launch.reasons) == bool(reason)
    assert set(launch.flags) & {"--swa-full", "--cache-reuse"} <= {*words.split(), "--cache-reuse"}
    chat = autolayers.plan(model(name), asked)
    assert "--cache-reuse" in words or "--cache-reuse" not in chat.flags


def test_a_full_cache_of_windows_is_chosen_where_it_is_nearly_free() -> None:
    """A context that is no larger than the window."""
    launch = autolayers.plan(
        model("gemma-3-4b-q8_0"), ["--gpu", "rtx-3090", "--workload", "agent", "-c", "1024"]
    )
    assert "--swa-full" in launch.flags and any(
        line.startswith("--swa-full: ") for line in launch.reasons
    )


def test_a_launch_that_does_not_fit_gets_no_flag_for_its_prefix() -> None:
    launch = autolayers.plan(
        model("llama-3.2-1b-q8_0:4"), ["--gpu", "256MiB", "--ram", "1GiB", "--workload", "agent"]
    )
    assert not launch.fits and "--cache-reuse" not in launch.flags


class TestCheckpoints:
    """They are given up where their RAM is worth more in another place, and that is said."""

    @staticmethod
    def on(words: str) -> autolayers.Plan:
        return autolayers.plan(model("gemma-3-12b-q4_k_m"), words.split())

    @pytest.mark.slow
    def test_a_gpu_that_shares_the_ram_keeps_its_layers_and_not_their_checkpoints(self) -> None:
        found = self.on("--gpu m4-16g --workload agent")
        assert found.fits and found.placement == "49 of 49 layers on the GPU"
        assert found.breakdown.n_ctx == 40960
        assert " -ctxcp 0 " in f" {' '.join(found.flags)} "
        kept = self.on("--gpu m4-16g --workload agent -ctxcp 1")
        assert found.speed.generation > 2 * kept.speed.generation
        assert any(
            line.startswith("-ctxcp 0: a checkpoint for each slot would take 1280.05 MiB")
            for line in found.reasons
        )
        assert any("computed again from its start" in line for line in found.reasons)

    @pytest.mark.slow
    def test_a_larger_context_alone_is_no_reason_but_an_alternative(self) -> None:
        from autolayers.planner import plan_request
        from autolayers.request import Request

        found = plan_request(
            model("gemma-3-12b-q4_k_m"), Request.of(["--gpu", "m4-16g"]), explain=True
        )
        assert found.params.ctx_checkpoints == 1 and found.breakdown.n_ctx == 23296
        longer = {other.change: other.n_ctx for other in found.alternatives}
        assert longer["-ctxcp", "0"] == 40960 and longer["-np", "1"] == 49920

    def test_a_given_number_stays(self) -> None:
        found = self.on("--gpu m4-16g --workload agent -ctxcp 2")
        assert found.params.ctx_checkpoints == 2


def test_a_conversation_that_is_not_kept_is_said() -> None:
    """160k tokens of an 8B take 20 GiB: with 8 GiB for saved prompts each turn is read again."""
    words = ["--gpu", "80GiB", "--ram", "64GiB", "-c", "262144"]
    long = [*words, "--workload", "4096+512@156k"]

    def warned(given: list[str]) -> list[str]:
        plan = autolayers.plan(model("llama-3.1-8b-q4_k_m"), given)
        return [line for line in plan.warnings if "no conversation fits" in line]

    (line,) = warned([*long, "--cache-ram", "8192"])
    assert "of 164352 tokens no conversation fits --cache-ram 8192" in line
    assert not warned([*long, "--cache-ram", re.findall(r"-cram (\d+) keeps one", line)[0]])
    assert not warned(words) and not warned([*long, "--cache-ram", "0"])
