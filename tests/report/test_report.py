"""A table or a sentence would show another number than the plan has.

Text that people read, from plans whose numbers are known.
"""

from __future__ import annotations

import errno
import io
import itertools
import pathlib
import re
import shlex
from functools import cache
from math import ceil
from xml.etree import ElementTree

import pytest
from support import FIXTURES, HEADERS, few, model, slow

import autolayers
from autolayers import Device
from autolayers.api import plan_together
from autolayers.errors import AutolayersError, UsageError
from autolayers.flags.params import Params
from autolayers.memory.layers import model_layers
from autolayers.planner.advice import Remedy
from autolayers.planner.plan import NO_REASONS
from autolayers.quoting import shell
from autolayers.records import replace
from autolayers.report.inspect import inspect_text
from autolayers.report.look import GPU, RAM
from autolayers.report.multi import together_text
from autolayers.report.summary import drawn, summary
from autolayers.report.summary import memory as memory_bars
from autolayers.report.svg import write_picture
from autolayers.report.table import Style, shortened, table
from autolayers.report.text import bought, head_text, in_ranges, plan_text, reasons_text


@cache
def plan(name: str, flags: str, *gib: float, explain: bool = True) -> autolayers.Plan:
    devices = [
        Device(f"CUDA{i}", round(size * 2**30), round(size * 2**30), "a card")
        for i, size in enumerate(gib)
    ]
    return autolayers.plan(
        model(name), shlex.split(flags), devices=devices or None, explain=explain
    )


def test_a_table_is_aligned() -> None:
    assert table(["device", "MiB"], [["CUDA0", "1.00"], ["a", "-20.00"]]) == [
        "device     MiB",
        "CUDA0     1.00",
        "a       -20.00",
    ]


def test_negative_numbers_are_red_where_there_is_colour() -> None:
    assert table(["x", "n"], [["a", "-1"]], Style(True))[1] == "a  \x1b[31m-1\x1b[0m"


def test_colour_follows_the_readers_environment() -> None:
    pipe = io.StringIO()
    assert not Style.of(pipe, {}).on
    assert Style.of(pipe, {"FORCE_COLOR": "1"}).on
    assert not Style.of(pipe, {"FORCE_COLOR": "1", "NO_COLOR": "1"}).on


def test_every_part_of_the_breakdown_is_in_the_table() -> None:
    """In GiB, and with -v in MiB as well."""
    found = plan("llama-3.2-1b-q8_0", "-c 8192", 8)
    rows = [
        line for line in plan_text(found, verbose=True).splitlines() if line.startswith("CUDA0")
    ]
    device = found.devices[0]
    sizes = (
        device.free,
        device.model,
        device.context,
        device.compute,
        device.margin,
        device.remaining,
    )
    assert rows[1].split()[3:] == [f"{size / 2**20:.2f}" for size in sizes]
    grows = ["0.0"]  # of RAM alone
    assert rows[0].split()[3:] == [
        *(f"{size / 2**30:.1f}" for size in sizes[1:4]),
        *grows,
        *(f"{size / 2**30:.1f}" for size in sizes[4:]),
        "of",
        "8.0",
    ]


def test_bars_and_layers_are_drawn_on_a_terminal_that_is_not_dumb() -> None:
    found = plan("qwen3-30b-a3b-q4_k_m:8", "--gpu 2GiB --ram 32GiB", explain=False)
    terminal = Style(width=100, drawn=True)
    lines = plan_text(found, terminal).splitlines()
    bar = next(re.findall(r"\|(.*)\|", line)[0] for line in lines if line.startswith("CUDA0"))
    device = found.devices[0]
    assert set(bar) <= set("#=+:.~") and 10 <= len(bar) <= 40
    assert abs(bar.count("#") / len(bar) - device.model / device.free) < 2 / len(bar)
    layers = next(line for line in lines if line.startswith("layers")).split()[1]
    moved = sum(
        any(size and buffer != "CUDA0" for buffer, size in row.buffers.items())
        for row in found.layers
        if row.name != "input"
    )
    assert len(layers) == 9 and layers.count("o") == moved > 0
    # a warning has the file's path, whose letters are the user's
    assert all(ord(c) < 128 for line in lines if not line.startswith(("! ", "  ")) for c in line)
    blocks = plan_text(found, Style(width=100, drawn=True, blocks=True)).splitlines()
    assert any("\u2588" in line for line in blocks)
    # a path is never cut, however long
    assert all(len(line) <= 100 for line in blocks if str(FIXTURES) not in line)
    plain = plan_text(found, Style(width=100))
    assert "|" not in plain.replace("(ch|)", "").replace("gate|", "") and "o partly" not in plain


