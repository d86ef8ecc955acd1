"""A kind of placement would promise less than fits, and the best launch would never be measured; or
more, and the search would measure launches in vain.

What each kind promises by the bytes of layers and by buffers that are known, against every number
of layers and every context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from support import hypothetical_gpus, model, requested

from autolayers.devices import Host
from autolayers.flags.params import Params
from autolayers.flags.policy import read
from autolayers.machine import Machine
from autolayers.memory.breakdown import Static
from autolayers.planner.buffers import ALIKE, LEAST, Buffers, Taken
from autolayers.planner.candidates import PlacementKind, PromisedLaunch
from autolayers.planner.evaluate import FULL, RAM_MARGIN
from autolayers.planner.frames import Frame
from autolayers.planner.problem import Problem
from autolayers.records import replace

DENSE = "llama-3.2-1b-q8_0:6"
MIXTURE = "qwen3-30b-a3b-q4_k_m:6"
MiB = 1 << 20
ROUNDED = 4096  # bytes by which single layers may be larger than all together


@cache
def frame(count: int, words: str, of: str, ram: str | None) -> Frame:
    """The frame of these words on as many GPUs of 8 GiB."""
    devices = hypothetical_gpus([8192] * count)
    machine = Machine.of(devices, Host.hypothetical(ram) if ram else None, None, {})
    params, policy = read(words.split(), None)
    return Frame(Problem(model(of), requested(params, policy, machine)), params)


def kind(
    name: str,
    mib: tuple[int, ...],
    words: str = "",
    of: str = DENSE,
    ram: str | None = None,
    buffers: int | None = None,
) -> PlacementKind:
    """A kind on GPUs of which these MiB may be used; `buffers`: the MiB that launches are known to
    take there."""
    at = frame(len(mib), words, of, ram)
    limits = {f"CUDA{i}": size * MiB for i, size in enumerate(mib)}
    found = PlacementKind(at, name, at.given, Buffers(limits), limits)
    if buffers is not None:
        known(found, dict.fromkeys(limits, buffers * MiB))
    return found


def known(of: PlacementKind, sizes: Mapping[str, int], ram: int = 0) -> None:
    """Every launch of its frame takes these bytes besides weights and caches."""
    for name in ("whole", of.name, f"all {of.name}", f"part of {of.name}"):
        point = of.frame.key, name, 4096, 512
        of.buffers.note(point, Taken(sizes, dict.fromkeys(sizes, 0), ram, True, True, ""))


def static(of: PlacementKind, params: Params) -> Static:
    found = of.evaluator.static(params)
    assert found is not None
    return found


def promise(of: PlacementKind, n_ctx: int = 4096, failed: int = 0, hope: int = 0) -> PromisedLaunch:
    found = of.promise(n_ctx, failed, hope)
    assert found is not None
    return found


def count(of: PlacementKind, params: Params) -> int:
    """How many layers of the kind a launch has on the devices."""
    ladder = of.ladder(params.n_ctx)
    assert ladder is not None
    for n in range(ladder.top + 1):
        if replace(ladder(n), tensor_split=params.tensor_split) == params:
            return n
    raise AssertionError(params)


def most(of: PlacementKind, n_ctx: int, buffers: int) -> int:
    """The largest number of layers whose bytes and `buffers` one device holds; -1 for none."""
    ladder = of.ladder(n_ctx)
    assert ladder is not None
    (limit,) = of.limits.values()
    fitting = [
        n for n in range(ladder.top + 1) if static(of, ladder(n)).on_devices + buffers <= limit
    ]
    return max(fitting, default=-1)


SIZES = range(350, 1500, 50)


class TestLayers:
    @pytest.mark.parametrize("name", ["layers", "ffn", "bare"])
    def test_as_many_as_should_fit_beside_the_least_before_anything_is_measured(
        self, name: str
    ) -> None:
        found = set()
        for mib in SIZES:
            of = kind(name, (mib,), "-c 4096")
            of.buffers = Buffers(of.limits, {"CUDA0": 100 * MiB})
            expected = most(of, 4096, 100 * MiB)
            # all of them is the top of the finer kind, none of them another kind
            if name == "layers":
                expected = min(expected, 6)
            launch = of.promise(4096)
            if expected < (0 if name == "ffn" else 1):
                assert launch is None
            else:
                assert launch is not None and count(of, launch.params) == expected
                found.add(expected)
        assert len(found) > 2

    @pytest.mark.parametrize("name", ["layers", "ffn"])
    def test_as_many_as_fit_beside_what_was_measured_to_the_last_byte(self, name: str) -> None:
        of = kind(name, (4096,), "-c 4096")
        ladder = of.ladder(4096)
        assert ladder is not None
        for n in range(2, 6):
            need = static(of, ladder(n)).on_devices
            # each layer by itself is rounded up
            for more, lacking in ((-ROUNDED, 0), (1, 1)):
                known(of, {"CUDA0": of.limits["CUDA0"] - need + more})
                assert count(of, promise(of).params) == n - lacking

    def test_experts_of_as_many_layers(self) -> None:
        of = kind("experts", (8192,), "-c 4096", MIXTURE)
        ladder = of.ladder(4096)
        assert ladder is not None
        for n in (0, 2, 5, 6):
            taken = static(of, ladder(n)).on_devices + ROUNDED
            known(of, {"CUDA0": of.limits["CUDA0"] - taken})
            assert promise(of).params == ladder(n)

    def test_a_part_of_one_more_layer_s_experts_where_it_fits(self) -> None:
        of = kind("experts", (8192,), "-c 4096", MIXTURE)
        ladder = of.ladder(4096)
        assert ladder is not None
        two, three = (static(of, ladder(n)).on_devices for n in (2, 3))
        for part, matrices in ((0.2, 0), (0.5, 1), (0.9, 2)):
            known(of, {"CUDA0": of.limits["CUDA0"] - two - int((three - two) * part)})
            found = promise(of).params
            moved = [pattern for pattern, _ in found.overrides if "gate_up" not in pattern]
            assert len(found.overrides) == 4
            assert len(moved) == (1 if matrices else 0)
            if moved:
                assert moved[0].count("|") - 1 == 2 - matrices
            # after failures whole layers are safer
            assert promise(of, failed=4).params == ladder(2)
            assert promise(of, failed=3).params == found

    def test_hope_is_room_for_more(self) -> None:
        of = kind("layers", (4096,), "-c 4096")
        ladder = of.ladder(4096)
        assert ladder is not None
        need = static(of, ladder(4)).on_devices
        known(of, {"CUDA0": of.limits["CUDA0"] - need - ROUNDED + MiB})
        assert count(of, promise(of).params) == 3
        assert count(of, promise(of, hope=MiB).params) == 4
        assert count(of, promise(of, hope=MiB - 2 * ROUNDED).params) == 3

    def test_several_failures_take_a_layer_away_each(self) -> None:
        of = kind("layers", (900,), "-c 4096", buffers=200)
        usual = count(of, promise(of).params)
        found = [count(of, promise(of, failed=n).params) for n in range(7)]
        assert found == [usual] * 5 + [usual - 1, usual - 2]

    def test_a_promise_is_made_once_until_more_is_known(self) -> None:
        of = kind("layers", (900,), "-c 4096", buffers=200)
        assert of.promise(4096) is of.promise(4096)
        before = promise(of)
        known(of, {"CUDA0": 400 * MiB})
        assert count(of, promise(of).params) < count(of, before.params)

    def test_what_is_known_not_to_fit_is_not_promised(self) -> None:
        of = kind("layers", (900,), "", buffers=200)
        of.buffers.full.add((of.frame.key, 8192, 512))
        assert of.promise(4096) is not None
        assert of.promise(8192) is None and of.promise(16384) is None

    def test_none_are_the_kind_without(self) -> None:
        assert promise(kind("none", (900,))).params.n_gpu_layers == 0

    def test_a_given_number_stays_whether_it_should_fit_or_not(self) -> None:
        for mib in (300, 4096):
            assert promise(kind("given", (mib,), "-ngl 3 -c 4096")).params.n_gpu_layers == 3
        # llama.cpp's own split where that should fit, another one after it did not
        two = kind("given", (700, 700), "-ngl 99 -c 4096", buffers=0)
        assert promise(two).params.tensor_split is None
        other = promise(two, failed=1).params
        assert other.n_gpu_layers == 99 and sum(other.tensor_split or ()) == 7


class TestSeveral:
    @pytest.mark.parametrize("mib", [(500, 700), (700, 500), (900, 400), (450, 450)])
    def test_a_split_holds_as_many_layers_as_any(self, mib: tuple[int, int]) -> None:
        of = kind("layers", mib, "-c 4096", buffers=150)
        found = promise(of).params
        split = [int(n) for n in found.tensor_split or ()]
        assert sum(split) == found.n_gpu_layers and sum(split) > 1
        assert all(self.fits(of, found))
        more = sum(split) + 1
        ladder = of.ladder(4096)
        assert ladder is not None
        for first in range(more + 1):
            other = replace(ladder(more), tensor_split=(float(first), float(more - first)))
            assert more > 6 or not all(self.fits(of, other))

    def fits(self, of: PlacementKind, params: Params) -> Iterator[bool]:
        for name, usage in static(of, params).devices.items():
            yield not usage.total or usage.total + 150 * MiB <= of.limits[name]

    def test_caches_in_ram_take_nothing_of_a_split(self) -> None:
        with_cache, without = (
            count(of, promise(of, 65536).params)
            for words in ("", " -nkvo")
            for of in [kind("layers", (450, 450), f"-c 65536{words}", buffers=150)]
        )
        assert without > with_cache

    def test_a_given_split_stays(self) -> None:
        of = kind("layers", (700, 700), "-c 4096 -ts 1,3", buffers=150)
        found = promise(of).params
        assert found.tensor_split == (1.0, 3.0)
        ladder = of.ladder(4096)
        assert ladder is not None
        fitting = [n for n in range(1, 7) if all(self.fits(of, ladder(n)))]
        assert found.n_gpu_layers == max(fitting)


class TestContext:
    @pytest.mark.parametrize("mib", [1100, 1300, 1500, 2000])
    def test_grows_until_the_device_is_full(self, mib: int) -> None:
        of = kind("ffn", (mib,), buffers=200)
        found = promise(of)
        n_ctx = found.params.n_ctx or 0
        assert of.whole(found.params) and 4096 < n_ctx < 131072 and n_ctx % 256 == 0

        def taken(n: int) -> int:
            return static(of, replace(found.params, n_ctx=n)).on_devices + 200 * MiB

        assert taken(n_ctx) <= of.limits["CUDA0"]
        # another estimate for less than a hundredth is not worth it
        assert taken(int(n_ctx * 1.02) + 512) > of.limits["CUDA0"]

    def test_ends_at_the_trained_one(self) -> None:
        assert promise(kind("ffn", (40000,), buffers=200)).params.n_ctx == 131072

    def test_stays_where_it_is_given(self) -> None:
        assert promise(kind("ffn", (40000,), "-c 4096", buffers=200)).params.n_ctx == 4096

    def test_grows_with_more_care_after_failures(self) -> None:
        of = kind("ffn", (1500,), buffers=200)
        sizes = [promise(of, failed=n).params.n_ctx or 0 for n in range(4)]
        assert sizes[0] > sizes[1] > sizes[2] > sizes[3] == 4096

    def test_in_ram_is_no_more_than_32k_but_for_ctx_max(self) -> None:
        usual, wanted = (
            promise(kind("none", (900,), words)).params.n_ctx for words in ("", "--ctx max")
        )
        assert (usual, wanted) == (32768, 131072)

    def test_in_ram_leaves_an_eighth_of_it_free(self) -> None:
        of = kind("none", (900,), ram="4GiB")
        known(of, {"CUDA0": 0})
        found = promise(of, 4096)
        assert found.ram_missing == 0
        assert of.evaluator.machine.ram is not None
        used = RAM_MARGIN + of.evaluator.in_ram(found.use)
        assert used <= of.evaluator.machine.ram * 7 / 8


class TestRam:
    def test_what_is_missing_is_counted_to_the_byte(self) -> None:
        of = kind("layers", (700,), "-c 4096", ram="1GiB", buffers=200)
        found = promise(of)
        used = RAM_MARGIN + of.evaluator.in_ram(found.use)
        assert of.evaluator.machine.ram is not None
        assert found.ram_missing == max(0, used - of.evaluator.machine.ram)
        enough = kind("layers", (700,), "-c 4096", ram="64GiB", buffers=200)
        assert promise(enough).ram_missing == 0

    def test_a_measured_launch_says_what_others_take(self) -> None:
        of = kind("layers", (8192,), "-c 4096", ram="64GiB")
        ladder = of.ladder(4096)
        assert ladder is not None
        candidate = of.evaluator.candidate(ladder(3), FULL)
        assert candidate is not None
        of.record(candidate)
        point = of.point(ladder(3))
        assert of.buffers.at(point).output == candidate.overheads(of.limits)
        # beyond weights and caches: what the processor computes with, and what serving adds
        use = candidate.breakdown
        assert use.host.compute <= of.buffers.of_ram(point) < use.host.compute + 512 * MiB


class TestPoints:
    """Graph buffers of launches with one name are alike."""

    @pytest.mark.parametrize(
        ("name", "words", "expected"),
        [
            ("ffn", "-ngl 7", "whole"),
            ("layers", "-ngl 99", "whole"),
            ("layers", "-ngl 6", "layers"),
            ("ffn", "-ngl 7 -ncffn 2", "ffn"),
            ("ffn", "-ngl 7 -ncffn 6", "all ffn"),
            ("bare", "-ngl 3 -ncffn 6", "all bare"),
        ],
    )
    def test_are_named_by_what_is_in_ram(self, name: str, words: str, expected: str) -> None:
        of = kind(name, (900,))
        params, _ = read([*words.split(), "-c", "8192", "-ub", "256"], None)
        assert of.point(params) == (of.frame.key, expected, 8192, 256)
        assert of.whole(params) is (expected == "whole")

    def test_a_part_of_a_layer_is_a_kind_of_its_own(self) -> None:
        of = kind("experts", (900,), "", MIXTURE)
        rule = (r"blk\.3\.ffn_(down)_(ch|)exps", "CPU")
        params = Params(n_gpu_layers=7, n_ctx=8192, overrides=(rule,))
        assert of.point(params)[1] == "part of experts"

    def test_given_rules_are_no_choice(self) -> None:
        of = kind("layers", (900,), r"-ot blk\.0\.ffn_up=CPU")
        assert of.whole(replace(of.shape, n_gpu_layers=7))
        assert of.point(replace(of.shape, n_gpu_layers=7))[1] == "whole"

    def test_nothing_given_is_the_trained_context_and_llama_cpp_s_micro_batch(self) -> None:
        of = kind("layers", (900,))
        assert of.point(Params())[2:] == (131072, 512)
        assert of.with_micro_batch(4096).shape.n_batch == 4096
        assert of.with_micro_batch(1024).shape.n_batch == 2048


class TestOutput:
    """Graph buffers of a device that has the output too are larger, and it may be any of
    several."""

    def taken(self, output: str, sizes: Mapping[str, int]) -> Taken:
        return Taken(sizes, dict.fromkeys(sizes, 0), 0, True, True, output)

    def test_are_expected_of_that_device_alone(self) -> None:
        of = kind("layers", (900, 900), "-c 4096")
        point = of.frame.key, "layers", 4096, 512
        of.buffers.note(point, self.taken("CUDA1", {"CUDA0": 100, "CUDA1": 400}))
        needs = of.buffers.at(point)
        # the other way round nothing was measured: what has the output takes more at least
        assert needs.layers == {"CUDA0": 100, "CUDA1": int(400 * LEAST)}
        assert needs.output == {"CUDA0": 100, "CUDA1": 400}
        # an unused device takes what one without the output does
        of.buffers.note(point, self.taken("CUDA0", {"CUDA0": 500}))
        needs = of.buffers.at(point)
        assert needs.output["CUDA0"] == 500
        assert needs.layers["CUDA1"] == int(500 * LEAST)

    def test_less_is_expected_of_a_micro_batch_that_was_not_measured(self) -> None:
        of = kind("layers", (900,), "-c 4096", buffers=200)
        of.buffers.least = {"CUDA0": 0}
        point = of.frame.key, "layers", 4096, 256
        # half of the temporaries, and not all of what is expected
        assert of.buffers.at(point).output == {"CUDA0": int(100 * MiB * ALIKE)}

    def test_decides_which_devices_have_layers(self) -> None:
        ladder = kind("layers", (900, 900), "-c 4096").ladder(4096)
        with_output, without = 500 * MiB, 200 * MiB
        of = kind("layers", (900, 900), "-c 4096")
        of.buffers.note(
            (of.frame.key, "layers", 4096, 512),
            self.taken("CUDA1", {"CUDA0": without, "CUDA1": with_output}),
        )
        found = of.divided(ladder, 4)
        assert found is not None
        use = static(of, found).devices
        last = "CUDA1" if len(found.tensor_split or ()) == 2 else "CUDA0"
        for name, usage in use.items():
            needs = with_output if name == last == "CUDA1" else without
            assert not usage.total or usage.total + needs <= of.limits[name]


def test_a_launch_that_ram_is_too_small_for_comes_after_a_slower_one() -> None:
    use: Any = None
    fast, slow_one = (
        PromisedLaunch(Params(), use, 1.0, ram_missing=1),
        PromisedLaunch(Params(), use, 2.0),
    )
    assert sorted([fast, slow_one], key=lambda each: each.rank) == [slow_one, fast]
