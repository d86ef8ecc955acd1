"""Anyone who spreads a model over machines would get files that Docker or Kubernetes refuse.

`autolayers cluster`: the files for each machine are read back by their targets' own schemas.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, check_examples, gguf, slow, write_gguf

from autolayers.cli import main

GIB = {"desk": 4, "shed": 2.2, "attic": 2.2}  # of each card; and a tenth of a 70B
WORDS = ["cluster", "home.json", "m.gguf", "-c", "16k"]
RPC = "192.168.1.20:50052,192.168.1.20:50053"


def boxes() -> dict[str, Any]:
    """docs/cluster.json with less memory."""
    data: dict[str, Any] = json.loads((ROOT / "docs" / "cluster.json").read_text())
    for name, gib in GIB.items():
        for device in data["boxes"][name]["devices"]:
            device |= {"total": round(gib * 2**30), "free": round(gib * 2**30)}
    return data


@pytest.fixture(autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which has the words' files."""
    found = tmp_path_factory.mktemp("cluster")
    write_gguf(found / "m.gguf", *gguf("llama-3.3-70b-q4_k_m:8"))
    (found / "home.json").write_text(json.dumps(boxes()))
    monkeypatch.chdir(found)
    return found


@pytest.fixture
def answer(capfd: pytest.CaptureFixture[str]):
    def run(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        return code, *capfd.readouterr()

    return run


def files(place: Path, kind: str, answer, *words: str) -> dict[str, str]:
    code, out, err = answer(*WORDS, "--format", kind, "-o", str(place), *words)
    assert (code, out) == (0, "") and "no authentication" in err
    return {
        path.relative_to(place).as_posix(): path.read_text()
        for path in place.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_flags_and_json_say_the_same_launch(answer) -> None:
    code, out, _ = answer(*WORDS)
    assert code == 0 and f"--rpc {RPC} " in out and " -ts " in out and out.count("\n") == 1
    command, boxes, name, *flags = WORDS
    assert answer(command, boxes, "-m", name, *flags)[1] == out
    found = json.loads(answer(*WORDS, "--json")[1])
    assert found["schema"] == 1 and found["flags"] == shlex.split(out)
    assert found["cluster"]["boxes"] == ["shed"] and len(found["cluster"]["others"]) == 3
    assert found["cluster"]["load_seconds"] == round(found["cluster"]["sent"]["shed"] / 312.5e6, 1)


def test_a_flag_that_the_build_lacks_is_refused(answer) -> None:
    code, _, err = answer(*WORDS, "--llama-build", "b9100", "--kv-unified-per-slot", "4096")
    assert code == 2 and "b9100 has no --kv-unified-per-slot, which came with b10662" in err


@pytest.mark.slow
def test_compose_files_start_each_machine(answer, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    written = files(tmp_path, "compose", answer, "--image", "example.org/llama:rpc")
    assert sorted(written) == ["desk/compose.yaml", "shed/compose.yaml"]
    for text in written.values():
        assert "built with -DGGML_RPC=ON" in text
        if compose_spec := importlib.util.find_spec("compose_spec"):
            importlib.import_module(compose_spec.name).PyCompose.from_yaml(text).validate()
    for name in written if (program := shutil.which("docker-compose")) else ():
        subprocess.run(
            [program, "-f", str(tmp_path / name), "config", "-q"], check=True, timeout=60
        )
    services = yaml.safe_load(written["shed/compose.yaml"])["services"]
    assert [service["command"] for service in services.values()] == [
        ["--host", "0.0.0.0", "--port", str(50052 + i), "--device", f"CUDA{i}", "--cache"]
        for i in range(2)
    ]
    assert [service["ports"] for service in services.values()] == [
        [f"192.168.1.20:{port}:{port}"] for port in (50052, 50053)
    ]
    assert all(
        service["mem_limit"] == service["deploy"]["resources"]["limits"]["memory"]
        for service in services.values()
    )
    head = yaml.safe_load(written["desk/compose.yaml"])["services"]["llama-server"]
    assert head["image"] == "example.org/llama:rpc" and RPC in head["command"]
    assert head["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"


def test_systemd_units_start_each_machine(answer, tmp_path: Path) -> None:
    written = files(tmp_path, "systemd", answer)
    assert sorted(written) == [
        "desk/llama-server.service",
        "shed/llama-rpc-0.service",
        "shed/llama-rpc-1.service",
    ]
    assert (
        "ExecStart=/usr/local/bin/ggml-rpc-server --host 192.168.1.20 --port 50053 --device CUDA1 "
        "--cache\n" in written["shed/llama-rpc-1.service"]
    )
    assert RPC in written["desk/llama-server.service"]
    assert all(re.search("\nMemoryMax=[0-9]+M\n", text) for text in written.values())
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "shed" / "llama-rpc-0.service"
        unit.write_text(unit.read_text().replace("/usr/local/bin/ggml-rpc-server", "/bin/true"))
        done = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_kubernetes_manifests_start_each_machine(answer, tmp_path: Path) -> None:
    yaml, validator = pytest.importorskip("yaml"), pytest.importorskip("kubernetes_validate")
    (text,) = files(tmp_path, "kubernetes", answer).values()
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        validator.validate(document, validator.latest_version(), strict=True)
    kinds = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert kinds == [
        ("Deployment", "rpc-shed-0"),
        ("Service", "rpc-shed-0"),
        ("Deployment", "rpc-shed-1"),
        ("Service", "rpc-shed-1"),
        ("Deployment", "llama-server"),
        ("Service", "llama-server"),
        ("NetworkPolicy", "llama-cpp-rpc"),
    ]
    pods = [
        document["spec"]["template"]["spec"]
        for document in documents
        if document["kind"] == "Deployment"
    ]
    assert [pod["nodeSelector"]["kubernetes.io/hostname"] for pod in pods] == [
        "shed",
        "shed",
        "desk",
    ]
    for pod in pods:
        resources = pod["containers"][0]["resources"]
        assert resources["limits"].pop("nvidia.com/gpu") == 1
        assert {*resources["limits"], "cpu"} == set(resources["requests"]) == {"memory", "cpu"}
    # a server takes a message at a time, the largest of them a tensor of 1026 MiB; the head saves
    # prompts too
    sizes = [pod["containers"][0]["resources"]["limits"]["memory"] for pod in pods]
    assert sizes[0] == sizes[1] and int(sizes[2][:-2]) > 8192
    # --cache is kept outside of the container, whose root is read-only
    for pod in pods[:2]:
        mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        assert (
            mounts["cache"] == "/root/.cache"
            and {"name": "cache", "emptyDir": {}} in pod["volumes"]
        )
    args = pods[2]["containers"][0]["args"]
    assert args[args.index("--rpc") + 1] == "rpc-shed-0:50052,rpc-shed-1:50053"
    assert args[args.index("-m") + 1].startswith(
        pods[2]["containers"][0]["volumeMounts"][0]["mountPath"]
    )


# Of LeaderWorkerSetSpec (leaderworkerset.x-k8s.io/v1, api/leaderworkerset/v1 of 0.7) the fields
# that are written here
_LWS = {"replicas": int, "leaderWorkerTemplate": dict}
_LWS_TEMPLATE = {"size": int, "restartPolicy": str, "leaderTemplate": dict, "workerTemplate": dict}


def test_a_leader_worker_set_starts_each_machine(answer, tmp_path: Path) -> None:
    yaml, validator = pytest.importorskip("yaml"), pytest.importorskip("kubernetes_validate")
    (text,) = files(tmp_path, "lws", answer, "--gpumem", "hami").values()
    group, *others = yaml.safe_load_all(text)
    assert (group["apiVersion"], group["kind"]) == (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
    )
    template = group["spec"]["leaderWorkerTemplate"]
    for found, fields in ((group["spec"], _LWS), (template, _LWS_TEMPLATE)):
        assert {key: type(value) for key, value in found.items()} == fields
    assert (template["size"], template["restartPolicy"]) == (3, "RecreateGroupOnPodRestart")
    leader, worker = template["leaderTemplate"], template["workerTemplate"]
    for pod in (leader, worker):  # each is a core PodTemplateSpec
        spec = {
            "replicas": 1,
            "selector": {"matchLabels": pod["metadata"]["labels"]},
            "template": pod,
        }
        whole = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "x"},
            "spec": spec,
        }
        validator.validate(whole, validator.latest_version(), strict=True)
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] > 1000
    for document in others:
        validator.validate(document, validator.latest_version(), strict=True)
    command = worker["spec"]["containers"][0]["command"]
    assert command[0] == "/app/ggml-rpc-server" and command[command.index("--port") + 1] == "50052"
    # pods of a group are LEADER-NUMBER in the domain of its headless service, which has the group's
    # name
    servers = ["llama-server-0-1.llama-server:50052", "llama-server-0-2.llama-server:50052"]
    args = leader["spec"]["containers"][0]["args"]
    assert args[args.index("--rpc") + 1] == ",".join(servers)
    assert leader["spec"]["initContainers"][0]["command"][-2:] == servers
    assert others[0]["metadata"]["name"] != "llama-server" and others[0]["spec"]["selector"] == {
        "app": "llama-server"
    }
    assert "app" not in worker["metadata"]["labels"]


def test_a_limit_of_the_head_holds(answer) -> None:
    code, out, _ = answer(*WORDS, "--ram-limit", "3GiB", "--ram", "32GiB", "--format", "kubernetes")
    sizes = [int(size) for size in re.findall("memory: ([0-9]+)Mi", out)]
    assert code == 0 and sizes[-1] <= 3072


@pytest.mark.slow
def test_words_that_mean_something_to_yaml_stay_words(answer, tmp_path: Path) -> None:
    """$(NAME) is a variable of a Kubernetes container, $NAME one of a Compose file, and a line end
    ends a comment."""
    yaml = pytest.importorskip("yaml")
    (text,) = files(
        tmp_path / "k", "kubernetes", answer, "-a", "$(HF_TOKEN)", "--image", "x\nkind: Evil"
    ).values()
    documents = list(yaml.safe_load_all(text))
    assert "Evil" not in [document["kind"] for document in documents]
    assert "$$(HF_TOKEN)" in documents[4]["spec"]["template"]["spec"]["containers"][0]["args"]
    written = files(tmp_path / "c", "compose", answer, "--image", "x$HOME\nevil: 1")
    for file in written.values():
        assert set(yaml.safe_load(file)) <= {"services", "volumes"}
    assert (
        yaml.safe_load(written["shed/compose.yaml"])["services"]["rpc-0"]["image"]
        == "x$$HOME\nevil: 1"
    )


def test_secrets_are_left_out(answer) -> None:
    for form in ("flags", "text"):
        code, out, err = answer(*WORDS, "--format", form, "--port", "80", "--api-key", "hunter2")
        assert (
            code == 0
            and "--port 80" in out
            and "hunter2" not in out + err
            and "LLAMA_API_KEY is left out" in err
        )


@pytest.mark.slow
def test_names_of_boxes_are_no_paths_and_no_lines_of_a_file(answer, tmp_path: Path) -> None:
    data = boxes()
    data["boxes"]["..\nExecStartPre=rm"] = data["boxes"].pop("shed")
    data["links"] = [{**data["links"][0], "between": ["desk", "..\nExecStartPre=rm"]}]
    data["boxes"].pop("attic")
    (tmp_path / "home.json").write_text(json.dumps(data))
    place = tmp_path / "out"
    words = [
        "cluster",
        str(tmp_path / "home.json"),
        *WORDS[2:],
        "--format",
        "systemd",
        "-o",
        str(place),
    ]
    assert answer(*words)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home.json", "out"]
    (unit, *_) = sorted(place.rglob("llama-rpc-*.service"))
    assert "\nExecStartPre" not in unit.read_text()
    data["boxes"]["de sk"] = data["boxes"].pop("..\nExecStartPre=rm")
    data["boxes"]["de-sk"] = data["boxes"].pop("desk")
    data |= {"head": "de-sk", "links": [{**data["links"][0], "between": ["de-sk", "de sk"]}]}
    (tmp_path / "home.json").write_text(json.dumps(data))
    code, _, err = answer(*words)
    assert code == 2 and "'de sk' and 'de-sk' would have the same names" in err


def test_servers_that_do_not_answer_are_left_out_of_the_plan(answer, tmp_path: Path) -> None:
    """No server runs: each is named in a line, and the head alone is planned."""
    data = boxes()
    for name, port in (("shed", 9), ("attic", 7)):
        data["boxes"][name] |= {"address": "127.0.0.1", "port": port}
    (tmp_path / "home.json").write_text(json.dumps(data))
    code, out, err = answer(
        "cluster", str(tmp_path / "home.json"), "m.gguf", "--ask", "--ctx-min", "4k"
    )
    named = [line for line in err.splitlines() if "left out" in line]
    assert code == 0 and "--rpc" not in out
    assert len(named) == 3 and all(line.startswith("autolayers: box ") for line in named)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["cluster"], 2, "name the cluster file and the model"),
        (["cluster", "m.gguf", "home.json"], 2, "cluster FILE.json MODEL"),
        (["cluster", "gone.json", "m.gguf"], 2, "gone.json: No such file"),
        ([*WORDS, "--rpc", "a:1"], 2, "omit --rpc"),
        slow([*WORDS, "--image", "x"], 2, "--output and --image need"),
        ([*WORDS, "-ngl", "9", "-c", "131072"], 5, "does not fit: "),
    ],
)
def test_what_is_refused(words: list[str], code: int, said: str, answer) -> None:
    found, _, err = answer(*words)
    assert found == code and said in err


