"""Anyone who writes "4090" or "RTX 4090 Laptop" would get another card.

Every GPU of the table by its usual names, whoever says them: a person, a driver, a machine file,
the library.
"""

from __future__ import annotations

import json

import pytest

from autolayers import Device, UsageError
from autolayers.devices import completed, hypothetical, list_devices, machine_file
from autolayers.devices.cards import CARDS
from autolayers.devices.names import candidates, described, find
from autolayers.request import Request
from autolayers.units import GiB, MiB, parse_size
from autolayers.work.rates import generation_of
from autolayers.work.speed import Figures

MAKER = {"CUDA": "NVIDIA", "ROCm": "AMD", "SYCL": "Intel(R)", "MTL": "Apple"}


def decorated(description: str) -> set[str]:
    """A driver's description as other drivers write it."""
    found = {
        description,
        f"{description} (RADV NAVI31)",
        description.removeprefix("NVIDIA "),
        description.replace("Intel Arc", "Intel(R) Arc(tm)"),
        description.replace("Radeon", "Radeon(TM)"),
        description.replace("AMD Radeon", "AMD Radeon (TM)"),
        description.replace("GeForce ", ""),
    }
    return {name for name in found if "(" not in description or name == description}


KEYS = {
    backend: [key for key, card in CARDS.items() if card.backend == backend]
    for backend in dict.fromkeys(card.backend for card in CARDS.values())
}
OF_EACH_BACKEND = pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)


@OF_EACH_BACKEND
def test_every_card_is_found_by_its_usual_names(keys: list[str]) -> None:
    for key in keys:
        check_usual_names(key)


def check_usual_names(key: str) -> None:
    card = CARDS[key]
    maker = MAKER.get(card.backend, card.description.partition(" ")[0])
    for name in (
        key,
        key.upper(),
        key.replace("-", " "),
        key.replace("-", ""),
        key.replace("-", "_"),
        f"{maker} {key}",
    ):
        assert find(name) is card, name
    for name in decorated(card.description):
        same = [CARDS[other] for other in candidates(name)]
        assert card in same or all(other.description == card.description for other in same), name
        assert same, name


@OF_EACH_BACKEND
def test_a_driver_s_words_complete_a_device(keys: list[str]) -> None:
    for key in keys:
        check_driver_s_words(key)


def check_driver_s_words(key: str) -> None:
    card = CARDS[key]
    for name in decorated(card.description):
        found = completed(Device("X0", card.usable * MiB, card.usable * MiB, name, card.backend))
        assert (found.bandwidth, found.fp16_tflops) == (
            card.bandwidth * 1e9 or None,
            card.fp16 or None,
        ), name
        assert found.compute_capability == card.compute_capability or not card.compute_capability, (
            name
        )
        assert generation_of(found) == generation_of(Device.hypothetical(key)), name


@OF_EACH_BACKEND
def test_no_name_of_the_table_is_a_size_or_a_count(keys: list[str]) -> None:
    for key in keys:
        check_no_size_or_count(key)


def check_no_size_or_count(key: str) -> None:
    for name in {
        key,
        key.replace("-", ""),
        *key.split("-"),
        key.split("-")[0] + "".join(key.split("-")[1:2]),
    }:
        if not candidates(name):
            continue
        try:
            found = hypothetical(name)
        except UsageError as error:
            assert "which" in str(error), error
        else:
            assert len(found) == 1 and not found[0].description.startswith("hypothetical"), name
    for count in (f"2x{key}", f"2 x {key}", f"{key}x2", f"{key} x 2"):
        assert [device.description for device in hypothetical(count)] == [
            CARDS[key].description
        ] * 2, count


@pytest.mark.parametrize(
    "name", ["780m", "780M", "890m", "610M", "5090m", "4090m", "4090 M", "6800m", "3060m"]
)
def test_a_number_with_m_that_is_a_gpu_too_is_a_question(name: str) -> None:
    with pytest.raises(UsageError) as error:
        hypothetical(name)
    said = str(error.value)
    assert said.startswith(f"which {name}? the GPU, ") and said.endswith(
        f", or memory: {name.rstrip(' mM')}MiB"
    )
    keys = said.partition("the GPU, ")[2].partition(", or memory")[0].split(" or ")
    assert keys and all(key in CARDS for key in keys)


@pytest.mark.parametrize(
    "number, said",
    [
        ("8", "which 8? the GPU, vega-8-8g or vega-8-16g or vega-8-32g, or memory: 8GiB"),
        ("12", "12 bytes of memory? write 12GiB or 12MiB"),
    ],
)
def test_a_short_number_is_memory_without_a_unit(number: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        hypothetical(number)
    assert str(error.value) == said


@pytest.mark.parametrize(
    "name", ["700m", "2048m", "8192m", "24576M", "24GiB", "12g", "11.5G", "512MiB"]
)
def test_a_size_that_is_no_gpu_is_a_size(name: str) -> None:
    assert [device.free for device in hypothetical(name)] == [parse_size(name)]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("8060s", "strix-halo-"),
        ("AI Max 395", "strix-halo-"),
        ("Ryzen AI Max+ PRO 395", "strix-halo-"),
        ("a770", "arc-a770-"),
        ("b580", "arc-b580"),
        ("b60", "arc-pro-b60"),
        ("rx580", "rx-580-"),
        ("rx480", "rx-480-"),
        ("gtx970", "gtx-970"),
        ("Steam Deck", "steam-deck-16g"),
        ("orin", "jetson-"),
        ("orin nx", "jetson-orin-nx-16g"),
        ("spark", "gb10"),
        ("thor", "jetson-thor-128g"),
        ("Tesla K80", "tesla-k80"),
        ("580", "rx-580-"),
        ("7900", "rx-7900-"),
        ("RTX 3060 (12GB)", "rtx-3060"),
        ("v100", "tesla-v100-"),
    ],
)
def test_names_are_found_as_people_type_them(name: str, keys: str) -> None:
    found = candidates(name)
    assert found and all(key.startswith(keys) for key in found)


