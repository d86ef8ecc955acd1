"""A shortcut for long models would change their sizes.

Graphs of the layers that repeat need what whole graphs need, and compute the same.
"""

import pytest
from support import few_rows, slow

import autolayers
from autolayers.flags.policy import read
from autolayers.machine import Device
from autolayers.memory.estimate import Estimator
from autolayers.memory.graphs import prepare
from autolayers.memory.graphs.repeats import Repeats

GiB = 1 << 30


@pytest.mark.parametrize(
    ("kinds", "layers", "marks"),
    [
        ("abbbbbbbbc", (0, 1, 2, 3, 8, 9), ((2, 8),)),
        ("ab" * 8, (0, 1, 2, 3, 4, 5, 14, 15), ((2, 14),)),
        ("aaabaaabaaabaaabaaabaaab", (*range(12), *range(20, 24)), ((4, 20),)),
    ],
)
def test_an_even_number_of_periods_is_left_out(
    kinds: str, layers: tuple[int, ...], marks: tuple[tuple[int, int], ...]
) -> None:
    found = Repeats.of(kinds)
    assert found is not None and (found.layers, found.marks) == (layers, marks)
    assert all(kinds[il] == kinds[twin] for il, twin in found.twins.items())
    assert sorted((*found.layers, *found.twins)) == list(range(len(kinds)))


@pytest.mark.parametrize(
    "kinds", ["aaaaaabaabaabaabaabbbbbb", "abcabcbcbcbbbbbbacacabcaccbab", "ab" * 12, "a" * 13]
)
def test_every_kind_stays_at_each_parity_that_it_has(kinds: str) -> None:
    """Layers that differ in their weights' types alone."""
    found = Repeats.of(kinds, "." * len(kinds))
    assert found is not None and found.twins
    own = {il: number % 2 for number, il in enumerate(found.layers)}
    assert all(il % 2 == parity for il, parity in own.items())
    assert {(kinds[il], il % 2) for il in range(1, len(kinds))} == {
        (kinds[il], own[il]) for il in found.layers[1:]
    }
    for il, twin in found.twins.items():
        assert (kinds[il], il % 2) == (kinds[twin], own[twin]) and twin > 0


@pytest.mark.parametrize("kinds", ["", "a", "abcdefgh", "aaaaa"])
def test_few_layers_stay(kinds: str) -> None:
    assert Repeats.of(kinds) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "words", "gib"),
    few_rows(
        2,
        [
            ("llama-3.1-8b-q4_k_m", "-ngl 99 -c 8192", [24]),
            ("llama-3.1-8b-q4_k_m", "-ngl 20 -c 4096 -np 4", [8]),
            ("gemma-2-9b-q4_k_m", "-ngl 99 -c 16384 -ctk q8_0 -ctv q8_0", [24]),
            ("qwen3-30b-a3b-q4_k_m", "-ngl 99 -c 8192 -ncmoe 20", [12]),
            slow("qwen3-30b-a3b-q4_k_m", "-ngl 99 -c 8192", [12, 8]),
            ("llama-3.3-70b-q4_k_m", "-ngl 99 -c 8192 -fa off", [24, 24]),
            ("deepseek-v2-lite-q4_k_m", "-ngl 26 -c 65536 -np 1 --no-op-offload", [24]),
            ("mamba2-2.7b-q4_k_m", "-ngl 64 -c 8192", [8]),
        ],
    ),
)
def test_graphs_without_repeated_layers_are_the_whole_ones(
    model: str, words: str, gib: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [Device(f"CUDA{i}", n * GiB, n * GiB) for i, n in enumerate(gib)]
    params, _ = read(words.split(), None)

    def measured() -> object:
        estimator = Estimator(autolayers.read_model(f"fixtures/headers/{model}.gguf"), 11549)
        found = estimator.breakdown(params, devices, runtime=True)
        return found.devices, found.host, found.runtime_peak, found.steps

    short = measured()
    monkeypatch.setattr(prepare, "_FEW", 1 << 30)
    assert short == measured()
