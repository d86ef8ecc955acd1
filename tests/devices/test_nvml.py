"""Owners of NVIDIA cards would get no devices, or a MIG instance with a whole card's memory.

NVIDIA GPUs through the real pynvml, with a libnvidia-ml.so.1 compiled from fake_nvml.c under
it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import pytest
from forked import HANGS, forked
from support import TESTS, few, few_rows

from autolayers.cli.devices import main
from autolayers.devices import discover, measure
from autolayers.devices.held import held

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the fake driver is a Linux library"
)

GiB = 1 << 30
RTX_3090 = {
    "name": "NVIDIA GeForce RTX 3090",
    "uuid": "GPU-3090aaaa-0000-1111-2222-333333333333",
    "bus": 1,
    "total": 24 * GiB,
    "free": 23 * GiB,
    "cc": 86,
    "cores": 10496,
    "bits": 384,
    "mhz": 9751,
    "display": 1,
    "mig": 0,
}
RTX_5090 = {
    "name": "NVIDIA GeForce RTX 5090",
    "uuid": "GPU-5090bbbb-4444-5555-6666-777777777777",
    "bus": 2,
    "total": 32 * GiB,
    "free": 31 * GiB,
    "cc": 120,
    "cores": 21760,
    "bits": 512,
    "mhz": 14001,
    "display": 0,
}


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A directory with both fake libraries, and one with a driver that is too old."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler: the fake NVIDIA driver cannot be built")
    source = TESTS / "fake_nvml.c"

    def build(folder, name, *flags):
        subprocess.run(
            [
                compiler,
                "-shared",
                "-fPIC",
                "-Wall",
                "-Werror",
                f"-Wl,-soname,{name}",
                *flags,
                "-o",
                str(folder / name),
                str(source),
            ],
            check=True,
        )

    new, old = tmp_path_factory.mktemp("driver"), tmp_path_factory.mktemp("old-driver")
    build(new, "libnvidia-ml.so.1")
    build(new, "libcuda.so.1", "-DCUDA")
    build(old, "libnvidia-ml.so.1", "-DOLD")
    return {"new": new, "old": old}


@pytest.fixture
def environ(library, tmp_path):
    """environ(driver, **more) -> the environment of a child that finds the driver."""

    def of(driver, **more):
        kept = {
            k: v
            for k, v in os.environ.items()
            if k not in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
        }
        return kept | {"LD_LIBRARY_PATH": str(library[driver]) if driver else "", **more}

    return of


def fields(values):
    return "|".join(f"{key}={value}" for key, value in values.items())


def child(work, env):
    """The finished child that runs `work`, with the libraries that its loader would find."""

    def run():
        folder = env["LD_LIBRARY_PATH"]
        for path in Path(folder).glob("*.so.1") if folder else ():
            ctypes.CDLL(str(path))
        return work()

    return subprocess.run(**forked(run, env), capture_output=True, text=True, timeout=HANGS)


def discovered(root):
    found = discover(root=str(root))
    return {"devices": [asdict(device) for device in found.devices], "notes": found.notes}


@pytest.fixture
def ask(environ, tmp_path):
    """ask(gpu, gpu, MIG={(gpu, instance): fields}, **environment) -> what discover() says in a
    child."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal: 125829120 kB\nMemFree: 1 kB\nMemAvailable: 104857600 kB\n"
    )

    def run(*gpus, mig=None, driver="new", work=lambda: discovered(tmp_path), **more):
        env = environ(driver)
        env |= {f"FAKE_GPU_{i}": fields(gpu) for i, gpu in enumerate(gpus)}
        env |= {
            f"FAKE_GPU_{gpu}_MIG_{i}": fields(values) for (gpu, i), values in (mig or {}).items()
        }
        done = child(lambda: json.dump(work(), sys.stdout), env | more)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return json.loads(done.stdout)

    return run


