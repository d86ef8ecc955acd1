"""Rows of fixtures/speeds, for tests and for benchmarks/fit_speed.py."""

from __future__ import annotations

from typing import Any

from autolayers.backends import backend, canonical
from autolayers.devices import completed
from autolayers.machine import Device, Host, Machine


def machine_of(data: dict[str, Any], **more: Any) -> Machine:
    """The machine of a row of fixtures/speeds, `more` of each device."""
    devices = []
    for d in data["devices"]:
        capability = d.get("compute_capability")
        devices.append(
            Device(
                d["name"],
                d["total"],
                d["free"],
                d["description"],
                canonical(d["backend"]),
                kind="igpu" if d["unified"] and backend(d["backend"]).has_igpu else "gpu",
                bandwidth=d["bandwidth"],
                compute_capability=tuple(capability) if capability else None,
                n_sm=d.get("n_sm"),
                fp16_tflops=d.get("fp16_tflops"),
                unified=d["unified"],
                includes_context=d["free"] < d["total"],
                power_limit=d.get("power_limit"),
                power_default=d.get("power_default"),
                **more,
            )
        )
    ram = data["ram"]
    devices = list(map(completed, devices))
    return Machine(
        tuple(devices),
        {d.name: d.free for d in devices},
        ram["total"],
        ram["total"],
        Host(
            ram["total"],
            ram["total"],
            "given",
            ram["bandwidth"],
            data["bus"]["bandwidth"],
            data["cpu"]["cores"],
            cpu=data["cpu"]["model"] or "",
        ),
    )
