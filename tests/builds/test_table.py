"""Anyone who has an older build would get the rules of today.

The table of dated rules: what its rows promise, and that nothing else compares build numbers.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import FIXTURES, ROOT, gpus, model, slow

from autolayers import AutolayersError, LaunchRefused, estimate, read_model, tables
from autolayers.builds import NEWEST, OLDEST_EXACT, Build, Rule, Rules, RuleSet, rules, sources
from autolayers.flags.parse import parse
from autolayers.memory.estimate import Estimator


def test_rows_are_in_order_and_dated() -> None:
    parts = [row.part for row in Rules.rows()]
    assert parts == sorted(parts, key=parts.index)
    assert [row.name for row in Rules.rows()] == [*Rules.__annotations__][1:], "table.py names each"
    for row in Rules.rows():
        assert row.after < row.first and (not row.last or row.first <= row.last < row.until), (
            row.name
        )
        newest = max(NEWEST, *sources.RECORDED)
        assert max(row.first, row.last) <= newest, (
            f"{row.name}: that build is not in builds/sources.py"
        )
        assert (
            row.clause and "\n" not in row.clause and (not row.pull or row.pull.startswith("#"))
        ), row.name


def test_the_newest_build_is_the_last_whose_source_is_known() -> None:
    numbers = [int(number) for number in sources._TEXT.split()]
    assert numbers == sorted(set(numbers)) and (numbers[0], numbers[-1]) == (OLDEST_EXACT, NEWEST)


def test_every_rule_is_read_by_its_name() -> None:
    """As an attribute, of which a type checker finds typos: `rules.name`, or `Rules.name`; or as a
    word of an architecture's or an operation's line, which is looked up when it is read."""
    paths = (ROOT / "autolayers").rglob("*.py")
    read = {
        node.attr
        for path in paths
        if "ules." in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
    }
    tables_of_words = ("model/architectures.tsv", "backends/ops.tsv")
    words = {word for name in tables_of_words for word in re.findall(r"\w+", tables.text(name))}
    assert {row.name for row in Rules.rows()} <= read | words


class Few(RuleSet):
    came = Rule("came", "graph", 200, "came", after=190)
    went = Rule("went", "graph", 100, "came and went", last=300, until=310)


@pytest.mark.parametrize(
    ("number", "came", "went", "doubts"),
    [
        (99, False, False, []),
        (100, False, True, []),
        (195, False, True, ["came"]),
        (200, True, True, []),
        (300, True, True, []),
        (305, True, False, ["went"]),
        (310, True, False, []),
    ],
)
def test_a_build_has_the_rules_of_its_date(
    number: int, came: bool, went: bool, doubts: list[str]
) -> None:
    few = Few(number)
    for _ in "twice":
        assert (few.came, few.went, [row.name for row in few.doubts]) == (came, went, doubts)
    assert (Few(number).has(Few.came), few.has(Few.went), Few.came.name) == (came, went, "came")


@pytest.mark.parametrize("number", [1, 4000, OLDEST_EXACT - 1, NEWEST + 1, 99999])
def test_no_other_build_is_exact(number: int) -> None:
    assert not rules(number).exact and str(number) in rules(number).warning


def test_unknown_is_the_newest() -> None:
    assert rules(None) is rules(0) and rules().exact and not rules().warning


COMPARED = re.compile(r"[<>=]\s*\d{3}|\d{3}\s*[<>=]|\d_\d{3}")


def builds_compared(path: Path) -> list[str]:
    """Comparisons of a build with a number, in a file of the package."""
    source = path.read_text(encoding="utf-8")
    if "build" not in source.lower() or not COMPARED.search(source):
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare) or "build" not in ast.unparse(node).lower():
            continue
        numbers = [
            side.value
            for side in (node.left, *node.comparators)
            if isinstance(side, ast.Constant) and isinstance(side.value, int)
        ]
        if any(number > 500 for number in numbers):
            found.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    return found


def test_no_number_is_compared_in_place(tmp_path: Path) -> None:
    """Rules are read by name."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text("new = 9000 < build")
    assert builds_compared(wrong) == [f"{wrong}:1: 9000 < build"]
    paths = [path for path in (ROOT / "autolayers").rglob("*.py") if path.parent.name != "builds"]
    assert not [line for path in sorted(paths) for line in builds_compared(path)]


