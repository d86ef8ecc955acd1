"""Anyone who lists machines would have one of them misread.

The machines of a fleet, from each form of its file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autolayers.devices.fleet_file import LINK, read
from autolayers.errors import UsageError
from autolayers.units import GiB, MiB

RACK = {"devices": [{"card": "rtx-3090"}, {"card": "rtx-3090"}], "host": {"total": 64 * GiB}}
PC = {"host": {"total": 16 * GiB}}


def of(place: Path, data: Any) -> Path:
    (place / "fleet.json").write_text(data if isinstance(data, str) else json.dumps(data))
    return place / "fleet.json"


def node(
    name: str,
    product: str = "NVIDIA-GeForce-RTX-3090",
    gpus: int = 2,
    mib: int = 24576,
    **labels: str,
) -> dict[str, Any]:
    """As kubectl prints it, with the labels of NVIDIA's feature discovery."""
    found = (
        {
            "nvidia.com/gpu.product": product,
            "nvidia.com/gpu.memory": str(mib),
            "nvidia.com/gpu.compute.major": "8",
            "nvidia.com/gpu.compute.minor": "6",
        }
        if gpus
        else {}
    )
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {**found, **labels}},
        "spec": {},
        "status": {
            "allocatable": {
                "cpu": "15500m",
                "memory": "65000000Ki",
                **({"nvidia.com/gpu": str(gpus)} if gpus else {}),
            },
            "capacity": {"cpu": "16", "memory": "65900000Ki"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def test_machines_alike_are_one_kind_with_the_least_free_memory(tmp_path: Path) -> None:
    card = {"name": "CUDA0", "card": "rtx-3090", "free": 23000 * MiB}
    fleet = read(
        str(
            of(
                tmp_path,
                {
                    "machines": {
                        "rack": {**RACK, "count": 40, "address": "10.0.0.{}"},
                        "desk": {"devices": [card], "host": {"total": 64 * GiB}},
                        "loft": {
                            "devices": [{**card, "free": 22990 * MiB}],
                            "host": {"total": 64 * GiB},
                        },
                        "pc": PC,
                    },
                    "link": {"bandwidth": "10Gbit/s", "latency": "0.2ms"},
                },
            )
        )
    )
    assert [(len(kind.machines), kind.gpus) for kind in fleet.kinds] == [(40, 2), (2, 1), (1, 1)]
    assert fleet.kinds[1].devices[0].free == 22990 * MiB
    assert fleet.machines[39].name == "rack-40" and fleet.machines[39].address == "10.0.0.40"
    assert (fleet.link, fleet.said) == ((1.25e9, 0.2e-3), True)


def test_a_directory_or_files_next_to_the_file_list_machines(tmp_path: Path) -> None:
    (tmp_path / "desk.json").write_text(json.dumps(RACK))
    (tmp_path / "pc.json").write_text(json.dumps({**PC, "schema": 1, "notes": []}))
    fleet = read(str(tmp_path))
    assert (
        [box.name for box in fleet.machines] == ["desk", "pc"]
        and fleet.link == LINK
        and not fleet.said
    )
    other = of(
        tmp_path,
        {"machines": [{"name": "a", "machine": "desk.json"}, {"name": "b", "machine": "pc.json"}]},
    )
    assert [box.name for box in read(str(other)).machines] == ["a", "b"]
    assert [box.name for box in read(str(tmp_path / "desk.json")).machines] == ["desk"]


def test_nodes_of_kubernetes_are_read_as_machines(tmp_path: Path) -> None:
    rows = [
        node("n1"),
        node("n2"),
        node("cpu", gpus=0),
        node("odd", "NVIDIA-X-9000", 1, 30000),
        node("shared", "NVIDIA-GeForce-RTX-3090-SHARED", 8, **{"nvidia.com/gpu.replicas": "4"}),
    ]
    rows.append({**node("off"), "spec": {"unschedulable": True}})
    fleet = read(str(of(tmp_path, {"kind": "List", "items": rows})))
    assert [box.name for box in fleet.machines] == ["n1", "n2", "cpu", "odd", "shared"]
    assert [len(box.devices) for box in fleet.machines] == [2, 2, 0, 1, 2] and len(fleet.kinds) == 3
    assert fleet.machines[0].address == "10.0.0.7" and fleet.machines[0].devices[1].name == "CUDA1"
    assert fleet.machines[0].devices[0].bandwidth and fleet.machines[0].devices[
        0
    ].compute_capability == (8, 6)
    host = fleet.machines[0].host
    assert host is not None and (host.available, host.total, host.cores) == (
        65000000 << 10,
        65900000 << 10,
        7,
    )
    odd = fleet.machines[3].devices[0]
    assert odd.total == 30000 * MiB and odd.free < odd.total and odd.bandwidth is None
    unknown = (
        "node odd: GPU NVIDIA X 9000 is not known: its memory is that of its label, its speed is "
        "assumed"
    )
    assert {unknown, "node off: cordoned: left out"} < set(fleet.notes)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            '{"machines": {"a": {"host": {"total": 9999999999}}, "a": {"host": {"total": '
            "9999999999}}}}",
            "a is listed twice: rename one",
        ),
        (
            {"machines": [{"name": "a", **PC}, {"name": "a", **PC}]},
            "two machines are called a: rename one",
        ),
        (
            {"machines": [{"name": "a-1", **PC}, {"name": "a", "count": 2, **PC}]},
            "two machines are called a-1",
        ),
        ({"machines": {"a": {}}}, "machine a: a machine without memory"),
        (
            {"machines": {"a": {"devices": [{"card": "rtx-3090"}]}}},
            "machine a: a machine without RAM",
        ),
        ({"machines": {"a": {**PC, "gpu": 1}}}, "machine a has an unknown key 'gpu'"),
        ({"machines": {"a": {**PC, "count": 3, "address": "x"}}}, "3 machines have 3 addresses"),
        ({"machines": {"a": {**PC, "count": 1e9}}}, "count must be a whole number from 1 to 20000"),
        ({"machines": {"a": {**PC, "address": "x y"}}}, "address must be a host name"),
        ({"machines": {"a": {"machine": "none.json"}}}, "none.json: No such file"),
        ({"machines": {}}, "no machines"),
        ({"machines": 3}, '"machines" must be an object'),
        ([], "not an object"),
        ({"machines": {"a": PC}, "link": {"bandwidth": "fast"}}, "link: bandwidth must be"),
        ({"items": [{"kind": "Pod"}]}, "item 1 is no Node"),
        (
            {"items": [node("a", mib=0)]},
            "node a: no label gives the memory of its 2 nvidia.com/gpu",
        ),
        ({"items": [node("a", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb")]}, "is a part of a GPU"),
        (
            {"items": [{"kind": "Node", "metadata": {"name": "a"}}]},
            "node a: a machine without memory",
        ),
        ({"items": [node("a"), node("a")]}, "two machines are called a: rename one"),
        ("{", "not JSON"),
    ],
)
def test_bad_input_is_one_line(data: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"fleet|none") as found:
        read(str(of(tmp_path, data)))
    assert said in str(found.value) and "\n" not in str(found.value)


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no .json files; autolayers devices --json"):
        read(str(tmp_path))
