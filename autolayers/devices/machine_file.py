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
from ..tables import rows
from ..units import whole
from .calibrated import with_ratios
from .names import completed, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_MAX_SIZE = 1 << 20
_OF_HERE = frozenset(("measured", "beside"))  # of a device, on this machine alone
_KEYS: dict[str, dict[str, dict[str, str]]] = {}  # of what, then by key
for _row in rows("devices/machine_keys.tsv"):
    _KEYS.setdefault(_row["of"], {})[_row["key"]] = _row
_TYPES: dict[str, tuple[type, str]] = {"switch": (bool, "true or false"), "text": (str, "a text")}
_RATIO = 0.01, 100.0  # of a measured rate to its prediction
_ROWS = 1000


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
    return of_data(data, source)


def of_data(data: Any, source: str) -> tuple[list[Device], Host | None]:
    """Return what `parse` does, of what the JSON holds. Raises UsageError."""
    try:
        if not isinstance(data, dict):
            raise _Wrong("not a JSON object; autolayers devices --json writes one")
        # an unknown key is most likely a misspelt one: it must not be ignored
        _known(data, "the file", "the file")
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
        measured = data.get("measured")
        if measured is not None and (not isinstance(measured, list) or len(measured) > _ROWS):
            raise _Wrong(f"measured must be a list of at most {_ROWS}")
        seen = [_measured(row, f"measured {i}") for i, row in enumerate(measured or (), 1)]
        return with_ratios(devices, host, seen)
    except _Wrong as error:
        raise UsageError(f"{source}: {error}") from None


def to_dict(devices: Sequence[Device], host: Host | None) -> dict[str, Any]:
    """Return what `parse` reads back, JSON-ready: `autolayers devices --json` adds notes to it."""
    from dataclasses import asdict

    measured = list(map(ratio_row, ratios(devices, host)))
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
        **({"measured": measured} if measured else {}),
    }


def ratio_row(row: Ratio) -> dict[str, Any]:
    """Return a row of `measured`."""
    return {"class" if key == "placement" else key: value for key, value in vars(row).items()}


def _without(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _OF_HERE}


def _device(row: Any, what: str, before: list[Device]) -> Device:
    # errors name the device as the file does, where it does
    if isinstance(row, dict) and isinstance(row.get("name"), str):
        what = f"device {row['name']}"
    values = _checked(row, "device", what)
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


def _checked(row: Any, of: str, what: str) -> dict[str, Any]:
    """Return the fields of a device or a host that say something, by machine_keys.tsv. Raises
    _Wrong."""
    _known(row, of, what)
    values = {key: value for key, value in row.items() if value is not None}
    for key, known in _KEYS[of].items():
        kind = known["kind"]
        if key not in values:
            continue
        if kind == "apart":
            del values[key]
        elif kind in _TYPES:
            type_, name = _TYPES[kind]
            if not isinstance(values[key], type_):
                raise _Wrong(f"{what}: {key} must be {name}")
        elif kind != "own":
            low, high = float(known["least"]), float(known["most"])
            values[key] = _number(values[key], low, high, f"{what}: {key}", kind == "whole")
    return values


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
    values = _checked(row, "host", "host")
    # one of the two will do
    total = values.get("total", values.get("available"))
    if total is None:
        raise _Wrong('host: no "total" bytes of memory')
    available = values.get("available", total)
    if available > total:
        raise _Wrong(f"host: {available} bytes available exceed the total of {total}")
    return Host(**{"source": "given", **values, "total": total, "available": available})


def _measured(row: Any, what: str) -> Ratio:
    _known(row, "measured", what)
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


def _known(row: Any, of: str, what: str) -> None:
    """Raise _Wrong for what is no object, or has another key than those of the table."""
    if not isinstance(row, dict):
        raise _Wrong(f"{what} is not an object")
    for key in row:
        if key not in _KEYS[of]:
            known = ", ".join(sorted(_KEYS[of]))
            raise _Wrong(f"{what} has an unknown key {str(key)[:40]!r} (known: {known})")
