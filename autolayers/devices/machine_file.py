"""A machine described by a file: what `autolayers devices --json` prints, or a few figures written
by hand.

    {"devices": [{"card": "rtx-3090"},
                 {"name": "Vulkan0", "backend": "Vulkan", "total": 17179869184}],
     "host": {"total": 68719476736, "bandwidth": 70e9, "bus": 25e9, "cores": 8, "disk": 3e9},
     "measured": [{"kind": "tg", "class": "MoE in RAM", "backend": "CUDA", "build": 11549,
                   "ratio": 0.81, "n": 3}]}

Sizes are bytes, rates bytes per second. `card` is a name in cards.py, which fills in the missing
figures. `measured` are rates of launches there relative to their predictions, by which later
predictions are corrected. Only memory is required.
"""

from __future__ import annotations

import json

from .. import __version__
from ..backends import BACKENDS, DEFAULT, backend_of, canonical
from ..backends import backend as row_of
from ..errors import UsageError
from ..files import opened
from ..machine import CLASSES, KINDS, MAX_DEVICES, Device, Host, Ratio, ratios
from ..records import replace
from ..units import MiB, whole
from .calibrated import with_ratios
from .measure import BUS
from .names import completed, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_MAX_SIZE = 1 << 20
_RECORDED: tuple[str, ...] = Device.__record_fields__  # type: ignore[attr-defined]
_OF_HERE = frozenset(("measured", "beside"))  # of a device, on this machine alone
_DEVICE = frozenset((*_RECORDED, "card", "sure")) - _OF_HERE
# what devices --json says for a reader alone
_FIELDS: tuple[str, ...] = Host.__record_fields__  # type: ignore[attr-defined]
_ONLY_READ = tuple(name for name in BUS if name not in _FIELDS)
_HOST = frozenset((*_FIELDS, "measured", *_ONLY_READ))
_TOP = frozenset(("schema", "autolayers", "devices", "host", "notes", "measured"))
_MEASURED = frozenset(("kind", "class", "backend", "build", "ratio", "n", "date"))
_RATE = 1e7, 1e15  # the most bytes per second of anything
_RATIO = 0.01, 100.0  # of a measured rate to its prediction
_ROWS = 1000
_SIZE = 1, 1 << 60
# key -> the least and the most
_DEVICE_SIZES = {
    "total": _SIZE,
    "free": (0, 1 << 60),
    "ram": _SIZE,
    "n_sm": (1, 4096),
    "power_limit": (1, 100_000),
    "power_default": (1, 100_000),
}
_DEVICE_RATES = {
    "bandwidth": _RATE,
    "link": _RATE,
    "fp16_tflops": (0.01, 1e5),
    "latency": (0.0, 10.0),
}
_DEVICE_SWITCHES = ("unified", "includes_context", "wddm", "display")
_DEVICE_TEXTS = (
    "name",
    "description",
    "backend",
    "kind",
    "uuid",
    "pci_id",
    "source",
    "warning",
    "engine",
    "driver",
)
_HOST_SIZES = {"total": (MiB, 1 << 60), "available": (0, 1 << 60)}
_HOST_RATES = dict.fromkeys(("bandwidth", "bus", "bus_pageable", "disk", "expert_upload"), _RATE)
_HOST_COUNTS = {"cores": (1, 4096), "threads": (1, 4096), "numa": (1, 4096)}


class _Wrong(Exception):
    """An error in the file; the message does not name the file."""


def read(path: str) -> tuple[list[Device], Host | None]:
    """Return the devices and the RAM of a machine file; no Host if it has no RAM. Raises
    UsageError."""
    try:
        with opened(path) as file:
            text = file.read(_MAX_SIZE)
    except OSError as error:
        raise UsageError(
            f"--machine {path}: {error.strerror or error}; autolayers devices --json writes such a "
            "file, GPUs by name are given with --gpu"
        ) from None
    return parse(text, f"--machine {path}")


def parse(text: bytes | str, source: str) -> tuple[list[Device], Host | None]:
    """Return what `read` does, from a file's text; `source` names it in errors. Raises
    UsageError."""
    try:
        data = json.loads(text)
    # RecursionError: brackets without end
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{source}: not JSON ({error}); autolayers devices --json writes one"
        ) from None
    try:
        if not isinstance(data, dict):
            raise _Wrong("not a JSON object; autolayers devices --json writes one")
        # an unknown key is most likely a misspelt one: it must not be ignored
        _known(data, _TOP, "the file")
        value = data.get("devices", [])
        if not isinstance(value, list):
            raise _Wrong("devices must be a list")
        if len(value) > MAX_DEVICES:
            raise _Wrong(f"{len(value)} devices: llama.cpp uses at most {MAX_DEVICES}")
        devices: list[Device] = []
        for number, row in enumerate(value, 1):
            device = _device(row, f"device {number}", devices)
            # -dev, budgets and plans name devices
            if device.name in {other.name for other in devices}:
                raise _Wrong(f"two devices are called {device.name}")
            devices.append(device)
        host = _host(data["host"]) if data.get("host") is not None else None
        if not devices and host is None:
            raise _Wrong("neither devices nor a host")
        rows = tuple(
            _measured(row, f"measured {i}") for i, row in enumerate(_rows(data.get("measured")), 1)
        )
        return with_ratios(devices, host, rows)
    except _Wrong as error:
        raise UsageError(f"{source}: {error}") from None


