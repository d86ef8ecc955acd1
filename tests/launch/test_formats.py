"""What is written for those who start a launch elsewhere: each format is read back by its own reader."""

from __future__ import annotations

import configparser
import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import HEADERS

from autolayers.cli import main
from autolayers.errors import UsageError
from autolayers.flags.formats import FORMATS
from autolayers.flags.parse import parse
from autolayers.launch import formats
from autolayers.launch.command import WrappedCommand, read
from autolayers.launch.formats.preset import section
from autolayers.launch.secrets import launcher_without_secrets, without_secrets

LLAMA = str(HEADERS / "llama-3.1-8b-q4_k_m.gguf")
SMALL = str(HEADERS / "llama-3.2-1b-q8_0.gguf")


def split(line: str) -> WrappedCommand:
    return read(shlex.split(line))


# --- formats

MODEL = "/data/my models/a $b%c \"q\".gguf"
FLAGS = ("-ngl", "33", "-c", "8192", "-fa", "on")
# The part of a plan that the writers read
Plan = SimpleNamespace(breakdown=SimpleNamespace(devices={"CUDA0": None}), model=SimpleNamespace(path=MODEL),
                       flags=FLAGS)


def written(kind: str, words: tuple[str, ...] = ()) -> str:
    command = WrappedCommand((), ("llama-server",), ("-m", MODEL, *words), "llama-server")
    return formats.write(kind, Plan, parse(["-m", MODEL, *words]), command, FLAGS)  # type: ignore[arg-type]


def test_systemd() -> None:
    lines = written("systemd", ("--api-key", "secret", "--port", "80", "-p", "a;b\n'c' \\")).splitlines()
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    assert start == ('ExecStart=llama-server -m "/data/my models/a $$b%%c \\"q\\".gguf" --port 80 '
                     '-p "a;b\\x0a\'c\' \\\\" -ngl 33 -c 8192 -fa on')
    assert "Restart=on-failure" in lines and not any("secret" in line for line in lines)
    assert "# LLAMA_API_KEY is read from the environment file (mode 600)" in lines
    assert "EnvironmentFile=-/etc/autolayers/a-b-c-q-.env" in lines


def test_docker() -> None:
    words = shlex.split(written("docker", ("--port", "81", "--hf-token=x")))
    assert words == [
        "docker", "run", "--rm", "--init", "-p", "127.0.0.1:81:81", "--gpus", "all", "-v", "/data/my models:/models:ro",
        "-e", "HF_TOKEN", "ghcr.io/ggml-org/llama.cpp:server-cuda", "-m", '/models/a $b%c "q".gguf', "--port", "81",
        "-ngl", "33", "-c", "8192", "-fa", "on", "--host", "0.0.0.0"]
    with pytest.raises(UsageError, match="container already"):
        formats.write("docker", Plan, parse(["-m", "m"]), split("docker run image -m m"), ())  # type: ignore[arg-type]


def test_compose() -> None:
    text = written("compose")
    yaml = pytest.importorskip("yaml") if _has_yaml() else None
    assert '      - "/models/a $$b%c \\"q\\".gguf"' in text
    assert "capabilities: [gpu]" in text and "restart: unless-stopped" in text
    if yaml is not None:
        service = yaml.safe_load(text)["services"]["llama-server"]
        assert service["command"][:4] == ["-m", '/models/a $$b%c "q".gguf', "-ngl", "33"]
        assert service["volumes"] == [
            {"type": "bind", "source": "/data/my models", "target": "/models", "read_only": True}]


def _has_yaml() -> bool:
    import importlib.util

    return importlib.util.find_spec("yaml") is not None


def test_llama_swap() -> None:
    lines = written("llama-swap", ("--port", "99", "-a", "my-model,other")).splitlines()
    assert lines[:2] == ["models:", '  "my-model":']
    line = json.loads(lines[2].partition("cmd: ")[2])
    assert shlex.split(line) == [
        "llama-server", "--port", "${PORT}", "-m", MODEL, "-a", "my-model,other", "-ngl", "33", "-c", "8192",
        "-fa", "on"]


def test_preset() -> None:
    text = written("preset", ("--port", "99", "--jinja", "--no-cont-batching", "-ctk", "q8_0", "-kvu", "--temp", "0.5"))
    reader = configparser.RawConfigParser()
    reader.read_string(text.replace("version = 1", "[global]\nversion = 1"))
    assert dict(reader[reader.sections()[1]]) == {
        "model": MODEL, "n-gpu-layers": "33", "ctx-size": "8192", "flash-attn": "on", "cache-type-k": "q8_0",
        "kv-unified": "true", "jinja": "true", "cont-batching": "false", "temperature": "0.5"}
    # llama.cpp applies a preset's keys in its own order, so that several kinds of overrides must become one
    mixed = section("x", ["-ot", "a=CPU", "-ncmoe", "1"])
    assert r"override-tensor = a=CPU,blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU" in mixed
    assert "n-cpu-moe = 1" in section("x", ["-ncmoe", "1"])
    with pytest.raises(UsageError, match="a preset cannot hold it"):
        section("x", ["--grammar", "a ; b"])


