"""A GPU would be missing from the plan, counted twice, or have memory that others use.

Devices and RAM from every source but NVML: lists of llama.cpp, sysfs, Metal, sizes and names,
control groups.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from support import HEADERS, few_rows, until

import autolayers
from autolayers import Device, DeviceError, UsageError
from autolayers.devices import (
    amd,
    cards,
    discover,
    host,
    hypothetical,
    list_devices,
    metal,
    names,
    system,
    visible,
)
from autolayers.devices.cards import CARDS
from autolayers.devices.integrated import integrated
from autolayers.devices.threads import threads
from autolayers.request import Request
from autolayers.work.rates import generation_of

MiB, GiB = 1 << 20, 1 << 30


# --- machines that are not here
# ---------------------------------------------------------------------------------


def test_a_size_is_the_free_memory_exactly():
    assert Device.hypothetical("24576MiB").free == 24576 << 20
    assert [(d.name, d.free, d.total) for d in hypothetical("24GiB, 2x12GiB")] == [
        ("CUDA0", 24 * GiB, 24 * GiB),
        ("CUDA1", 12 * GiB, 12 * GiB),
        ("CUDA2", 12 * GiB, 12 * GiB),
    ]


@pytest.mark.parametrize(
    "name, description, mib",
    [
        ("rtx-3090", "NVIDIA GeForce RTX 3090", 24115),
        ("3090", "NVIDIA GeForce RTX 3090", 24115),
        ("NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 3090 Ti", 24115),
        ("RTX 4060 Ti 16GB", "NVIDIA GeForce RTX 4060 Ti", 15939),
        ("a100-80g", "NVIDIA A100-SXM4-80GB", 81037),
        ("A100 80GB", "NVIDIA A100-SXM4-80GB", 81037),
        ("t4", "Tesla T4", 14912),
        ("h100", "NVIDIA H100 80GB HBM3", 81007),
        ("rtx_a6000", "NVIDIA RTX A6000", 48531),
    ],
)
def test_cards_have_less_than_their_box_says(name, description, mib):
    device = Device.hypothetical(name)
    assert (device.name, device.description, device.free) == ("CUDA0", description, mib * MiB)
    assert device.compute_capability and device.bandwidth and device.n_sm


@pytest.mark.parametrize(
    ("gpu", "sizes"),
    [
        ("24GB", [24 * GiB]),
        ("12gb", [12 * GiB]),
        ("8000MB", [8000 * MiB]),
        ("2x24 GB,8GiB", [24 * GiB, 24 * GiB, 8 * GiB]),
        ("m2 max 64gb", [53084 * MiB]),
        ("RTX 3060 12GB", [11906 * MiB]),
    ],
)
def test_memory_is_sold_in_powers_of_two(gpu, sizes):
    assert [device.total for device in hypothetical(gpu)] == sizes


def test_memory_is_sold_in_powers_of_two_in_every_flag():
    words = [
        "--gpu",
        "24gb",
        "--ram",
        "32GB@50GB/s",
        "--budget",
        "CUDA0=10GB",
        "--margin",
        "1GB",
        "-c",
        "512",
    ]
    plan = autolayers.plan(str(HEADERS / "llama-3.2-1b-q8_0.gguf"), words)
    (device,) = plan.devices
    assert (device.total, device.free, device.margin) == (24 * GiB, 10 * GiB, GiB)
    assert plan.host.total == 32 * GiB
    assert not [line for line in plan.warnings if "GB" in line]


def test_a_machine_as_it_is_sold_is_that_of_the_table():
    for ram in ("64GB", "64GiB"):
        assert Request.of(["--gpu", "m2 max", "--ram", ram]).machine.ram_total == 64 * GiB


def test_cards_are_numbered_by_backend():
    assert [d.name for d in hypothetical("2x4090,24GiB")] == ["CUDA0", "CUDA1", "CUDA2"]
    assert [(d.name, d.backend) for d in hypothetical("4090,7900xtx,4090")] == [
        ("CUDA0", "CUDA"),
        ("ROCm0", "ROCm"),
        ("CUDA1", "CUDA"),
    ]


def test_every_card_is_found_by_its_own_key_and_is_plausible():
    for key, card in CARDS.items():
        device = Device.hypothetical(key)
        assert device.description == card.description
        assert 1900 * MiB < device.free < 480000 * MiB and generation_of(device), key
        if card.bandwidth:
            assert 48e9 <= device.bandwidth <= 8000e9 and 1 < device.fp16_tflops < 2500
        else:  # that of the machine's RAM
            assert (device.bandwidth, device.fp16_tflops) == (None, None) and integrated(
                device.description
            )
            assert device.kind == "igpu" and device.in_ram and device.ram == 2 * device.total
        assert device.unified or 3e9 < device.link < 60e9


@pytest.mark.parametrize(
    ("description", "generation", "teraflops", "gigabytes"),
    [
        ("AMD Radeon 780M Graphics (RADV PHOENIX)", "RDNA3 integrated", 16.6, 90),
        ("AMD Radeon(TM) 890M Graphics", "RDNA3 integrated", 23.8, 90),
        ("AMD Radeon Graphics (RADV RENOIR)", "Vega", 4.1, 51),
        ("AMD Radeon 680M (RADV REMBRANDT)", "RDNA2 integrated", 6.8, 77),
        ("Intel(R) UHD Graphics 620", "Xe integrated", 0.9, 26),
        ("Intel(R) UHD Graphics 770", "Xe integrated", 1.6, 60),
        ("Intel(R) Iris(R) Xe Graphics (TGL GT2)", "Xe integrated", 4.1, 40),
        ("Intel(R) Graphics (RPL-U)", "Xe integrated", 4.1, 40),
        ("Intel(R) Arc(TM) Graphics", "Xe integrated", 9.4, 60),
        ("Intel(R) Arc(tm) Graphics (MTL)", "Xe integrated", 9.4, 60),
        ("Intel(R) Arc(TM) 140V GPU (16GB)", "Xe2 integrated", 33, 136),
        ("Intel(R) Graphics (LNL)", "Xe2 integrated", 33, 136),
        ("Intel(R) Arc(TM) A770 Graphics", "Arc", None, None),
        ("Intel(R) Arc(TM) B390 GPU", "Xe2 integrated", 61, 136),
        ("Intel(R) Arc(TM) 140T GPU (32GB)", "Arc", 38, 90),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "RDNA3", None, None),
        ("NVIDIA GeForce GTX 880M", "", None, None),
    ],
)
def test_integrated_gpus_are_known_by_what_their_drivers_say(
    description: str, generation: str, teraflops: float | None, gigabytes: int | None
) -> None:
    assert generation_of(Device("Vulkan0", 1, 1, description, "Vulkan")) == generation
    if teraflops is not None and gigabytes is not None:
        assert integrated(description) == pytest.approx((teraflops * 1e12, gigabytes * 1e9))
    else:
        assert integrated(description) is None


@pytest.mark.parametrize(
    "spec, says",
    [
        ("", "empty device"),
        ("24GiB,,12GiB", "empty device"),
        ("banana", "known GPU"),
        ("24", "24GiB"),
        ("-3GiB", "-3GiB"),
        ("2060", "rtx-2060-6g or rtx-2060-12g"),
        ("4060ti", "rtx-4060-ti-8g or rtx-4060-ti-16g"),
        ("17x24GiB", "1 to 16 devices"),
        ("0x24GiB", "1 to 16 devices"),
        ("nan", "nan"),
        ("9x4090,9x4090", "1 to 16 devices"),
        ("99999999TiB", "99999999TiB"),
    ],
)
def test_nonsense_is_refused_with_the_way_out(spec, says):
    with pytest.raises(UsageError) as refused:
        hypothetical(spec)
    assert says in str(refused.value) and "\n" not in str(refused.value)


# --- CUDA_VISIBLE_DEVICES
# ---------------------------------------------------------------------------------------

A, B, C = "GPU-aaaa0000", "GPU-aabb0000", "GPU-cccc0000"


@pytest.mark.parametrize(
    "mask, expected",
    [
        (None, [0, 1, 2]),
        ("", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        ("0,2,-1,1", [0, 2]),
        ("-1", []),
        ("1,x,0", [1]),
        ("0,3,1", [0]),
        (" 1 , 0 ", [1, 0]),
        ("+1", [1]),
        ("1gpu2,2ampere", [1, 2]),
        ("0x1", [0]),
        ("1,1", []),
        ("00,0", []),
        ("99999999999999999999", []),
        (C, [2]),
        (f"{C},{A}", [2, 0]),
        ("GPU-aab,GPU-c", [1, 2]),
        ("GPU-aa", []),
        ("GPU-c,GPU-aa,GPU-aaa", [2]),
        ("GPU-c,1", [2]),
        ("1,GPU-c", [1]),
        ("GPU-c,GPU-cccc", []),
        ("GPU-zzz", []),
        ("MIG-aaaa", []),
        ("gpu-cccc", []),
        ("all", []),
        ("none", []),
        (",0", []),
    ],
)
def test_cuda_visible_devices_picks_as_the_driver_does(mask, expected):
    assert visible.pick(mask, [A, B, C]) == expected


# --- llama-server --list-devices
# --------------------------------------------------------------------------------


def listing(*lines):
    return "Available devices:\n" + "".join(f"  {line}\n" for line in lines)


def parsed(*lines):
    devices, notes = list_devices.parse(listing(*lines))
    return [(d.name, d.total // MiB, d.free // MiB) for d in devices], notes


def test_a_listing_is_read_and_its_context_is_already_taken():
    devices, notes = list_devices.parse(
        listing("CUDA0: NVIDIA GeForce RTX 3080 Ti (11909 MiB, 11650 MiB free)")
    )
    assert devices == [
        Device(
            "CUDA0",
            11909 * MiB,
            11650 * MiB,
            "NVIDIA GeForce RTX 3080 Ti",
            includes_context=True,
            source="list-devices",
        )
    ]
    assert notes == []


def test_descriptions_may_hold_anything():
    text = "Vulkan0: Strange: card (rev a1) (1 MiB, 2 MiB free) (8192 MiB, 4096 MiB free)"
    assert parsed(text) == ([("Vulkan0", 8192, 4096)], [])
    assert (
        list_devices.parse(listing(text))[0][0].description
        == "Strange: card (rev a1) (1 MiB, 2 MiB free)"
    )


def test_devices_without_memory_are_left_out():
    assert parsed("(none)") == ([], []) and parsed("BLAS: OpenBLAS (0 MiB, 0 MiB free)") == ([], [])
    devices, notes = parsed("CUDA0: NVIDIA GB10 (0 MiB, 0 MiB free)")
    assert devices == [] and "CUDA0" in notes[0]


def test_one_card_seen_by_two_backends_counts_once():
    devices, notes = parsed(
        "CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23800 MiB free)",
        "CUDA1: NVIDIA GeForce RTX 3090 (24124 MiB, 23000 MiB free)",
        "Vulkan0: NVIDIA GeForce RTX 3090 (24576 MiB, 24000 MiB free)",
        "Vulkan1: NVIDIA GeForce RTX 3090 (24576 MiB, 24000 MiB free)",
    )
    assert [name for name, _, _ in devices] == ["CUDA0", "CUDA1"]
    assert notes == [
        "Vulkan0 is CUDA0 again and is left out",
        "Vulkan1 is CUDA1 again and is left out",
    ]

    devices, _ = parsed(
        "ROCm0: AMD Radeon RX 7900 XTX (24560 MiB, 24000 MiB free)",
        "Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24576 MiB, 24000 MiB free)",
        "Vulkan1: NVIDIA GeForce RTX 3060 (12288 MiB, 12000 MiB free)",
    )
    assert [name for name, _, _ in devices] == ["ROCm0", "Vulkan1"]


def test_a_card_hidden_from_cuda_still_counts_through_vulkan():
    devices, _ = parsed(
        "CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23800 MiB free)",
        "Vulkan0: NVIDIA GeForce RTX 3090 (24576 MiB, 24000 MiB free)",
        "Vulkan1: NVIDIA GeForce RTX 3090 (24576 MiB, 24000 MiB free)",
    )
    assert [name for name, _, _ in devices] == ["CUDA0", "Vulkan1"]


@pytest.mark.parametrize(
    "description",
    [
        "Intel(R) UHD Graphics 770",
        "Intel(R) Iris(R) Xe Graphics",
        "Intel(R) Arc(TM) Graphics",
        "AMD Radeon Graphics (RADV GFX1151)",
        "AMD Radeon(TM) Graphics",
        "AMD Radeon 8060S (RADV STRIX_HALO)",
        "AMD Radeon 780M Graphics (RADV PHOENIX)",
        "Intel(R) Arc(TM) 140V GPU (16GB)",
        "Intel(R) Arc(TM) B390 GPU",
        "Intel(R) Graphics (MTL)",
        "Intel(R) Graphics (LNL)",
        "Intel(R) Graphics (RPL-U)",
        "NVIDIA GB10",
    ],
)
def test_integrated_gpus_count_only_without_another(description):
    line = f"Vulkan1: {description} (16384 MiB, 15000 MiB free)"
    devices, notes = parsed("Vulkan0: NVIDIA GeForce RTX 3060 (12288 MiB, 12000 MiB free)", line)
    assert [name for name, _, _ in devices] == ["Vulkan0"] and "integrated" in notes[0]
    alone, _ = list_devices.parse(listing(line))
    assert [(d.name, d.kind) for d in alone] == [("Vulkan1", "igpu")]


@pytest.mark.parametrize(
    "description",
    [
        "Intel(R) Arc(TM) B580 Graphics (BMG G21)",
        "Intel(R) Arc(TM) A770 Graphics",
        "Intel(R) Graphics (BMG G21)",
        "NVIDIA GeForce GTX 860M",
        "NVIDIA GeForce 610M",
        "AMD Radeon RX 7900 XTX (RADV NAVI31)",
        "AMD Radeon PRO W7900",
        "NVIDIA GeForce RTX 4070 Laptop GPU",
        "AMD Radeon RX 6600M",
    ],
)
def test_cards_are_not_taken_for_integrated(description):
    assert (
        list_devices.parse(listing(f"Vulkan0: {description} (16384 MiB, 15000 MiB free)"))[0][
            0
        ].kind
        == "gpu"
    )


def test_remote_devices_come_first():
    devices, _ = parsed(
        "CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23800 MiB free)",
        "RPC0: 10.0.0.2:50052 (24050 MiB, 23000 MiB free)",
    )
    assert [name for name, _, _ in devices] == ["RPC0", "CUDA0"]


def test_more_free_than_there_is_is_cut_and_said():
    (device,), _ = list_devices.parse(
        listing("CUDA0: NVIDIA GeForce RTX 5090 (32106 MiB, 55372 MiB free)")
    )
    assert device.free == device.total == 32106 * MiB and "more" in device.warning
    # an unsigned wrap
    (device,), _ = list_devices.parse(listing("Vulkan0: Card (8192 MiB, 17592186044415 MiB free)"))
    assert device.free == 8192 * MiB and device.warning
    (device,), _ = list_devices.parse(
        listing("SYCL0: Intel(R) Arc(TM) A770 Graphics (15474 MiB, 15474 MiB free)")
    )
    assert "does not report other programs' use" in device.warning


@pytest.fixture
def program(tmp_path):
    """program(shell text) -> the path of a llama-server that does this."""
    if os.name != "posix":
        pytest.skip("the fake llama-server is a shell script")

    def write(body):
        path = tmp_path / "llama-server"
        path.write_text("#!/bin/sh\n" + textwrap.dedent(body))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return write


LIST = (
    "echo 'Available devices:'; echo '  CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23800 MiB free)'"
)


def test_a_program_is_asked_with_rpc_first_and_a_clean_environment(program, tmp_path):
    server = program(f"""
        echo "$@" > {tmp_path}/arguments; env > {tmp_path}/environment; cat > {tmp_path}/input
        echo 'load_backend: loaded CUDA backend' >&2
        {LIST}""")
    environ = {
        "PATH": os.environ["PATH"],
        "LLAMA_ARG_N_GPU_LAYERS": "junk",
        "LLAMA_ARG_DEVICE": "CUDA7",
        "LLAMA_ARG_RPC": "h:1",
        "HOME": "/x",
    }
    devices, notes = list_devices.query(server, environ, rpc=["a:1", "b:2"])
    assert [d.free for d in devices] == [23800 * MiB] and notes == []
    assert (tmp_path / "arguments").read_text() == "--rpc a:1,b:2 --list-devices\n" and (
        tmp_path / "input"
    ).read_text() == ""
    seen = (tmp_path / "environment").read_text()
    assert (
        "LLAMA_ARG_RPC=h:1" in seen
        and "HOME=/x" in seen
        and "LLAMA_ARG_N" not in seen
        and "LLAMA_ARG_DEVICE" not in seen
    )


@pytest.mark.parametrize(
    "body, says",
    [
        (
            "echo 'error: invalid device: CUDA7' >&2; exit 1",
            "exit code 1: error: invalid device: CUDA7",
        ),
        ("kill -ABRT $$", "signal 6"),
        (
            "echo 'RPC: failed to connect' >&2; echo '360 ../csu/libc-start.c: No such file' >&2; "
            "kill "
            "-ABRT $$",
            "signal 6: RPC: failed to connect",
        ),
        ("yes", "it prints more than 1 MiB"),
        ("yes >&2", "it prints more than 1 MiB"),
        ("exit 134", "exit code 134"),
    ],
)
def test_a_program_that_fails_leaves_the_devices_unknown(program, body, says):
    server = program(f"{LIST}\n{body}")
    with pytest.raises(DeviceError) as failed:
        list_devices.query(server, os.environ)
    assert says in str(failed.value) and "\n" not in str(failed.value)
    found = discover({}, llama_server=server, root="/nowhere")
    assert says in found.notes[0] and "no GPU found" in found.notes[-1]


def test_a_program_that_hangs_is_given_up_with_its_children(program, tmp_path):
    with pytest.raises(DeviceError, match="did not end within"):
        list_devices.query(
            program(f"sleep 1000 & echo $! > {tmp_path}/child; sleep 1000"), os.environ, timeout=3
        )
    child = (tmp_path / "child").read_text().strip()

    def ended() -> bool:
        state = system.file_text("/", f"proc/{child}/stat").rpartition(")")[2].split()
        return not state or state[0] in "ZX"

    until(ended)  # a signal takes effect when the victim is next scheduled


def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(DeviceError, match=r"No such file.*: its devices are unknown"):
        list_devices.query(str(tmp_path / "nothing"), os.environ)


def test_discover_takes_the_program_s_word(program):
    found = discover(os.environ, llama_server=program(LIST))
    assert [(d.name, d.free, d.source) for d in found.devices] == [
        ("CUDA0", 23800 * MiB, "list-devices")
    ]
    none = discover(os.environ, llama_server=program("echo 'Available devices:'; echo '  (none)'"))
    assert none.devices == () and "lists no GPU: plans are for the CPU" in none.notes[-1]


def test_nvml_adds_what_a_listing_leaves_out_but_no_number_of_bytes():
    listed = [
        Device("CUDA0", 10, 5, "NVIDIA X", includes_context=True),
        Device("CUDA1", 10, 5, "NVIDIA Y"),
    ]
    cards = [
        Device("CUDA0", 12, 7, "NVIDIA X", uuid="GPU-1", compute_capability=(9, 0), bandwidth=1e12),
        Device("CUDA1", 12, 7, "NVIDIA Z", uuid="GPU-2"),
    ]
    first, second = list_devices.enrich(listed, cards)
    assert (
        first.total,
        first.free,
        first.includes_context,
        first.uuid,
        first.compute_capability,
    ) == (
        10,
        5,
        True,
        "GPU-1",
        (9, 0),
    )
    assert second == listed[1]


# --- AMD through sysfs
# ------------------------------------------------------------------------------------------


def tree(root, files):
    for path, content in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content) if isinstance(content, bytes) else file.write_text(str(content))
    return str(root)


def card(number, vram, used, gtt=0, gtt_used=0, metrics=1, **more):
    base = f"sys/class/drm/card{number}/device"
    return {
        f"{base}/vendor": "0x1002\n",
        f"{base}/device": "0x744c\n",
        f"{base}/mem_info_vram_total": f"{vram}\n",
        f"{base}/mem_info_vram_used": f"{used}\n",
        f"{base}/mem_info_gtt_total": f"{gtt}\n",
        f"{base}/mem_info_gtt_used": f"{gtt_used}\n",
        f"{base}/gpu_metrics": struct.pack("<HBB", 120, metrics, 3),
        **{f"{base}/{k}": v for k, v in more.items()},
    }


def meminfo(total, available):
    return {
        "proc/meminfo": f"MemTotal: {total // 1024} kB\nMemAvailable: {available // 1024} "
        f"kB\nHugePages_Total: 0\n"
    }


def test_a_radeon_says_its_power_cap(tmp_path):
    sensor = "hwmon/hwmon3/power1_cap"
    more = {sensor: "250000000\n", f"{sensor}_default": "355000000\n"}
    root = tree(tmp_path, card(0, 24 * GiB, 0, **more) | card(1, 16 * GiB, 0))
    (capped, plain), _ = amd.query({}, root)
    assert (capped.power_limit, capped.power_default) == (250, 355)
    assert (plain.power_limit, plain.power_default) == (None, None)


def test_a_radeon_card_is_read_from_sysfs(tmp_path):
    root = tree(
        tmp_path,
        card(1, 24 * GiB, 2 * GiB, 31 * GiB, product_name="Radeon RX 7900 XTX\n")
        | meminfo(64 * GiB, 32 * GiB)
        | {
            "sys/class/drm/card1-DP-1/status": "connected",
            "sys/class/drm/card0/device/vendor": "0x8086",
            "sys/class/drm/version": "drm",
        },
    )
    (device,), notes = amd.query({}, root)
    assert (device.name, device.total, device.free, device.kind) == (
        "ROCm0",
        24 * GiB,
        22 * GiB,
        "gpu",
    )
    assert device.description == "Radeon RX 7900 XTX" and notes == [] and device.warning == ""


@pytest.mark.parametrize("available, expected", [(120 * GiB, 90 * GiB), (20 * GiB, 20 * GiB)])
def test_an_amd_processor_uses_the_system_s_memory(tmp_path, available, expected):
    root = tree(
        tmp_path,
        card(0, GiB // 2, GiB // 4, 96 * GiB, 6 * GiB, metrics=3) | meminfo(128 * GiB, available),
    )
    (device,), _ = amd.query({}, root)
    assert (device.total, device.free, device.kind) == (
        96 * GiB,
        expected,
        "igpu",
    ) and "unified" in device.warning
    assert device.in_ram


def test_an_amd_processor_may_have_most_memory_carved_out(tmp_path):
    root = tree(
        tmp_path, card(0, 96 * GiB, GiB, 16 * GiB, 0, metrics=3) | meminfo(32 * GiB, 20 * GiB)
    )
    (device,), _ = amd.query({}, root)
    assert (device.total, device.free, device.kind) == (
        96 * GiB,
        95 * GiB,
        "igpu",
    ) and not device.in_ram


def test_amd_cards_come_before_the_processor_s_in_the_kernel_s_order(tmp_path):
    root = tree(
        tmp_path,
        card(0, GiB, 0, 60 * GiB, metrics=2)
        | card(2, 8 * GiB, 0)
        | card(10, 16 * GiB, 0)
        | meminfo(64 * GiB, 32 * GiB),
    )
    devices, notes = amd.query({"HIP_VISIBLE_DEVICES": "1"}, root)
    assert [(d.name, d.total // GiB) for d in devices] == [("ROCm0", 8), ("ROCm1", 16)]
    assert "HIP_VISIBLE_DEVICES is not applied" in notes[0]
    assert amd.query({"ROCR_VISIBLE_DEVICES": ""}, root) == (
        [],
        ["ROCR_VISIBLE_DEVICES= hides every AMD GPU"],
    )


def test_a_broken_amd_driver_is_no_traceback(tmp_path):
    assert amd.query({}, str(tmp_path)) == ([], [])
    assert amd.query(
        {},
        tree(
            tmp_path,
            {
                "sys/class/drm/card0/device/vendor": "0x1002",
                "sys/class/drm/card0/device/mem_info_vram_total": "x",
            },
        ),
    ) == ([], [])


# --- Metal
# --------------------------------------------------------------------------------------------------


def test_metal_is_limited_by_metal_and_by_the_system():
    (device,) = metal.query(90 * GiB, "darwin", lambda: ("Apple M4 Max", 96 * GiB, True))
    assert (device.name, device.backend, device.total, device.free) == (
        "MTL0",
        "MTL",
        96 * GiB,
        90 * GiB,
    )
    assert (
        metal.query(2 * GiB, "darwin", lambda: ("AMD Radeon Pro 5500M", 8 * GiB, False))[0].free
        == 8 * GiB
    )
    assert (
        metal.query(2 * GiB, "darwin", lambda: None) == [] and metal.query(2 * GiB, "linux") == []
    )


# --- RAM
# --------------------------------------------------------------------------------------------------


def test_ram_of_a_size_is_all_available():
    assert host.Host.hypothetical("64GiB") == host.Host(64 * GiB, 64 * GiB, "given")
    with pytest.raises(UsageError):
        host.Host.hypothetical("lots")


def test_ram_is_read_from_meminfo(tmp_path):
    assert host.read(tree(tmp_path, meminfo(64 * GiB, 32 * GiB))) == host.Host(
        64 * GiB, 32 * GiB, "meminfo"
    )


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="psutil is the source itself there"
)
def test_ram_is_what_psutil_says(tmp_path):

    # no /proc there: psutil is asked
    here, psutil_ = host.read(str(tmp_path)), psutil.virtual_memory()
    assert here.source == "psutil" and here.total == psutil_.total
    direct = system.meminfo()
    assert (
        direct["MemTotal"] == psutil_.total
        and abs(direct["MemAvailable"] - psutil_.available) < GiB
    )


V2 = {"proc/self/cgroup": "0::/user.slice/job.scope\n"}


def test_a_control_group_limits_ram(tmp_path):
    root = tree(
        tmp_path,
        meminfo(64 * GiB, 32 * GiB)
        | V2
        | {
            "sys/fs/cgroup/user.slice/job.scope/memory.max": f"{8 * GiB}\n",
            "sys/fs/cgroup/user.slice/job.scope/memory.current": f"{3 * GiB}\n",
            "sys/fs/cgroup/user.slice/job.scope/memory.stat": f"anon {GiB}\nfile "
            f"{2 * GiB}\ninactive_file {GiB}\n",
        },
    )
    assert host.read(root) == host.Host(8 * GiB, 6 * GiB, "cgroup")


def test_the_tightest_ancestor_counts(tmp_path):
    base = "sys/fs/cgroup/user.slice"
    root = tree(
        tmp_path,
        meminfo(64 * GiB, 32 * GiB)
        | V2
        | {
            f"{base}/job.scope/memory.max": "max\n",
            f"{base}/job.scope/memory.current": "0\n",
            f"{base}/memory.max": f"{16 * GiB}\n",
            f"{base}/memory.high": f"{12 * GiB}\n",
            f"{base}/memory.current": f"{10 * GiB}\n",
        },
    )
    assert host.read(root) == host.Host(12 * GiB, 2 * GiB, "cgroup")


def test_in_a_container_the_limit_lies_at_the_mount_s_root(tmp_path):
    root = tree(
        tmp_path,
        meminfo(64 * GiB, 32 * GiB)
        | {
            "proc/self/cgroup": "12:cpu:/docker/abc\n"
            "5:memory:/docker/abc\n"
            "1:name=systemd:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GiB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GiB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {2 * GiB}\n",
        },
    )
    assert host.read(root) == host.Host(4 * GiB, 3 * GiB, "cgroup")


def test_no_limit_changes_nothing(tmp_path):
    root = tree(
        tmp_path,
        meminfo(64 * GiB, 32 * GiB)
        | {
            "proc/self/cgroup": "0::/../../x\n5:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{40 * GiB}\n",
        },
    )
    assert host.read(root) == host.Host(64 * GiB, 32 * GiB, "meminfo")


def test_huge_pages_are_all_a_unified_gpu_gets():
    assert system.unified_available({"MemAvailable": 5, "HugePages_Total": 0}) == 5
    pages = {"MemAvailable": 5, "HugePages_Total": 4, "HugePages_Free": 3, "Hugepagesize": 2 * MiB}
    assert system.unified_available(pages) == 6 * MiB


def test_wsl_is_known_by_its_kernel(tmp_path):
    assert system.platform(
        tree(tmp_path, {"proc/version": "Linux version 6.6.87.2-microsoft-standard-WSL2"})
    ) == ("wsl" if sys.platform.startswith("linux") else system.platform())


def test_this_machine_has_free_ram_and_devices_or_notes():
    found = discover(os.environ)
    assert 0 < found.host.available <= found.host.total
    assert found.devices or found.notes


def test_asking_twice_is_the_same():
    from autolayers import devices
    from autolayers.devices.measure import load

    assert devices.hypothetical("24GiB") == devices.hypothetical("24GiB")
    assert load() == load()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("RTX 3060 12GB", "rtx-3060"),
        ("rtx 3060 8gb", "rtx-3060-8g"),
        ("m2 max 64gb", "m2-max-64g"),
        ("rx 7600", "rx-7600"),
        ("MacBook Pro M3 Max 64GB", "m3-max-64g"),
        ("Mac Studio M2 Ultra 192 GB", "m2-ultra-192g"),
        ("rtx 4090 mobile", "rtx-4090-laptop"),
        ("RTX 4070 laptop 8GB", "rtx-4070-laptop"),
        ("Tesla T4 16GB", "tesla-t4"),
        ("L4 24GB", "l4"),
        ("RTX PRO 6000 Blackwell", "rtx-pro-6000"),
        ("DGX Spark", "gb10"),
        ("3090ti", "rtx-3090-ti"),
        ("Ryzen AI Max+ 395 128GB", "strix-halo-128g"),
        ("Framework Desktop 64GB", "strix-halo-64g"),
        ("NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU", "rtx-pro-5000-laptop"),
        ("radeon pro w7900", "pro-w7900"),
        ("Radeon 780M 32GB", "radeon-780m-32g"),
        ("Intel UHD Graphics 620 8GB", "uhd-620-8g"),
        ("iris xe 16gb", "iris-xe-16g"),
        ("arc pro b70", "arc-pro-b70"),
        ("m5 max 128gb", "m5-max-128g"),
        ("Instinct MI300X", "mi300x"),
    ],
)
def test_cards_are_known_as_people_write_them(name: str, key: str) -> None:
    assert names.find(name) is cards.CARDS[key]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("rtx 6090", "perhaps rtx-5090, rtx-4090, rtx-3090"),
        ("rtx3600", "perhaps rtx-3060, "),
        ("rx 7900", "rx-7900-xtx"),
        ("m9 max 64gb", "m5-max-64g"),
        ("A100", "which A100? a100-40g or a100-80g"),
        ("Arc 140V", "which Arc 140V? arc-140v-16g or arc-140v-32g"),
        ("m4", "which m4? m4-16g or m4-24g or m4-32g"),
    ],
)
def test_the_nearest_cards_are_named(name: str, near: str) -> None:
    with pytest.raises(UsageError) as error:
        names.find(name)
    assert near in str(error.value)


def test_what_people_own_and_buy_is_there() -> None:
    """At least so many of each family."""
    families = {
        "gtx-10": 7,
        "gtx-16": 5,
        "rtx-20": 7,
        "rtx-30": 10,
        "rtx-40": 10,
        "rtx-50": 8,
        "laptop": 25,
        "rtx-pro": 10,
        "rtx-a": 8,
        "-ada": 6,
        "rx-6": 10,
        "rx-7": 9,
        "rx-9": 5,
        "pro-w": 7,
        "mi": 12,
        "arc": 12,
        "strix-halo": 4,
        "gb10": 1,
        "m1": 8,
        "m2": 11,
        "m3": 13,
        "m4": 10,
        "m5": 10,
        "h100": 3,
        "a100": 3,
    }
    for family, least in families.items():
        found = [
            key
            for key in cards.CARDS
            if (family in key if family in ("laptop", "-ada") else key.startswith(family))
        ]
        assert len(found) >= least, (family, found)


# --- threads


def test_cores_are_physical_where_the_system_counts_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """macOS and Windows."""
    monkeypatch.setattr(sys, "platform", "darwin")
    for module in ("host", "threads"):
        monkeypatch.setattr(f"autolayers.devices.{module}.file_text", lambda root, path: "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    for physical, cores in ((8, 8), (None, 16), (32, 16)):
        monkeypatch.setattr("psutil.cpu_count", lambda logical, physical=physical: physical)
        assert host.cores() == cores


def cpus(siblings: list[str], capacities: tuple[int, ...] = (), quota: str = "") -> dict[str, str]:
    """sysfs of a processor: each CPU's mask of siblings, its capacity, and the CPU limit of a
    control group."""
    base = "sys/devices/system/cpu/cpu"
    files = {f"{base}{i}/topology/thread_siblings": f"{mask}\n" for i, mask in enumerate(siblings)}
    files |= {f"{base}{i}/cpu_capacity": f"{size}\n" for i, size in enumerate(capacities)}
    if quota:
        files |= {
            "proc/self/cgroup": "0::/docker/x\n",
            "sys/fs/cgroup/docker/x/cpu.max": f"{quota}\n",
        }
    return files


@pytest.mark.parametrize(
    ("files", "allowed", "right"),
    [
        # two cores, each with two threads
        (cpus(["3", "3", "c", "c"]), range(4), None),
        # taskset -c 2,3
        (cpus(["3", "3", "c", "c"]), [2, 3], 1),
        # docker --cpus 4
        (cpus([f"{1 << i:x}" for i in range(16)], quota="400000 100000"), range(16), 4),
        (cpus([f"{1 << i:x}" for i in range(16)], quota="50000 100000"), range(16), 1),
        (cpus([f"{1 << i:x}" for i in range(16)], quota="max 100000"), range(16), None),
        # big and little cores
        (cpus(["1", "2", "4", "8"], (1024, 1024, 400, 400)), range(4), 2),
        (cpus(["1", "2", "4", "8"], (1024, 1024, 400, 400)), [2, 3], 2),
        ({}, range(8), None),
    ],
    ids=str,
)
def test_threads_are_said_where_the_default_is_wrong(
    files: dict[str, str], allowed: list[int], right: int | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert threads(str(tmp_path), set(allowed)) == right


@pytest.mark.parametrize(("quota", "cores"), [("", 8), ("400000 100000", 4), ("50000 100000", 1)])
def test_a_container_s_cpu_limit_is_no_more_cores(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    cpuinfo = "".join(f"processor : {i}\nphysical id : 0\ncore id : {i}\n" for i in range(8))
    for name, text in {**cpus([], quota=quota), "proc/cpuinfo": cpuinfo}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert host.cores(str(tmp_path)) == cores


@pytest.mark.parametrize(("allowed", "cores"), [(range(20), 4), (range(4), 2), (range(8, 20), 4)])
def test_of_a_hybrid_processor_the_fast_cores_count(
    allowed: range, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four fast cores of two threads, twelve slow ones: llama.cpp's default -t is 4."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed), raising=False)
    numbers = [cpu // 2 if cpu < 8 else cpu for cpu in range(20)]
    cpuinfo = "".join(
        f"processor\t: {cpu}\nphysical id\t: 0\ncore id\t\t: {core}\n"
        for cpu, core in enumerate(numbers)
    )
    files = {"proc/cpuinfo": cpuinfo, "sys/devices/cpu_core/cpus": "0-7\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert host.cores(str(tmp_path)) == cores


@pytest.mark.parametrize(
    ("gpu", "words", "said"),
    few_rows(
        2,
        [
            ("24GiB", (), False),
            ("4GiB", (), True),
            ("4GiB", ("-t", "8"), False),
            ("4GiB", ("-q",), False),
        ],
    ),
)
def test_a_plan_says_threads_where_the_processor_computes(
    gpu: str, words: tuple[str, ...], said: bool
) -> None:
    machine = host.Host(64 * GiB, 64 * GiB, "given", threads=4)
    plan = autolayers.plan(
        HEADERS / "llama-3.1-8b-q4_k_m.gguf", ["-c", "4096", *words], devices=[gpu], host=machine
    )
    assert (
        "-t 4" in " ".join(plan.flags),
        any(line.startswith("-t 4: ") for line in plan.reasons),
    ) == (said, said)