def test_the_first_block_has_the_verdict_and_the_command_and_the_reasons_follow() -> None:
    found = plan("llama-3.2-1b-q8_0", "--gpu 8GiB --ram 32GiB -c 8192")
    style = Style()
    head, reasons = (
        head_text(found, style, ["--jinja"], False, ["llama-server", "-m", "x"]),
        reasons_text(found, style),
    )
    assert (
        plan_text(found, style, ["--jinja"], command=["llama-server", "-m", "x"]) == head + reasons
    )
    first, *rest = lines = head.splitlines()
    figures = " ".join(rest[:2])  # a range of prompts takes a second line
    assert first.endswith(" fits") and len(first) == 80
    assert figures.startswith("about ") and "tokens/s" in figures and "context 8192" in figures
    assert re.search(r"prompts \d+/s \(\d+ to \d+\)", figures)
    assert lines[-2:] == [shell(["llama-server", "-m", "x", *found.flags, "--jinja"]), ""]
    assert "--fit" in reasons and "fits" not in reasons.split()
    lacking = head_text(plan("llama-3.2-1b-q8_0", "-c 8192", 8), style).splitlines()[0]
    assert "fits if " in lacking and lacking.endswith(" of RAM are free")


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        ("RTX 3090", 10, "RTX 3090"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q", 20, "NVIDIA RT..ell Max-Q"),
    ],
)
def test_long_names_are_shortened_in_the_middle(text: str, width: int, short: str) -> None:
    assert shortened(text, width) == short and len(short) <= width


def test_what_is_missing_is_said_for_every_device() -> None:
    found = plan("llama-3.2-1b-q8_0:8", "-c 65536 -ngl 9", 0.7, 0.7)
    text = plan_text(found)
    assert "does not fit: " in text
    for device in found.devices:
        assert f"{-device.remaining / 2**20:.2f} MiB missing on {device.name}" in text


def test_a_prediction_never_looks_like_a_measurement() -> None:
    assert "predicted, not measured: " in plan_text(plan("llama-3.2-1b-q8_0", "", 8))


def test_the_bars_of_a_summary_have_every_part_at_its_place() -> None:
    """Nothing that a device holds is drawn as free: a cell is of the part at its middle, and what
    does not fit stands behind the mark."""
    style = Style(width=80, drawn=True, blocks=True)
    bar = drawn([6 << 30, 1 << 30, 0, 0, 0, 8 << 30, 1 << 30], 20 << 30, 40, style)
    assert [bar.count(mark) for mark in "\u2588\u2593~\u2591\u00b7"] == [12, 2, 16, 2, 8] and len(
        bar
    ) == 40
    eighth = drawn([(5 << 30) + (1 << 29), 0, 0, 0, 0, 0, 0], 10 << 30, 20, style)
    assert eighth == "\u2588" * 11 + "\u00b7" * 9
    assert drawn([(5 << 30) + (1 << 28), 0, 0, 0, 0, 0, 0], 10 << 30, 20, style)[10] == "\u258c"
    over = drawn([12 << 30, 0, 0, 0, 0, 0, 4 << 30], 8 << 30, 16, style)
    assert over == "\u2588" * 8 + "|" + "\u2588" * 4 + "\u2591" * 4