@pytest.mark.parametrize(
    ("name", "build", "newer"),
    [
        ("llada-dense", 10825, 10830),
        ("deepseek4-moe", 10760, 11311),
        ("dflash-8b", 10456, 11311),
        ("dspark", 11063, 11311),
        ("eagle3-d2t", 10068, 11311),
        ("dots3note-moe", 10568, 10581),
        ("qwen35-dense", 9294, 9493),
        ("mtp-cohere", 10816, 11063),
    ],
)
def test_files_that_a_build_refuses(name: str, build: int, newer: int) -> None:
    """An architecture, a tensor or a list of recurrent layers that its loader does not know, or a
    key that it wants."""
    params = parse(["-c", "512"]).params
    with pytest.raises(
        AutolayersError,
        match=r"number of tensors|does not load|unknown model|key "
        r"not found",
    ):
        estimate(model(name), params, gpus(8192), build=build)
    assert estimate(model(name), params, gpus(8192), build=newer).host.model


def test_drafts_are_exact_from_their_own_build_on() -> None:
    """DFlash was compared from b10816 on; attn_output.weight is not the output.weight that older
    loaders lack."""
    draft = str(ROOT / "fixtures" / "more" / "headers" / "bor-dflash.gguf")
    words = ["-c", "4096", "-ngl", "99", "-md", draft, "--spec-type", "draft-dflash"]
    for build, exact in ((10280, False), (10816, True)):
        found = estimate(model("qwen3-8b-q4_k_m"), parse(words).params, gpus(24576), build=build)
        drafts = [
            extra
            for extra in found.extras
            if extra.name in ("draft model weights", "draft context", "draft compute")
        ]
        assert drafts and all(extra.exact is exact for extra in drafts)
        assert any("dflash was compared from" in warning for warning in found.warnings) is not exact


@pytest.mark.parametrize(
    ("name", "build", "older", "newer", "words"),
    [
        ("qwen3-8b-q4_k_m", 11396, 11393, 11400, "-c 8192"),
        slow("qwen3-8b-q4_k_m", 7520, 7490, 7540, "-c 8192 -ngl 20"),
        ("qwen3-8b-q4_k_m", 8600, 8571, 8607, "-c 8192 -ctk q8_0 -ctv q8_0"),
    ],
)
def test_between_two_known_builds_the_larger_holds(
    name: str, build: int, older: int, newer: int, words: str
) -> None:
    """Where it is not known whether a build has a change, each part is as large as with it and as
    without it."""

    def parts(number: int) -> list[int]:
        launch = estimate(model(name), parse(words.split()).params, gpus(8192), build=number)
        assert not launch.exact or number != build
        uses = [*launch.devices.values(), launch.host]
        return [size for use in uses for size in (use.model, use.context, use.compute)]

    assert parts(build) == list(map(max, parts(older), parts(newer)))


def test_flash_attention_is_off_by_default_in_old_builds() -> None:
    """Up to b6324 -fa is a switch."""

    def compute(build: int, *words: str) -> int:
        return (
            estimate(
                model("qwen3-8b-q4_k_m"),
                parse(["-c", "8192", *words]).params,
                gpus(24576),
                build=build,
            )
            .devices["CUDA0"]
            .compute
        )

    assert compute(5900) == compute(5900, "-fa", "off") > compute(5900, "-fa", "on")
    assert compute(6325) == compute(6325, "-fa", "on")


def test_a_build_without_a_number_is_as_large_as_the_oldest_that_it_may_be() -> None:
    launch = Estimator(
        model("qwen3-8b-q4_k_m"), Build(flags=frozenset({"--fit"}), between=(9388, 11549))
    )
    params = parse(["-c", "65536"]).params
    found = launch.breakdown(params, gpus(24576))
    for build in (9388, 11549):
        known = estimate(model("qwen3-8b-q4_k_m"), params, gpus(24576), build=build)
        assert found.devices["CUDA0"].compute >= known.devices["CUDA0"].compute
        assert found.host.compute >= known.host.compute
    assert not found.exact


