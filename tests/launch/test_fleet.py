"""An operator would get files that HAProxy, systemd or Kubernetes refuse.

The files of a fleet, read back by their targets' own programs and schemas where they are
here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from served import balancer_of
from support import PLAIN, seldom

from autolayers.devices.fleet_file import read
from autolayers.errors import UsageError
from autolayers.flags.check import read as arguments_of
from autolayers.flags.users import Users
from autolayers.launch.fleet import KINDS, files, names_of
from autolayers.model import read_model
from autolayers.planner.compare.fleet.answer import FleetPlan, Wanted
from autolayers.planner.compare.fleet.plan import plan_fleet
from autolayers.records import replace
from autolayers.request import Request
from autolayers.units import GiB

ONE, FOUR = str(PLAIN / "llama-3.2-1b-q8_0.gguf"), str(PLAIN / "gemma-3-4b-q8_0.gguf")
NAMES = ["llama-3.2-1b-q8_0", "gemma-3-4b-q8_0"]
CARD = {"card": "rtx-3060"}
RAM = {"total": 64 * GiB}


def planned(place: Path, machines: dict[str, Any], paths: list[str], users: int) -> FleetPlan:
    (place / "fleet.json").write_text(json.dumps({"machines": machines}))
    return plan_fleet(
        [read_model(path) for path in paths],
        Request.of([], {}, devices=[]),
        read(str(place / "fleet.json")),
        [1.0] * len(paths),
        Wanted(users, Users()),
        names=names_of(paths),
    )


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> FleetPlan:
    """Two machines of two GPUs for two models, no GPU for cards to buy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autolayers.planner.compare.fleet.plan.USUAL", ())
        machines = {
            "rack": {"devices": [CARD, CARD], "host": RAM, "count": 2, "address": "10.0.0.{}"}
        }
        return planned(tmp_path_factory.mktemp("fleet"), machines, [ONE, FOUR], 24)


def written(
    kind: str, found: FleetPlan, *words: str, paths: list[str] | None = None
) -> dict[str, str]:
    arguments = arguments_of("fleet", ["fleet.json", *(paths or [ONE, FOUR]), *words])
    return files(kind, found, paths or [ONE, FOUR], arguments, lambda _: None)


def slots(found: FleetPlan, model: str) -> int:
    return sum(
        found.servers[place.server].slots
        for place in found.places
        if found.names[found.servers[place.server].model] == model
    )


@pytest.mark.slow
def test_compose_files_serve_the_fleet(fleet: FleetPlan) -> None:
    yaml = pytest.importorskip("yaml")
    texts = written("compose", fleet)
    assert sorted(texts) == ["rack-1/compose.yaml", "rack-2/compose.yaml"]
    for text in texts.values():
        if compose_spec := importlib.util.find_spec("compose_spec"):
            importlib.import_module(compose_spec.name).PyCompose.from_yaml(text).validate()
        services = yaml.safe_load(text)["services"]
        assert list(services) == ["llama-server-8080", "llama-server-8081"]
        ids = [
            service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
            for service in services.values()
        ]
        assert sorted(ids) == [["0"], ["1"]]
        limits = [int(service["mem_limit"][:-1]) for service in services.values()]
        # with 8 GiB of saved prompts each
        assert sum(limits) <= 64 * 1024 and min(limits) > 8192
        assert all(
            service["command"][-2:] == ["--host", "0.0.0.0"] for service in services.values()
        )