def test_a_preset_is_read_back_as_a_config_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    words = shlex.split("-m /m/x.gguf -ngl 12 -c 4096 -nkvo -cmoe -ts 3,1 --lora a,b --swa-full -fitt 5,6")
    file = tmp_path / "config.ini"
    file.write_text(section("default", words))
    assert parse([], config_files=[str(file)]).params == parse(words).params


def test_llama_cpp_python() -> None:
    text = written("llama-cpp-python", ("-ctk", "q8_0", "-lm", "none", "-nkvo"))
    calls: list[dict[str, object]] = []
    exec(text.replace("from llama_cpp import Llama", ""), {"Llama": lambda **kwargs: calls.append(kwargs)})
    assert calls == [{"model_path": MODEL, "n_gpu_layers": 33, "n_ctx": 8192, "n_batch": 2048, "flash_attn": True,
                      "type_k": 8, "offload_kqv": False, "use_mmap": False}]
    with pytest.raises(UsageError, match="nothing like -ncmoe"):
        written("llama-cpp-python", ("-ncmoe", "3"))


def test_koboldcpp() -> None:
    assert shlex.split(written("koboldcpp", ("-ctk", "q8_0", "-ctv", "q8_0", "-ncmoe", "3", "-ts", "3,1"))) == [
        "koboldcpp", "--model", MODEL, "--usecuda", "--gpulayers", "33", "--contextsize", "8192",
        "--tensor_split", "3", "1", "--flashattention", "--quantkv", "1", "--moecpu", "3"]
    with pytest.raises(UsageError, match="koboldcpp's cache"):
        written("koboldcpp", ("-ctk", "q5_0"))


def test_formats_without_a_command() -> None:
    text = formats.write("llama-swap", Plan, parse(["x.gguf", "--jinja"]))  # type: ignore[arg-type]
    assert "--jinja" in text and "-ngl 33" in text and "a $b%c" in text
    with pytest.raises(UsageError, match="expected one of systemd"):
        formats.write("yaml", Plan, parse([]))  # type: ignore[arg-type]




# --- several models

SEVERAL = [row.name for row in FORMATS.values() if row.several]


