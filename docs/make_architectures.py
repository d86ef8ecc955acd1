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

Made by `python docs/make.py architectures`; do not edit. One line for each row of
`autolayers/model/architectures.py`, for llama.cpp's build {NEWEST}. *Weights and caches*: sizes
compared with llama.cpp's own are **exact** to the byte, others an **upper bound**. *Graph*: compute
buffers are modelled (**yes**) or bounded from above (no). An architecture without a row is planned
as a transformer with a full cache in every layer, and is never called exact.

| architecture | context memory | sliding window | notes | weights and caches | graph |
|---|---|---|---|---|---|
"""


def render() -> str:
    """The whole document as Markdown."""
    table = [architecture(name) for name in sorted(NAMES)]
    rows = [_line(row, builder(row.name) is not None) for row in table]
    exact = sum(row.proven for row in table)
    return (
        _HEAD
        + "\n".join(rows)
        + f"\n\n{len(rows)} architectures, weights and caches exact for {exact}.\n"
    )


def _line(row: Architecture, graph: bool) -> str:
    memory = _MEMORY[row.memory]
    if row.state:
        memory += f" ({_STATE[row.state]})"
    window = ""
    if row.window:
        w = row.window
        every = f"all but every {w.period}th layer" if w.period else "all attention layers"
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
    cells = (
        row.name,
        memory,
        window,
        "; ".join(notes),
        "exact" if row.proven else "upper bound",
        "yes" if graph else "",
    )
    return f"| {' | '.join(cells)} |"
