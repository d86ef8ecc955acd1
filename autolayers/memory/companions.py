"""The other files that a launch loads: projector, draft model, adapters, as headers that the caller
has read.

    params = with_draft_type(params, companions)      # what a draft model's file says about itself
"""

from __future__ import annotations

from ..errors import LaunchRefused, ModelError
from ..model.projectors import width
from ..records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.params import Params
    from ..gguf import Header
    from ..model import Model


@dataclass(frozen=True)
class Companions:
    """The headers of a launch's other files; None and () if it has none."""

    mmproj: Header | None = None
    draft: Model | None = None
    loras: tuple[Header, ...] = ()


NONE = Companions()


def wants_extras(params: Params, companions: Companions) -> bool:
    """Return whether the launch loads extra files or contexts (projector, draft, adapters)."""
    return (
        # a draft without a file (draft-mtp) and a table (ngram-mod) take memory as well
        companions != NONE
        or bool(params.control_vector)
        or any(kind in params.spec_type for kind in ("draft-mtp", "ngram-mod"))
    )


def with_draft_type(params: Params, companions: Companions) -> Params:
    """Return `params` with the speculative type that llama.cpp infers from the draft's file
    (common_speculative_types_from_gguf)."""
    draft = companions.draft
    # a given --spec-type is the user's own choice
    if draft is None or any(name != "none" for name in params.spec_type):
        return params
    if draft.row.draft_type:
        spec_type = "draft-dspark" if "markov_w1.weight" in draft.tensors else draft.row.draft_type
    # an MTP head that was saved as a model of its own
    elif f"blk.{draft.hparams.n_layer_all - 1}.nextn.eh_proj.weight" in draft.tensors:
        spec_type = "draft-mtp"
    else:
        return params
    return replace(params, spec_type=(spec_type,))


def layer_inputs(model: Model, companions: Companions) -> tuple[int, ...]:
    """Return the layers of `model` whose inputs an EAGLE-3 or DFlash draft reads: llama.cpp keeps
    them through the graph."""
    draft = companions.draft
    if draft is None or not draft.row.reads_target:
        return ()
    # the draft's file names layers of its target, and may be made for a deeper one
    return tuple(il for il in draft.hparams.target_layers if 0 <= il < model.hparams.n_layer)


def refuse_unfit(model: Model, companions: Companions) -> None:
    """Raise ModelError for a model or a draft whose tensors llama.cpp does not load, LaunchRefused
    for a file that was made for another model."""
    # llama.cpp loads the target first, then its draft: so are the refusals
    for each in (model, companions.draft):
        if each is not None and each.refusal:
            raise ModelError(f"{each.path}: {each.refusal}")
    # Refuse a projector whose embeddings are not as wide as the model's (mtmd_context).
    header = companions.mmproj
    projected, n_embd = width(header) if header else 0, model.hparams.n_embd_inp
    if header and projected and projected != n_embd:
        raise LaunchRefused(
            f"--mmproj {header.files[0].path}: mismatch between text model (n_embd = {n_embd}) and "
            f"mmproj (n_embd = {projected}): it is for another model"
        )
    # Refuse an adapter whose pairs do not fit the model's weights (llama_adapter_lora_init_impl).
    for header in companions.loras:
        path = header.files[0].path
        for name, a in header.tensors.items():
            base = name.removesuffix(".lora_a")
            b, weight = header.tensors.get(base + ".lora_b"), model.tensors.get(base)
            if base == name or b is None:
                continue
            if weight is None:
                raise LaunchRefused(
                    f"--lora {path}: the model has no {base}: it is for another model"
                )
            # of the embeddings A and B change places
            fits = (b.ne[1], a.ne[1]) if base.endswith("token_embd.weight") else (a.ne[0], b.ne[1])
            if fits != tuple(weight.ne[:2]):
                raise LaunchRefused(
                    f"--lora {path}: {base} is {fits[0]} x {fits[1]}, the model's "
                    f"{weight.ne[0]} x {weight.ne[1]}: it is for another model"
                )
