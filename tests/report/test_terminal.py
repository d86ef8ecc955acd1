"""A terminal would show torn lines, or colours that hide text.

What a terminal shows, by a terminal emulator.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support import slow

ROOT = Path(__file__).parents[2]
MOE = "qwen3-30b-a3b-q4_k_m.gguf"
WORDS = (MOE, "--gpu", "rtx-3060", "--ram", "32GiB", "-c", "8192")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="no pty")


def lines_of(*words: str, columns: int, **environ: str) -> list[str]:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from make_terminal import screen_of
    finally:
        sys.path.pop(0)
    return [line.rstrip() for line in screen_of(words, columns, environ=environ).display]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [slow(60), 80, slow(120), slow(200)])
def test_the_table_is_laid_out_for_the_terminal(columns: int) -> None:
    lines = lines_of(*WORDS, "--table", columns=columns)
    assert lines[0].startswith("qwen3-30b-a3b-q4_k_m  17.3 GiB") and lines[0].endswith(" fits")
    assert len(lines[0]) == columns and lines[1].startswith("about ")
    table = next(i for i, line in enumerate(lines) if line.startswith("GiB "))
    assert lines[table + 1].startswith("CUDA0 RTX 3060") and lines[table + 2].startswith("RAM")
    assert ("\u2588" in lines[table + 1]) is (columns >= 120)
    assert "grows" in lines[table] and ("free" in lines[table]) is (columns >= 80)
    below = [line.split() for line in lines[table + 3 :] if line.startswith("GiB ")]
    assert below == ([["GiB", "free"]] if columns < 80 else [])
    layers = next(line for line in lines if line.startswith("layers"))
    assert set(layers.split()[1]) == {"\u2584", "\u2588"}
    start = next(i for i, line in enumerate(lines) if line.startswith("llama-server -m "))
    # a narrow table breaks the command at flags
    command = " ".join(line.rstrip("\\").strip() for line in lines[start:][:3])
    assert f"llama-server -m {MOE} -ngl 49 -c 8192" in command
    labels = [
        line.split()[0]
        for line in lines
        if line[:1] not in ("", " ", "!")
        and line.split()[0] in ("why", "instead", "--fit", "speed", "memory")
    ]
    assert labels == ["why", "instead", "--fit", "speed", "memory"]
    assert not any("planning" in line or "comparing" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, slow(100), slow(120)])
@pytest.mark.parametrize(
    "words",
    [
        ("llama-3.1-8b-q4_k_m.gguf", "--gpu", "rtx-3060", "--ram", "16GiB", "-c", "8192"),
        (MOE, "--gpu", "2xrtx-3060", "--ram", "64GiB", "-c", "8192"),
    ],
)
def test_the_parts_of_each_row_add_up_to_its_memory(words: tuple[str, ...], columns: int) -> None:
    """What may grow has its column or no bar takes its room: it was drawn as free at 80 columns."""
    lines = lines_of(*words, "--table", columns=columns)
    table = next(i for i, line in enumerate(lines) if line.startswith("GiB "))
    rows = [line for line in lines[table + 1 : table + 5] if line.startswith(("CUDA", "RAM"))]
    assert len(rows) >= 2
    for row in rows:
        *parts, _, memory = row.rpartition(
            "| " if "|" in row else "RTX 3060" if "RTX" in row else "RAM"
        )[2].split()
        assert abs(sum(map(float, parts)) - float(memory)) <= 0.05 * (len(parts) + 1), row


@pytest.mark.slow
@pytest.mark.parametrize("columns", [slow(60), 80, slow(120)])
def test_the_summary_is_what_people_post(columns: int) -> None:
    """Model and machine first; the answer and its command within the first thirteen lines of 80
    columns; no part of a flag is broken at the line's end."""
    lines = lines_of(*WORDS, columns=columns)
    subject = " ".join(" ".join(lines[:2]).split())
    assert subject.startswith("qwen3-30b-a3b-q4_k_m 17.3 GiB on RTX 3060 12 GB + 32 GB RAM")
    assert any(line.startswith("FITS   ") and " tokens/s (" in line for line in lines[:3])
    start = next(i for i, line in enumerate(lines) if line.startswith("  llama-server -m "))
    end = next(i for i, line in enumerate(lines) if i >= start and not line.endswith(" \\"))
    command = " ".join(line.removesuffix("\\").strip() for line in lines[start : end + 1])
    assert command.startswith(f"llama-server -m {MOE} -ngl 49 -c 8192") and " -ncmoe " in command
    assert columns < 80 or end < 13
    assert all(line.split()[0].startswith("-") for line in lines[start + 1 : end + 1])
    assert any("--table" in line for line in lines)


@pytest.mark.slow
def test_a_name_of_a_card_is_not_broken() -> None:
    cards = "rtx-3090,rtx-3060,rtx-3070"
    lines = lines_of("llama-3.1-8b-q4_k_m.gguf", "--gpu", cards, "--ram", "64GiB", columns=80)
    assert lines[0].endswith("on RTX 3090 24 GB + RTX 3060 12 GB")
    assert lines[1] == "  + RTX 3070 8 GB + 64 GB RAM"


@pytest.mark.slow
@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}])
def test_a_plain_terminal_gets_plain_text(environ: dict[str, str]) -> None:
    text = "\n".join(lines_of(*WORDS, columns=120, **environ))
    assert text.isascii() and ("  ###" in text) is ("TERM" not in environ)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [slow(60), 80, slow(120)])
def test_choose_begins_with_its_advice(columns: int) -> None:
    lines = lines_of(
        "choose",
        "qwen3-8b-q4_k_m.gguf",
        MOE,
        "--gpu",
        "rtx-3060",
        "--ram",
        "32GiB",
        columns=columns,
    )
    advice = next(
        i for i, line in enumerate(lines) if line.startswith("take qwen3-8b-q4_k_m (4.68 GiB):")
    )
    table = next(i for i, line in enumerate(lines) if line.startswith("  file"))
    command = next(
        i
        for i, line in enumerate(lines)
        if line.startswith("llama-server -m qwen3-8b-q4_k_m.gguf -ngl 37")
    )
    assert (
        advice
        < table
        < command
        < next(i for i, line in enumerate(lines) if line.startswith("next "))
    )
    row = next(line for line in lines if line.startswith("> qwen3-8b-q4_k_m"))
    assert (" fully " in row) is (columns >= 80) and (" bits " in lines[table]) is (columns >= 120)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [slow(60), 80, slow(120)])
def test_explain_is_laid_out_for_the_terminal(columns: int) -> None:
    lines = lines_of("explain", *WORDS, columns=columns)
    chosen = next(
        i
        for i, line in enumerate(lines)
        if line.startswith("* 49 of 49 layers on the GPU, experts of ")
    )
    assert "chosen" in lines[chosen + (columns < 120)]
    assert all(line.startswith((" ", "*", "with ")) for line in lines if line)
    log = lines_of("explain", str(ROOT / "tests" / "logs" / "today.log"), columns=columns)
    assert log[0].startswith("not all layers are on the GPU")
    assert {line[:12].strip() for line in log[log.index("") :]} == {
        "",
        "held",
        "layers",
        "try",
        "lines",
    }
