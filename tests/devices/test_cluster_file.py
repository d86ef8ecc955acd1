"""Anyone who writes a cluster file would get a traceback, or wait for a dead server.

Cluster files: what is read of them, what is wrong with them in one line, and servers that die or
lie.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_rpc import FakeRpc

from autolayers.devices.cluster_file import asked, read
from autolayers.errors import UsageError
from autolayers.work.figures import Figures

GiB = 1 << 30


def cluster(**changes: Any) -> dict[str, Any]:
    """Two machines, one of them with two GPUs."""
    boxes = {
        "desk": {"devices": [{"card": "rtx-3090"}], "host": {"total": 64 * GiB}},
        "shed": {
            "devices": [{"card": "rtx-3060"}, {"card": "m2-max-64g"}],
            "address": "10.0.0.2",
            "port": 6000,
        },
    }
    links = [{"between": ["desk", "shed"], "bandwidth": "1Gbit/s", "latency": "0.3ms"}]
    return {"head": "desk", "boxes": boxes, "links": links, **changes}


def written(tmp_path: Path, data: Any) -> str:
    path = tmp_path / "home.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def test_the_head_sees_rpc_devices_before_its_own(tmp_path: Path) -> None:
    found = read(written(tmp_path, cluster()))
    (shed,) = found.boxes
    assert shed.endpoints == ("10.0.0.2:6000", "10.0.0.2:6001") and shed.bind == "10.0.0.2"
    devices = found.devices()
    assert [(d.name, d.kind, d.backend, d.engine) for d in devices] == [
        ("RPC0", "rpc", "RPC", "CUDA"),
        ("RPC1", "rpc", "RPC", "MTL"),
        ("CUDA0", "gpu", "CUDA", ""),
    ]
    assert devices[0].description == "shed: NVIDIA GeForce RTX 3060"
    assert (devices[0].link, devices[0].latency) == (125e6, 0.3e-3) and devices[2].latency is None
    assert [d.name for d in found.devices([])] == ["CUDA0"] and found.head.host.total == 64 * GiB


def test_a_box_that_is_listed_twice_is_refused_not_lost(tmp_path: Path) -> None:
    text = json.dumps(cluster()).replace('"shed": {', '"shed": {"port": 7000}, "shed": {', 1)
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as error:
        read(path)
    assert str(error.value) == f"{path}: shed is listed twice: rename one"


def test_a_cluster_file_that_is_too_large_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(cluster()) + " " * (1 << 20))
    with pytest.raises(UsageError) as error:
        read(path)
    assert str(error.value) == f"{path}: more than 1.00 MiB"


def test_machine_files_of_boxes_are_read_from_where_the_cluster_file_is(tmp_path: Path) -> None:
    (tmp_path / "shed.json").write_text(json.dumps({"devices": [{"card": "rtx-3060"}]}))
    data = cluster()
    data["boxes"]["shed"] = {"machine": "shed.json", "address": "fd00::2", "bind": "::"}
    (shed,) = read(written(tmp_path, data)).boxes
    assert shed.endpoints == ("[fd00::2]:50052",) and shed.bind == "::"


@pytest.mark.parametrize(
    ("bandwidth", "latency", "expected"),
    [
        ("1Gbit/s", "0.3ms", (125e6, 3e-4)),
        ("10 Gbps", "80us", (1.25e9, 8e-5)),
        ("100MB/s", "1 ms", (1e8, 1e-3)),
        ("1GiB/s", 0.5, (float(1 << 30), 0.5)),
        (2.5e8, 0, (2.5e8, 0.0)),
    ],
)
def test_links_are_read_with_their_units(
    tmp_path: Path, bandwidth: object, latency: object, expected: tuple[float, float]
) -> None:
    link = {"between": ["shed", "desk"], "bandwidth": bandwidth, "latency": latency}
    assert read(written(tmp_path, cluster(links=[link]))).boxes[0].link == pytest.approx(expected)


def without(data: dict[str, Any], box: str, key: str) -> dict[str, Any]:
    del data["boxes"][box][key]
    return data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        (cluster(head="attic"), '"head" must be the name of the box'),
        (cluster(head=["desk"]), '"head" must be the name of the box'),
        (cluster(boxes={}), 'no "boxes"'),
        (cluster(more=1), "unknown key 'more'"),
        (cluster(links=[]), 'no link between desk and shed; write it under "links"'),
        (cluster(links=[{"between": ["desk", "attic"]}]), "the names of two boxes"),
        (cluster(links=[{"between": ["desk", ["shed"]]}]), "the names of two boxes"),
        (
            cluster(
                links=[{"between": ["desk", "shed"], "bandwidth": "1.2.3Gbit/s", "latency": 0.1}]
            ),
            "bandwidth must be",
        ),
        (
            cluster(links=[{"between": ["desk", "shed"], "bandwidth": 1e9, "latency": ".s"}]),
            "latency must be seconds",
        ),
        (
            cluster(links=[{"between": ["desk", "shed"], "latency": 0.1}]),
            "bandwidth must be bytes per second",
        ),
        (
            cluster(
                links=[{"between": ["desk", "shed"], "bandwidth": "1 furlong", "latency": 0.1}]
            ),
            "bandwidth must be",
        ),
        (
            cluster(links=[{"between": ["desk", "shed"], "bandwidth": 1e9, "latency": "soon"}]),
            "latency must be seconds",
        ),
        (without(cluster(), "shed", "address"), 'box shed has no "address"'),
        (without(cluster(), "shed", "devices"), "neither devices nor a host"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, data: Any, words: str) -> None:
    path = written(tmp_path, data)
    with pytest.raises(UsageError) as error:
        read(path)
    assert (
        str(error.value).startswith(path)
        and words in str(error.value)
        and "\n" not in str(error.value)
    )


def test_servers_that_die_or_lie_are_left_out(tmp_path: Path) -> None:
    good, liar, two = (
        [(128, 11 * GiB, 12 * GiB)],
        [(128, 90 * GiB, 96 * GiB)],
        [(128, GiB, 2 * GiB)] * 2,
    )
    for devices, said in (
        (good, ""),
        (liar, "reports 96.00 GiB, but the file has one device of 11.63 GiB"),
        (two, "reports 2 devices"),
        (None, "not a usable RPC server"),
    ):
        with FakeRpc(devices or good) as server:
            port = int(server.endpoint.rpartition(":")[2])
            if devices is None:
                server.__exit__()
            data = cluster()
            data["boxes"]["shed"] = {
                "devices": [{"card": "rtx-3060"}],
                "address": "127.0.0.1",
                "port": port,
            }
            found, notes = asked(read(written(tmp_path, data)))
        assert len(notes) == bool(said) and said in "".join(notes)
        if said:
            assert (
                notes[0].startswith("box shed: ")
                and notes[0].endswith("left out")
                and found.boxes == ()
            )
        else:
            (device,) = found.boxes[0].devices
            assert (device.free, device.total, device.includes_context) == (
                11 * GiB,
                12 * GiB,
                True,
            )


def test_a_box_may_serve_its_processor(tmp_path: Path) -> None:
    data = cluster()
    data["boxes"]["shed"]["devices"] = [{"name": "CPU0", "backend": "CPU", "total": 64 * GiB}]
    (device,) = read(written(tmp_path, data)).devices([read(written(tmp_path, data)).boxes[0]])[:1]
    assert (device.name, device.backend, device.engine, device.bandwidth) == (
        "RPC0",
        "RPC-CPU",
        "",
        None,
    )
    assert (Figures.of(device).bandwidth, Figures.of(device).fp16) == (38e9, 38e9 * 16)
