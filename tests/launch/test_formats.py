"""A written launch file would be refused by its target, or start another launch.

What is written for those who start a launch elsewhere: each format is read back by its own
reader.
"""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import launch_targets as targets
import pytest
from support import HEADERS, PLAIN, few, gpus, model, slow, split

import autolayers
from autolayers import Plan
from autolayers.backends import backend
from autolayers.builds import TODAY
from autolayers.cli import main
from autolayers.errors import UsageError
from autolayers.flags.formats import FORMATS
from autolayers.flags.parse import parse
from autolayers.launch import formats
from autolayers.launch.command import WrappedCommand, additions
from autolayers.launch.formats.kubernetes import label
from autolayers.launch.formats.preset import section
from autolayers.launch.formats.reach import Reach
from autolayers.launch.secrets import launcher_without_secrets, without_secrets
from autolayers.model import Model
from autolayers.quoting import systemd
from autolayers.records import replace

LLAMA = str(HEADERS / "llama-3.1-8b-q4_k_m.gguf")
SMALL = str(HEADERS / "llama-3.2-1b-q8_0.gguf")
PLAIN_SMALL = str(PLAIN / "llama-3.2-1b-q8_0.gguf")


# --- formats

MODEL = '/data/my models/a $b%c "q".gguf'
FLAGS = ("-ngl", "33", "-c", "8192", "-fa", "on")


def planned_for(
    kind: str, path: str, words: Sequence[str], name: str = "llama-3.1-8b-q4_k_m:8"
) -> Plan:
    """A real plan of a fixture that is called `path`, for what starts it."""
    found = Model(model(name).header, path)
    return formats.plan_for(
        kind,
        parse([*FLAGS, *words]),
        lambda arguments: autolayers.plan(found, arguments, devices=gpus(24576)),
    )[0]


def written(
    kind: str,
    words: Sequence[str] = (),
    path: str = MODEL,
    name: str = "llama-3.1-8b-q4_k_m:8",
    warn: Callable[[str], None] = lambda _: None,
) -> str:
    """The format's text for a command with these words."""
    plan = planned_for(kind, path, words, name)
    command = WrappedCommand(("llama-server",), ("-m", path, *words), "llama-server")
    added, _ = additions(command, plan.flags, TODAY, {})
    return formats.write(kind, plan, parse(["-m", path, *words]), command, added, warn=warn)


def test_a_systemd_unit_starts_the_launch() -> None:
    lines = written(
        "systemd", ("--api-key", "secret", "--port", "80", "--grammar", "a;b\n'c' \\")
    ).splitlines()
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    assert start == (
        'ExecStart=llama-server -m "/data/my models/a $$b%%c \\"q\\".gguf" --port 80 '
        "--grammar \"a;b\\x0a'c' \\\\\" -ngl 33 -c 8192 -fa on"
    )
    assert "Restart=on-failure" in lines and not any("secret" in line for line in lines)
    assert "# LLAMA_API_KEY is read from the environment file (mode 600)" in lines
    # without the file, and so without the key, it does not start
    assert "EnvironmentFile=/etc/autolayers/a-b-c-q-.env" in lines
    assert "EnvironmentFile=-/etc/autolayers/a-b-c-q-.env" in written("systemd").splitlines()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_itself_takes_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a program that is there and words of every kind, for a file and for a model that is
    downloaded."""
    (tmp_path / "llama-server").write_text("#!/bin/sh\n")
    (tmp_path / "llama-server").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for i, path in enumerate((MODEL, "hf:user/name/file.gguf", "/m/a\rExecStartPre=b.gguf")):
        unit = tmp_path / f"unit{i}.service"
        unit.write_text(written("systemd", ("--grammar", "a;b\n'c' \\ %n $HOME ${x}"), path))
        done = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, str(unit) in done.stderr) == (0, False), done.stderr


def test_a_docker_command_starts_the_launch() -> None:
    words = shlex.split(written("docker", ("--port", "81", "--hf-token=x")))
    assert words == [
        "docker",
        "run",
        "--rm",
        "--init",
        "-p",
        "127.0.0.1:81:81",
        "--security-opt",
        "no-new-privileges",
        "--health-cmd",
        "curl -fk http://localhost:81/health",
        "--gpus",
        "all",
        "-v",
        f"{MODEL}:/models/{MODEL.rpartition('/')[2]}:ro",
        "--memory",
        "9047m",
        "--memory-reservation",
        "838m",
        "-e",
        "HF_TOKEN",
        "ghcr.io/ggml-org/llama.cpp:server-cuda",
        "-m",
        '/models/a $b%c "q".gguf',
        "--port",
        "81",
        "-ngl",
        "33",
        "-c",
        "8192",
        "-fa",
        "on",
        "--host",
        "0.0.0.0",
    ]
    plan = planned_for("docker", MODEL, ())
    with pytest.raises(UsageError, match="already a container"):
        formats.write("docker", plan, parse(["-m", "m"]), split("docker run image -m m"), ())


@pytest.mark.parametrize(
    ("folder", "mount"),
    [
        ("/a:b", ["--mount", "type=bind,source=/a:b/m.gguf,target=/models/m.gguf,readonly"]),
        (
            '/a:b,"c"',
            ["--mount", 'type=bind,"source=/a:b,""c""/m.gguf",target=/models/m.gguf,readonly'],
        ),
    ],
)
def test_a_path_with_a_colon_is_one_field(folder: str, mount: list[str]) -> None:
    words = shlex.split(written("docker", path=f"{folder}/m.gguf"))
    at = words.index("--mount")
    assert (
        words[at : at + 2] == mount
        and "-v" not in words
        and words[words.index("-m") + 1] == "/models/m.gguf"
    )


@pytest.mark.skipif(os.name != "posix", reason="links")
@pytest.mark.parametrize(
    ("target", "file"),
    [
        slow("../../blobs/ab", "models--U--M/blobs/ab"),
        ("{}/elsewhere/x.gguf", "elsewhere/x.gguf"),
    ],
)
def test_what_a_link_leads_to_is_in_the_container(tmp_path: Path, target: str, file: str) -> None:
    """As files of the Hub's cache are."""
    link = tmp_path / "models--U--M" / "snapshots" / "c" / "m.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(target.format(tmp_path))
    words = shlex.split(written("docker", path=str(link)))
    assert words[words.index("-v") + 1] == f"{tmp_path}/{file}:/models/m.gguf:ro"
    assert words[words.index("-m") + 1] == "/models/m.gguf"