def to_dict(devices: Sequence[Device], host: Host | None) -> dict[str, Any]:
    """Return what `parse` reads back, JSON-ready: `autolayers devices --json` adds notes to it."""
    from dataclasses import asdict

    rows = list(map(ratio_row, ratios(devices, host)))
    return {
        "schema": 1,
        "autolayers": __version__,
        "devices": [
            {
                **_without(asdict(device)),
                "compute_capability": (
                    ".".join(map(str, device.compute_capability))
                    if device.compute_capability
                    else None
                ),
            }
            for device in devices
        ],
        "host": _without(asdict(host)) if host else None,
        **({"measured": rows} if rows else {}),
    }


def ratio_row(row: Ratio) -> dict[str, Any]:
    """Return a row of `measured`."""
    return {"class" if key == "placement" else key: value for key, value in vars(row).items()}


def _without(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _OF_HERE}


def _device(row: Any, what: str, before: list[Device]) -> Device:
    if not isinstance(row, dict):
        raise _Wrong(f"{what} is not an object")
    # errors name the device as the file does, where it does
    if isinstance(row.get("name"), str):
        what = f"device {row['name']}"
    _known(row, _DEVICE, what)
    values = {
        key: value
        for key, value in row.items()
        if value is not None and key not in ("card", "sure")
    }
    # in this order: numbers, switches, texts, then what depends on them
    _check_numbers(values, _DEVICE_SIZES, what, whole=True)
    _check_numbers(values, _DEVICE_RATES, what)
    _check_type(values, _DEVICE_SWITCHES, bool, "true or false", what)
    _check_type(values, _DEVICE_TEXTS, str, "a text", what)
    if "compute_capability" in values:
        values["compute_capability"] = _capability(values["compute_capability"], what)
    # Raise _Wrong if a backend's limits are no object of whole numbers and switches.
    limits = values.get("limits", {})
    if not isinstance(limits, dict):
        raise _Wrong(f"{what}: limits must be an object")
    for key, value in limits.items():
        if not isinstance(value, int) or value < 0:
            raise _Wrong(
                f"{what}: limits: {str(key)[:40]} must be a whole number, or true or false"
            )
    card = _card(row.get("card"), values, what)
    if card is None and not values.get("total"):
        raise _Wrong(f'{what}: neither "total" bytes of memory nor a "card"')
    backend = values.get("backend") or (card.backend if card else None)
    if backend is None:
        backend = backend_of(values["name"]).name if values.get("name") else DEFAULT.name
    backend = canonical(backend)
    if backend not in BACKENDS:
        raise _Wrong(f"{what}: backend {backend!r} (known: {', '.join(BACKENDS)})")
    if refused := row_of(backend).wrong_limits(values.get("limits", {})):
        raise _Wrong(f"{what}: limits: {refused}")
    # numbered by backend, as llama.cpp numbers them
    used = sum(other.backend == backend for other in before)
    name = values.get("name") or f"{backend}{used}"
    # a name decides the backend in llama.cpp's own flags
    named = backend_of(name)
    if named.name in BACKENDS and named.name != backend:
        raise _Wrong(f"{what}: called {name}, but its backend is {backend}")
    total, free = _memory(card, values, what)
    values = {**values, "name": name, "backend": backend, "total": total, "free": free}
    if values.get("unified", card.unified if card else False) and row_of(backend).has_igpu:
        # llama.cpp lists a GPU that shares the RAM as another kind
        values.setdefault("kind", "igpu")
    if values.get("kind", "gpu") not in ("gpu", "igpu", "rpc"):
        raise _Wrong(f"{what}: kind must be gpu, igpu or rpc")
    return completed(Device(**values)) if card is None else _changed(card, values)


def _check_numbers(
    values: dict[str, Any],
    limits: Mapping[str, tuple[float, float]],
    what: str,
    whole: bool = False,
) -> None:
    """Replace the values of these keys by numbers. Raises _Wrong for one outside its limits."""
    for key, (low, high) in limits.items():
        if key in values:
            values[key] = _number(values[key], low, high, f"{what}: {key}", whole=whole)