@pytest.mark.parametrize(
    "words",
    [
        "--gpu rtx-3060 --ram 32GiB",
        slow("--gpu 2GiB --ram 32GiB"),
        slow("--gpu 8xrtx-3060 --ram 64GiB"),
        "--gpu m4-pro-24g",
        "-dev none --gpu 8GiB",
    ],
)
def test_a_summary_says_all_that_is_held_and_may_grow(words: str) -> None:
    found = plan("llama-3.2-1b-q8_0", words)
    lines = memory_bars(found, Style(width=80, drawn=True, blocks=True))
    host = found.host
    held = host.model + host.context + host.compute + host.extra + host.shared
    assert f" {held / 2**30:.1f}" in lines[-1] and (
        f"may grow by {host.growing / 2**30:.1f}" in lines[-1]
    ) is (host.growing >= 2**30 // 20)
    for width in (60, 80, 120):
        text = summary(
            found, Style(width=width, drawn=True, blocks=True), [], ["llama-server", "-m", "x.gguf"]
        )
        assert all(len(line) <= width for line in text.splitlines())
        # a path may be broken at a line's end
        joined = "".join(text.split())
        assert all("".join(warning.split()) in joined for warning in found.warnings)
        shown = text[text.index("llama-server -m ") :].split("\n\n")[0]
        assert shown.replace("\\\n", " ").split() == ["llama-server", "-m", "x.gguf", *found.flags]


def test_a_warning_is_no_wider_than_the_screen() -> None:
    """Wherever the model lies: its path is broken, and nothing of it is lost."""
    folder = "/models/" + "ein-langer-Name-" * 12 + "/für Läufe"
    found = plan("llama-3.2-1b-q8_0:2", "--gpu rtx-3060 --ram 32GiB", explain=False)
    warning = f"{folder}/m.gguf is incomplete: 9248 bytes"
    for write in (summary, plan_text):
        lines = write(replace(found, noted=(warning,)), Style(width=60)).splitlines()
        assert max(map(len, lines)) <= 60
        assert "".join(warning.split()) in "".join("".join(lines).split())


@pytest.mark.parametrize("words", ["--gpu m3-8g", "--gpu rx-7900-xtx --backend vulkan"])
def test_an_upper_bound_is_said_once_and_in_a_user_s_words(words: str) -> None:
    found = plan("llama-3.2-1b-q8_0:2", f"{words} --ram 16GiB", explain=False)
    for text in (summary(found, Style(width=100)), plan_text(found)):
        flat = " ".join(text.split())
        assert not found.exact and flat.count("upper bound") == 1
        assert "backend MTL" not in flat


def test_a_card_s_size_is_said_once() -> None:
    """It is part of some names."""
    for gpus, said in (("8xh100-80g", "8 x H100 80GB HBM3 + "), ("rtx-3060", "RTX 3060 12 GB + ")):
        found = plan("llama-3.2-1b-q8_0:2", f"--gpu {gpus} --ram 64GiB", explain=False)
        assert said in summary(found, Style(width=120))


@pytest.mark.slow
def test_a_summary_speaks_in_gib_and_in_cards() -> None:
    """What is missing is rounded up, and a card is named as it is sold: nobody buys 832 MiB."""
    found = plan("llama-3.3-70b-q4_k_m", "--gpu rtx-3060 --ram 32GiB -c 8192")
    text = summary(found, Style(width=80, drawn=True, blocks=True))
    missing = -(found.host.remaining or 0)
    assert f"DOES NOT FIT   {ceil(missing * 10 / 2**30) / 10} GiB missing in RAM\n" in text
    assert "fits with a GPU of 16 GB (" in text and " more of RAM\n" in text


@pytest.mark.slow
def test_a_summary_of_several_gpus_names_none_that_is_larger() -> None:
    assert "fits with a GPU of" not in summary(
        plan("llama-3.3-70b-q4_k_m", "--gpu 2xrtx-3060 --ram 8GiB"), Style(width=80)
    )


def test_a_summary_offers_no_gpu_that_nobody_sells() -> None:
    """615 GiB more on a card are no remedy; 0.9 are."""
    found = plan("llama-3.3-70b-q4_k_m", "--gpu rtx-3060 --ram 32GiB -c 8192")
    huge = Remedy("vram", devices=(("CUDA0", 615 << 30),))
    text = summary(replace(found, why=replace(NO_REASONS, remedies=(huge,))), Style(width=80))
    assert "615" not in text and "fits with" not in text
    table = plan_text(replace(found, why=replace(NO_REASONS, remedies=(huge,))))
    assert "615" not in table and "fits with" not in table
    assert "MiB more than is" not in text and "GiB more than is free" in text


@pytest.mark.slow
def test_a_summary_says_where_llama_cpp_alone_does_the_same() -> None:
    """An alternative that is hardly longer is not called longer."""
    found = plan("qwen3-8b-q4_k_m", "--gpu rtx-3060 --ram 16GiB")
    assert "llama.cpp alone: the same context and rates\n" in summary(found, Style(width=80))
    other = plan("qwen3-30b-a3b-q4_k_m", "--gpu rtx-3060 --ram 32GiB")
    longer = next(each for each in other.alternatives if "-ctk" in each.flags)
    hardly = replace(longer, n_ctx=other.breakdown.n_ctx + 256)
    why = replace(NO_REASONS, alternatives=(hardly,), fit_choice=other.fit_choice)
    text = summary(replace(other, why=why), Style(width=80))
    assert "llama.cpp alone: context 4096" in text
    assert "  instead    " in text and " -ctk q8_0 -ctv q8_0 " in text
    assert "\n  longer " not in text


def test_one_slot_that_is_faster_and_longer_is_shown_beside_what_is_faster() -> None:
    """A home user of Gemma 3 was shown `-c 8192`, which is slower, and not `-np 1`, which is
    faster and longer."""
    found = plan("gemma-2-9b-q4_k_m", "--gpu rtx-3070 --ram 32GiB")
    now = found.speed
    (slot,) = (other for other in found.alternatives if other.change == ("-np", "1"))
    assert slot.n_ctx > found.breakdown.n_ctx and slot.speed.generation >= now.generation
    fast = replace(now, generation=now.generation * 1.1)
    faster = replace(now, generation=now.generation * 1.2, prompt=now.prompt / 2)
    slot = replace(slot, n_ctx=2 * found.breakdown.n_ctx, speed=fast)
    cache = replace(slot, speed=faster, note="", change=("-ctk", "q8_0"))
    short = replace(cache, n_ctx=found.breakdown.n_ctx)
    why = replace(NO_REASONS, alternatives=(short, slot, cache))
    lines = summary(replace(found, why=why), Style(width=120)).splitlines()
    start = lines.index("  or, with other flags in place of all those above:")
    labels = [line[:13].strip() for line in lines[start + 1 : start + 7]]
    assert labels == ["better", "", "better", "", "faster", ""]
    assert lines[start + 1].endswith(" tokens/s, one request at a time")
    # All flags, as they are typed, and what is lost beside what is gained
    assert lines[start + 2].split() == [*slot.flags]
    assert lines[start + 5].endswith(f", prompts {now.prompt / 2:.0f}/s")


def test_a_choice_of_fit_that_fades_says_so() -> None:
    """Faster with an empty context, slower with a full one: the reader sees why it is not taken."""
    found = plan("qwen3-30b-a3b-q4_k_m", "--gpu rtx-3060 --ram 32GiB")
    assert found.fit_choice is not None
    full = found.speed.generation_full
    for rate, shown in ((5.25, True), (full, False)):
        speed = replace(found.fit_choice.speed, generation=1000.0, generation_full=rate)
        fit_choice = replace(found.fit_choice, speed=speed)
        said = replace(found, why=replace(NO_REASONS, fit_choice=fit_choice))
        wide = Style(width=200)
        assert (
            " tokens/s (5.25 with a full context) and prompts" in plan_text(said, wide)
        ) is shown
        assert (" tokens/s (5.2 with a full one), prompts" in summary(said, wide)) is shown


def test_a_summary_without_a_gpu_names_the_cpu() -> None:
    found = plan("llama-3.2-1b-q8_0", "-dev none --ram 16GiB")
    assert summary(found, Style(width=80)).splitlines()[0].endswith("   on the CPU + 16 GB RAM")


@pytest.mark.slow
def test_a_summary_begins_with_the_quantisation_and_has_no_digit_too_many() -> None:
    found = plan("qwen3-30b-a3b-q4_k_m", "--gpu rtx-3060 --ram 32GiB")
    low, high = (found.speed.generation * found.speed.generation_spread**sign for sign in (-1, 1))
    lines = summary(found, Style(width=80, drawn=True, blocks=True)).splitlines()
    assert lines[0].startswith("qwen3-30b-a3b-q4_k_m  17.3 GiB   on ")
    assert lines[1].startswith(
        f"FITS   {found.speed.generation:.0f} tokens/s ({low:.0f} to {high:.0f})   prompts "
    )
    assert re.search(r"prompts \d+/s \(\d+ to \d+\)$", lines[1])
    assert lines[2].endswith(f"context {found.breakdown.n_ctx // 1024}k, shared by 4 slots")
    faster = next(i for i, line in enumerate(lines) if line.startswith("  faster     "))
    # All flags of that launch, and what it loses
    assert any(" --moe-cache-mib " in line for line in lines[faster:])
    assert " tokens/s (" in lines[faster] and ", prompts " in lines[faster]
    starts = {line.index(text) for line in lines for text in ("\u2588", "\u2584") if text in line}
    assert min(starts) == 13  # layers below the bars


def test_a_yellow_full_gpu_is_no_warning() -> None:
    """A white terminal shows all of a summary and of the table: no colour carries meaning."""
    found = plan("qwen3-30b-a3b-q4_k_m", "--gpu rtx-3060 --ram 32GiB")
    text = summary(found, Style(True, 80, True, True))
    assert set(re.findall(r"\x1b\[(\d+)m", text)) <= {"0", "1"}
    table = plan_text(found, Style(True, 120, True, True))
    assert set(re.findall(r"\x1b\[(\d+)m", table)) == {"0", "1", "2"}


@pytest.mark.parametrize("gpus", few(4, ["rtx-3060", "rtx-3090,rtx-3060", "8xrtx-3060", "24GiB"]))
def test_a_narrow_terminal_keeps_the_bars(gpus: str) -> None:
    """What may grow has a line of its own before a bar is left out."""
    found = plan("gpt-oss-20b-mxfp4", f"--gpu {gpus} --ram 64GiB -c 65536", explain=False)
    lines = summary(found, Style(width=60, drawn=True, blocks=True)).splitlines()
    start = lines.index("") + 1
    rows = [line for line in lines[start : lines.index("", start)] if " GiB" in line]
    assert all(" of " in row and set(row) & set("\u2588\u00b7") for row in rows)
    assert any("may grow by 8." in line for line in lines)
    assert max(map(len, lines)) <= 60


def test_a_launch_that_cannot_run_is_not_bold() -> None:
    """And breaks at flags, in the table too."""
    found = plan("llama-3.3-70b-q4_k_m", "--gpu rtx-3060 --ram 32GiB -c 8192")
    for write in (summary, plan_text):
        lines = write(
            found, Style(True, 60, True, True), command=["llama-server", "-m", "llama-3.3-70b.gguf"]
        ).splitlines()
        at = next(i for i, line in enumerate(lines) if line.lstrip().startswith("llama-server "))
        assert lines[at].endswith(" \\") and lines[at + 1].lstrip().startswith("-")


def test_neighbours_share_an_entry_below_the_layers() -> None:
    found = plan("gpt-oss-20b-mxfp4", "--gpu 8xrtx-3060 --ram 64GiB -c 65536")
    assert "   A-G CUDA0-6\n" in summary(found, Style(width=80, drawn=True, blocks=True))


@pytest.mark.slow
def test_all_experts_in_ram_leave_one_more_layer() -> None:
    """The next step of -cmoe is a layer, not all experts at once."""
    found = plan("deepseek-v3.1-q4_k_m", "--gpu rtx-3060 --ram 64GiB -c 8192")
    assert "-cmoe" in found.flags
    more = next(reason for reason in found.reasons if " more on CUDA0" in reason)
    assert more.startswith(f"layer {found.n_gpu_layers + 1} of 62 would take ")


def test_a_picture_has_blue_for_gpus_and_amber_for_ram(tmp_path: pathlib.Path) -> None:
    """In bars and layers alike; on a terminal, whose ground may be white, the shades alone say
    it."""
    found = plan("qwen3-30b-a3b-q4_k_m", "--gpu rtx-3060 --ram 32GiB")
    style = Style(True, 80, drawn=True, blocks=True, painted=True)
    write_picture(summary(found, style), str(tmp_path / "plan.svg"))
    root = ElementTree.parse(tmp_path / "plan.svg").getroot()
    fills: dict[str, list[str]] = {}
    for line in root:
        if line.tag.endswith("text") and {"\u2588", "\u2584"} & set(line.text or ""):
            fills.setdefault(line.get("y", ""), []).append(line.get("fill", ""))
    gpu, ram, layers = fills.values()
    assert gpu == [GPU] and ram == [RAM] and layers[:3] == [GPU, RAM, GPU]
    assert "\x1b[3" not in summary(found, Style(True, 80, drawn=True, blocks=True))


def test_a_picture_has_the_summary_s_text(tmp_path: pathlib.Path) -> None:
    text = "FITS <b> & c\n\n  \u2588\u2593\n"
    write_picture(text, str(tmp_path / "plan.svg"))
    found = ElementTree.parse(tmp_path / "plan.svg").getroot()
    drawn_texts = [line.text for line in found if line.tag.endswith("text")]
    assert drawn_texts == ["FITS <b> & c", "  \u2588\u2593"]
    with pytest.raises(UsageError, match=r"ends in \.svg$"):
        write_picture(text, str(tmp_path / "plan.png"))


def test_a_picture_that_cannot_be_written_leaves_the_old_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the half of a picture was left."""
    (tmp_path / "plan.svg").write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(AutolayersError, match=r"cannot write .*plan\.svg: No space left"):
        write_picture("text", str(tmp_path / "plan.svg"))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


CASES = {
    "fits": ("qwen3-30b-a3b-q4_k_m:8", "--gpu 2GiB --ram 32GiB"),
    "does not fit": ("llama-3.3-70b-q4_k_m:8", "--gpu 1500MiB --ram 2GiB"),
    "alike": ("llama-3.3-70b-q4_k_m:8", "--gpu 4x2GiB,1GiB --ram 900GiB"),
    "processor": ("llama-3.2-1b-q8_0", "-dev none --gpu 8GiB"),
    "draft": (
        "llama-3.2-1b-q8_0:8",
        f"--gpu 1GiB -md {shlex.quote(str(HEADERS))}/llama-moe.gguf -c 8192",
    ),
}


@pytest.mark.parametrize(
    "case", [slow("fits"), slow("does not fit"), slow("alike"), "processor", slow("draft")]
)
def test_text_is_laid_out_for_the_width_and_cuts_no_word(case: str) -> None:
    found = replace(plan(*CASES[case]), noted=())  # of the fixtures' paths
    for verbose, width in itertools.product((False, True), (60, 80, 120)):
        wide = plan_text(found, Style(width=400), verbose=verbose).split()
        text = plan_text(found, Style(width=width), verbose=verbose)
        lines = text.splitlines()
        launch = shell(found.flags)
        assert text.replace(launch, "").isascii() and launch in lines
        commands = {shell(other.flags) for other in (found, *found.alternatives, *found.remedies)}
        assert all(len(line) <= width for line in lines if line.strip() not in commands), max(
            lines, key=len
        )
        assert {word for word in text.split() if ".." not in word} <= {*wide, "MiB", "RAM", "GiB"}
        coloured = plan_text(found, Style(True, width), verbose=verbose)
        assert re.sub(r"\x1b\[\d+m", "", coloured) == text


@pytest.mark.slow
def test_cards_that_are_alike_share_a_row_and_v_shows_each() -> None:
    found = plan(*CASES["alike"])
    rows = [line for line in plan_text(found).splitlines() if line.startswith("CUDA")]
    assert [row.split()[0] for row in rows] == ["CUDA0-3", "CUDA4"]
    fullest = min(found.devices[:4], key=lambda device: device.remaining)
    assert rows[0].split()[-3] == f"{fullest.remaining / 2**30:.1f}"
    every = [
        line.split()[0]
        for line in plan_text(found, verbose=True).splitlines()
        if line.startswith("CUDA")
    ]
    assert every == [f"CUDA{i}" for i in range(5)] * 2


def test_the_margin_is_one_number() -> None:
    found = plan("llama-3.1-8b-q4_k_m:8", "--strategy layers", 1.8)
    assert "margin on" not in plan_text(found) and "margin on CUDA0: CUDA context" in plan_text(
        found, verbose=True
    )


def test_what_would_fit_is_said_below_what_is_missing() -> None:
    lines = plan_text(plan("llama-3.2-1b-q8_0:8", "-c 65536 -ngl 9", 1)).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("does not fit: "))
    assert lines[at + 1].startswith("  fits with -ngl ") and any(
        " more on CUDA0" in line for line in lines[at:]
    )


def test_alternatives_say_what_they_buy() -> None:
    found = plan("llama-3.1-8b-q4_k_m:8", "-c 131072", 3)
    assert found.speed and 0 < len(found.alternatives) <= 5
    for other in found.alternatives:
        assert (
            other.n_ctx > found.breakdown.n_ctx
            or other.speed.generation > found.speed.generation
            or other.speed.prompt > found.speed.prompt
        )
    text = " ".join(plan_text(found).split())
    assert re.search(
        r"-ctk q8_0 -ctv q8_0: \d+\.\d+ tokens/s instead of \d+\.\d+, .*\d+ of 9 "
        r"layers",
        text,
    )


@pytest.mark.parametrize("name", ["llama-3.1-8b-q4_k_m", slow("qwen3-30b-a3b-q4_k_m")])
def test_a_larger_context_has_a_price_without_a_gpu(name: str) -> None:
    """It takes no memory that anything else needs, and costs as it fills."""
    found = autolayers.plan(
        model(name), ["--backend", "cpu", "--ram", "64GiB"], devices=[], explain=True
    )
    larger = [other for other in found.alternatives if other.n_ctx > found.breakdown.n_ctx]
    assert larger
    for other in larger:
        said = re.search(
            r"context \d+, (\S+) tokens/s with a full context instead of "
            r"(\S+)",
            bought(found, other),
        )
        assert said and float(said[1]) < float(said[2])
        assert float(said[1]) == pytest.approx(other.speed.generation_full, rel=0.1)


def test_words_for_a_shell_are_shell() -> None:
    assert shell(["-ot", r"blk\.1\.(up|down)=CPU"]) == r"-ot 'blk\.1\.(up|down)=CPU'"


def test_slots_and_cache_types_are_named() -> None:
    text = plan_text(plan("llama-3.2-1b-q8_0", "-np 2 -c 8192 -ctk q8_0", 8))
    assert "context 8192 (2 slots of 4096), f16/q8_0 cache" in " ".join(text.split())


TOGETHER = (("llama-3.2-1b-q8_0", "gpt-oss-20b-mxfp4:8"), ("llama-3.3-70b-q4_k_m:4",) * 2)


@pytest.mark.parametrize(
    ("gpus", "names"),
    [
        slow("6GiB", TOGETHER[0]),
        ("6GiB,4GiB,2GiB", TOGETHER[0]),
        slow("8x3GiB", TOGETHER[0]),
        *((gpus, TOGETHER[1]) for gpus in ("6GiB", "6GiB,4GiB,2GiB", "8x3GiB")),
    ],
)
def test_several_models_are_laid_out_for_the_width(names: tuple[str, ...], gpus: str) -> None:
    found = plan_together(
        [model(name) for name in names], ["--gpu", gpus, "--ram", "16GiB", "-c", "8192"]
    )
    for width in (60, 80, 120):
        lines = together_text(found, Style(width=width)).splitlines()
        assert all(
            len(line) <= width for line in lines if not line.startswith(("  llama-server", "! "))
        ), lines
        cells = [line.split() for line in lines]
        shown = {name for line in lines if line.startswith("MiB ") for name in line.split()[1:]}
        assert shown == {*(device.name for device in found.machine.devices), "Host"}
        left = [size for row in cells if row[:1] == ["left"] for size in row[1:]]
        assert left == [
            f"{size / 2**20:.2f}" for size in (*found.left().values(), found.ram_left())
        ]
        assert ("does not fit" in " ".join(lines)) is not found.fits


@pytest.mark.parametrize(
    "name", ["llama-3.2-1b-q8_0", "qwen3-30b-a3b-q4_k_m", "llama-3.3-70b-q4_k_m"]
)
def test_layers_of_a_model_are_laid_out_for_the_width(name: str) -> None:
    found = replace(model_layers(model(name), Params()), warnings=())
    for width in (60, 80, 120):
        lines = inspect_text(found, Style(width=width)).splitlines()
        assert all(len(line) <= width for line in lines), max(lines, key=len)
        text = " ".join(lines)
        for part in (
            "weights",
            "attention",
            "FFN",
            "experts",
            "other",
            "cache of",
            "type",
            "n_layer",
        ):
            assert f" {part} " in f" {text} ", part


def test_the_flag_that_narrows_the_range_most_is_named() -> None:
    name, card = model("qwen3-30b-a3b-q4_k_m"), [Device.hypothetical("rtx-3060")]
    words = ["-c", "8192", "--ram", "32GiB"]

    def said(*more: str) -> str:
        return " ".join(
            plan_text(autolayers.plan(name, [*words[:-1], *more], devices=card)).split()
        )

    assert "8 cores assumed; --ram SIZE@ddr5-6000x2 (its modules) narrows the range most" in said(
        "32GiB"
    )
    assert "8 cores assumed; --cores narrows the range" in said("32GiB@ddr4-3200")
    assert "narrows" not in said("32GiB@ddr4-3200", "--cores", "8")


@pytest.mark.slow
def test_many_devices_are_named_as_a_range() -> None:
    eight = [f"CUDA{i}" for i in range(8)]
    assert in_ranges(eight) == ["CUDA0-7"]
    assert in_ranges(["CUDA0", "CUDA1", "Vulkan0", "RAM"]) == ["CUDA0", "CUDA1", "Vulkan0", "RAM"]
    assert in_ranges(["CUDA9", "CUDA10", "CUDA11", "CUDA13"]) == ["CUDA9-11", "CUDA13"]
    plan = autolayers.plan(model("llama-3.2-1b-q8_0"), ["--gpu", "4x1GiB", "--ram", "32GiB"])
    assert "CUDA0-3 assumed to be 400 GB/s" in " ".join(plan_text(plan).split())


@pytest.mark.slow
def test_a_mac_that_could_give_its_gpu_more_is_told_how_on_the_screen() -> None:
    """The sysctl line stood in --table alone, and two warnings said one thing."""
    path = FIXTURES / "speeds/models/gpt-oss-120b-mxfp4.gguf"
    found = autolayers.plan(str(path), ["--gpu", "m4-max-64g"])
    (limit,) = found.limits
    text = " ".join(summary(found, Style(width=80)).split())
    assert " ".join(limit.split()) in text and "sudo sysctl iogpu.wired_limit_mb=" in limit
    assert not found.exact and "sizes are upper bounds" not in text
    assert text.count("an upper bound") == 1 and "MTL:" not in text


def test_most_of_the_ram_that_may_fill_is_explained() -> None:
    found = plan("gemma-2-9b-q4_k_m", "--gpu rtx-3070 --ram 32GiB", explain=False)
    assert 2 * found.host.growing > (found.host.free or 0)
    text = " ".join(summary(found, Style(width=80)).split())
    assert "grows RAM, as conversations are saved" in text and "-ctxcp N and -cram MIB" in text
    # -cram 0, and 8192 rows of a vocabulary of 250002
    rows = plan("bge-m3-f16", "--gpu 4GiB --ram 16GiB", explain=False)
    text = " ".join(summary(rows, Style(width=80)).split())
    assert "grows RAM, while it serves (more outputs), limited by -ub N" in text
    few = plan("llama-3.2-1b-q8_0", "--gpu rtx-3070 --ram 64GiB", explain=False)
    assert "grows" not in summary(few, Style(width=80)).partition("layers")[2]


def test_a_narrow_terminal_does_not_wrap_gains_down_an_edge() -> None:
    found = plan("qwen3-30b-a3b-q4_k_m", "--gpu rtx-3060 --ram 32GiB")
    lines = summary(found, Style(width=40, drawn=True)).splitlines()
    below = lines[lines.index("  those above:") :]
    assert sum(len(line.split()) == 1 for line in below) < 4 and len(below) < 32
