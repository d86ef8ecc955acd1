"""What starts a launch elsewhere, as it reads its file: each format's text back into llama-server's
words, or into the Params of the context that the program makes of its own options.

Facts of the programs: systemd.syntax(7) and systemd.service(5); the Compose specification;
llama_cpp/llama.py of llama-cpp-python 0.3.36; koboldcpp.py --help of 1.113 and gpttype_adapter.cpp.
`python -m pytest -m llamacpp` compares those that can be had with the real thing.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from autolayers.flags.params import EXPERTS_REGEX, Params
from autolayers.flags.parse import parse
from autolayers.gguf import BY_NAME

TYPES = {type_.id: name for name, type_ in BY_NAME.items()}


# --- systemd


def systemd(text: str) -> list[str]:
    """The words of ExecStart=."""
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    words: list[str] = []
    rest = line.partition("=")[2]
    while rest := rest.lstrip(" \t"):
        word, quote = "", ""
        while rest and (quote or rest[0] not in " \t"):
            char, rest = rest[0], rest[1:]
            if char == "\\":
                byte = re.match(r"(?:x[0-9a-f]{2}(?:\\x[0-9a-f]{2})*)", rest)
                if byte:
                    word += bytes.fromhex(byte[0].replace("\\", "").replace("x", "")).decode(
                        "utf-8", "surrogateescape"
                    )
                    rest = rest[byte.end() :]
                else:
                    assert rest[0] in "\\\"'", "an escape that systemd would keep or read otherwise"
                    word, rest = word + rest[0], rest[1:]
            elif char == quote:
                quote = ""
            elif char in "\"'" and not quote:
                quote = char
            else:
                word += char
        assert not quote
        words.append(_specifiers(word))
    assert not words[0].startswith(("-", "@", ":", "+", "!"))
    return words[1:]


def _specifiers(word: str) -> str:
    assert not re.search(r"(?<!%)(?:%%)*%(?!%)", word) and not re.search(
        r"(?<!\$)(?:\$\$)*\$(?!\$)", word
    )
    return word.replace("%%", "%").replace("$$", "$")


# --- containers


def docker(text: str) -> list[str]:
    """The words of the server, paths as they are called here."""
    parser = argparse.ArgumentParser()
    for name in ("--rm", "--init"):
        parser.add_argument(name, action="store_true", required=True)
    for name in ("-p", "-v", "-e", "--device", "--security-opt", "--health-cmd"):
        parser.add_argument(name, action="append", default=[])
    for name in ("--gpus", "--memory", "--memory-reservation"):
        parser.add_argument(name)
    words = shlex.split(text)
    assert words[:2] == ["docker", "run"]
    image = next(i for i, word in enumerate(words) if word.startswith("ghcr.io/"))
    options = parser.parse_args(words[2:image])
    mounts = [volume.removesuffix(":ro").rsplit(":", 1) for volume in options.v]
    return _outside(words[image + 1 :], {inside: here for here, inside in mounts})


def compose(text: str) -> list[str]:
    import yaml

    service = yaml.safe_load(text)["services"]["llama-server"]
    mounts = {
        volume["target"]: volume["source"].replace("$$", "$")
        for volume in service.get("volumes", ())
    }
    for word in service["command"]:
        assert not re.search(r"(?<!\$)(?:\$\$)*\$(?!\$)", word)
    return _outside([word.replace("$$", "$") for word in service["command"]], mounts)


def _outside(words: list[str], mounts: dict[str, str]) -> list[str]:
    """The words with the directories of this machine again; the address that a container listens on
    is no word of the user's."""
    found = []
    for word in words:
        # a mounted directory, or a file, of which a value may say more, e.g. FILE:SCALE
        inside = next(
            (
                path
                for path in sorted(mounts, key=len, reverse=True)
                if re.match(f"{re.escape(path)}(?=[/:,]|$)", word)
            ),
            None,
        )
        found.append(mounts[inside] + word[len(inside) :] if inside else word)
    at = len(found) - 1 - found[::-1].index("--host")
    assert found[at:] in (["--host", "0.0.0.0"], ["--host", "0.0.0.0", "--port", "8080"])
    assert "--port" in found
    return found[:at]


# --- llama.cpp's own friends