def test_a_container_sees_the_files_that_are_named_and_no_others() -> None:
    """Not the directories they are in: /etc, /var/lib, a home."""
    yaml = pytest.importorskip("yaml")
    words = ("--api-key-file", "/etc/llama.key", "--log-file", "/var/log/llama.log")
    words += ("--slot-save-path", "/var/lib/slots")
    found = shlex.split(written("docker", words, "/srv/m-00001-of-00002.gguf"))
    assert [found[at + 1] for at, word in enumerate(found) if word == "-v"] == [
        "/srv/m-00001-of-00002.gguf:/models/m-00001-of-00002.gguf:ro",
        "/srv/m-00002-of-00002.gguf:/models/m-00002-of-00002.gguf:ro",
        "/etc/llama.key:/models1/llama.key:ro",
        "/var/log/llama.log:/models2/llama.log",
        "/var/lib/slots:/models3",
    ]
    deployment = next(yaml.safe_load_all(written("kubernetes", words, "/srv/m.gguf")))
    spec = deployment["spec"]["template"]["spec"]
    paths = [volume["hostPath"] for volume in spec["volumes"] if "hostPath" in volume]
    assert [(path["path"], path["type"]) for path in paths] == [
        ("/srv/m.gguf", "File"),
        ("/etc/llama.key", "File"),
        ("/var/log/llama.log", "FileOrCreate"),
        ("/var/lib/slots", "DirectoryOrCreate"),
    ]
    mounts = spec["containers"][0]["volumeMounts"]
    assert [mount.get("readOnly", False) for mount in mounts] == [True, True, False, False, False]


