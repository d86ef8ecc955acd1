"""Measured launches as the rows of fixtures/speeds: what `autolayers tune --share` writes and
benchmarks/fit_speed.py reads.

    # two per launch: its prompt (pp) and its generation (tg)
    rows = rows_of(measured, model, machine, test)
    check(row)                                          # the problem of a row from elsewhere, or ""

Rows contain no names of files, users, machines or addresses, and of a model only its header's
sizes.
"""

from __future__ import annotations

import hashlib
import json
import time

from ..devices.cards import CARDS
from ..devices.names import described
from ..flags.params import Params
from ..flags.write import to_words
from ..machine import CLASSES, KINDS, Device, Host
from ..records import replace
from ..tables import listed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..model import Model
    from ..planner.compare.rivals import Trial
    from .tune import TunedLaunch

_TEXTS = listed("id source date model class kind quality group note")
# Fields of Device in their order in a row
_OF_DEVICE = listed(
    "name description backend total free bandwidth compute_capability fp16_tflops n_sm unified "
    "power_limit power_default"
)
# Fields of Params whose values name files or addresses, or that llama-bench's tests replace
_LEFT_OUT: dict[str, Any] = {
    name: getattr(Params(), name)
    for name in listed(
        "model rpc model_draft mmproj lora control_vector override_kv n_parallel kv_unified "
        "kv_unified_per_slot fit fit_target fit_ctx cache_ram ctx_checkpoints cache_reuse"
    )
}


def rows_of(
    measured: Iterable[TunedLaunch],
    model: Model,
    devices: Sequence[Device],
    host: Host | None,
    test: Trial,
) -> list[dict[str, Any]]:
    """Return two rows for each launch."""
    rows = []
    name, month = model_name(model), time.strftime("%Y-%m", time.gmtime())
    for launch in measured:

        def rate_row(rate: float | None, how: str) -> dict[str, Any]:
            return {
                "bandwidth": rate,
                "known": rate is not None,
                "how": how if rate is not None else "not said",
            }

        # How a bandwidth is known, for those who fit the speed table
        how = {"measured": "autolayers devices --measure", "smbios": "by the firmware's tables"}
        machine = {
            "devices": [_device(device) for device in devices],
            "ram": {
                "total": host.total if host else None,
                **rate_row(
                    host.bandwidth if host else None,
                    how.get(host.bandwidth_source if host else "", "given"),
                ),
            },
            "bus": rate_row(host.bus if host else None, how["measured"]),
            "cpu": {"cores": host.cores if host else None, "model": launch.rates.processor or None},
        }
        # Rows of one machine are told apart from others' without its name
        whose = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:8]
        params = replace(launch.rival.params, **_LEFT_OUT)
        n_ctx = test.prompt + test.generate + test.depth
        # The row says what was measured: one sequence in the test's own context
        words = [*to_words(replace(params, n_ctx=n_ctx)), "-np", "1"]
        # pp: prompt processing, tg: text generation, as llama-bench calls its tests
        for kind, rate in (("pp", launch.rates.prompt), ("tg", launch.rates.token)):
            row = {
                "source": f"autolayers tune {whose}",
                "date": month,
                "model": name,
                "class": launch.rival.speed.kind,
                "words": words,
                "machine": machine,
                "workload": {
                    "prompt": test.prompt if kind == "pp" else 0,
                    "generate": test.generate if kind == "tg" else 0,
                    "depth": test.depth,
                },
                "measured": float(f"{rate:.5g}"),
                "kind": kind,
                "quality": "llama-bench",
                "group": f"tune {whose}|{name}|{kind}",
                "note": f"build {launch.rates.build or launch.rates.commit}",
                "build": launch.rates.build or None,
                # e.g. "580.95.05": rates change with drivers
                "driver": next((device.driver for device in devices if device.driver), ""),
            }
            digest = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()
            # The same measurement has the same id wherever it is sent twice
            rows.append({"id": f"t{digest[:10]}", **row})
    return rows


def model_name(model: Model) -> str:
    """Return a model's name in a row: architecture, parameters and the most common type of its
    weights."""
    sizes: dict[str, int] = {}
    for info in model.tensors.values():
        sizes[info.type] = sizes.get(info.type, 0) + info.n_elements
    # Elements, not bytes, e.g. "qwen3moe-30.5b-q4_k"
    count = sum(sizes.values())
    main_type = max(sizes, key=lambda type_: sizes[type_], default="")
    size = f"{count / 1e9:.3g}b" if count >= 1e9 else f"{count / 1e6:.3g}m"
    return f"{model.architecture}-{size}-{main_type}".lower()


