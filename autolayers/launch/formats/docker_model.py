"""Docker Model Runner: the model in its store, and the words of its llama-server
(pkg/inference/runtime_flags_allowlist.go and `docker model configure` of 2026-07-22)."""

from __future__ import annotations

import os

from ...errors import UsageError
from ...flags.params import Params
from ...flags.parse import Item
from ...model.quantisation import named
from ...quoting import shell
from ...tables import listed
from .launch_file import LaunchFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_TARGET = "Docker Model Runner"
# It writes these itself, or takes them from the model in its store
_ITS_OWN = listed("-m -hf -hff -mu -dr -mm -mmu -c --embedding --rerank")
# What it refuses of those that affect memory: paths, and what its list has not yet
_LACKS = (
    "-ot -ncffn -ctxcp -no-kvu --no-kv-unified -md -hfd -mmdev -lzm --rpc --lora --lora-scaled "
    "--control-vector --control-vector-scaled --moe-cache-mib --kv-unified-per-slot --override-kv "
    "--numa"
)
# What it takes of the others
_TAKES = (
    "-t -tb -n -s -to --temp --top-k --top-p --min-p --repeat-penalty --presence-penalty --jinja "
    "--chat-template --chat-template-kwargs --reasoning-format --reasoning-budget --metrics "
    "--slots --props --no-warmup"
)
# Its names for -lm, which its list has not
_LOADS = {"none": ["--no-mmap"], "mmap": ["--mmap"], "mlock": ["--no-mmap", "--mlock"]}
_LOADS |= {"mmap+mlock": ["--mmap", "--mlock"], "dio": ["-dio"], "auto": []}
# What it can be planned with
FIELDS = frozenset(Params.__dataclass_fields__) - {"moe_cache_mib"}
# -ot and -ncffn, which a plan may choose where whole layers would do
WORDS = ("-ot", "-ncffn")


def write(launch: LaunchFile) -> str:
    """Return its commands for this machine's shell. Raises UsageError for a launch that it cannot
    express."""
    model, place = _model(launch)
    launch.starts_keyless(
        f"{_TARGET} asks nobody for one; keep its port on 127.0.0.1, or use --format docker"
    )
    configure = ["docker", "model", "configure"]
    params = launch.params
    if params.n_ctx:
        configure += ["--context-size", str(params.n_ctx)]
    if params.embedding or params.reranking:
        configure += ["--mode", "reranking" if params.reranking else "embedding"]
    words = [word for item in launch.without(*_ITS_OWN) for word in _words(launch, item)]
    lines = [*launch.notes, shell(place), shell([*configure, model, "--", *words])]
    return "\n".join(lines) + "\n"


def _words(launch: LaunchFile, item: Item) -> Iterator[str]:
    """Yield an argument as it takes it; nothing with a warning. Raises UsageError for what changes
    the memory and is not taken."""
    row = item.argument
    if [*item.words] == ["--moe-cache-mib", "0"]:
        return  # none, as without it
    if row and row.field == "load_mode" and item.value in _LOADS:
        yield from _LOADS[item.value]
        return
    field = row.field if row else ""
    listed = {row.canonical, item.name} & set((_LACKS if field else _TAKES).split()) if row else ()
    taken = row and bool(listed) != bool(field)
    # It takes every slash for a path
    if taken and not set("/\\") & set("".join(item.words)):
        yield from item.words
    elif field:
        way = " (--strategy layers)" if row and row.canonical in WORDS else ""
        raise UsageError(f"{_TARGET} has nothing like {item.name}: plan without it{way}")
    else:
        name = row.written(item.positive) if row else item.name or item.words[0]
        launch.warnings.append(f"{_TARGET} has nothing like {name}: left out")


def _model(launch: LaunchFile) -> tuple[str, list[str]]:
    """Return the model's name in its store, and the words that put it there."""
    if launch.hub_file:
        repository, file = launch.hub_file
        quant = named(file)
        if not quant:
            raise UsageError(
                f"{_TARGET} takes a model of the Hub by its quantisation, which {file} does not "
                "name: download it, and give its path"
            )
        launch.warnings.append(f"{_TARGET} loads a projector of the repository too, if it has one")
        name = f"hf.co/{repository}:{quant[1]}"
        return name, ["docker", "model", "pull", name]
    if launch.downloads:
        raise UsageError(f"{_TARGET} downloads from the Hub alone: give the model's path")
    # e.g. "Qwen3-8B-Q4_K_M" -> "local/qwen3-8b-q4-k-m"
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in launch.name.lower())
    name = f"local/{'-'.join(filter(None, plain.split('-'))) or 'model'}"
    words = ["docker", "model", "package", "--gguf", os.path.abspath(launch.model)]
    if launch.params.mmproj:
        words += ["--mmproj", os.path.abspath(launch.params.mmproj)]
    return name, [*words, name]
