"""Anyone who describes a machine would not hear which figure is wrong.

Machine files: what one says, and one line for each figure that is missing or contradicts
another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import HEADERS

import autolayers
from autolayers import UsageError
from autolayers.cli import main
from autolayers.devices import described
from autolayers.devices.cards import CARDS

MODEL = str(HEADERS / "llama-3.1-8b-q4_k_m.gguf")
GiB = 1 << 30


def write(path: Path, value: object) -> str:
    file = path / "machine.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(file)


def test_a_card_has_its_own_figures_and_those_of_the_file_before_them(tmp_path: Path) -> None:
    (card, other), host = described(
        write(
            tmp_path,
            {
                "devices": [
                    {"card": "rtx-3090"},
                    {"card": "rtx-3090", "free": 10 * GiB, "bandwidth": 500e9},
                ],
                "host": {
                    "total": 64 * GiB,
                    "bandwidth": 70e9,
                    "bus": 25e9,
                    "cores": 8,
                    "disk": 3e9,
                    "threads": 6,
                },
            },
        )
    )
    assert (card.name, card.total, card.bandwidth) == (
        "CUDA0",
        CARDS["rtx-3090"].usable << 20,
        936e9,
    )
    assert (other.name, other.free, other.bandwidth) == ("CUDA1", 10 * GiB, 500e9)
    assert host is not None and (
        host.total,
        host.available,
        host.bandwidth,
        host.bus,
        host.cores,
        host.disk,
        host.threads,
    ) == (64 * GiB, 64 * GiB, 70e9, 25e9, 8, 3e9, 6)


def test_figures_alone_are_a_device(tmp_path: Path) -> None:
    (device,), host = described(
        write(
            tmp_path,
            {
                "devices": [
                    {
                        "name": "Vulkan0",
                        "backend": "Vulkan",
                        "total": 16 * GiB,
                        "description": "AMD Radeon RX 9070 XT",
                    }
                ]
            },
        )
    )
    assert (device.name, device.backend, device.free, host) == ("Vulkan0", "Vulkan", 16 * GiB, None)


def test_what_devices_prints_is_a_machine_file_and_plans_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autolayers", "devices", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    file = write(tmp_path, done.stdout)
    said = json.loads(done.stdout)
    devices, host = described(file)
    assert host is not None and [d.name for d in devices] == [d["name"] for d in said["devices"]]
    assert (host.total, host.available) == (said["host"]["total"], said["host"]["available"])
    assert main([MODEL, "--machine", file, "-c", "4096", "--json"]) in (0, 5)
    assert json.loads(capsys.readouterr().out)["host"]["free"] == host.available


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ({}, "neither devices nor a host"),
        ("[" * 10000, "not JSON"),
        ({"gpus": []}, "the file has an unknown key 'gpus'"),
        ({"devices": {}}, "devices must be a list"),
        ({"devices": [5]}, "device 1 is not an object"),
        ({"devices": [{}]}, 'device 1: neither "total" bytes of memory nor'),
        ({"devices": [{"card": "rtx-9999"}]}, "device 1: "),
        ({"devices": [{"card": 5}]}, "device 1: card must be a text"),
        (
            {"devices": [{"name": "CUDA0", "total": "24GiB"}]},
            "device CUDA0: total must be a whole number",
        ),
        (
            {"devices": [{"name": "CUDA0", "total": 0}]},
            "device CUDA0: total must be a whole number from 1",
        ),
        (
            {"devices": [{"name": "CUDA0", "total": 8 * GiB, "free": 9 * GiB}]},
            "bytes free exceed the",
        ),
        (
            {"devices": [{"name": "CUDA0", "total": 8 * GiB, "backend": "Vulkan"}]},
            "called CUDA0, but its backend is Vulkan",
        ),
        (
            {"devices": [{"name": "CUDA0", "total": 8 * GiB, "backend": "Glide"}]},
            "backend 'Glide' (known: CUDA",
        ),
        ({"devices": [{"name": "CUDA0", "total": 8 * GiB}] * 2}, "two devices are called CUDA0"),
        ({"devices": [{"total": 8 * GiB}] * 17}, "17 devices: llama.cpp uses at most 16"),
        (
            {"devices": [{"total": 8 * GiB, "bandwidth": 936}]},
            "bandwidth must be a number from 1e+07",
        ),
        ({"devices": [{"total": 8 * GiB, "bandwidth": True}]}, "bandwidth must be a number"),
        (
            {"devices": [{"total": 8 * GiB, "compute_capability": 8.6}]},
            'compute_capability must be a text such as "8.6"',
        ),
        (
            {"devices": [{"total": 8 * GiB, "compute_capability": "9" * 5000 + ".1"}]},
            'compute_capability must be a text such as "8.6"',
        ),
        ({"devices": [{"total": 8 * GiB, "unified": 1}]}, "unified must be true or false"),
        ({"devices": [{"total": 8 * GiB, "kind": "tpu"}]}, "kind must be gpu, igpu or rpc"),
        ({"devices": [{"total": 8 * GiB, "limits": {"maxBufferSize": -1}}]}, "limits: "),
        (
            {
                "devices": [
                    {"total": 8 * GiB, "backend": "OpenCL", "limits": {"mem_base_addr_align": 0}}
                ]
            },
            "limits: mem_base_addr_align is 0, not a power of two up to 1 MiB",
        ),
        (
            {
                "devices": [
                    {
                        "total": 8 * GiB,
                        "backend": "Vulkan",
                        "limits": {"max_compute_workgroup_invocations": 0},
                    }
                ]
            },
            "limits: max_compute_workgroup_invocations is 0, less than 1",
        ),
        (
            {
                "devices": [
                    {"total": 8 * GiB, "backend": "SYCL", "limits": {"max_mem_alloc_size": 4}}
                ]
            },
            "limits: max_mem_alloc_size is 4 bytes, less than 1 MiB",
        ),
        ({"host": {}}, 'host: no "total" bytes of memory'),
        ({"host": 64}, "host is not an object"),
        ({"host": {"total": 8 * GiB, "available": 9 * GiB}}, "bytes available exceed the"),
        (
            {"host": {"total": 8 * GiB, "cores": 0}},
            "host: cores must be a whole number from 1 to 4096",
        ),
        ({"host": {"total": 8 * GiB, "threads": 1.5}}, "host: threads must be a whole number"),
        ({"host": {"total": 8 * GiB, "bandwidth": 70}}, "host: bandwidth must be a number"),
        ({"host": {"total": 8 * GiB, "speed": 70e9}}, "host has an unknown key 'speed'"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_one_line(
    value: object, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, value)
    assert main([MODEL, "--machine", file]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith(f"autolayers: --machine {file}: ") and says in said.err


def test_files_that_are_not_there_and_two_machines_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        autolayers.plan(MODEL, ["--machine", str(tmp_path / "no.json")])
    with pytest.raises(UsageError, match="both set the devices"):
        autolayers.plan(
            MODEL, ["--machine", write(tmp_path, {"host": {"total": GiB}}), "--gpu", "24GiB"]
        )