def test_a_start_may_take_as_long_as_its_model_needs() -> None:
    """59 GiB from a hard disk take longer than llama-swap's own two minutes."""
    yaml = pytest.importorskip("yaml")
    seconds = {}
    for path in ("/m.gguf", "hf:user/name/m.gguf"):
        swap = yaml.safe_load(written("llama-swap", path=path))["healthCheckTimeout"]
        compose = yaml.safe_load(written("compose", path=path))["services"]["llama-server"]
        period = int(compose["healthcheck"]["start_period"][:-1])
        pod = next(yaml.safe_load_all(written("kubernetes", path=path)))["spec"]["template"]
        probe = pod["spec"]["containers"][0]["startupProbe"]
        waited = probe["failureThreshold"] * probe["periodSeconds"]
        assert swap == period <= waited < period + 5
        seconds[path] = period
    size = planned_for("compose", "/m.gguf", ()).model.size
    assert seconds["/m.gguf"] == 300 + -(-size // 10**8)
    assert seconds["hf:user/name/m.gguf"] == 300 + -(-size // (4 * 10**6))


def test_a_server_without_its_key_does_not_start() -> None:
    yaml = pytest.importorskip("yaml")
    key = ("--api-key", "x")
    assert "EnvironmentFile=/etc/" in written("systemd", key)
    assert "LLAMA_API_KEY=${LLAMA_API_KEY:?}" in written("compose", key)
    assert 'LLAMA_API_KEY="${LLAMA_API_KEY:?}"' in written("docker", key)
    assert "- secretRef:" in written("kubernetes", key)
    assert 'serviceConfig.EnvironmentFile = "/etc/autolayers/llama-cpp.env";' in written(
        "nixos", key
    )
    (entry,) = yaml.safe_load(written("llama-swap", key))["models"].values()
    assert entry["env"] == ["LLAMA_API_KEY=${env.LLAMA_API_KEY}"]
    *_, service = yaml.safe_load_all(written("llmkube", key, "/m.gguf"))
    reference = {"secretKeyRef": {"name": "llama-server", "key": "LLAMA_API_KEY"}}
    assert service["spec"]["env"] == [{"name": "LLAMA_API_KEY", "valueFrom": reference}]


def test_a_pod_has_no_more_rights_than_it_needs() -> None:
    yaml = pytest.importorskip("yaml")
    for words, plain in (("--gpu rtx-3060", True), ("--gpu rx-7900-xtx", False)):
        text = file_for("kubernetes", *words.split(), "-t", "6", path="/m.gguf")
        spec = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        # /dev/kfd belongs to a group whose number a file cannot know
        assert spec["securityContext"].get("runAsNonRoot", False) == plain
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
        assert ("capabilities" in rights) == plain
        assert container["resources"]["requests"]["cpu"] == "6"
        assert ("runtimeClassName: nvidia" in text) == plain
    # A directory that the node makes, and a key that is not everyone's, are root's
    for more in (("--slot-save-path", "/var/lib/slots"), ("--api-key-file", "/etc/llama.key")):
        text = file_for("kubernetes", "--gpu", "rtx-3060", *more, path="/m.gguf")
        assert "runAsNonRoot" not in text or (os.getuid() and more[0] != "--slot-save-path")
    assert "ephemeral-storage: 1" in written("kubernetes", path="hf:user/name/m.gguf")


def test_the_image_is_of_the_build_that_was_planned_for() -> None:
    assert "llama.cpp:server-cuda-b9128 " in file_for(
        "docker", "--gpu", "rtx-3060", "--llama-build", "b9128"
    )


def test_names_that_are_cut_stay_apart() -> None:
    """Public names differ at their end, the quantisation: two models would share a Service."""
    start = "Mega-Distill-Reasoning-Coder-Instruct-2507-UD-"
    labels = [label(f"{start}{end}") for end in ("Q4_K_XL", "Q8_0_XL")]
    assert len(set(labels)) == 2 and max(map(len, labels)) <= 40
    assert label("Qwen3-8B_Q4") == "qwen3-8b-q4"


def test_a_service_has_few_rights(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "unit.service"
    unit.write_text(written("systemd", ("--slot-save-path", "/srv/slots"), "/srv/m.gguf"))
    assert "ReadWritePaths=/srv" in unit.read_text()
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=40", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout[-600:]


@pytest.mark.parametrize(
    ("words", "published"),
    [
        ((), "127.0.0.1:8080:8080"),
        (("--host", "localhost"), "127.0.0.1:8080:8080"),
        (("--host", "0.0.0.0"), "0.0.0.0:8080:8080"),
        (("--host", "192.168.1.2"), "192.168.1.2:8080:8080"),
        (("--host", "::1"), "[::1]:8080:8080"),
    ],
)
def test_a_container_is_published_where_the_server_would_listen(
    words: tuple[str, ...], published: str
) -> None:
    found = shlex.split(written("docker", words))
    assert found[found.index("-p") + 1] == published and found.count("--host") == 1
    assert f'- "{published}"' in written("compose", words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--port", "0"), "a container's port must be known"),
        (("--host", "/tmp/a.sock"), "socket is not published"),
    ],
)
def test_what_a_container_cannot_publish(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        written("compose", words)


def test_compose_files_pass_their_own_specification() -> None:
    yaml = pytest.importorskip("yaml")
    words = (
        "--api-prefix",
        "/v2",
        "--ssl-cert-file",
        "c.pem",
        "--api-key",
        "x",
        "--slot-save-path",
        "slots",
    )
    for path in (MODEL, "hf:user/name/file.gguf"):
        text = written("compose", words, path)
        service = yaml.safe_load(text)["services"]["llama-server"]
        assert service["healthcheck"]["test"][-1] == "https://localhost:8080/v2/health"
        assert service["environment"] == ["LLAMA_API_KEY=${LLAMA_API_KEY:?}"]
        if compose_spec := importlib.util.find_spec("compose_spec"):
            importlib.import_module(compose_spec.name).PyCompose.from_yaml(text).validate()
    (cache,) = [volume for volume in service["volumes"] if volume["type"] == "volume"]
    assert cache == {"type": "volume", "source": "llama-cache", "target": "/root/.cache"}
    assert yaml.safe_load(text)["volumes"] == {"llama-cache": None}
    assert [volume["read_only"] for volume in service["volumes"] if volume["type"] == "bind"] == [
        True,
        False,
    ]


def test_llama_swap_starts_the_launch() -> None:
    lines = written("llama-swap", ("--port", "99", "-a", "my-model,other")).splitlines()
    assert lines[:3] == ["healthCheckTimeout: 318", "models:", '  "my-model":']
    line = json.loads(lines[3].partition("cmd: ")[2])
    assert shlex.split(line) == [
        "llama-server",
        "--port",
        "${PORT}",
        "-m",
        MODEL,
        "-a",
        "my-model,other",
        "-ngl",
        "33",
        "-c",
        "8192",
        "-fa",
        "on",
    ]
    text = written("llama-swap", ("--host", "10.0.0.1", "--api-prefix", "/x/"))
    assert (
        '    proxy: "http://10.0.0.1:${PORT}"' in text and '    checkEndpoint: "/x/health"' in text
    )


def test_a_preset_starts_the_launch() -> None:
    text = written(
        "preset",
        ("--port", "99", "--jinja", "--no-cont-batching", "-ctk", "q8_0", "-kvu", "--temp", "0.5"),
    )
    reader = configparser.RawConfigParser()
    reader.read_string(text.replace("version = 1", "[global]\nversion = 1"))
    assert dict(reader[reader.sections()[1]]) == {
        "model": MODEL,
        "n-gpu-layers": "33",
        "ctx-size": "8192",
        "flash-attn": "on",
        "cache-type-k": "q8_0",
        "kv-unified": "true",
        "jinja": "true",
        "cont-batching": "false",
        "temperature": "0.5",
    }
    # llama.cpp applies a preset's keys in its own order, so that several kinds of overrides must
    # become one
    mixed = section("x", ["-ot", "a=CPU", "-ncmoe", "1"])
    assert r"override-tensor = a=CPU,blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU" in mixed
    assert "n-cpu-moe = 1" in section("x", ["-ncmoe", "1"])
    # neither what is newer than the table, nor a scale, nor a second adapter is dropped
    more = section(
        "x",
        [
            "--moe-cache-mib",
            "9",
            "--is-new",
            "--lora-scaled",
            "a:0.5",
            "--lora",
            "b",
            "--lora",
            "c",
        ],
    )
    assert more.splitlines()[1:] == [
        "moe-cache-mib = 9",
        "is-new = true",
        "lora-scaled = a:0.5",
        "lora = b,c",
    ]
    assert "load-mode = none" in section("x", ["--no-mmap"])
    with pytest.raises(UsageError, match="a preset cannot hold it"):
        section("x", ["--grammar", "a ; b"])
    with pytest.raises(UsageError, match="two values"):
        section("x", ["--control-vector-layer-range", "1", "2"])


def test_a_preset_is_read_back_as_a_config_file(tmp_path: Path) -> None:
    words = shlex.split(
        "-m /m/x.gguf -ngl 12 -c 4096 -nkvo -cmoe -ts 3,1 --lora a,b --swa-full -fitt 5,6"
    )
    file = tmp_path / "config.ini"
    file.write_text(section("default", words))
    assert parse([], config_files=[str(file)]).params == parse(words).params


@pytest.mark.parametrize("name", ["llama-3.1-8b-q4_k_m", slow("gemma-3-4b-q8_0")])
def test_llama_cpp_python_gets_every_default_that_differs(name: str) -> None:
    params, said = targets.llama_cpp_python(
        written("llama-cpp-python", ("-ctk", "q8_0", "-nkvo"), name=name)
    )
    assert (params.flash_attn, params.swa_full, params.n_ubatch, params.kv_offload) == (
        "on",
        False,
        512,
        False,
    )
    assert {"flash_attn", "swa_full", "n_batch", "n_ubatch", "type_k", "type_v"} <= said.keys()


@pytest.mark.slow
def test_koboldcpp_gets_every_default_that_differs() -> None:
    words = ("-ctk", "q8_0", "-ctv", "q8_0", "-ncmoe", "3", "-ts", "3,1")
    assert shlex.split(written("koboldcpp", words)) == [
        "koboldcpp",
        "--model",
        MODEL,
        "--usecuda",
        "--gpulayers",
        "33",
        "--contextsize",
        "8064",
        "--tensor_split",
        "3",
        "1",
        "--flashattention",
        "--quantkv",
        "1",
        "--moecpu",
        "3",
        "--batchsize",
        "512",
        "--usemmap",
        "--host",
        "127.0.0.1",
        "--port",
        "8080",
    ]
    for name, windows in (("gemma-3-4b-q8_0", True), ("llama-3.1-8b-q4_k_m", False)):
        assert ("--useswa" in written("koboldcpp", name=name)) == windows
        assert "--useswa" not in written("koboldcpp", ("--swa-full",), name=name)
    assert shlex.split(written("koboldcpp", ("--api-key", "hush")))[-2:] == [
        "--password",
        "${LLAMA_API_KEY:?}",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("llama-3.1-8b-q4_k_m", "4GiB"),
        ("gpt-oss-20b-mxfp4", "8GiB"),
        pytest.param("llama-3.3-70b-q4_k_m", "12GiB", marks=pytest.mark.slow),
        pytest.param("qwen3-30b-a3b-q4_k_m", "12GiB", marks=pytest.mark.slow),
    ],
)
def test_llama_cpp_python_gets_whole_layers(
    name: str, gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = ["--gpu", gpu, "--ram", "64GiB"]
    assert main([str(HEADERS / f"{name}.gguf"), *machine, "--format", "llama-cpp-python"]) == 0
    program = ["--strategy", "layers", "--engine", "llama-cpp-python"]
    layers = autolayers.plan(model(name), [*machine, *program]).n_gpu_layers
    assert f"    n_gpu_layers={layers},\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("llama-cpp-python", "-ncmoe 3", "nothing like -ncmoe"),
        ("llama-cpp-python", "-lm dio", "nothing like -lm dio"),
        ("llama-cpp-python", "-np 2", "one sequence, but -np 2"),
        ("llama-cpp-python", "--no-repack", "nothing like -nr"),
        ("koboldcpp", "-np 3", "one sequence, but -np 3"),
        ("koboldcpp", "-ctk q8_0", "for both K and V"),
        ("koboldcpp", "-ub 100", "--batchsize is one of"),
        ("koboldcpp", "-c 1048576", "--contextsize is 256 to 262144"),
        ("koboldcpp", "--no-op-offload", "nothing like --no-op-offload"),
        ("koboldcpp", "--ssl-cert-file c", "a certificate and a key"),
    ],
)
def test_what_a_target_cannot_do_is_refused(kind: str, words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        written(kind, words.split())


@pytest.mark.parametrize("kind", ["llama-cpp-python", "koboldcpp"])
def test_a_word_that_a_target_does_not_have_is_named(kind: str) -> None:
    said: list[str] = []
    written(kind, ("--metrics", "--temp", "0.5", "--brand-new", "-t", "8"), warn=said.append)
    assert [line.partition(" has nothing like ")[2] for line in said] == [
        "--metrics: left out",
        "--temp: left out",
        "--brand-new: left out",
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_model_of_the_hub_is_downloaded_by_the_program(kind: str) -> None:
    """The program gets it by itself; a projector that is not in the plan is not loaded, and the
    files are kept."""
    if kind == "kserve":
        pytest.skip("this plan uses a GPU")
    text = written(kind, path="hf:user/name/dir/file-Q4_0.gguf")
    if kind == "koboldcpp":
        assert "--model https://huggingface.co/user/name/resolve/main/dir/file-Q4_0.gguf" in text
    elif kind == "llama-cpp-python":
        assert "repo_id='user/name',\n    filename='dir/file-Q4_0.gguf'" in text
    elif kind == "docker-model":
        assert text.startswith("docker model pull hf.co/user/name:Q4_0\n")
    else:
        assert "--no-mmproj" in text or "mmproj-auto = false" in text
        kept = {
            "docker": "-v llama-cache:/root/.cache",
            "compose": "source: llama-cache",
            "systemd": "CacheDirectory=llama.cpp\nEnvironment=LLAMA_CACHE=%C/llama.cpp\n",
        }
        assert kept.get(kind, "") in text
        assert "--no-mmproj" not in written(kind, ("--mmproj-auto",), "hf:user/name/f-Q4_0.gguf")


@pytest.mark.parametrize("kind", few(8, FORMATS))
def test_a_plan_that_does_not_fit_says_so(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    tiny = str(PLAIN / "llama-moe.gguf")
    machine = ["--gpu", "200MiB"] if kind != "kserve" else ["--ram", "300MiB"]
    where = ["-ngl", "99"] if kind != "kserve" else ["-dev", "none"]
    assert (
        main(["run", *machine, "--format", kind, "llama-server", "-m", tiny, *where, "-c", "4096"])
        == 5
    )
    said = capfd.readouterr()
    assert "does not fit" in said.err
    assert ("# the plan does not fit" in said.out) == (kind not in ("docker", "koboldcpp"))


def test_what_only_a_variable_says_is_in_the_file(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"MODEL": LLAMA, "PORT": "9999", "CTX_SIZE": "4096", "THREADS": "3"}.items():
        monkeypatch.setenv(f"LLAMA_ARG_{name}", value)
    monkeypatch.setenv("LLAMA_API_KEY", "hush")
    assert main(["run", "--gpu", "24GiB", "--format", "docker", "llama-server"]) == 0
    words = shlex.split(capfd.readouterr().out)
    assert (
        "127.0.0.1:9999:9999" in words
        and f"{LLAMA}:/models/{LLAMA.rpartition('/')[2]}:ro" in words
        and "LLAMA_API_KEY=${LLAMA_API_KEY:?}" in words
    )
    image = words.index("ghcr.io/ggml-org/llama.cpp:server-cuda")
    assert (
        parse(words[image + 1 :]).value("-t") == "3"
        and parse(words[image + 1 :]).params.n_ctx == 4096
    )


def test_relative_paths_become_those_of_the_service() -> None:
    """A service has another working directory; a container sees what is mounted."""
    words = (
        "--chat-template-file",
        "d/t.jinja",
        "--api-key-file=k.txt",
        "--slot-save-path",
        "slots",
    )
    here = os.getcwd()
    text = written("systemd", words)
    assert (
        f" {systemd(f'{here}/d/t.jinja')} " in text
        and f" --api-key-file {systemd(f'{here}/k.txt')} " in text
        and f" {systemd(f'{here}/slots')} " in text
    )
    found = shlex.split(written("docker", words))
    mounts = [found[i + 1] for i, word in enumerate(found) if word == "-v"]
    assert mounts == [
        f"{MODEL}:/models/{MODEL.rpartition('/')[2]}:ro",
        f"{here}/d/t.jinja:/models1/t.jinja:ro",
        f"{here}/k.txt:/models2/k.txt:ro",
        f"{here}/slots:/models3",
    ]
    assert "/models1/t.jinja" in found and "/models2/k.txt" in found and "/models3" in found


def test_formats_are_written_without_a_command() -> None:
    plan = planned_for("llama-swap", MODEL, ())
    text = formats.write("llama-swap", plan, parse(["x.gguf", "--jinja"]))
    assert "--jinja" in text and "-ngl 33" in text and "a $b%c" in text
    with pytest.raises(UsageError, match="expected one of systemd"):
        formats.write("yaml", plan, parse([]))


# --- several models

SEVERAL = [row.name for row in FORMATS.values() if row.several]


def planned(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--gpu", "24GiB", "--ram", "64GiB", "-c", "4096"]) == 0
    return capfd.readouterr().out


def test_several_models_are_written_as_each_of_them_alone(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The same flags for the same plan: the second model's are those of what the first one
    leaves."""
    odd = tmp_path / 'a "b" $c ü.gguf'
    odd.symlink_to(SMALL)
    names = [str(odd), SMALL]
    both = planned(capfd, "plan", *names, "--format", "preset", "--jinja")
    head = "# llama-server --models-preset FILE --models-max 2\n"
    assert head in both
    both = both.replace(head, "")
    alone = [planned(capfd, name, "--format", "preset", "--jinja") for name in names]
    assert both == alone[0] + "\n" + alone[1].partition("\n\n")[2]
    reader = pytest.importorskip("yaml")
    both = targets.llama_swap_file(
        planned(capfd, "plan", *names, "--format", "llama-swap", "--jinja")
    )
    alone = [
        reader.safe_load(planned(capfd, name, "--format", "llama-swap", "--jinja"))
        for name in names
    ]
    assert both["models"] == alone[0]["models"] | alone[1]["models"] and len(both["models"]) == 2
    assert both["groups"] == {
        "together": {"swap": False, "exclusive": True, "members": list(both["models"])}
    }
    assert shlex.split(both["models"]["a-b-c-ü"]["cmd"])[:5] == [
        "llama-server",
        "--port",
        "${PORT}",
        "-m",
        str(odd),
    ]


def test_models_of_one_name_are_told_apart(capfd: pytest.CaptureFixture[str]) -> None:
    text = planned(capfd, "plan", SMALL, SMALL, "--format", "preset")
    sections = [line for line in text.splitlines() if line.startswith("[")]
    assert sections == ["[llama-3.2-1b-q8_0]", "[llama-3.2-1b-q8_0-2]"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(4, [name for name in FORMATS if name not in SEVERAL]))
def test_formats_for_one_model_say_so(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", SMALL, LLAMA, "--gpu", "24GiB", "--format", kind]) == 2
    said = capfd.readouterr().err
    assert (
        f"--format {kind} is for one model; for several: text, flags, json, llama-swap, preset"
        in said
    )


# --- names that mean something to somebody

NAMES = [
    "a b",
    "a'b",
    'a"b',
    "a$b",
    "a%b",
    "a\\",
    "-a",
    "a#b",
    "a;b",
    "a\nb",
    "a\rExecStartPre=evil\rb",
    "a\x1b[31m",
    "a\x7f\x85\u2028",
    "$(touch x)",
    "`touch x`",
    "${HOME}",
    "a: b",
    "!a",
    "*a",
    "é😀",
]


def in_bash(command: str) -> list[str]:
    """The words of a command line as bash has them."""
    if command.rstrip("\n").isprintable() and "$'" not in command:
        return shlex.split(command)
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True
    )
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", few(6, NAMES))
def test_a_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    reader = pytest.importorskip("yaml")
    model = str(tmp_path / f"{name}.gguf")

    def text(kind: str) -> str:
        return written(kind, path=model)

    # /tmp, where pytest works, is not private then
    unit = [*text("systemd").splitlines(), "PrivateTmp="]
    keys = [line.partition("=")[0] for line in written("systemd").splitlines()]
    assert sorted(line.partition("=")[0] for line in unit) == sorted(keys)
    assert all(line.isprintable() for line in unit)
    # a colon would end the place of a volume
    inside = f"/models/{name.replace(':', '-')}.gguf"
    assert inside in in_bash(text("docker"))
    service = reader.safe_load(text("compose"))["services"]["llama-server"]
    assert service["command"][1].replace("$$", "$") == inside
    assert service["volumes"][0]["source"].replace("$$", "$") == model
    assert in_bash(text("koboldcpp"))[2] == model
    calls: list[dict[str, object]] = []
    code = text("llama-cpp-python").replace("from llama_cpp import Llama", "")
    exec(code, {"Llama": lambda **kwargs: calls.append(kwargs)})
    assert calls[0]["model_path"] == model
    if "${" in name:
        with pytest.raises(UsageError, match="llama-swap would replace"):
            text("llama-swap")
    elif "\n" in name:
        with pytest.raises(UsageError, match="line by line"):
            text("llama-swap")
    else:
        (entry,) = reader.safe_load(text("llama-swap"))["models"].values()
        assert shlex.split(entry["cmd"])[4] == model
    if set(name) & set(";#\r\n"):
        with pytest.raises(UsageError, match="a preset cannot hold it"):
            text("preset")
    else:
        assert f"model = {model}\n" in text("preset")


@pytest.mark.parametrize(
    "port",
    [
        "$(touch x)",
        slow('80; package = builtins.fetchTarball "http://x/y"'),
        slow("80\nx: y"),
        slow("80 "),
        slow("-1"),
        "65536",
        slow("８０"),
    ],
)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_port_is_a_number(kind: str, port: str) -> None:
    with pytest.raises(UsageError, match="a port is a number, 0 to 65535"):
        written(kind, ("--port", port))


def file_for(kind: str, *words: str, path: str = PLAIN_SMALL, warn: list[str] | None = None) -> str:
    given = parse(["-c", "4096", *words], command="plan")
    made = autolayers.plan(Model(model("llama-3.2-1b-q8_0").header, path), given)
    given = replace(given, params=replace(given.params, model=path))
    return formats.write(kind, made, given, warn=([] if warn is None else warn).append)


@pytest.mark.parametrize(
    ("words", "gpu", "resource"),
    [
        slow("--gpu rtx-3060", "cuda nvidia None", "nvidia.com/gpu"),
        ("--gpu rx-7900-xtx", "rocm amd rocm", "amd.com/gpu"),
        slow("--gpu arc-b580", "intel intel None", "gpu.intel.com/xe"),
        slow("--gpu rtx-3060 --backend vulkan", "vulkan nvidia vulkan", "nvidia.com/gpu"),
        slow("--gpu rx-7900-xtx --backend vulkan", "vulkan amd vulkan", "amd.com/gpu"),
        slow("--gpu arc-b580 --backend vulkan", "vulkan intel vulkan", "gpu.intel.com/xe"),
    ],
)
def test_a_pod_asks_for_its_card_s_maker(words: str, gpu: str, resource: str) -> None:
    yaml = pytest.importorskip("yaml")
    line = [*words.split(), "--ram", "32GiB"]
    hardware = next(yaml.safe_load_all(file_for("llmkube", *line)))["spec"]["hardware"]
    found = [hardware["accelerator"], *map(hardware["gpu"].get, ("vendor", "runtime"))]
    assert " ".join(map(str, found)) == gpu
    assert f"{resource}: 1" in file_for("kubernetes", *line).replace('"', "")
    docker = shlex.split(file_for("docker", *line))
    driver = "--gpus" in docker, "/dev/dri" in docker
    assert driver == ("nvidia" in gpu, "nvidia" not in gpu)
    graphics = any(word.endswith("=compute,utility,graphics") for word in docker)
    assert graphics == (gpu == "vulkan nvidia vulkan")


def test_whose_gpu_it_is_may_be_a_guess() -> None:
    for kind in ("kubernetes", "llmkube"):
        said: list[str] = []
        file_for(kind, "--gpu", "24GiB", "--backend", "vulkan", "--ram", "32GiB", warn=said)
        assert any("is a guess" in line for line in said)


# What each format cannot give its program: an image, a package or an operator that lacks it
UNREACHED = {
    "MTL": "systemd docker compose nixos kubernetes kserve gpustack llmkube",
    "SYCL": "koboldcpp nixos docker-model",
    "CANN": "docker compose koboldcpp nixos kubernetes kserve llmkube",
    "MUSA": "docker compose koboldcpp nixos kubernetes kserve llmkube",
    "OpenCL": "docker compose koboldcpp nixos kubernetes kserve llmkube",
}


@pytest.mark.parametrize("name", UNREACHED)
def test_a_gpu_that_a_file_cannot_give_is_refused(name: str) -> None:
    """A Linux container on a Mac has no Metal: the file would start on the processor."""
    refused = set()
    for kind in FORMATS:
        try:
            Reach(backend(name)).refuse(kind)
        except UsageError as error:
            assert "GPU for llama.cpp: add -dev none, or" in str(error)
            refused.add(kind)
    assert refused == set(UNREACHED[name].split())


def test_a_refused_gpu_is_left_out() -> None:
    for kind in UNREACHED["MTL"].split():
        with pytest.raises(UsageError, match=rf"^--format {kind} has no Metal GPU"):
            file_for(kind, "--gpu", "m3-max-64g")
    assert file_for("docker", "--gpu", "m3-max-64g", "-dev", "none")


def test_a_container_s_port_is_always_written() -> None:
    """llama-server listens on another port since b11521."""
    for kind in ("docker", "compose", "kubernetes"):
        text = file_for(kind, "--gpu", "8GiB", "--ram", "32GiB")
        assert re.search(r"--port\W+8080\b", text) and "9931" not in text
        text = file_for(kind, "--gpu", "8GiB", "--ram", "32GiB", "--port", "81")
        assert len(re.findall(r"--port\b", text)) == 1 and re.search(r"--port\W+81\b", text)


def test_koboldcpp_leaves_a_draft_where_it_was_planned() -> None:
    """Its own default is all layers on the GPU."""
    line = ["--gpu", "8GiB", "--ram", "32GiB", "-md", SMALL, "--spec-type", "draft-simple"]
    for more, layers in (("-devd none", "0"), ("-ngld 3", "3")):
        words = shlex.split(file_for("koboldcpp", *line, *more.split()))
        assert words[words.index("--draftgpulayers") + 1] == layers


@pytest.mark.parametrize("name", ["hf:user/name", "hf:user/name:Q8_0", "hf:user/name/a/m.gguf"])
def test_a_file_of_the_hub_is_named_as_its_target_names_it(name: str) -> None:
    path = "/c/models--user--name/snapshots/abc/a/m.gguf"
    given = parse(["-c", "4096", "--gpu", "8GiB", "--ram", "32GiB"], command="plan")
    made = autolayers.plan(Model(model("llama-3.2-1b-q8_0").header, path), given)
    given = replace(given, params=replace(given.params, model=name))
    texts = [formats.write(kind, made, given, warn=[].append) for kind in ("llmkube", "gpustack")]
    assert 'source: "https://huggingface.co/user/name/resolve/main/a/m.gguf"' in texts[0]
    assert 'huggingface_repo_id: "user/name"\n' in texts[1]
    assert 'huggingface_filename: "a/m.gguf"\n' in texts[1]


def test_llmkube_says_what_its_pod_does_not_see() -> None:
    said: list[str] = []
    file_for(
        "llmkube", "--gpu", "8GiB", "--slot-save-path", "/var/slots", path="/m.gguf", warn=said
    )
    assert "LLMKube's pod does not mount /var/slots" in said
    assert any("--allowed-host-path-roots" in line for line in said)
    with pytest.raises(UsageError, match="LLMKube admits no blank in a path"):
        file_for("llmkube", "--gpu", "8GiB", path="/my models/m.gguf")


def test_nixos_and_llmkube_get_the_port() -> None:
    assert "    port = 8081;\n" in written("nixos", ("--port", "8081"))
    assert "  containerPort: 8081\n" in written("llmkube", ("--port", "8081"), "/m.gguf")


@pytest.mark.parametrize(
    "word", ["$(HF_TOKEN)", "$$(HF_TOKEN)", "a$b", "${HOME}", "''${pkgs}", '"; evil = "', "a\nb: c"]
)
def test_words_of_other_languages_come_back_unchanged(word: str) -> None:
    """Variables of Kubernetes and of Nix, their quotes and lines."""
    for kind, reader in (("llmkube", targets.llmkube), ("nixos", targets.nixos)):
        found = reader(written(kind, ("-a", word, "--host", f"::{word}"), "/m.gguf"))
        assert (
            found[found.index("-a") + 1] == word and found[found.index("--host") + 1] == f"::{word}"
        )


@pytest.mark.parametrize(
    "words",
    [
        ("--rope-freq-base", "inf"),
        ("--yarn-beta-fast", "nan"),
        ("--override-kv", "llama.rope.scale=float:inf"),
    ],
)
def test_python_has_no_literal_for_some_numbers(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="cannot be"):
        written("llama-cpp-python", words)


def test_an_unknown_argument_is_no_line_of_a_preset() -> None:
    with pytest.raises(UsageError, match="not an argument of llama-server"):
        written("preset", ("--x\n[other]\nmodel", "y"))


def test_llama_swap_reads_line_by_line() -> None:
    with pytest.raises(UsageError, match="line by line"):
        written("llama-swap", ("-a", "a\n# b"))


@pytest.mark.parametrize("first", "-@:+!|")
def test_systemd_takes_no_program_for_a_setting(first: str) -> None:
    plan = planned_for("systemd", MODEL, ())
    with pytest.raises(UsageError, match="before a program as a setting"):
        formats.write(
            "systemd",
            plan,
            parse(["-m", "m"]),
            WrappedCommand((f"{first}server",), ("-m", "m"), "server"),
            (),
            warn=lambda _: None,
        )


# --- what services.llama-cpp does not see

BOUND = "BindReadOnlyPaths"


def unit_of(path: str, words: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The lines of the NixOS unit, and the warnings."""
    said: list[str] = []
    text = written("nixos", words, path, warn=said.append)
    targets.nixos(text)
    return text.partition("  systemd.services.llama-cpp = {\n")[2], said


@pytest.mark.skipif(os.name != "posix", reason="paths of POSIX")
@pytest.mark.parametrize("folder", ["/home/u1", "/root/models", "/run/user/1000"])
def test_a_model_in_a_home_is_shown_to_the_service(folder: str) -> None:
    unit, said = unit_of(f"{folder}/q.gguf", ("--chat-template-file", f"{folder}/t.jinja"))
    assert 'serviceConfig.ProtectHome = lib.mkForce "tmpfs";' in unit
    assert f'serviceConfig.BindReadOnlyPaths = [ "{folder}/q.gguf" "{folder}/t.jinja" ];' in unit
    assert any("must be able to read" in line for line in said)


@pytest.mark.skipif(os.name != "posix", reason="paths of POSIX")
def test_nixos_says_which_places_its_service_does_not_see(tmp_path: Path) -> None:
    unit, _ = unit_of("/tmp/q.gguf")
    assert 'BindReadOnlyPaths = [ "/tmp/q.gguf" ];' in unit and "ProtectHome" not in unit
    unit, said = unit_of("/var/lib/models/q.gguf")
    assert (BOUND not in unit, said) == (True, [])
    unit, said = unit_of("/home/u 1/q (100%).gguf")
    # systemd-analyze verify takes the line, and no word of it without the quotes
    assert 'BindReadOnlyPaths = [ "\\"/home/u 1/q (100%%).gguf\\"" ];' in unit
    with pytest.raises(UsageError, match=r"does not see /home/u:1/q\.gguf: move the file"):
        unit_of("/home/u:1/q.gguf")
    _, said = unit_of("/var/lib/q.gguf", ("--slot-save-path", "/home/u/slots"))
    assert any("may not write to /home/u/slots" in line for line in said)


@pytest.mark.parametrize("alias", ["a]b", "a;b", "a\nb"])
def test_an_alias_that_is_no_section(alias: str) -> None:
    with pytest.raises(UsageError, match="a preset cannot hold it"):
        written("preset", ("-a", alias))
    assert all(line.isprintable() for line in written("systemd", ("-a", alias)).splitlines())


# --- secrets


def test_words_that_are_secret() -> None:
    words = shlex.split("--api-key x --api-key=y -hft z --hf-token=z --port 80 -p --api-key")
    assert without_secrets(words) == (
        ["--port", "80", "-p", "--api-key"],
        ["LLAMA_API_KEY", "LLAMA_API_KEY", "HF_TOKEN", "HF_TOKEN"],
    )
    for url in ("https://me:secret@h/m.gguf", "https://h/m.gguf?sig=secret", "https://[secret"):
        assert without_secrets(["-mu", url, "-c", "9"]) == (["-c", "9"], ["LLAMA_ARG_MODEL_URL"])
        assert without_secrets([f"--mmproj-url={url}"]) == ([], ["LLAMA_ARG_MMPROJ_URL"])
    for url in ("https://h/m.gguf", "https://huggingface.co/a/b/resolve/main/m.gguf?download=true"):
        assert without_secrets(["-mu", url]) == (["-mu", url], [])


def test_variables_that_are_secret() -> None:
    command = split("env LLAMA_API_KEY=x A=b llama-server -m m")
    assert launcher_without_secrets(command) == (["env", "A=b", "llama-server"], ["LLAMA_API_KEY"])
    container = split(
        "docker run -e LLAMA_API_KEY=x --env=HF_TOKEN=y -eHF_TOKEN=z -e A=b image -m m"
    )
    assert launcher_without_secrets(container) == (
        [
            "docker",
            "run",
            "-e",
            "LLAMA_API_KEY",
            "--env=HF_TOKEN",
            "-eHF_TOKEN",
            "-e",
            "A=b",
            "image",
        ],
        ["LLAMA_API_KEY", "HF_TOKEN", "HF_TOKEN"],
    )


@pytest.mark.parametrize("kind", ["systemd", "docker", "compose", "llama-swap", "preset"])
def test_no_file_has_a_secret(kind: str) -> None:
    command = WrappedCommand(
        ("env", "HF_TOKEN=hush", "llama-server"),
        ("-mu", "https://me:hush@example.org/a.gguf?sig=hush", "--api-key", "hush", "-c", "8192"),
        "llama-server",
    )
    plan = planned_for(kind, "https://example.org/a.gguf", ())
    text = formats.write(kind, plan, parse(command.words), command, FLAGS)
    assert "hush" not in text
    assert all(name in text for name in ("LLAMA_API_KEY", "HF_TOKEN", "LLAMA_ARG_MODEL_URL"))
    if kind not in ("docker", "compose"):
        assert "a.env" in text if kind == "systemd" else '"a":' in text or "[a]" in text


def test_a_dry_run_has_none(capfd: pytest.CaptureFixture[str]) -> None:
    container = ["docker", "run", "-e", "HF_TOKEN=hush", "-v", f"{HEADERS}:/m", "image"]
    for command in (["env", "LLAMA_API_KEY=hush", "llama-server"], container):
        model = LLAMA if command[0] == "env" else f"/m/{Path(LLAMA).name}"
        words = [*command, "-m", model, "--api-key", "hush", "-c", "4096"]
        assert main(["run", "--gpu", "24GiB", "--dry-run", *words]) == 0
        said = capfd.readouterr()
        assert (
            "hush" not in said.out + said.err
            and "LLAMA_API_KEY" in said.err
            and "-ngl 33" in said.out
        )


def test_docker_model_runner_gets_what_it_takes() -> None:
    """It refuses a word that is not in its list, and every path."""
    said: list[str] = []
    words = "--gpu rtx-3060 --ram 32GiB -ngl 3 -lm mlock --temp 0.2 --log-file x --api-key hush"
    given = words.split()
    text = file_for("docker-model", *given, warn=said)
    package, configure = map(shlex.split, text.splitlines())
    name = configure[5]
    assert " ".join(package) == f"docker model package --gguf {PLAIN_SMALL} {name}"
    assert " ".join(configure) == (
        f"docker model configure --context-size 4096 {name} -- --temp 0.2 -ngl 3 --no-mmap --mlock"
    )
    assert any("--log-file: left out" in line for line in said)
    assert any("LLAMA_API_KEY: nothing stops" in line for line in said)
    hub = file_for("docker-model", *given, path="hf:user/name/dir/file-Q4_K_M.gguf")
    assert hub.startswith("docker model pull hf.co/user/name:Q4_K_M\n")
    for more, why in (
        ("-ot blk.1.=CPU", r"nothing like -ot: plan without it \(--strategy layers\)"),
        ("--numa isolate", "nothing like --numa: plan"),
        ("-c 4096 --rpc 127.0.0.1:1", "nothing like --rpc: plan"),
    ):
        with pytest.raises(UsageError, match=why):
            file_for("docker-model", *given, *more.split())
    with pytest.raises(UsageError, match=r"by its quantisation, which .* does not name"):
        file_for("docker-model", *given, path="hf:user/name/file.gguf")


def test_a_plan_without_words_for_docker_model_runner_has_whole_layers() -> None:
    """What its plan has in RAM, FFN weights or parts of experts, it has no words for."""
    machine = ["--gpu", "rtx-3060", "--ram", "64GiB", "-c", "32768"]
    found = Model(model("llama-3.3-70b-q4_k_m").header, PLAIN_SMALL)
    for words in (machine, [*machine, "--moe-cache-mib", "0"]):
        given = parse(words, command="plan")
        made, given = formats.plan_for(
            "docker-model", given, lambda said: autolayers.plan(found, said)
        )
        text = formats.write("docker-model", made, given, warn=[].append)
        assert not {"-ot", "-ncffn", "--moe-cache-mib"} & set(text.split()) and made.fits