# Of llama-swap's config-schema.json (mostlygeek/llama-swap, 032d741) the keys that are written
# here, and what each may be. None other is: what keeps to these keeps to the whole schema.
_SWAP_MODEL = {
    "cmd": r"(?s).+",
    "proxy": r"https?://[^/]+:\$\{PORT\}",
    "checkEndpoint": "/.*|none",
    "ttl": r"\d+",
}
_SWAP_KEY = ["LLAMA_API_KEY=${env.LLAMA_API_KEY}"]
_SWAP_GROUP = {"swap": bool, "exclusive": bool, "members": list}


def llama_swap_file(text: str) -> dict[str, Any]:
    """A configuration as LoadConfig reads it: the schema's keys, `${PORT}` the only macro, models
    in one group each."""
    import yaml

    file = yaml.safe_load(text)
    assert (
        set(file) <= {"healthCheckTimeout", "models", "groups", "routing"}
        and file["healthCheckTimeout"] >= 120
        and file["models"]
        and not {"groups", "routing"} <= set(file)
    )
    for entry in file["models"].values():
        assert entry.pop("env", _SWAP_KEY) == _SWAP_KEY
        assert "cmd" in entry and set(entry) <= set(_SWAP_MODEL)
        assert all(
            isinstance(value, int if key == "ttl" else str)
            and re.fullmatch(_SWAP_MODEL[key], str(value))
            for key, value in entry.items()
        )
        assert re.findall(r"\$\{.*?\}", " ".join(map(str, entry.values()))) == ["${PORT}"] * (
            1 + ("proxy" in entry)
        )
    members = [name for group in file.get("groups", {}).values() for name in group["members"]]
    assert len(members) == len(set(members)) and set(members) <= set(file["models"])
    for group in file.get("groups", {}).values():
        assert set(group) - {"persistent"} == set(_SWAP_GROUP)
        assert all(isinstance(group[key], kind) for key, kind in _SWAP_GROUP.items())
    return cast("dict[str, Any]", file)


def llama_swap_matrix(text: str) -> tuple[dict[str, list[str]], list[list[str]], dict[str, int]]:
    """(the words of each model, the sets of models, what each costs to evict) of a configuration
    with a matrix, by the schema of 0bdb3720: sets are names joined by &."""
    file = llama_swap_file(text)
    router = file["routing"]["router"]
    assert (
        set(file["routing"]) == {"router"}
        and set(router) == {"use", "settings"}
        and router["use"] == "matrix"
    )
    (matrix,) = router["settings"].values()
    assert set(router["settings"]) == {"matrix"} and set(matrix) <= {"vars", "evict_costs", "sets"}
    assert all(re.fullmatch("[a-zA-Z0-9]{1,8}", name) for name in matrix["vars"])
    assert sorted(matrix["vars"].values()) == sorted(file["models"]) and matrix["sets"]
    costs = matrix.get("evict_costs", {})
    assert set(costs) <= set(matrix["vars"]) and all(
        isinstance(cost, int) and cost > 0 for cost in costs.values()
    )
    sets = [
        [matrix["vars"][name] for name in text.split(" & ")] for text in matrix["sets"].values()
    ]
    words = {
        name: shlex.split(entry["cmd"].replace("${PORT}", "5800"))[3:]
        for name, entry in file["models"].items()
    }
    return words, sets, {matrix["vars"][name]: cost for name, cost in costs.items()}


def swapped(
    requests: Sequence[str], sets: Sequence[Sequence[str]], costs: Mapping[str, int]
) -> int:
    """The models that llama-swap's matrix loads for these requests, by the steps of
    config.example.yaml."""
    running: set[str] = set()
    loads = 0
    for name in requests:
        if name not in running:
            own = [set(members) for members in sets if name in members] or [{name}]
            kept = min(
                own, key=lambda members: sum(costs.get(other, 1) for other in running - members)
            )
            running = running & kept | {name}
            loads += 1
    return loads


def llama_swap(text: str) -> list[str]:
    (entry,) = llama_swap_file(text)["models"].values()
    words = shlex.split(entry["cmd"].replace("${PORT}", "5800"))
    assert words[1:3] == ["--port", "5800"]
    return words[3:]