def names(answer):
    return [
        (d["name"], d["description"].removeprefix("NVIDIA GeForce ")) for d in answer["devices"]
    ]


def test_one_gpu_says_everything_the_planner_wants(ask):
    (device,) = ask(RTX_3090)["devices"]
    assert (device["name"], device["total"], device["free"]) == ("CUDA0", 24 * GiB, 23 * GiB)
    assert device["uuid"] == RTX_3090["uuid"] and device["pci_id"] == "0000:01:00.0"
    assert device["compute_capability"] == [8, 6] and device["n_sm"] == 82
    assert device["display"] is True and device["source"] == "nvml" and device["kind"] == "gpu"
    assert device["includes_context"] is False
    assert device["bandwidth"] == pytest.approx(936e9, rel=0.001)


def test_a_power_limit_is_beside_the_one_it_is_sold_with(ask):
    (device,) = ask(RTX_3090 | {"milliwatts": 250_000, "milliwatts_default": 350_000})["devices"]
    assert (device["power_limit"], device["power_default"]) == (250, 350)
    (device,) = ask(RTX_3090)["devices"]
    assert (device["power_limit"], device["power_default"]) == (None, None)


def test_two_equal_gpus_need_no_cuda_to_be_ordered(ask):
    second = RTX_3090 | {
        "uuid": "GPU-3090cccc-0000-1111-2222-333333333333",
        "bus": 5,
        "free": 20 * GiB,
        "display": 0,
    }
    answer = ask(RTX_3090, second)
    assert [(d["name"], d["free"] // GiB, d["pci_id"]) for d in answer["devices"]] == [
        ("CUDA0", 23, "0000:01:00.0"),
        ("CUDA1", 20, "0000:05:00.0"),
    ]
    assert answer["notes"] == []


FASTEST_FIRST = " ".join(gpu["uuid"][4:].replace("-", "") for gpu in (RTX_5090, RTX_3090))


def test_different_gpus_are_in_the_order_cuda_says(ask):
    answer = ask(RTX_3090, RTX_5090, FAKE_CUDA_UUIDS=FASTEST_FIRST)
    assert names(answer) == [("CUDA0", "RTX 5090"), ("CUDA1", "RTX 3090")] and answer["notes"] == []


def test_different_gpus_are_in_pci_order_on_request(ask):
    answer = ask(RTX_3090, RTX_5090, CUDA_DEVICE_ORDER="PCI_BUS_ID", FAKE_CUDA_UUIDS=FASTEST_FIRST)
    assert names(answer) == [("CUDA0", "RTX 3090"), ("CUDA1", "RTX 5090")]


def test_different_gpus_and_no_cuda_to_ask_is_said(ask):
    answer = ask(RTX_3090, RTX_5090, FAKE_CUDA_ERROR="999")
    assert names(answer) == [("CUDA0", "RTX 3090"), ("CUDA1", "RTX 5090")]
    assert len(answer["notes"]) == 1 and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in answer["notes"][0]


@pytest.mark.parametrize(
    "mask, expected",
    few_rows(
        2,
        [
            ("GPU-5090bbbb-4444-5555-6666-777777777777,GPU-3090aaaa", ["RTX 5090", "RTX 3090"]),
            ("GPU-3", ["RTX 3090"]),
            ("GPU-", []),  # ambiguous
            ("GPU-3,1", ["RTX 3090"]),  # another kind ends the list
            ("GPU-5,GPU-5090", []),  # the same one twice
            ("", []),
            ("-1", []),
        ],
    ),
)
def test_uuid_masks_and_empty_ones_need_no_cuda(ask, mask, expected):
    answer = ask(RTX_3090, RTX_5090, CUDA_VISIBLE_DEVICES=mask, FAKE_CUDA_ERROR="999")
    assert [name for _, name in names(answer)] == expected
    assert [name for name, _ in names(answer)] == [f"CUDA{i}" for i in range(len(expected))]
    if not expected:
        assert f"CUDA_VISIBLE_DEVICES={mask} " in answer["notes"][0]
        assert answer["notes"][-1] == "no GPU found: plans are for the CPU"


@pytest.mark.parametrize(
    "mask, expected",
    few_rows(
        2,
        [
            ("1,0", ["RTX 5090", "RTX 3090"]),
            ("1", ["RTX 5090"]),
            ("0,-1,1", ["RTX 3090"]),
            ("1st, 0th", ["RTX 5090", "RTX 3090"]),
            ("7", []),
            ("0,0", []),
        ],
    ),
)
def test_number_masks_pick_in_pci_order(ask, mask, expected):
    answer = ask(RTX_3090, RTX_5090, CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES=mask)
    assert [name for _, name in names(answer)] == expected


def test_mig_instances_stand_for_their_gpu(ask):
    a100 = {
        "name": "NVIDIA A100-SXM4-80GB",
        "uuid": "GPU-a100",
        "bus": 1,
        "cc": 80,
        "mig": 1,
        "memory_error": 4,
    }
    mig = {
        (0, 1): {
            "name": "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
            "uuid": "MIG-aaaa0000-1111-2222-3333-444444444444",
            "total": 40 * GiB,
            "free": 39 * GiB,
        },
        (0, 4): {
            "uuid": "MIG-bbbb0000-1111-2222-3333-444444444444",
            "total": 10 * GiB,
            "free": 9 * GiB,
        },
    }
    second = "bbbb0000111122223333444444444444"
    answer = ask(a100, mig=mig, CUDA_VISIBLE_DEVICES="MIG-bbbb", FAKE_CUDA_UUIDS=second)
    (device,) = answer["devices"]
    assert (device["name"], device["free"]) == ("CUDA0", 9 * GiB) and device[
        "compute_capability"
    ] == [8, 0]
    assert device["uuid"].startswith("MIG-bbbb") and device["bandwidth"] is None

    # Without a mask CUDA shows one instance: the one it says, or the first.
    assert ask(a100, mig=mig, FAKE_CUDA_UUIDS=second)["devices"][0]["free"] == 9 * GiB
    assert [d["free"] for d in ask(a100, mig=mig, FAKE_CUDA_ERROR="999")["devices"]] == [39 * GiB]


def test_mig_in_a_container_where_the_gpu_itself_is_not_permitted(ask):
    h100 = {
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-h100",
        "bus": 1,
        "cc": 90,
        "memory_error": 4,
    }
    mig = {(0, 0): {"uuid": "MIG-h100", "total": 20 * GiB, "free": 19 * GiB}}
    assert [d["free"] for d in ask(h100, mig=mig, CUDA_VISIBLE_DEVICES="MIG-h100")["devices"]] == [
        19 * GiB
    ]
    answer = ask(h100)
    assert answer["devices"] == [] and "no instance of it can be used" in answer["notes"][0]


def test_a_gpu_that_may_not_be_opened_leaves_the_others(ask):
    answer = ask({"handle_error": 4}, RTX_3090)
    assert names(answer) == [("CUDA0", "RTX 3090")]
    assert len(answer["notes"]) == 1 and answer["notes"][0].startswith("GPU 0 cannot be opened")


def test_a_gpu_lost_in_between_leaves_the_others(ask):
    answer = ask(
        RTX_3090 | {"memory_error": 15}, RTX_3090 | {"bus": 7, "uuid": "GPU-7", "free": GiB}
    )
    assert [(d["name"], d["free"]) for d in answer["devices"]] == [("CUDA0", GiB)]
    assert (
        len(answer["notes"]) == 1
        and "RTX 3090" in answer["notes"][0]
        and "left out" in answer["notes"][0]
    )


@pytest.mark.parametrize(
    "gpu",
    [
        {"name": "NVIDIA GB10", "memory_error": 3},
        {"name": "Orin (nvgpu)", "memory_error": 3},
        # a driver that counts the page cache as used
        {"name": "NVIDIA GB10", "total": 120 * GiB, "free": 3 * GiB},
    ],
)
def test_unified_memory_is_what_the_system_has_available(ask, gpu):
    (device,) = ask({"uuid": "GPU-10", "bus": 1, "cc": 121} | gpu)["devices"]
    assert (device["total"], device["free"], device["kind"]) == (120 * GiB, 100 * GiB, "igpu")
    assert "unified" in device["warning"]


def test_memory_not_supported_on_a_card_is_no_unified_memory(ask):
    cards = (
        {"name": "NVIDIA Strange", "uuid": "GPU-1", "bus": 1, "memory_error": 3},
        {**RTX_3090, "bus": 3},
    )
    answer = ask(*cards, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert names(answer) == [("CUDA0", "RTX 3090")]
    assert "NVIDIA Strange" in answer["notes"][0] and "--gpu SIZE" in answer["notes"][0]
    # CUDA counts it in masks
    answer = ask(*cards, CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="1")
    assert names(answer) == [("CUDA0", "RTX 3090")]


@pytest.mark.parametrize(
    "code, words",
    few_rows(
        2,
        [
            (18, "reboot"),
            (9, "not loaded"),
            (4, "no permission"),
            (999, "/dev/nvidia"),
            (3, "does not answer"),
        ],
    ),
)
def test_a_broken_driver_is_one_line_and_the_cpu(ask, code, words):
    answer = ask(RTX_3090, FAKE_INIT_ERROR=str(code))
    assert answer["devices"] == [] and len(answer["notes"]) == 2
    assert words in answer["notes"][0] and "NVML" in answer["notes"][0]
    assert answer["notes"][1] == "no GPU found: plans are for the CPU"


def test_a_driver_too_old_for_pynvml_is_named(ask):
    assert "too old" in ask(RTX_3090, driver="old")["notes"][0]


def test_no_driver_is_only_no_gpu(ask):
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has an NVIDIA driver")
    assert ask(driver=None) == {"devices": [], "notes": ["no GPU found: plans are for the CPU"]}


def test_a_driver_that_hangs_is_given_up(library):
    code = (
        "from autolayers.devices import nvml; import os; print(nvml.query(os.environ, timeout=0.5))"
    )
    env = os.environ | {"LD_LIBRARY_PATH": str(library["new"]), "FAKE_INIT_SLEEP": "50"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=HANGS
    )
    assert done.returncode == 0 and "did not answer within 0.5 s" in done.stdout


SECOND = RTX_3090 | {"bus": 7, "uuid": "GPU-7", "free": GiB}


@pytest.mark.slow
@pytest.mark.parametrize("does", ["segv", "exit"])
@pytest.mark.parametrize("first", [True, False])
def test_a_gpu_that_ends_the_process_costs_that_gpu_alone(ask, does, first):
    bad = RTX_3090 | {"does": does}
    answer = ask(*((bad, SECOND) if first else (SECOND, bad)))
    assert [(d["name"], d["free"]) for d in answer["devices"]] == [("CUDA0", GiB)]
    assert answer["notes"] == [
        f"GPU {0 if first else 1} is left out: the NVIDIA driver ended the "
        f"process that asked "
        "it (NVML)"
    ]


def test_a_gpu_that_hangs_costs_that_gpu_alone(library):
    code = (
        "from autolayers.devices import nvml; import os; print(nvml.query(os.environ, timeout=8))"
    )
    env = os.environ | {"LD_LIBRARY_PATH": str(library["new"])}
    env |= {
        f"FAKE_GPU_{i}": "|".join(f"{k}={v}" for k, v in gpu.items())
        for i, gpu in enumerate((RTX_3090 | {"does": "hang"}, SECOND))
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=HANGS
    )
    assert "GPU 0 is left out: the NVIDIA driver did not answer within 8 s" in done.stdout
    assert "'GPU-7'" in done.stdout and "3090aaaa" not in done.stdout


def test_words_of_the_driver_are_no_words_of_ours(ask):
    # the answer is JSON
    assert names(ask(RTX_3090 | {"does": "print"})) == [("CUDA0", "RTX 3090")]


@pytest.mark.parametrize(
    ("odd", "words"),
    few_rows(
        2,
        [
            (
                {"total": (1 << 64) - 1, "free": (1 << 64) - 1},
                "GPU 0 is left out: it reports 18446744073709551615 bytes",
            ),
            ({"cores": (1 << 32) - 1}, ""),
            ({"bits": (1 << 32) - 1, "mhz": (1 << 32) - 1}, ""),
            ({"name": "\udcff\udcfe"}, ""),
            ({"uuid": "\udcff"}, ""),
        ],
    ),
)
def test_impossible_figures_of_one_gpu_leave_the_others(ask, odd, words):
    """Names that are not UTF-8 are no names, and figures that no GPU has are no figures."""
    answer = ask(RTX_3090 | odd, SECOND, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert [d["free"] for d in answer["devices"]] == ([GiB] if words else [23 * GiB, GiB])
    assert answer["notes"] == [] if not words else answer["notes"][0].startswith(words)
    assert all(d["n_sm"] in (82, None) and (d["bandwidth"] or 0) < 2e12 for d in answer["devices"])


def test_a_count_without_gpus_ends_soon(ask):
    answer = ask(RTX_3090, FAKE_COUNT=str((1 << 32) - 1), CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert names(answer) == [("CUDA0", "RTX 3090")]
    assert (
        "counts 4294967295 GPUs: at most 64 are asked" in answer["notes"][0]
        and len(answer["notes"]) < 20
    )


def test_the_retired_package_warns_nobody(ask, tmp_path):
    """PyPI's "pynvml" raises a FutureWarning on import; a wrapper of that kind stands before the
    real module here."""
    import pynvml

    (tmp_path / "path").mkdir()
    (tmp_path / "path/pynvml.py").write_text(
        "import warnings\nwarnings.warn('The pynvml package is deprecated.', FutureWarning)\n"
        f"exec(compile(open({pynvml.__file__!r}).read(), 'pynvml', 'exec'))\n"
    )
    assert names(ask(RTX_3090, PYTHONPATH=str(tmp_path / "path"))) == [
        ("CUDA0", "RTX 3090")
    ]  # ask() wants stderr empty


# --- autolayers devices
# ------------------------------------------------------------------------------------------


@pytest.fixture
def command(environ, tmp_path):
    """command(words, **environment) -> the finished `autolayers devices` on a machine with one fake
    RTX 3090."""

    def devices(words):
        small = {"_SECONDS": 0.05, "_MAX_RAM": 1 << 26, "_BUS": 1 << 24, "_FILE": 1 << 24}
        # other tests keep the machine busy
        small["in_use"] = lambda: 0.0
        with mock.patch.multiple(measure, **small):
            return main(words)

    def run(*words, driver="new", **more):
        state = str(tmp_path / "state")
        known = {"FAKE_GPU_0": fields(RTX_3090), "FAKE_CUDA_UUIDS": FASTEST_FIRST}
        env = environ(driver, **known, **{"XDG_STATE_HOME": state, **more})
        return child(lambda: devices(words), env)

    return run


def test_the_command_shows_devices_ram_and_sources(command):
    done = command()
    assert done.returncode == 0 and done.stderr == ""
    head, gpu, ram = done.stdout.splitlines()
    assert head.split() == ["device", "total", "free", "source"]
    assert gpu.split()[:5] == ["CUDA0", "24.00", "GiB", "23.00", "GiB"]
    assert (
        "NVIDIA GeForce RTX 3090, compute capability 8.6, 936 GB/s, drives a display" in gpu
        and "NVML" in gpu
    )
    assert ram.startswith("RAM") and "from the system" in ram


@pytest.mark.parametrize("width", few(3, [60, 80, 120]))
def test_a_narrow_terminal_loses_no_word_of_devices(command, width):
    wide = command().stdout
    lines = command(COLUMNS=str(width)).stdout.splitlines()
    assert all(len(line) <= width for line in lines)
    numbers = re.compile(r"\d+\.\d+")  # of free RAM, which changes between the two
    assert set(numbers.sub("", " ".join(lines)).split()) == set(numbers.sub("", wide).split()) - {
        "source"
    }


def test_devices_json_says_where_figures_come_from(command):
    answer = json.loads(command("--json").stdout)
    assert answer["schema"] == 1 and answer["notes"] == []
    assert answer["devices"][0]["free"] == 23 * GiB and answer["devices"][0]["sure"].startswith(
        "from the driver"
    )
    assert (
        0 < answer["host"]["available"] <= answer["host"]["total"]
        and answer["host"]["bandwidth"] is None
    )


def test_the_command_without_a_gpu_is_no_failure(command):
    done = command(FAKE_INIT_ERROR="18")
    assert done.returncode == 0 and done.stdout.splitlines()[1].startswith("RAM")
    assert len(done.stderr.splitlines()) == 2 and "reboot" in done.stderr


@pytest.mark.slow
def test_measuring_is_kept_for_the_planner(command, tmp_path, monkeypatch):
    first = json.loads(command("--measure", "--json").stdout)
    assert 1e8 < first["host"]["bandwidth"] < 1e13 and 1e8 < first["host"]["bus"] < 1e13
    later = json.loads(command("--json").stdout)
    assert later["host"] | {"available": 0} == first["host"] | {"available": 0}
    assert "(measured)" in command().stdout

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    rates = {"ram", "disk", "bus", "bus_back", "bus_pageable", "bus_back_pageable"}
    assert set(measure.load()) == {"schema", "machine", "when", *rates}

    kept = tmp_path / "state/autolayers/measured.json"
    good = json.loads(kept.read_text())
    for bad in (
        "",
        "[]",
        "nonsense",
        json.dumps(good | {"machine": "another"}),
        json.dumps(good | {"ram": -1}),
        json.dumps(good | {"schema": 2}),
        json.dumps({k: v for k, v in good.items() if k in ("schema", "machine", "when")}),
    ):
        kept.write_text(bad)
        assert measure.load() is None


@pytest.mark.slow
def test_measuring_says_when_there_is_no_cuda_or_no_place_to_keep_it(command, tmp_path):
    done = command("--measure", driver="old")
    assert (
        done.returncode == 0
        and "the bus cannot be measured: no CUDA driver" in done.stderr
        and "GB/s read, " in done.stdout
    )
    (tmp_path / "file").write_text("")
    done = command("--measure", XDG_STATE_HOME=str(tmp_path / "file"))
    assert "cannot keep the measurement" in done.stderr


def of_processes():
    return [held(4242), held(4243), held(1)]


def test_what_a_process_holds_of_each_gpu(ask):
    """Processes of both kinds, also where the driver has one kind alone; the larger where both list
    it."""
    first = RTX_3090 | {"compute": f"4242:{5 * GiB} 4243:{GiB}"}
    second = RTX_5090 | {"compute": f"4242:{7 * GiB}", "graphics": f"4242:{8 * GiB} 9:{GiB}"}
    assert ask(first, second, work=of_processes) == [
        {"0000:01:00.0": 5 * GiB, "0000:02:00.0": 8 * GiB},
        {"0000:01:00.0": GiB},
        {},
    ]
    assert ask(RTX_3090, work=of_processes) == [{}, {}, {}] == ask(driver=None, work=of_processes)
    assert ask(RTX_3090 | {"handle_error": 3}, second, work=of_processes)[0] == {
        "0000:02:00.0": 8 * GiB
    }