def test_a_build_that_only_its_library_is_known_of() -> None:
    """b11739, recorded from the wheel of llama-cpp-py-sync: exact there, the rules of b11549 before
    and no others."""
    assert rules(11739).exact and rules(11739).pads_uncached and not rules().pads_uncached
    between = rules(11640)
    assert not between.exact and "was not compared" in between.warning
    newer = "newer than the rules known (of build 11549's source, and the program of 12211)"
    assert newer in rules(12300).warning and "was not compared" in rules(11800).warning
    for name, exact in (("qwen3-8b-q4_k_m", True), ("qwen4exp-80b", False)):
        found = estimate(model(name), ["-c", "4096"], ["24GiB"], 11739)
        assert (
            found.exact is exact
            and ("another graph from llama.cpp build 11739 on" in str(found.warnings)) != exact
        )


@pytest.mark.parametrize("name", ["beam-moe", "kolibri1-moe", "maion-coder-moe", "muse-spark-moe"])
def test_an_architecture_after_the_newest_build_is_planned_as_recorded(name: str) -> None:
    """b11549 refuses such a file; where no build is given it is not asked."""
    found = estimate(model(name), ["-c", "4096", "-ngl", "99"], ["24GiB"])
    assert found == estimate(model(name), ["-c", "4096", "-ngl", "99"], ["24GiB"], 11739)
    assert found.exact and "llama.cpp b11739 has" in str(found.warnings)
    with pytest.raises(LaunchRefused, match=r"llama.cpp build 11549 is older"):
        estimate(model(name), ["-c", "4096"], ["24GiB"], 11549)


def test_an_unknown_architecture_may_slide_in_a_second_cache(tmp_path: Path) -> None:
    """Its host has two masks. muse-spark under another name, with what b11739 took."""
    known = (FIXTURES / "builds/headers/muse-spark-moe.gguf").read_bytes()
    path = tmp_path / "unknown.gguf"
    path.write_bytes(known.replace(b"muse-spark", b"muse-other"))
    for words, device, host in (
        ("-c 20000 -ngl 32 -ub 1024 -fa off -np 1", 426799232, 94408736),
        ("-c 4096 -ngl 99 -np 2 -fa on", 6051968, 5007392),
        ("-c 1024 -ngl 2 -fa off -np 1", 14880768, 6834208),
    ):
        found = estimate(path, words.split(), ["24GiB"], 11739)
        assert not found.exact and "is unknown" in str(found.warnings)
        assert found.devices["CUDA0"].compute >= device and found.host.compute >= host
        assert estimate(model("muse-spark-moe"), words.split(), ["24GiB"]).host.compute == host


def test_a_graph_that_was_rewritten_between_two_sources_is_bounded_as_unknown() -> None:
    """Qwen4-exp of b11364 takes 92.75 MiB, more than with either source around it."""
    words = ["-c", "1024", "-np", "2", "-kvu", "-ub", "300", "-b", "256"]
    sizes = {}
    for build in (11321, 11364, 11434):
        found = estimate(model("qwen4exp-moe"), words, [], build=build)
        sizes[build] = found.host.compute / (1 << 20)
        assert found.exact is (build != 11364)
        assert any("as far as nothing else changed" in w for w in found.warnings) != found.exact
    assert sizes[11321] < 92.75 <= sizes[11364] and sizes[11434] < 92.75


@pytest.mark.parametrize(("build", "runs"), [(8608, False), (8609, True), (8668, True)])
def test_heads_of_512_have_flash_attention_from_b8609_on(build: int, runs: bool) -> None:
    """Gemma 4 31B ran on b8668 with `-ctk q8_0 -ctv q8_0` (llama.cpp issue 21514)."""
    path = ROOT / "fixtures" / "speeds" / "models" / "x-gemma4-31b-ud-q4_k_xl-17.46.gguf"
    params = parse(["-c", "8192", "-ngl", "99"]).params
    card = replace(gpus(65536)[0], compute_capability=(8, 6))
    assert estimate(read_model(path), params, [card], build=build).flash_attn is runs