@pytest.mark.slow
def test_kubernetes_manifests_serve_the_fleet(fleet: FleetPlan) -> None:
    yaml, validator = pytest.importorskip("yaml"), pytest.importorskip("kubernetes_validate")
    (text,) = written("kubernetes", fleet).values()
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        validator.validate(document, validator.latest_version(), strict=True)
    pods = [document for document in documents if document["kind"] == "Deployment"]
    assert sum(pod["spec"]["replicas"] for pod in pods) == 4
    opened: set[str] = set()
    for pod in pods:
        spec = pod["spec"]["template"]["spec"]
        (term,) = spec["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]["nodeSelectorTerms"]
        assert set(term["matchExpressions"][0]["values"]) <= {"rack-1", "rack-2"}
        assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
        (port,) = spec["containers"][0]["ports"]
        assert port["containerPort"] == 8080
        nodes = term["matchExpressions"][0]["values"]
        assert pod["spec"]["replicas"] == len(nodes)
        opened |= {f"10.0.0.{node[-1]}:{port['hostPort']}" for node in nodes}
        args = spec["containers"][0]["args"]
        assert args[args.index("--port") + 1] == "8080"
    assert len(opened) == 4
    for kind in ("haproxy", "nginx", "litellm"):
        (balancer,) = written(kind, fleet).values()
        assert set(re.findall(r"10\.0\.0\.\d:\d+", balancer)) == opened, kind
    services = [document for document in documents if document["kind"] == "Service"]
    labels = {pod["spec"]["template"]["metadata"]["labels"]["llama-model"] for pod in pods}
    assert {service["spec"]["selector"]["llama-model"] for service in services} == labels and len(
        labels
    ) == 2


def test_llmkube_resources_serve_the_fleet(fleet: FleetPlan) -> None:
    yaml = pytest.importorskip("yaml")
    (text,) = written("llmkube", fleet).values()
    documents = list(yaml.safe_load_all(text))
    names = [document["metadata"]["name"] for document in documents if document["kind"] == "Model"]
    assert len(names) == len(set(names)) == 4
    for document in documents:
        if document["kind"] == "InferenceService":
            assert set(document["spec"]["nodeSelector"]) == {"kubernetes.io/hostname"}
            assert (
                document["spec"]["resources"]["gpu"] == 1 and document["spec"]["modelRef"] in names
            )


def test_llama_swap_files_serve_the_fleet(fleet: FleetPlan) -> None:
    yaml = pytest.importorskip("yaml")
    texts = written("llama-swap", fleet)
    assert sorted(texts) == ["peers/config.yaml", "rack-1/config.yaml", "rack-2/config.yaml"]
    peers = yaml.safe_load(texts["peers/config.yaml"])["peers"]
    assert [peer["proxy"] for peer in peers.values()] == [
        "http://10.0.0.1:8080",
        "http://10.0.0.2:8080",
    ]
    of_peers = [name for peer in peers.values() for name in peer["models"]]
    assert len(of_peers) == len(set(of_peers)) and set(NAMES) < set(of_peers)
    for name, peer in peers.items():
        own = yaml.safe_load(texts[f"{name}/config.yaml"])
        known = {
            *own["models"],
            *(alias for model in own["models"].values() for alias in model.get("aliases", ())),
        }
        assert set(peer["models"]) <= known
        assert (
            own["groups"]["fleet"]["members"]
            == own["hooks"]["on_startup"]["preload"]
            == list(own["models"])
        )
        assert sorted(model["env"] for model in own["models"].values()) == [
            ["CUDA_VISIBLE_DEVICES=0"],
            ["CUDA_VISIBLE_DEVICES=1"],
        ]
        assert all(model["cmd"].count("--port") == 1 for model in own["models"].values())


def test_litellm_balances_the_fleet(fleet: FleetPlan) -> None:
    yaml = pytest.importorskip("yaml")
    config = yaml.safe_load(written("litellm", fleet)["litellm.yaml"])
    assert {row["model_name"] for row in config["model_list"]} == set(NAMES) and len(
        config["model_list"]
    ) == 4
    for name in NAMES:
        rows = [row["litellm_params"] for row in config["model_list"] if row["model_name"] == name]
        assert sum(row["max_parallel_requests"] for row in rows) == slots(fleet, name) >= 12
    if importlib.util.find_spec("litellm"):
        router = importlib.import_module("litellm").Router(
            model_list=config["model_list"], **config["router_settings"]
        )
        assert set(router.get_model_names()) == set(NAMES)


@pytest.mark.parametrize(("kind", "check"), [("nginx", "-t"), ("haproxy", "-c")])
def test_a_balancer_takes_its_file(kind: str, check: str, fleet: FleetPlan, tmp_path: Path) -> None:
    ((name, text),) = written(kind, fleet).items()
    for model in NAMES:
        assert f"/{model}/" in text
    for address in ("10.0.0.1:8080", "10.0.0.1:8081", "10.0.0.2:8080", "10.0.0.2:8081"):
        assert text.count(address) == 1
    (tmp_path / name).write_text(text)
    if (path := shutil.which(kind, path=os.environ["PATH"] + ":/usr/sbin")) is not None:
        done = subprocess.run(
            [path, check, *balancer_of(kind, tmp_path, 8000)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_models_that_share_a_gpu_need_a_scheduler_for_it(tmp_path: Path) -> None:
    found = planned(tmp_path, {"desk": {"devices": [CARD], "host": RAM}}, [ONE, FOUR], 2)
    assert all(server.share == 2 for server in found.servers)
    with pytest.raises(
        UsageError,
        match="shares a GPU with other models, which Kubernetes alone does not do: --gpu",
    ):
        written("kubernetes", found)
    text = written("kubernetes", found, "--gpumem", "hami")["kubernetes.yaml"]
    sizes = [
        int(line.rpartition(" ")[2]) for line in text.splitlines() if "nvidia.com/gpumem" in line
    ]
    assert len(sizes) == 2 and sum(sizes) <= 12 * 1024
    with pytest.raises(UsageError, match="shares a GPU"):
        written("llmkube", found)


@seldom
def test_a_model_over_two_machines_gets_files_for_both(tmp_path: Path) -> None:
    large = str(PLAIN / "llama-3.3-70b-q4_k_m.gguf")
    card = {"card": "rtx-3090"}
    found = planned(
        tmp_path,
        {
            "a": {"devices": [card], "host": {"total": 12 * GiB}, "address": "10.0.0.1"},
            "b": {"devices": [card], "host": {"total": 12 * GiB}, "address": "10.0.0.2"},
        },
        [large],
        1,
    )
    (place,) = found.places
    head, box = place.machines
    address = {"a": "10.0.0.1", "b": "10.0.0.2"}[box]
    texts = written("compose", found, paths=[large])
    assert sorted(texts) == ["a/compose.yaml", "b/compose.yaml"]
    assert (
        "ggml-rpc-server" in texts[f"{box}/compose.yaml"]
        and f"{address}:50052" in texts[f"{head}/compose.yaml"]
    )
    (pods,) = written("kubernetes", found, paths=[large]).items()
    assert pods[0] == f"{head}-rpc/kubernetes.yaml" and pods[1].count("hostPort: 8080\n") == 1
    named = planned(
        tmp_path,
        {name: {"devices": [card], "host": {"total": 12 * GiB}} for name in "ab"},
        [large],
        1,
    )
    with pytest.raises(
        UsageError, match=r'at an IP address, not at .: give the machine an "address"'
    ):
        written("compose", named, paths=[large])
    with pytest.raises(
        UsageError, match="spans machines by RPC, which --format llama-swap cannot start"
    ):
        written("llama-swap", found, paths=[large])


def test_files_refuse_what_they_cannot_say(fleet: FleetPlan) -> None:
    with pytest.raises(UsageError, match="--port: the files of a fleet give each server its own"):
        written("compose", fleet, "--port", "9000")
    with pytest.raises(UsageError, match="--gpumem is for --format kubernetes, not compose"):
        written("compose", fleet, "--gpumem", "hami")
    assert list(KINDS) == [
        "compose",
        "kubernetes",
        "llmkube",
        "llama-swap",
        "litellm",
        "nginx",
        "haproxy",
    ]
    assert names_of(["a/m.gguf", "b/m.gguf", "hf:u/r/x-00001-of-00003.gguf"]) == ["m", "m-2", "x"]


def test_models_whose_names_are_cut_have_services_of_their_own(fleet: FleetPlan) -> None:
    yaml = pytest.importorskip("yaml")
    start = "Mega-Distill-Reasoning-Coder-Instruct-2507-UD-"
    named = replace(fleet, names=tuple([f"{start}{end}" for end in ("Q4_K_XL", "Q8_K_XL")]))
    (text,) = written("kubernetes", named).values()
    services = [each for each in yaml.safe_load_all(text) if each["kind"] == "Service"]
    assert len({each["metadata"]["name"] for each in services}) == 2
    assert len({each["spec"]["selector"]["llama-model"] for each in services}) == 2


@pytest.mark.slow
def test_replicas_are_on_different_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers of a model on one node would end with it."""
    yaml = pytest.importorskip("yaml")
    monkeypatch.setattr("autolayers.planner.compare.fleet.plan.USUAL", ())
    rows = {"w": {"devices": [CARD, CARD], "host": RAM, "count": 2}}
    (text,) = written("kubernetes", planned(tmp_path, rows, [ONE, FOUR], 24)).values()
    several = 0
    for document in yaml.safe_load_all(text):
        spec = document["spec"]
        if document["kind"] != "Deployment" or spec["replicas"] == 1:
            continue
        several += 1
        (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
        assert spread["maxSkew"] == 1 and spread["whenUnsatisfiable"] == "DoNotSchedule"
        assert spread["topologyKey"] == "kubernetes.io/hostname"
        labels = spec["template"]["metadata"]["labels"]
        assert spread["labelSelector"]["matchLabels"].items() <= labels.items()
    assert several