def _device(device: Device) -> dict[str, Any]:
    """Return a device without identifying data: an RPC server's description is its address."""
    remote = device.kind == "rpc"
    card = None if remote else described(device.description, device.total >> 20)
    # e.g. "rtx-3090"
    name = next((name for name, row in CARDS.items() if row is card), None)
    capability = device.compute_capability
    return {
        "card": name or ("rpc" if remote else "unknown"),
        **{key: getattr(device, key) for key in _OF_DEVICE},
        "description": "" if remote else device.description,
        "compute_capability": list(capability) if capability else None,
    }


_DEVICE_TEXTS = ("name", "description", "backend", "card")
# key of a device -> the least and the most
# Bounds far outside all hardware: they catch another unit, not a wrong figure
_FIGURES = {
    "bandwidth": (1e7, 1e15),
    "fp16_tflops": (0.01, 1e5),
    "power_limit": (1, 1e5),
    "power_default": (1, 1e5),
}


def check(row: object) -> str:
    """Return the problem of a row, "" if there is none."""
    if not isinstance(row, dict):
        return "not a JSON object"
    for name in _TEXTS:
        if not isinstance(row.get(name), str) or not row[name].isprintable():
            return f"{name} must be a line of text"
    if row["kind"] not in KINDS:
        return f"kind must be {' or '.join(KINDS)}, not {row['kind'][:40]}"
    if row["class"] not in CLASSES:
        return f"class must be one of {', '.join(CLASSES)}, not {row['class'][:40]}"
    if not row["date"][:4].isdecimal():
        return "date must be a year and a month, such as 2026-11"
    if set(row["model"]) & set("/\\") or row["model"] in ("", ".", ".."):
        return "model must be the name of a header, not a path"
    if not _is(row.get("measured"), 1e-3, 1e7):
        return "measured must be tokens per second, from 0.001 to 10000000"
    build, driver = row.get("build"), row.get("driver", "")
    if not _is_or_unknown(build, 1, 1e7) or isinstance(build, float):
        return "build must be llama.cpp's build number, null if unknown"
    if not isinstance(driver, str) or not driver.isprintable():
        return "driver must be its version"
    words = row.get("words")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return "words must be a list of texts"
    # The problem of a row's workload, "" if there is none
    work = row.get("workload")
    kind = row["kind"]
    if not isinstance(work, dict) or not all(
        _is(work.get(name), 0, 1e8) for name in ("prompt", "generate", "depth")
    ):
        wrong = "workload must have prompt, generate and depth in tokens"
    elif not work["prompt" if kind == "pp" else "generate"]:
        wrong = f"workload has no tokens for a row of kind {kind}"
    else:
        wrong = ""
    return wrong or _wrong_machine(row.get("machine"))


def _wrong_machine(machine: object) -> str:
    if not isinstance(machine, dict) or not isinstance(machine.get("devices"), list):
        return "machine must have a list of devices"
    for device in machine["devices"]:
        if problem := _wrong_device(device):
            return problem
    for name, rate in (("ram", "bandwidth"), ("bus", "bandwidth"), ("cpu", "cores")):
        part = machine.get(name)
        if not isinstance(part, dict) or not _is_or_unknown(part.get(rate), 1, 1e15):
            return f"machine: {name} must have a {rate}, null if unknown"
    if not _is_or_unknown(machine["ram"].get("total"), 1 << 20, 1 << 60):
        return "machine: ram must have a total in bytes"
    return ""


def _is_or_unknown(value: object, low: float, high: float) -> bool:
    return value is None or _is(value, low, high)


def _is(value: object, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _wrong_device(device: object) -> str:
    """Return the problem of a device, "" if there is none."""
    if not isinstance(device, dict):
        return "a device is not an object"
    what = f"device {str(device.get('name'))[:40]}"
    if not all(isinstance(device.get(name), str) for name in _DEVICE_TEXTS):
        return f"{what}: name, description, backend and card must be texts"
    if not (_is(device.get("total"), 1, 1 << 60) and _is(device.get("free"), 0, device["total"])):
        return f"{what}: total and free must be bytes, and free at most total"
    for name, (low, high) in _FIGURES.items():
        if not _is_or_unknown(device.get(name), low, high):
            return f"{what}: {name} must be from {low:g} to {high:g}"
    capability = device.get("compute_capability")
    # [major, minor]
    if capability is not None and not (
        isinstance(capability, list)
        and len(capability) == 2
        and all(_is(part, 0, 99) for part in capability)
    ):
        return f"{what}: compute_capability must be two numbers"
    return ""