@pytest.mark.parametrize(
    "name", ["GTX 580", "Intel 3090", "Radeon 4090", "rtx 780m", "GeForce RX 580"]
)
def test_another_maker_s_number_is_no_name(name: str) -> None:
    assert candidates(name) == []


@pytest.mark.parametrize(
    ("name", "ram", "description", "shared"),
    [
        ("strix-halo", 128, "AMD Radeon 8060S (Strix Halo)", 128),
        ("m2-max", 64, "Apple M2 Max", 64),
        ("radeon 780m", 32, "AMD Radeon 780M Graphics", 32),
    ],
)
def test_the_ram_chooses_among_sizes(name: str, ram: int, description: str, shared: int) -> None:
    found = Request.of(["--gpu", name, "--ram", f"{ram}GiB"])
    (device,) = found.machine.devices
    assert (device.description, device.ram) == (description, shared * GiB)
    (device,) = Request.of(["--ram", f"{ram}GiB"], devices=[name]).machine.devices
    assert device.ram == shared * GiB
    with pytest.raises(UsageError, match="which"):
        Request.of(["--gpu", name, "--ram", "13GiB"])


DRIVERS = [
    ("Intel(R) Arc(tm) B580 Graphics (BMG G21)", "Vulkan", 456e9, "gpu"),
    ("Radeon 8060S Graphics (RADV GFX1151)", "Vulkan", 256e9, "igpu"),
    ("AMD Radeon Graphics (RADV GFX1151)", "Vulkan", 256e9, "igpu"),
    ("Tesla V100-PCIE-16GB", "CUDA", 898e9, "gpu"),
    ("AMD Radeon(TM) RX 7900 XTX", "ROCm", 960e9, "gpu"),
    ("Radeon RX 580 Series (RADV POLARIS10)", "Vulkan", 256e9, "gpu"),
    ("AMD Instinct MI300X VF", "ROCm", 5300e9, "gpu"),
    ("NVIDIA A100-SXM-80GB", "CUDA", 2039e9, "gpu"),
]


@pytest.mark.parametrize(("description", "backend", "rate", "kind"), DRIVERS)
def test_every_source_is_completed_alike(
    description: str, backend: str, rate: float, kind: str
) -> None:
    mib = {"NVIDIA A100-SXM-80GB": 81037}.get(description, 16000)
    (listed,), _ = list_devices.parse(
        f"  {backend}0: {description} ({mib} MiB, {mib - 100} MiB free)\n"
    )
    assert listed.kind == kind
    of_file, _ = machine_file.parse(
        json.dumps(
            {
                "devices": [
                    {
                        "name": f"{backend}0",
                        "description": description,
                        "total": mib * MiB,
                        "kind": kind,
                    }
                ]
            }
        ),
        "test",
    )
    given = Device(f"{backend}0", mib * MiB, mib * MiB, description, backend, kind)
    of_library = Request.of([], devices=[given]).machine.devices
    for device in (completed(listed), *of_file, *of_library):
        assert device.bandwidth == rate and Figures.of(device).known, device


@pytest.mark.parametrize(
    "description",
    ["hypothetical 24GiB", "10.0.0.1:50052", "", "AMD GPU 0x744c", "llvmpipe (LLVM 15)"],
)
def test_what_names_no_card_is_left_alone(description: str) -> None:
    assert described(description, 24000) is None


@pytest.mark.parametrize(
    ("version", "generation"),
    [
        (110501, "Strix Halo"),
        (110003, "RDNA3 integrated"),
        (110000, "RDNA3"),
        (100300, "RDNA2"),
        (120001, "RDNA4"),
        (90402, "CDNA"),
        (90010, "CDNA"),
        (90012, "Vega"),
        (90000, "Vega"),
        (80003, "Vega"),
        (100100, "RDNA1"),
    ],
)
def test_the_gfx_number_says_the_generation(version: int, generation: str) -> None:
    device = Device(
        "ROCm0", GiB, GiB, "AMD GPU 0x1234", "ROCm", limits={"gfx_target_version": version}
    )
    assert generation_of(device) == generation


def test_a_listing_without_end_is_read_as_far_as_devices_may_be() -> None:
    """3,000 devices of a program that lies took 15 s of a processor."""
    lines = [f"  CUDA{i}: NVIDIA GeForce RTX 3060 (11911 MiB, 11786 MiB free)" for i in range(3000)]
    devices, notes = list_devices.parse("\n".join(lines))
    assert [device.name for device in devices] == [f"CUDA{i}" for i in range(64)]
    assert notes == ["3000 devices are listed: the first 64 are looked at"]
    assert list_devices.parse("\n".join(lines[:64]))[1] == []
