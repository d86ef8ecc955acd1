"""A launch file that its validator passes would still not work, or do harm.

What a careful reader asks of every file, of each format and twenty launches; docs/launch-files.md
shows the same table.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
from support import ROOT, few, model

import autolayers
from autolayers.errors import UsageError
from autolayers.flags.formats import FORMATS
from autolayers.flags.parse import parse
from autolayers.launch import formats
from autolayers.model import Model
from autolayers.records import replace

PATH = "/srv/models/m.gguf"
KEY = "hush-hush"
MACHINES = (
    "--gpu rtx-3060",
    "--gpu rx-7900-xtx",
    "--gpu arc-b580",
    "--gpu rtx-3060 --backend vulkan",
    "--gpu rx-7900-xtx --backend vulkan",
    "--gpu rtx-3060,rtx-3060",
    "--gpu m3-max-64g",
    "--gpu rtx-3060 -dev none",
)
MODELS = ("llama-3.2-1b-q8_0:4", "qwen3-30b-a3b-q4_k_m:4")
WORDS = "--port 9001 --host 0.0.0.0 --api-key " + KEY
PODS = ("kubernetes", "kserve")
# question -> format -> what answers it with yes; a format that is not there has nothing for it
CHECKS: dict[str, dict[str, str]] = {
    "the port is the one that was given": {
        "systemd": r"--port 9001",
        "docker": r"-p 0\.0\.0\.0:9001:9001 .*--port 9001",
        "compose": r'(?s)"--port"\n +- "9001".*"0\.0\.0\.0:9001:9001"',
        "nixos": r"port = 9001;",
        "kubernetes": r"(?s)containerPort: 9001.*targetPort: 9001",
        "kserve": r"containerPort: 9001",
        "llmkube": r"containerPort: 9001",
        "koboldcpp": r"--port 9001",
    },
    "the model is in reach": {
        "docker": rf"{PATH}:/models/m\.gguf:ro",
        "compose": rf'(?s)source: "{PATH}"\n +target: "/models/m\.gguf"',
        "kubernetes": rf'(?s)mountPath: "/models/m\.gguf".*path: "{PATH}"\n +type: File',
        "kserve": rf'(?s)mountPath: "/models/m\.gguf".*path: "{PATH}"\n +type: File',
        **dict.fromkeys(
            ("systemd", "llama-swap", "llama-swap-matrix", "nixos", "preset", "gpustack"), PATH
        ),
        **dict.fromkeys(("llmkube", "koboldcpp", "llama-cpp-python", "docker-model"), PATH),
    },
    "the model is read-only": {
        "systemd": r"ProtectSystem=strict",
        "docker": r"m\.gguf:ro",
        "compose": r"read_only: true",
        **dict.fromkeys(PODS, r"readOnly: true"),
    },
    "nothing starts without the key": {
        "systemd": r"EnvironmentFile=/",
        "docker": r'LLAMA_API_KEY="\$\{LLAMA_API_KEY:\?\}"',
        "compose": r"LLAMA_API_KEY=\$+\{LLAMA_API_KEY:\?\}",
        "nixos": r'EnvironmentFile = "/',
        **dict.fromkeys(PODS, r"secretRef:"),
        "llmkube": r"secretKeyRef:",
        **dict.fromkeys(("llama-swap", "llama-swap-matrix"), r"\$\{env\.LLAMA_API_KEY\}"),
        "koboldcpp": r'--password "\$\{LLAMA_API_KEY:\?\}"',
    },
    "RAM is asked for, and limited": {
        "systemd": r"(?s)MemoryHigh=\d+M.*MemoryMax=\d+M",
        "docker": r"--memory \d+m --memory-reservation \d+m",
        "compose": r"mem_limit: \d+m",
        "nixos": r'MemoryMax = "\d+M"',
        **dict.fromkeys(PODS, r"(?s)requests:\n +memory: \d+Mi.*limits:.*memory: \d+Mi"),
        "llmkube": r"[mM]emory: \d+Mi",
        "gpustack": r'GPUSTACK_MODEL_RAM_CLAIM: "\d+"',
    },
    "the processor is asked for": dict.fromkeys(PODS, r'cpu: "\d+"'),
    "a slow load is waited for": {
        "compose": r"start_period: \d+s",
        "kubernetes": r"(?s)startupProbe:.*failureThreshold: \d+",
        **dict.fromkeys(("llama-swap", "llama-swap-matrix"), r"healthCheckTimeout: \d+"),
    },
    "health is asked at its own port": {
        "docker": r"--health-cmd 'curl -fk http://localhost:9001/health'",
        "compose": r"http://localhost:9001/health",
        "kubernetes": r"(?s)httpGet:\n +path: \"/health\"\n +port: 9001",
    },
    "it comes back after it ended": {
        "systemd": r"Restart=on-failure",
        "compose": r"restart: unless-stopped",
        "kubernetes": r"kind: Deployment",
    },
    "it has few rights": {
        "systemd": r"(?s)CapabilityBoundingSet=.*NoNewPrivileges=yes.*RestrictNamespaces=yes",
        "docker": r"--security-opt no-new-privileges",
        "compose": r"no-new-privileges:true",
        **dict.fromkeys(PODS, r"allowPrivilegeEscalation: false"),
    },
    "its name is its own": {
        **dict.fromkeys((*PODS, "llmkube"), r"name: m\n"),
        "gpustack": r'name: "m"',
        "docker-model": r" local/m\n",
        **dict.fromkeys(("llama-swap", "llama-swap-matrix"), r'  "m":'),
        "preset": r"\[m\]",
    },
    "no secret is in it": dict.fromkeys(FORMATS, rf"\A(?:(?!{KEY})[\s\S])*\Z"),
}
# of the twenty, what has no way to its GPUs; KServe is for the processor
REFUSED = {"kserve": 18, "nixos": 4, "koboldcpp": 3, "llama-cpp-python": 1}
REFUSED |= dict.fromkeys(("llama-swap", "llama-swap-matrix", "preset"), 0)
VALIDATORS = {"kubernetes": "kubernetes_validate", "compose": "compose_spec"}


def launches() -> list[tuple[str, str]]:
    """Every model on every machine, with four more that say something else."""
    pairs = [(name, words) for name in MODELS for words in MACHINES]
    more = ("-ngl 3", "-c 8192 -np 2", "-ctk q8_0 -ctv q8_0 -fa on", "-t 6 --mlock")
    return pairs + [(MODELS[0], f"--gpu rtx-3060 {words}") for words in more]


def text_of(
    kind: str, name: str, words: str, more: str = WORDS, said: list[str] | None = None
) -> str:
    given = parse(["-c", "4096", "--ram", "32GiB", *more.split(), *words.split()], command="plan")
    found = Model(model(name).header, PATH)
    plan, given = formats.plan_for(kind, given, lambda said: autolayers.plan(found, said))
    given = replace(given, params=replace(given.params, model=PATH))
    return formats.write(kind, plan, given, warn=([] if said is None else said).append)


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(14, FORMATS))
def test_every_question_has_its_answer(kind: str, tmp_path: Path) -> None:
    assert len(launches()) == 20
    refused = 0
    for name, words in launches():
        try:
            text = text_of(kind, name, words)
        except UsageError as error:
            assert re.search(r"-dev none|plan without it|runs one sequence", str(error)), error
            refused += 1
            continue
        for question, answers in CHECKS.items():
            if kind in answers:
                assert re.search(answers[kind], text), (question, words, text)
        validated(kind, text, tmp_path)
    assert refused == REFUSED.get(kind, 2), f"REFUSED: {kind} refuses {refused} of 20 launches"


@pytest.mark.parametrize("kind", FORMATS)
def test_a_key_that_is_given_is_needed_or_spoken_of(kind: str) -> None:
    """A server that starts without its key answers everybody: the file stops that, or a line on
    stderr says the way out."""
    for more, is_given in ((WORDS, True), ("--port 9001", False)):
        said: list[str] = []
        text_of(kind, MODELS[0], "--gpu rtx-3060 -dev none -ngl 0", more, said)
        spoken = sum("LLAMA_API_KEY" in line for line in said)
        stops = kind in CHECKS["nothing starts without the key"]
        assert spoken == (is_given and not stops), said


def validated(kind: str, text: str, place: Path) -> None:
    """Let the project's own validator read it, where it is installed."""
    name = VALIDATORS.get(kind, "")
    if name and importlib.util.find_spec(name):
        import yaml

        validator = importlib.import_module(name)
        if kind == "compose":
            validator.PyCompose.from_yaml(text).validate()
            return
        for found in yaml.safe_load_all(text):
            validator.validate(found, "1.31", strict=True)
    elif kind == "llama-cpp-python":
        compile(text, "server.py", "exec")
    elif kind == "docker":
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_the_page_shows_the_checklist() -> None:
    """A format that answers one more question is in the page's table."""
    page = (ROOT / "docs" / "launch-files.md").read_text()
    table = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in CHECKS:
            table[cells[0]] = set(cells[1].replace("`", "").split(", "))
    for question, answers in CHECKS.items():
        said = set(FORMATS) if table[question] == {"every format"} else table[question]
        changed = {*answers} ^ said
        assert not changed, f"{question}: {changed} in CHECKS or docs/launch-files.md, not in both"