def preset(text: str) -> list[str]:
    """As parse_ini_from_file and common_preset::to_args do: one value per key, long names."""
    lines = [re.split("[;#]", line)[0].rstrip(" \t") for line in text.splitlines()]
    entries = [line.partition("=") for line in lines if line and not line.startswith("[")]
    words = []
    for key, _, value in (entry for entry in entries if entry[0].strip() != "version"):
        value = value.strip(" \t")
        found = parse(
            [f"--{key.strip()}", *([] if value in ("true", "false") else [value])], command=None
        ).given
        if value == "false":
            found = parse([f"--no-{key.strip()}"], command=None).given
        words += [word for flag, text in found for word in (flag, text) if word]
        if not found:
            words += [f"--{key.strip()}", value]
    return words


# --- other systems


def nixos(text: str) -> list[str]:
    """The words that services.llama-cpp starts llama-server with: its attributes, then extraFlags.
    Strings as the Nix language reads them."""
    strings = r'"((?:[^"\\$]|\\[nrt"\\$])*)"'
    outside = re.sub(strings, "", re.sub(r"(?m)^#.*\n", "", text))
    assert re.fullmatch(r"\{ lib, pkgs, \.\.\. \}:\n\{[\w\s.=;\[\]{}-]*\}\n", outside), text

    def read(found: str) -> str:
        return re.sub(
            r"\\(.)",
            lambda escape: {"n": "\n", "r": "\r", "t": "\t"}.get(escape[1], escape[1]),
            found,
        )

    words = []
    for key, flag in (("model", "-m"), ("host", "--host")):
        words += [
            word
            for found in re.findall(rf"^    {key} = {strings};$", text, re.MULTILINE)
            for word in (flag, read(found))
        ]
    words += [
        word
        for found in re.findall(
            r"^    port = "
            r"(\d+);$",
            text,
            re.MULTILINE,
        )
        for word in ("--port", found)
    ]
    flags = text.partition("    extraFlags = [\n")[2].partition("\n    ];")[0]
    return words + [read(found) for found in re.findall(strings, flags)]