def _check_type(
    values: Mapping[str, Any], keys: Sequence[str], kind: type, name: str, what: str
) -> None:
    """Raise _Wrong if the value of one of these keys is of another type."""
    for key in keys:
        if key in values and not isinstance(values[key], kind):
            raise _Wrong(f"{what}: {key} must be {name}")


def _changed(card: Device, values: dict[str, Any]) -> Device:
    """Return a known card with the file's figures, without those that no longer hold."""
    if row_of(values["backend"]) is not DEFAULT:  # the compute capability selects CUDA's kernels
        card = replace(card, compute_capability=None, n_sm=None)
    if values.get("kind") == "rpc":  # its link is the network
        card = replace(card, link=None)
    return replace(card, **values)


def _card(name: object, values: Mapping[str, Any], what: str) -> Device | None:
    """Return the Device of `card`; None if it is unknown and the file has the memory itself."""
    if name is None:
        return None
    if not isinstance(name, str):
        raise _Wrong(f"{what}: card must be a text")
    try:
        find(name)
        return Device.hypothetical(name)
    except UsageError as error:
        # a newer card than the table's: its memory is all that a plan needs
        if values.get("total"):
            return None
        raise _Wrong(f"{what}: {error}") from None


def _memory(card: Device | None, values: dict[str, Any], what: str) -> tuple[int, int]:
    """Return the total and the free bytes. Raises _Wrong if more is free than there is."""
    total = values.get("total") or (card.total if card else 0)
    # a card's own share of free memory, unless the file's total is smaller
    free = values.get("free", min(total, card.free) if card else total)
    if free > total:
        raise _Wrong(f"{what}: {free} bytes free exceed the total of {total}")
    return total, free


def _host(row: Any) -> Host:
    if not isinstance(row, dict):
        raise _Wrong("host is not an object")
    _known(row, _HOST, "host")
    values = {
        key: value
        for key, value in row.items()
        if value is not None and key not in ("measured", *_ONLY_READ)
    }
    _check_numbers(values, _HOST_SIZES, "host", whole=True)
    _check_numbers(values, _HOST_RATES, "host")
    _check_numbers(values, _HOST_COUNTS, "host", whole=True)
    _check_type(values, ("source", "bandwidth_source", "cpu"), str, "a text", "host")
    # one of the two will do
    total = values.get("total", values.get("available"))
    if total is None:
        raise _Wrong('host: no "total" bytes of memory')
    available = values.get("available", total)
    if available > total:
        raise _Wrong(f"host: {available} bytes available exceed the total of {total}")
    return Host(**{"source": "given", **values, "total": total, "available": available})


def _rows(value: Any) -> list[Any]:
    if value is not None and (not isinstance(value, list) or len(value) > _ROWS):
        raise _Wrong(f"measured must be a list of at most {_ROWS}")
    return value or []


def _measured(row: Any, what: str) -> Ratio:
    if not isinstance(row, dict):
        raise _Wrong(f"{what} is not an object")
    _known(row, _MEASURED, what)
    for key, names in (("kind", KINDS), ("class", CLASSES)):
        if row.get(key) not in names:
            raise _Wrong(f"{what}: {key} must be one of {', '.join(names)}")
    for key in ("backend", "date"):
        if not isinstance(row.get(key, ""), str):
            raise _Wrong(f"{what}: {key} must be a text")
    backend = canonical(row.get("backend", ""))
    if backend and backend not in BACKENDS:
        raise _Wrong(f"{what}: backend {backend!r} (known: {', '.join(BACKENDS)})")
    build = row.get("build")
    return Ratio(
        row["kind"],
        row["class"],
        _number(row.get("ratio"), *_RATIO, f"{what}: ratio"),
        _number(row.get("n", 1), 1, 1e6, f"{what}: n", whole=True),
        backend,
        None if build is None else _number(build, 1, 1e7, f"{what}: build", whole=True),
        row.get("date", ""),
    )


def _number(value: Any, low: float, high: float, what: str, whole: bool = False) -> Any:
    # True is an int for Python, and no number for a reader of JSON
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high or (whole and value != int(value)):
        raise _Wrong(
            f"{what} must be {'a whole number' if whole else 'a number'} from {low:g} to "
            f"{high:g}, not {str(value)[:40]}"
        )
    return int(value) if whole else float(value)


def _capability(value: Any, what: str) -> tuple[int, int]:
    parts = value.split(".") if isinstance(value, str) else value
    numbers = [whole(str(part), 3) for part in parts] if isinstance(parts, list) else []
    if len(numbers) != 2 or None in numbers:
        raise _Wrong(f'{what}: compute_capability must be a text such as "8.6"')
    major, minor = numbers
    return major or 0, minor or 0


def _known(row: dict[str, Any], keys: frozenset[str], what: str) -> None:
    for key in row:
        if key not in keys:
            raise _Wrong(
                f"{what} has an unknown key {str(key)[:40]!r} (known: {', '.join(sorted(keys))})"
            )