def planned(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--gpu", "24GiB", "--ram", "64GiB", "-c", "4096"]) == 0
    return capfd.readouterr().out


def test_several_models_are_written_as_each_of_them_alone(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The same flags for the same plan: the second model's are those of what the first one leaves."""
    odd = tmp_path / 'a "b" $c ü.gguf'
    odd.symlink_to(SMALL)
    names = [str(odd), SMALL]
    both = planned(capfd, "plan", *names, "--format", "preset", "--jinja")
    alone = [planned(capfd, name, "--format", "preset", "--jinja") for name in names]
    assert both == alone[0] + "\n" + alone[1].partition("\n\n")[2]
    reader = pytest.importorskip("yaml")
    both = reader.safe_load(planned(capfd, "plan", *names, "--format", "llama-swap", "--jinja"))
    alone = [reader.safe_load(planned(capfd, name, "--format", "llama-swap", "--jinja")) for name in names]
    assert both["models"] == alone[0]["models"] | alone[1]["models"] and len(both["models"]) == 2
    assert both["groups"] == {"together": {"swap": False, "exclusive": True, "members": list(both["models"])}}
    assert shlex.split(both["models"]["a-b-c-ü"]["cmd"])[:5] == ["llama-server", "--port", "${PORT}", "-m", str(odd)]


def test_models_of_one_name_are_told_apart(capfd: pytest.CaptureFixture[str]) -> None:
    text = planned(capfd, "plan", SMALL, SMALL, "--format", "preset")
    sections = [line for line in text.splitlines() if line.startswith("[")]
    assert sections == ["[llama-3.2-1b-q8_0]", "[llama-3.2-1b-q8_0-2]"]


@pytest.mark.parametrize("kind", [name for name in FORMATS if name not in SEVERAL])
def test_formats_for_one_model_say_so(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", SMALL, LLAMA, "--gpu", "24GiB", "--format", kind]) == 2
    said = capfd.readouterr().err
    assert f"--format {kind} is for one model; for several: text, flags, number, json, llama-swap, preset" in said


# --- names that mean something to somebody

NAMES = ["a b", "a'b", 'a"b', "a$b", "a%b", "a\\", "-a", "a#b", "a;b", "a\nb", "a\rExecStartPre=evil\rb", "a\x1b[31m",
         "a\x7f\x85\u2028", "${HOME}", "$(touch x)", "`touch x`", "a: b", "!a", "*a", "é😀"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    reader = pytest.importorskip("yaml")
    model = str(tmp_path / f"{name}.gguf")
    words = parse(["-m", model])
    command = WrappedCommand((), ("llama-server",), ("-m", model), "llama-server")

    def text(kind: str) -> str:
        return formats.write(kind, Plan, words, command, FLAGS)  # type: ignore[arg-type]

    unit = text("systemd").splitlines()
    keys = [line.partition("=")[0] for line in written("systemd").splitlines()]
    assert [line.partition("=")[0] for line in unit] == keys
    assert all(line.isprintable() for line in unit)
    assert f"/models/{name}.gguf" in shlex.split(text("docker"))
    service = reader.safe_load(text("compose"))["services"]["llama-server"]
    assert service["command"][1].replace("$$", "$") == f"/models/{name}.gguf"
    assert service["volumes"][0]["source"].replace("$$", "$") == str(tmp_path)
    assert shlex.split(text("koboldcpp"))[2] == model
    calls: list[dict[str, object]] = []
    code = text("llama-cpp-python").replace("from llama_cpp import Llama", "")
    exec(code, {"Llama": lambda **kwargs: calls.append(kwargs)})
    assert calls[0]["model_path"] == model
    if "${" in name:
        with pytest.raises(UsageError, match="llama-swap would replace"):
            text("llama-swap")
    else:
        (entry,) = reader.safe_load(text("llama-swap"))["models"].values()
        assert shlex.split(entry["cmd"])[4] == model
    if set(name) & set(";#\r\n"):
        with pytest.raises(UsageError, match="a preset cannot hold it"):
            text("preset")
    else:
        assert f"model = {model}\n" in text("preset")


@pytest.mark.parametrize("alias", ["a]b", "a;b", "a\nb"])
def test_an_alias_that_is_no_section(alias: str) -> None:
    with pytest.raises(UsageError, match="a preset cannot hold it"):
        written("preset", ("-a", alias))
    assert all(line.isprintable() for line in written("systemd", ("-a", alias)).splitlines())


# --- secrets

def test_words_that_are_secret() -> None:
    words = shlex.split("--api-key x --api-key=y -hft z --hf-token=z --port 80 -p --api-key")
    assert without_secrets(words) == (
        ["--port", "80", "-p", "--api-key"], ["LLAMA_API_KEY", "LLAMA_API_KEY", "HF_TOKEN", "HF_TOKEN"])
    for url in ("https://me:secret@h/m.gguf", "https://h/m.gguf?sig=secret", "https://[secret"):
        assert without_secrets(["-mu", url, "-c", "9"]) == (["-c", "9"], ["LLAMA_ARG_MODEL_URL"])
        assert without_secrets([f"--mmproj-url={url}"]) == ([], ["LLAMA_ARG_MMPROJ_URL"])
    for url in ("https://h/m.gguf", "https://huggingface.co/a/b/resolve/main/m.gguf?download=true"):
        assert without_secrets(["-mu", url]) == (["-mu", url], [])


def test_variables_that_are_secret() -> None:
    command = split("env LLAMA_API_KEY=x A=b llama-server -m m")
    assert launcher_without_secrets(command) == (["env", "A=b", "llama-server"], ["LLAMA_API_KEY"])
    container = split("docker run -e LLAMA_API_KEY=x --env=HF_TOKEN=y -eHF_TOKEN=z -e A=b image -m m")
    assert launcher_without_secrets(container) == (
        ["docker", "run", "-e", "LLAMA_API_KEY", "--env=HF_TOKEN", "-eHF_TOKEN", "-e", "A=b", "image"],
        ["LLAMA_API_KEY", "HF_TOKEN", "HF_TOKEN"])


@pytest.mark.parametrize("kind", ["systemd", "docker", "compose", "llama-swap", "preset"])
def test_no_file_has_a_secret(kind: str) -> None:
    command = WrappedCommand((), ("env", "HF_TOKEN=hush", "llama-server"), (
        "-mu", "https://me:hush@example.org/a.gguf?sig=hush", "--api-key", "hush", "-c", "8192"), "llama-server")
    text = formats.write(kind, Plan, parse(command.words), command, FLAGS)  # type: ignore[arg-type]
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
        assert "hush" not in said.out + said.err and "LLAMA_API_KEY" in said.err and "-ngl 33" in said.out