# Of LLMKube's api/v1alpha1 the typed fields, and the words that the operator's BuildArgs makes of
# them, in its order
_LLMKUBE = {
    "contextSize": "--ctx-size",
    "parallelSlots": "--parallel",
    "flashAttention": "--flash-attn on",
    "cacheTypeK": "--cache-type-k",
    "cacheTypeV": "--cache-type-v",
    "moeCPUOffload": "--cpu-moe",
    "moeCPULayers": "--n-cpu-moe",
    "noKvOffload": "--no-kv-offload",
    "tensorOverrides": "--override-tensor",
    "batchSize": "--batch-size",
    "uBatchSize": "--ubatch-size",
    "noWarmup": "--no-warmup",
}
_CACHE_TYPES = {"f16", "f32", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"}
_BOUNDS = {
    "contextSize": (128, 2097152),
    "parallelSlots": (1, 64),
    "batchSize": (1, 16384),
    "uBatchSize": (1, 2**31),
    "moeCPULayers": (0, 2**31),
}
QUANTITY = "[1-9][0-9]*Mi"  # one that is malformed stops the operator


def llmkube(text: str) -> list[str]:
    """What the operator's BuildArgs makes of both resources: the model, the typed fields, then
    extraArgs, which win."""
    import yaml

    model, service = yaml.safe_load_all(text)
    assert {found["apiVersion"] for found in (model, service)} == {"inference.llmkube.dev/v1alpha1"}
    assert (model["kind"], service["kind"]) == ("Model", "InferenceService")
    spec = service["spec"]
    assert spec["modelRef"] == model["metadata"]["name"]
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", model["metadata"]["name"])
    assert set(model["spec"]) <= {"source", "format", "hardware"}
    assert set(spec) <= {
        "modelRef",
        "replicas",
        "resources",
        "containerPort",
        "extraArgs",
        "env",
        *_LLMKUBE,
    }
    gpu = model["spec"].get("hardware", {}).get("gpu", {"count": 0})
    assert spec["resources"].get("gpu", 0) == gpu["count"]
    assert set(spec["resources"]) <= {"gpu", "memory", "hostMemory"}
    sizes = [spec["resources"].get(key) for key in ("memory", "hostMemory")]
    assert re.fullmatch(QUANTITY, next(filter(None, sizes)))
    split = gpu.get("sharding", {}).get("layerSplit", [])
    assert len(split) in (0, gpu["count"]) and all(
        re.fullmatch("[0-9]+-[0-9]+", run) for run in split
    )
    words = ["-m", model["spec"]["source"]]
    if gpu["count"]:
        assert set(gpu) <= {"enabled", "count", "vendor", "runtime", "layers", "memory", "sharding"}
        assert re.fullmatch(QUANTITY, gpu["memory"])
        words += ["-ngl", str(gpu["layers"] if gpu["layers"] > 0 else 99)]
    for field, flag in _LLMKUBE.items():
        value = spec.get(field)
        if field in _BOUNDS and value is not None:
            assert type(value) is int and _BOUNDS[field][0] <= value <= _BOUNDS[field][1]
        if value is True:
            words += flag.split()
        elif isinstance(value, list):
            words += [word for item in value for word in (flag, container_argument(item))]
        elif value is not None:
            assert value in _CACHE_TYPES or type(value) is int
            words += [flag, str(value)]
    port = spec.get("containerPort")
    return [
        *words,
        *(["--port", str(port)] if port else []),
        *map(container_argument, spec.get("extraArgs", ())),
    ]


# What ParseFlagKey and LlamaCppAllowedFlags of Docker Model Runner let through
# (pkg/inference/runtime_flags_allowlist.go of 2026-07-22)
_DOCKER_MODEL = """
--api-key --api-prefix --backend-sampling --batch-size --cache-prompt --cache-ram
--cache-reuse --cache-type-k --cache-type-k-draft --cache-type-v --cache-type-v-draft
--chat-template --chat-template-kwargs --check-tensors --cont-batching --context-shift
--control-vector-layer-range --cpu-mask --cpu-mask-batch --cpu-mask-batch-draft
--cpu-mask-draft --cpu-moe --cpu-moe-draft --cpu-range --cpu-range-batch --cpu-range-draft
--cpu-strict --cpu-strict-batch --cpu-strict-batch-draft --cpu-strict-draft --ctx-size
--ctx-size-draft --device --device-draft --direct-io --draft-max --draft-min --draft-n-max
--draft-n-min --draft-p-min --draft-p-split --dry-allowed-length --dry-base --dry-multiplier
--dry-penalty-last-n --dynatemp-exp --dynatemp-range --embedding --embeddings --fit --fit-ctx
--fit-target --flash-attn --frequency-penalty --gpu-layers --gpu-layers-draft --grammar
--ignore-eos --image-max-tokens --image-min-tokens --jinja --json-schema --keep --kv-offload
--kv-unified --lora-init-without-apply --main-gpu --metrics --min-p --mirostat --mirostat-ent
--mirostat-lr --mlock --mmap --mmproj-auto --mmproj-offload --n-cpu-moe --n-cpu-moe-draft
--n-gpu-layers --n-gpu-layers-draft --n-predict --no-cache-prompt --no-cont-batching
--no-context-shift --no-direct-io --no-host --no-jinja --no-kv-offload --no-metrics --no-mmap
--no-mmproj --no-mmproj-auto --no-mmproj-offload --no-op-offload --no-perf
--no-prefill-assistant --no-repack --no-slots --no-spec-draft-backend-sampling --no-warmup
--no-webui --op-offload --override-tensor-draft --parallel --perf --poll --poll-batch
--poll-batch-draft --poll-draft --pooling --predict --prefill-assistant --presence-penalty
--prio --prio-batch --prio-batch-draft --prio-draft --props --reasoning-budget
--reasoning-format --repack --repeat-last-n --repeat-penalty --rerank --reranking
--rope-freq-base --rope-freq-scale --rope-scale --rope-scaling --samplers --seed
--sleep-idle-seconds --slot-prompt-similarity --slots --spec-draft-backend-sampling
--spec-draft-cpu-mask --spec-draft-cpu-mask-batch --spec-draft-cpu-moe --spec-draft-cpu-range
--spec-draft-cpu-strict --spec-draft-cpu-strict-batch --spec-draft-device
--spec-draft-n-cpu-moe --spec-draft-n-max --spec-draft-n-min --spec-draft-ncmoe
--spec-draft-ngl --spec-draft-override-tensor --spec-draft-p-min --spec-draft-p-split
--spec-draft-poll --spec-draft-poll-batch --spec-draft-prio --spec-draft-prio-batch
--spec-draft-threads --spec-draft-threads-batch --spec-draft-type-k --spec-draft-type-v
--spec-ngram-map-k-min-hits --spec-ngram-map-k-size-m --spec-ngram-map-k-size-n
--spec-ngram-map-k4v-min-hits --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-size-n
--spec-ngram-mod-n-match --spec-ngram-mod-n-max --spec-ngram-mod-n-min
--spec-ngram-simple-min-hits --spec-ngram-simple-size-m --spec-ngram-simple-size-n --spec-type
--split-mode --spm-infill --swa-full --temp --temperature --tensor-split --threads
--threads-batch --threads-batch-draft --threads-draft --threads-http --timeout --top-k
--top-nsigma --top-p --typical --ubatch-size --verbose --warmup --webui --webui-config
--xtc-probability --xtc-threshold --yarn-attn-factor --yarn-beta-fast --yarn-beta-slow
--yarn-ext-factor --yarn-orig-ctx -C -Cb -Cbd -Cd -Cr -Crb -Crd -b -bs -c -cb -cd -cmoe -cmoed
-cram -ctk -ctkd -ctv -ctvd -dev -devd -dio -fa -fit -fitc -fitt -j -kvo -kvu -mg -n -ncmoe
-ncmoed -ndio -ngl -ngld -nkvo -nocb -np -nr -otd -s -sm -sps -t -tb -tbd -td -to -ts -ub -v
"""


def docker_model(text: str) -> list[str]:
    """The words of its llama-server, as ValidateRuntimeFlags lets them through."""
    place, configure = map(shlex.split, [line for line in text.splitlines() if line[:1] != "#"])
    assert place[:3] in (["docker", "model", "package"], ["docker", "model", "pull"])
    at = configure.index("--")
    name, words = configure[at - 1], configure[at + 1 :]
    assert name == place[-1] and re.fullmatch(r"[a-z0-9]+(?:[./-][A-Za-z0-9_-]+)*(?::\w+)?", name)
    for word in words:
        negative = re.fullmatch(r"-[0-9.]+", word)
        assert (
            not word.startswith("-") or negative or word.partition("=")[0] in _DOCKER_MODEL.split()
        ), word
        assert not set("/\\") & set(word), word
    options = dict(zip(configure[3 : at - 1 : 2], configure[4 : at - 1 : 2], strict=True))
    assert set(options) <= {"--context-size", "--mode"}
    mode = {"embedding": ["--embeddings"], "reranking": ["--reranking"]}
    model = ["-m", place[4]] if place[2] == "package" else ["-hf", name.removeprefix("hf.co/")]
    given = ["-c", options["--context-size"]] if "--context-size" in options else []
    return [*model, *given, *mode.get(options.get("--mode", ""), []), *words]


def gpustack(text: str) -> list[str]:
    """The words after those of the backend's own command (gpustack/schemas/models.py of 2026-08-21:
    the model's fields), by which its scheduler does not guess: both claims are bytes."""
    import yaml

    model = yaml.safe_load(text)
    place = {
        "local_path": {"local_path"},
        "huggingface": {"huggingface_repo_id", "huggingface_filename"},
    }
    assert set(model) <= {
        "name",
        "source",
        *place[model["source"]],
        "backend",
        "replicas",
        "backend_parameters",
        "env",
    }
    assert model["backend"].endswith("-custom") and model["replicas"] == 1
    claims = ["GPUSTACK_MODEL_VRAM_CLAIM", "GPUSTACK_MODEL_RAM_CLAIM"]
    assert list(model["env"]) == claims and all(
        re.fullmatch("[0-9]+", model["env"][key]) for key in claims
    )
    where = (
        model.get("local_path")
        or f"hf:{model['huggingface_repo_id']}/{model['huggingface_filename']}"
    )
    return ["-m", where, *model.get("backend_parameters", ())]


def kubernetes(text: str) -> list[str]:
    """The words of a Deployment's container, whose objects keep to Kubernetes' own schemas."""
    import yaml

    deployment, service = yaml.safe_load_all(text)
    assert (deployment["kind"], service["kind"]) == ("Deployment", "Service")
    assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", service["metadata"]["name"])
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    return pod_words(deployment["spec"]["template"]["spec"])


def kserve(text: str) -> list[str]:
    """The words of a ServingRuntime's container: of ServingRuntimeSpec and of InferenceServiceSpec
    the fields that are written here (kserve pkg/apis/serving, v1alpha1 and v1beta1)."""
    import yaml

    runtime, service = yaml.safe_load_all(text)
    assert (runtime["apiVersion"], runtime["kind"]) == (
        "serving.kserve.io/v1alpha1",
        "ServingRuntime",
    )
    assert (service["apiVersion"], service["kind"]) == (
        "serving.kserve.io/v1beta1",
        "InferenceService",
    )
    assert set(runtime["spec"]) <= {"supportedModelFormats", "containers", "volumes"}
    (form,) = runtime["spec"]["supportedModelFormats"]
    predictor = service["spec"]["predictor"]
    assert set(service["spec"]) == {"predictor"} and set(predictor) == {"minReplicas", "model"}
    assert predictor["model"] == {
        "modelFormat": {"name": form["name"]},
        "runtime": runtime["metadata"]["name"],
    }
    assert runtime["spec"]["containers"][0]["name"] == "kserve-container"
    return pod_words(runtime["spec"])


def pod_words(spec: dict[str, Any]) -> list[str]:
    """The words of a pod's one container, paths as they are called on its node."""
    (container,) = spec["containers"]
    folders = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in spec.get("volumes", ())
        if "hostPath" in volume
    }
    mounts = {
        mount["mountPath"]: folders[mount["name"]]
        for mount in container.get("volumeMounts", ())
        if mount["name"] in folders
    }
    resources = container["resources"]
    sizes = [
        resources[kind]["memory"]
        for kind in ("requests", "limits")
        if "memory" in resources.get(kind, ())
    ]
    assert all(re.fullmatch(QUANTITY, size) for size in sizes) and resources["requests"]["memory"]
    assert [int(size[:-2]) for size in sizes] == sorted(int(size[:-2]) for size in sizes)
    return _outside([container_argument(word) for word in container["args"]], mounts)


