"""docs/architectures.md: what is known of each architecture, generated from the table that the
program itself uses.

    python docs/make.py architectures
"""

from __future__ import annotations

from autolayers.builds import NEWEST
from autolayers.graph import builder
from autolayers.model.architectures import NAMES, Architecture, architecture

_MEMORY = {
    "none": "none",
    "kv": "keys and values",
    "recurrent": "recurrent state",
    "hybrid": "keys and values + recurrent state",
    "hybrid-idx": "keys and values + recurrent state + indexer",
    "dsa": "keys + DSA indexer",
    "dsa-iswa": "keys + DSA indexer, sliding keys",
    "msa": "keys and values + MSA indexer",
    "dsv4": "sliding keys + two compressed caches + indexer + compressor states",
}
_STATE = {
    "ssm": "Mamba",
    "ssm-groups": "Mamba-2 / delta net",
    "kda": "KDA",
    "rwkv": "RWKV",
    "shortconv": "short convolution",
    "linear": "linear attention",
}
_HEAD = f"""# Architectures

Made by `python docs/make.py architectures`; do not edit.

llama.cpp's build {NEWEST} has {{all_of}} architectures, the rows of
`autolayers/model/architectures.tsv`. Weights and caches are exact to the byte, and compute buffers
are modelled{{others}}.
An architecture without a row is planned as a transformer with a full cache in every layer, and is
never called exact.

| architectures | context memory | sliding window | notes |
|---|---|---|---|
"""


def render() -> str:
    """The whole document as Markdown."""
    rows = [architecture(name) for name in sorted(NAMES)]
    alike: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        alike.setdefault(_cells(row), []).append(row.name)
    bounded = [row.name for row in rows if not row.proven or builder(row.name) is None]
    head = _HEAD.format(
        all_of=len(rows),
        others=f"; upper bounds for {', '.join(bounded)}" * bool(bounded),
    )
    return head + "".join(
        f"| {', '.join(names)} | {' | '.join(cells)} |\n"
        for cells, names in sorted(alike.items(), key=lambda row: -len(row[1]))
    )


def _cells(row: Architecture) -> tuple[str, str, str]:
    memory = _MEMORY[row.memory]
    if row.state:
        memory += f" ({_STATE[row.state]})"
    window = ""
    if row.window:
        w = row.window
        every = f"{w.period - 1} of {w.period} layers" if w.period else "all attention layers"
        parts = (
            "by its file" if w.array else every,
            "" if w.kind == "standard" else w.kind,
            f"size {w.fixed}" if w.fixed else "",
        )
        window = ", ".join(filter(None, parts))
    notes = ["MLA" if row.mla == "required" else "MLA if its file says so"] if row.mla else []
    notes += [] if row.flash_attn else ["no flash attention"]
    notes += [] if row.split_tensor else ["no `-sm tensor`"]
    notes += [row.note] if row.note else []
    return memory, window, "; ".join(notes)