@pytest.mark.slow
def test_what_no_container_runs_is_started_by_hand(answer, tmp_path: Path) -> None:
    data = boxes()
    data["boxes"]["shed"]["devices"] = [{"card": "m2-max-64g"}]
    (tmp_path / "mac.json").write_text(json.dumps(data))
    code, _, err = answer("cluster", str(tmp_path / "mac.json"), *WORDS[2:], "--format", "compose")
    assert (
        code == 2
        and "type there ggml-rpc-server --host 192.168.1.20 --port 50052 --device MTL0 --cache"
        in err
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_table_of_boxes_is_laid_out_for_the_width(
    width: int, answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = answer(*WORDS, "--format", "text")
    lines = out.partition("* predicted")[0].splitlines()
    assert code == 0 and all(len(line) <= width for line in lines), max(lines, key=len)
    rows = " ".join(" ".join(lines[3:]).replace(":", "").split())
    assert re.search(
        r"> desk \+ shed 9 of 9 layers \d+ \d+ [\d.]+ [\d.]+ s \d s desk \+ shed \+ "
        r"attic 9 of 9 layers",
        rows,
    )


@pytest.mark.slow
def test_the_documented_examples_print_what_the_page_shows(
    answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "110")

    def run(words: list[str]) -> str:
        code, out, _ = answer(*words)
        assert code == 0
        return out

    assert check_examples(ROOT / "docs" / "cluster.md", run) == 1
