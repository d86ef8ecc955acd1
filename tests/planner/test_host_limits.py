"""Launches on Windows, WSL2 and servers with NUMA nodes would fail with free RAM.

Limits of the host besides its RAM: pinned memory on Windows and WSL2, NUMA nodes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import model

import autolayers
from autolayers.devices.host import nodes
from autolayers.machine import Device, Host
from autolayers.records import replace

GiB = 1 << 30
MODEL = "qwen3-30b-a3b-q4_k_m"


def warnings(words: str, *, wddm: bool = False, numa: int | None = None, ram: int = 32) -> str:
    gpu = replace(Device.hypothetical("rtx-4090"), wddm=wddm)
    host = replace(Host.hypothetical(f"{ram}GiB"), numa=numa)
    return " ".join(autolayers.plan(model(MODEL), words.split(), devices=[gpu], host=host).warnings)


def test_windows_pins_half_of_the_ram() -> None:
    launch = "-ngl 49 -cmoe -c 4096"
    assert "pin only about half of it, 16.00 GiB" in warnings(f"{launch} --no-mmap", wddm=True)
    assert "pin" not in warnings(f"{launch} --no-mmap", wddm=True, ram=64)
    assert "pin" not in warnings(launch, wddm=True)
    assert "pin" not in warnings(f"{launch} --no-mmap")


def test_more_than_one_numa_node_is_said_where_weights_are_in_ram() -> None:
    assert "2 NUMA nodes" in warnings("-ngl 49 -cmoe -c 4096", numa=2, ram=64)
    assert "NUMA" not in warnings("-ngl 49 -cmoe -c 4096 --numa distribute", numa=2, ram=64)
    assert "NUMA" not in warnings("-ngl 49 -c 4096", numa=2, ram=64)
    assert "NUMA" not in warnings("-ngl 49 -cmoe -c 4096", numa=1, ram=64)


@pytest.mark.parametrize(
    ("text", "count"), [("0\n", 1), ("0-1\n", 2), ("0,2-3\n", 3), ("", None), ("x\n", None)]
)
def test_nodes_are_read_from_the_system(tmp_path: Path, text: str, count: int | None) -> None:
    folder = tmp_path / "sys/devices/system/node"
    folder.mkdir(parents=True)
    (folder / "has_memory").write_text(text)
    assert nodes(str(tmp_path)) == count