def container_argument(word: str) -> str:
    """As Kubernetes expands a word of `args` (third_party/forked/golang/expansion)."""
    assert not re.search(r"(?<!\$)(?:\$\$)*\$\(", word)
    return word.replace("$$", "$")


# --- llama-cpp-python

# Llama.__init__: what it takes and its defaults, as far as they reach llama.cpp; None: llama.cpp's
# own
LLAMA: dict[str, Any] = {
    "model_path": ...,
    "n_gpu_layers": 0,
    "split_mode": 1,
    "main_gpu": 0,
    "tensor_split": None,
    "vocab_only": False,
    "use_mmap": True,
    "use_mlock": False,
    "kv_overrides": None,
    "seed": 0xFFFFFFFF,
    "n_ctx": 512,
    "n_batch": 512,
    "n_ubatch": 512,
    "n_threads": None,
    "n_threads_batch": None,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_orig_ctx": 0,
    "logits_all": False,
    "embedding": False,
    "offload_kqv": True,
    "flash_attn": False,
    "op_offload": None,
    "swa_full": None,
    "no_perf": False,
    "last_n_tokens_size": 64,
    "lora_base": None,
    "lora_scale": 1.0,
    "lora_path": None,
    "numa": False,
    "chat_format": None,
    "chat_handler": None,
    "draft_model": None,
    "tokenizer": None,
    "type_k": None,
    "type_v": None,
    "spm_infill": False,
    "verbose": True,
}


