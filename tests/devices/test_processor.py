"""A processor's instructions and its server's memory channels would not count.

Processors by /proc/cpuinfo, by a Mac's sysctl and by the name that a machine file gives.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import model

import autolayers
from autolayers.devices import processor


@pytest.mark.parametrize(
    ("text", "rate", "gigabytes"),
    [
        ("AWS c8g.4xlarge, 16 vCPU (Graviton4)", 0.9, 484),
        ("AMD EPYC 9554 64-Core Processor", 1.1, 415),
        ("2 x AMD EPYC 7763 64-Core Processor", 1.0, 276),  # a further socket counts half
        ("Intel(R) Xeon(R) Platinum 8480+", 2.0, 276),
        ("Intel(R) Xeon(R) CPU E5-2697A v4 @ 2.60GHz", 1.0, 69),
        ("AMD Ryzen 9 7950X 16-Core Processor", 1.1, 0),
        ("AMD Ryzen 7 5800X 8-Core Processor", 1.0, 0),
        ("Intel(R) Core(TM) i7-3770", 0.4, 0),
        ("13th Gen Intel(R) Core(TM) i3-1315U", 1.2, 0),
        ("part 0xd08 asimd", 0.2, 0),  # a Raspberry Pi 4
        ("part 0xd0b asimddp asimd", 0.5, 0),  # a Raspberry Pi 5
        ("Apple M1 Max", 0.5, 0),
        ("a processor of next year", 1.0, 0),
    ],
)
def test_names(text: str, rate: float, gigabytes: int) -> None:
    assert processor.arithmetic(text) == rate
    assert processor.memory(text) / 1e9 == pytest.approx(gigabytes, abs=1)


def cpuinfo(folder: Path, text: str) -> str:
    (folder / "proc").mkdir()
    (folder / "proc" / "cpuinfo").write_text(text)
    return processor.read(str(folder))


def test_linux_says_name_sockets_and_instructions(tmp_path: Path) -> None:
    block = "processor\t: {0}\nmodel name\t: Intel(R) Xeon(R) Gold 6430\nphysical id\t: {0}\n"
    flags = "flags\t\t: fpu sse2 avx avx2 avx512f avx512_vnni amx_tile amx_int8\n\n"
    text = cpuinfo(tmp_path, "".join(block.format(i) + flags for i in range(2)))
    assert text == "2 x Intel(R) Xeon(R) Gold 6430 amx_int8 avx512_vnni avx2 avx"
    assert processor.arithmetic(text) == 2.0 and processor.memory(text) > 400e9


def test_an_arm_core_is_known_by_its_number(tmp_path: Path) -> None:
    text = cpuinfo(
        tmp_path, "processor\t: 0\nFeatures\t: fp asimd asimddp sve i8mm\nCPU part\t: 0xd4f\n"
    )
    assert text == "part 0xd4f i8mm asimddp asimd"
    assert processor.arithmetic(text) == 0.9 and processor.memory(text) > 480e9


def test_nothing_is_known_without_the_file(tmp_path: Path) -> None:
    assert processor.read(str(tmp_path)) == "" and processor.arithmetic("") == 1.0


def test_a_machine_file_names_it(tmp_path: Path) -> None:
    """Prompts of an 8B in Q4_0 on 16 of a Graviton4's cores: 190 measured, before 61; tokens 41,
    before 10."""

    def speed(name: str, **host: object) -> autolayers.Speed:
        path = tmp_path / "machine.json"
        path.write_text(json.dumps({"host": {"total": 32 << 30, "cores": 16, **host}}))
        words = ["--machine", str(path), "-c", "4096", "--workload", "512+128"]
        plan = autolayers.plan(model(name), words)
        assert plan.speed is not None
        return plan.speed

    known = speed("llama-3.1-8b-q4_0", cpu="Graviton4")
    assert 0.6 < known.prompt / 190 < 1.3 and 0.6 < known.generation / 41 < 1.4
    plain, old = (speed("llama-3.1-8b-q4_0", cpu=cpu) for cpu in ("", "Intel Core i7-3770"))
    assert known.generation > 2 * plain.generation and old.prompt < 0.5 * plain.prompt
