"""The files that --format can write: one row each in formats.tsv. Help, choices and documentation
are made from them, and autolayers.launch.formats has a module for each."""

from __future__ import annotations

from ..tables import rows


class Format:
    """`several`: one file can hold several models. `starts`: it starts the given program, not
    llama.cpp's own server or image. `gpu`: the attribute of a Backend that says whether it can
    compute there; "": wherever the command itself can."""

    __slots__ = ("about", "gpu", "name", "several", "starts")

    def __init__(self, name: str, several: str, starts: str, gpu: str, about: str) -> None:
        self.name, self.about, self.gpu = name, about, gpu
        self.several, self.starts = bool(several), bool(starts)


FORMATS = {row["name"]: Format(**row) for row in rows("flags/formats.tsv")}