def llama_cpp_python(text: str) -> tuple[Params, dict[str, Any]]:
    """(the context that the program makes, Llama's arguments)."""
    calls: list[dict[str, Any]] = []

    class Llama:
        def __init__(self, **arguments: Any) -> None:
            calls.append(arguments)

        @classmethod
        def from_pretrained(cls, repo_id: str, filename: str, **arguments: Any) -> None:
            calls.append({"model_path": f"hf:{repo_id}/{filename}", **arguments})

    exec(text.replace("from llama_cpp import Llama", ""), {"Llama": Llama})
    (given,) = calls
    assert not set(given) - set(LLAMA)
    a = {**LLAMA, **given}
    n_batch = min(a["n_ctx"], a["n_batch"])
    mapped = a["use_mmap"] and a["lora_path"] is None
    modes = {
        (True, True): "mmap+mlock",
        (False, True): "mlock",
        (True, False): "mmap",
        (False, False): "none",
    }
    return Params(
        model=a["model_path"],
        n_gpu_layers=-2 if a["n_gpu_layers"] == -1 else a["n_gpu_layers"],
        split_mode=("none", "layer", "row", "tensor")[a["split_mode"]],
        main_gpu=a["main_gpu"],
        tensor_split=tuple(a["tensor_split"]) if a["tensor_split"] else None,
        load_mode=modes[mapped, a["use_mlock"]],
        n_ctx=a["n_ctx"],
        n_batch=n_batch,
        n_ubatch=min(n_batch, a["n_ubatch"]),
        n_parallel=min(n_batch, 256) if a["embedding"] else 1,
        kv_unified=bool(a["embedding"]),
        embedding=a["embedding"] or None,
        flash_attn="on" if a["flash_attn"] else "off",
        # llama_context_default_params has it
        swa_full=True if a["swa_full"] is None else a["swa_full"],
        cache_type_k=TYPES[1 if a["type_k"] is None else a["type_k"]],
        cache_type_v=TYPES[1 if a["type_v"] is None else a["type_v"]],
        kv_offload=a["offload_kqv"],
        op_offload=a["op_offload"] is not False,
        lora=(a["lora_path"],) if a["lora_path"] else (),
    ), a


