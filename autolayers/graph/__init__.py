"""Computation graphs by shape, as llama.cpp builds them: one builder per architecture. A plain
architecture is a row in rows.py. One whose graph needs code has a file in models/, which its
line of model/architectures.tsv names."""

from __future__ import annotations

from importlib import import_module

from ..model.architectures import architecture as row_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ggml.tensor import Tensor
    from .llm import Llm

    Builder = Callable[[Llm], Tensor | None]


def builder(architecture: str, mtp: bool = False) -> Builder | None:
    """Return the builder of an architecture's graph, or of its MTP block's; None if that is not
    modelled."""
    # a plain architecture is in rows.py, whose BUILDERS lacks what is not modelled
    file = row_of(architecture).graph
    module = import_module(f"{__name__}.{f'models.{file}' if file else 'rows'}")
    build: Builder | None = module.BUILDERS.get(architecture)
    return getattr(build, "mtp", None) if mtp else build