# --- KoboldCpp


@cache
def koboldcpp_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", nargs="+", required=True)
    parser.add_argument("--port", type=int, default=5001)
    parser.add_argument("--host", default="")
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--usecuda", nargs="*", choices=["0", "1", "2", "3", "all", "mmq", "nommq", "rowsplit"]
    )
    parser.add_argument("--usevulkan", nargs="*", type=int)
    parser.add_argument("--contextsize", type=int, default=8192)
    parser.add_argument("--gpulayers", type=int, default=-1)
    parser.add_argument("--tensor_split", type=float, nargs="+")
    parser.add_argument(
        "--batchsize",
        type=int,
        default=512,
        choices=[-1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
    )
    parser.add_argument("--moecpu", type=int, default=0)
    parser.add_argument("--swapadding", type=int, default=512)
    parser.add_argument(
        "--quantkv",
        default="f16",
        choices=["f16", "bf16", "q8_0", "q5_1", "q4_0", "0", "1", "2", "3"],
    )
    for name in (
        "--maingpu",
        "--blasthreads",
        "--draftamount",
        "--draftgpulayers",
        "--visionmintokens",
        "--visionmaxtokens",
    ):
        parser.add_argument(name, type=int)
    for name in (
        "--device",
        "--mmproj",
        "--draftmodel",
        "--password",
        "--jinja_kwargs",
        "--jinjatemplate",
        "--overridekv",
        "--overridetensors",
    ):
        parser.add_argument(name, default="")
    for name in (
        "--usecpu",
        "--useswa",
        "--usemmap",
        "--usemlock",
        "--mmprojcpu",
        "--jinja",
        "--flashattention",
        "--noflashattention",
        "--lowvram",
    ):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--lora", nargs="+")
    parser.add_argument("--loramult", type=float, default=1.0)
    parser.add_argument("--ssl", nargs="+")
    return parser


def koboldcpp(text: str) -> tuple[Params, argparse.Namespace]:
    """(the context that the program makes, its options)."""
    words = shlex.split(text)
    assert words[0] == "koboldcpp"
    a = koboldcpp_options().parse_args(words[1:])
    assert 256 <= a.contextsize <= 262144
    cache = {"0": "f16", "1": "q8_0", "2": "q4_0", "3": "bf16"}.get(a.quantkv, a.quantkv)
    overrides = [tuple(pair.rsplit("=", 1)) for pair in a.overridetensors.split(",") if pair]
    overrides += [(rf"blk\.{i}{EXPERTS_REGEX}", "CPU") for i in range(min(a.moecpu, 200))]
    assert a.swapadding == 0 or not a.useswa
    return (
        Params(
            model=a.model[0],
            n_gpu_layers=a.gpulayers,
            n_ctx=a.contextsize + 128,
            n_batch=a.batchsize,
            n_ubatch=a.batchsize,
            n_parallel=1,
            kv_unified=True,
            split_mode="layer",
            device=() if a.usecpu else tuple(a.device.split(",")) if a.device else None,
            tensor_split=tuple(a.tensor_split) if a.tensor_split else None,
            flash_attn="off" if a.noflashattention else "on",
            swa_full=not a.useswa,
            cache_type_k=cache,
            cache_type_v=cache,
            kv_offload=not a.lowvram,
            overrides=tuple(overrides),  # type: ignore[arg-type]
            load_mode="+".join(n for n, on in (("mmap", a.usemmap), ("mlock", a.usemlock)) if on)
            or "none",
            lora=tuple(a.lora[:1]) if a.lora else (),
        ),
        a,
    )
