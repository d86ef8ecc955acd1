"""What a launch holds in addition to the model: projectors, drafts, adapters. llama.cpp's memory
breakdown does not include it.

    found, warnings = extras_of(loaded, devices, companions)

Mirrors, as modelled: tools/mtmd/clip.cpp (mmproj), common/speculative.cpp and
tools/server/server-context.cpp (drafts), src/llama-adapter.cpp (LoRA, control vectors).
"""

from __future__ import annotations

from ..backends import CPU, HOST, REPACK, Backend, on
from ..backends.backend import FLASH_ATTN_HEADS
from ..errors import LaunchRefused
from ..gguf import Header
from ..model import Model
from ..model.projectors import kind_of, kinds, width
from ..records import replace
from ..units import MiB
from .breakdown import Extra
from .cache import allocate
from .context import Context, drafted, resolve, speculates
from .graphs.compute import measure
from .graphs.laid_out import GraphCache
from .loaded import Loaded
from .saved import State, state_of
from .weights import Placement, place_weights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..flags.params import Params
    from ..ggml.tensor import Ne
    from ..machine import Device
    from .companions import Companions
    from .meter import Meter

_NGRAM_MOD = 16 * MiB  # 4 Mi entries of 4 bytes
_SMALLEST = 256  # the least bytes of a tensor, with the padding around it

# 30 seconds at 100 frames a second, the window of Whisper's encoders
_WARMUP_FRAMES = 3000  # audio


def extras_of(
    loaded: Loaded,
    devices: Sequence[Device],
    companions: Companions,
    measuring: bool = False,
    states: list[State] | None = None,
    meter: Meter | None = None,
) -> tuple[tuple[Extra, ...], tuple[str, ...]]:
    """Return everything that was asked for in addition to the model, and warnings about what is not
    exact.

    `measuring`: as llama.cpp's measuring says. A draft's State is added to `states`, what its graph
    costs to `meter`.
    """
    params, placement = loaded.params, loaded.placement
    extras: list[Extra] = []
    warnings: list[str] = []
    if companions.mmproj is not None:
        extras += projector(companions.mmproj, params, devices, warnings)
    # without a type llama-server loads -md and uses it for nothing; older ones drafted with it
    untyped = loaded.context.rules.names_draft_type and all(
        name == "none" for name in params.spec_type
    )
    if companions.draft is not None and untyped:
        warnings.append("the draft model is loaded and not used, as no --spec-type says so")
    if companions.draft is not None or "draft-mtp" in params.spec_type:
        extras += _draft(loaded, devices, companions.draft, warnings, measuring, states, meter)
    if "ngram-mod" in params.spec_type:
        extras.append(Extra("n-gram table", "Host", _NGRAM_MOD, True))
    for header in companions.loras:
        extras += _lora(header, loaded.model, placement)
    if params.control_vector:
        # Mirror llama_adapter_cvec::init: one f32 vector per layer from the second on, for all
        # layers whatever the requested range.
        hp = loaded.model.hparams
        buffers: dict[str, int] = {}
        # layer 0 has none
        for il in range(1, hp.n_layer):
            row = "f32", (hp.n_embd, 1, 1, 1), 4 * hp.n_embd
            _add(buffers, placement.dev_layer[il], placement, *row)
        control_vector = [
            Extra("control vector", device, size, True)
            for device, size in _summed(buffers, placement).items()
        ]
        extras += control_vector
    return tuple(extras), tuple(warnings)


# projectors


def projector(
    header: Header, params: Params, devices: Sequence[Device], warnings: list[str]
) -> list[Extra]:
    """Mirror clip_init: one context per modality, each with its own copy of what it needs, on one
    device."""
    device = _projector_device(params, devices)
    row = on(device) if device else CPU
    name = device.name if device else "Host"
    vision = header.metadata.get("clip.has_vision_encoder", True) is not False
    audio = header.metadata.get("clip.has_audio_encoder", False) is True
    kind = kind_of(header)
    exact = kind == "gemma3" and row.proven
    # the bytes of a projector's weights; each of `two_contexts` has a copy of the weights that
    # belong to no modality
    two_contexts = vision and audio
    # names of the image's prefix that both contexts look up
    shared = ("v.class_embd", "v.patch_embd", "v.norm_embd")
    weights = 0
    for info in header.tensors.values():
        in_both = not info.name.startswith(("v.", "a.")) or info.name.startswith(shared)
        copies = 2 if two_contexts and in_both else 1
        weights += copies * row.padded(info.type, info.ne, info.n_bytes)
    extras = [Extra("mmproj weights", name, weights, exact)]
    # warm-up reserves the graph of one image; without it the first image does
    if params.warmup is not False:
        flash = params.flash_attn != "off"
        # the CPU takes flash attention with heads of any size
        taken = flash and (device is None or _takes_flash(header, row))
        images = _vision_graph(header, kind, taken) if vision else 0
        sounds = _audio_graph(header) if audio else 0
        extras.append(Extra("mmproj compute", name, images + sounds, False))
        if device is not None and vision:
            # the image, and where its patches are; and attention, until the device has declined it
            host = _inputs(header, kind)
            host += 3 * patches_of(header, kind) * _width(header) * 4 if flash and not taken else 0
            extras.append(Extra("mmproj compute", "Host", host, False))
    warnings.append(
        f"mmproj ({kind or 'unknown projector'}): compute is an upper bound for the warm-up image"
        + ("" if exact else ", weights for all tensors in its file")
    )
    return extras


def _projector_device(params: Params, devices: Sequence[Device]) -> Device | None:
    # --no-mmproj-offload, --device none
    if params.mmproj_offload is False or params.device == () or params.mmproj_device == "none":
        return None
    named = params.mmproj_device or (params.device[0] if params.device else None)
    if named is not None:
        for device in devices:
            if device.name == named:
                return device
        raise LaunchRefused(f"mmproj device {named} is not there")
    # a discrete GPU goes before one that shares the system's memory
    discrete = [device for device in devices if device.kind != "igpu"]
    return next(iter(discrete or devices), None)


def _number(header: Header, key: str, default: int) -> int:
    # a header may say anything: a size out of range becomes the usual one
    value = header.metadata.get(key)
    return value if isinstance(value, int) and 0 < value < 1 << 20 else default


def _said(kind: str, column: str) -> str:
    """Return what projectors.tsv says of a kind, "" for nothing."""
    return kinds().get(kind, {}).get(column, "")


def patches_of(header: Header, kind: str) -> int:
    """Return the number of patches of the warm-up image."""
    patch = _number(header, "clip.vision.patch_size", 14)
    side = _number(header, "clip.vision.image_size", 1024)
    tokens = _said(kind, "tokens")
    if tokens:
        # a token is merge x merge patches
        merge = _number(
            header, "clip.vision.spatial_merge_size", 3 if kind.startswith("gemma4") else 2
        )
        return int(tokens) * merge * merge
    # DeepSeek-OCR's warm-up image has sides of 1024, whatever its file says
    side = 1024 if kind.startswith("deepseekocr") else side
    return (side // patch) ** 2 + 1


def _width(header: Header) -> int:
    return _number(header, "clip.vision.embedding_length", 1664)


def _heads(header: Header) -> int:
    return _number(header, "clip.vision.attention.head_count", 16)


def _takes_flash(header: Header, row: Backend) -> bool:
    """Return whether a device is known to have a kernel for flash attention of these heads."""
    local = row.modelled and not row.remote
    return local and _width(header) // _heads(header) in FLASH_ATTN_HEADS


def _vision_graph(header: Header, kind: str, flash: bool) -> int:
    """Return an upper bound of what a transformer over the warm-up image's patches keeps at once,
    in f32."""
    n = patches_of(header, kind)
    n_embd, heads = _width(header), _heads(header)
    n_ff = _number(header, "clip.vision.feed_forward_length", 4 * n_embd)
    image = _inputs(header, kind)
    mask = 0 if _said(kind, "mask") == "no" else n * n * 6
    if not _said(kind, "compared"):
        attention = mask if flash else n * n * heads * 8
        return n * (2 * n_ff + 8 * n_embd) * 4 + attention + 3 * image
    if "v.blk.0.ffn_gate.weight" in header.tensors:
        n_ff *= 2
    # the features of some layers are kept until the end, beside the last ones (Qwen3-VL)
    merge = _number(header, "clip.vision.spatial_merge_size", 2)
    deep = any(name.startswith("v.deepstack.") for name in header.tensors)
    kept = n // merge**2 * width(header) * 4 if deep else 0
    # its projection is transposed before anything else, and once more in the way of the rest
    kept += 2 * n_embd * width(header) * 4 if kind == "gemma3" else 0
    layers = n * (max(n_ff, 3 * n_embd) + 3 * n_embd) * 4
    # the scores of one layer, and what they are made of
    if not flash:
        layers = max(layers, n * n * heads * 4 + n * 8 * n_embd * 4)
    layers += mask + kept
    # before the layers: the image, its patches as rows, and two of their embeddings
    return max(layers, 2 * image + 2 * n * n_embd * 4)


def _inputs(header: Header, kind: str) -> int:
    """Return the bytes of the warm-up image, of its patches' places and of a mask between them."""
    patch, n = _number(header, "clip.vision.patch_size", 14), patches_of(header, kind)
    return n * patch * patch * 3 * 4 + n * 4 * 4 + (0 if _said(kind, "mask") == "no" else n * n * 4)


def _audio_graph(header: Header) -> int:
    # the encoder halves the frames by a convolution of stride 2
    n = _WARMUP_FRAMES
    n_embd = _number(header, "clip.audio.embedding_length", 1280)
    n_ff = _number(header, "clip.audio.feed_forward_length", 4 * n_embd)
    heads = _number(header, "clip.audio.attention.head_count", 20)
    mel = _number(header, "clip.audio.num_mel_bins", 128)
    return n * (2 * n_ff + 8 * n_embd) * 4 + (n // 2) ** 2 * heads * 8 + n * (mel + n_embd) * 3 * 4


# drafts


def _draft(
    loaded: Loaded,
    devices: Sequence[Device],
    draft: Model | None,
    warnings: list[str],
    measuring: bool,
    states: list[State] | None,
    meter: Meter | None,
) -> list[Extra]:
    """Mirror common_speculative_init_result: a separate model, or a second context on the
    target's MTP blocks. Its caches are f16 unless -ctkd and -ctvd say otherwise, whatever the
    target's are."""
    model, params, context = loaded.model, loaded.params, loaded.context
    extras: list[Extra] = []
    mtp = "draft-mtp" in params.spec_type
    label = "MTP" if draft is None else "draft"
    theirs = _params_of_draft(params, context, draft)
    whose = draft or model
    their_context = resolve(whose, theirs, context.rules, kind="mtp" if mtp else "default")
    rows, sampled = _draft_rows(params, draft)
    their_context = replace(
        their_context,
        n_rs_seq=0,
        n_outputs_max=context.n_seq_max * rows,
        n_sampled=sampled,
        backend_sampling=False,
    )
    their_placement = loaded.placement
    if draft is not None:
        their_placement = replace(
            place_weights(draft, theirs, devices, mtp, context.rules), target=loaded.placement
        )
    # Gemma's assistant reads the target's cache
    target = None if draft is None else (model.hparams, context, loaded.memory)
    their_memory = allocate(whose, their_context, their_placement, target)
    # a draft that borrows the target's cache saves nothing of its own
    if states is not None and their_memory.owner is None:
        states.append(state_of(whose.hparams, their_context, their_memory))
    # a cache apart: its graphs are another model's
    measured = measure(
        Loaded(whose, theirs, their_context, their_placement, their_memory),
        GraphCache(meter=meter),
        measuring=measuring,
    )
    # of the rules that were read so far
    doubt = context.rules.warning_for(whose.row, bool(their_placement.devices))
    exact = not doubt and not whose.inexact
    if draft is not None:
        extras += [
            Extra("draft model weights", device, size, exact and their_placement.exact)
            for device, size in _summed(their_placement.buffers, their_placement).items()
        ]
        warnings += [*draft.inexact, *([doubt] if doubt else [])]
    extras += [
        Extra(f"{label} context", device, size, exact)
        for device, size in _summed(their_memory.buffers, their_placement).items()
    ]
    extras += _outputs_of_draft(label, model, whose, params, context, their_context, sampled, exact)
    names = [*(device.name for device in their_placement.devices), "Host"]
    # the bytes that parts of a draft's graph which are not modelled may take. Vocabularies mapped
    # to the target's (d2t) and Markov heads omit up to one small tensor per row.
    omits = {"d2t", "markov_w1.weight"} & whose.tensors.keys()
    unsure = their_context.n_outputs_max * _SMALLEST if omits else 0
    extras += [
        Extra(f"{label} compute", name, size + unsure, exact and not (unsure or measured.warning))
        for name, size in zip(names, measured.sizes, strict=True)
        if size
    ]
    encoded = _features(model, whose) * their_context.n_ubatch * 4 - measured.sizes[-1]
    if encoded > 0:
        extras.append(Extra(f"{label} encoder", "Host", encoded, False, upper_limit=True))
    if measured.warning:
        warnings.append(f"{label}: {measured.warning}")
    return extras


def _features(model: Model, whose: Model) -> int:
    """Return the floats of the target's layers that a draft reads for each token."""
    return len(whose.hparams.target_layers) * model.hparams.n_embd if whose.row.reads_target else 0


def _outputs_of_draft(
    label: str,
    model: Model,
    whose: Model,
    params: Params,
    context: Context,
    theirs: Context,
    sampled: int,
    exact: bool,
) -> list[Extra]:
    """Mirror llama_context::output_reserve in both contexts of common_speculative: what they have
    at the start, and to what a long prompt makes them grow (builds 9093 to 11549)."""
    hp = whose.hparams
    n_vocab, n_embd = hp.n_vocab or model.hparams.n_vocab, model.hparams.n_embd
    # all but a plain draft keep the hidden state of an output for the next token
    hidden = hp.n_embd_out if speculates(params, "samples") else 0
    # if its backend samples: logits, probabilities, candidates and the token again
    row = n_vocab * (4 if sampled else 1) + hidden + (1 if sampled else 0)
    start = context.n_seq_max * row
    rows = theirs.n_outputs_max
    # EAGLE-3's encoder has a micro-batch of the prompt at once, and each of its rows is an output
    if "draft-eagle3" in params.spec_type:
        rows = max(rows, theirs.n_ubatch)
    more = (rows - context.n_seq_max) * row
    # a selector reads the state of every token
    more += hp.n_embd_out * theirs.n_batch if "selector_hidden.weight" in whose.tensors else 0
    # what a draft reads of its target is kept for each token of a batch: its layers' inputs, and
    # the last state for MTP blocks
    features = _features(model, whose)
    read = features or (n_embd if "draft-mtp" in params.spec_type else 0)
    # gathered, encoded, and kept until the draft is verified
    copies = features + 2 * hp.n_embd if features else read
    sizes = (
        (f"{label} output buffer", start, False),
        (f"{label} more outputs", more, True),
        ("hidden states for the draft", read * context.n_batch, True),
        ("copies of hidden states", copies * context.n_batch, True),
    )
    return [
        Extra(name, "Host", n * 4, exact and not grows, upper_limit=grows)
        for name, n, grows in sizes
        if n
    ]


def _draft_rows(params: Params, draft: Model | None) -> tuple[int, int]:
    """Return the output rows per sequence of a draft's batch, and how many its backend samples."""
    rows = 1
    # block drafts (DFlash) have all tokens of a draft in one batch
    if speculates(params, "at_once"):
        rows += drafted(params)
    # a selector chooses on the CPU
    selects = draft is not None and "selector_hidden.weight" in draft.tensors
    samples = speculates(params, "samples") and not selects
    return rows, rows if samples else 0


def _params_of_draft(params: Params, context: Context, draft: Model | None) -> Params:
    """Return the flags of a draft's context: cells, slots and sharing are the target's."""
    theirs = replace(
        params,
        n_ctx=context.n_ctx,
        n_parallel=context.n_seq_max,
        kv_unified=context.kv_unified,
        embedding=False,
        reranking=False,
        pooling=None,
        cache_type_k=params.cache_type_k_draft,
        cache_type_v=params.cache_type_v_draft,
        kv_unified_per_slot=None,
        model_draft=None,
    )
    if draft is None:
        return theirs
    alone = params.device_draft is not None and len(params.device_draft) == 1
    return replace(
        theirs,
        n_gpu_layers=params.n_gpu_layers_draft,
        overrides=params.overrides_draft,
        device=params.device if params.device_draft is None else params.device_draft,
        # a draft on one device needs no meta device, whatever the target's -sm is
        split_mode="layer" if alone else params.split_mode,
    )


def _summed(buffers: dict[str, int], placement: Placement) -> dict[str, int]:
    """Return the bytes per device, all host buffers together."""
    # pinned, repacked and plain host buffers are all "Host"
    total: dict[str, int] = {}
    for name, size in buffers.items():
        where = "Host" if placement.is_host(name) else name
        total[where] = total.get(where, 0) + size
    return {name: size for name, size in total.items() if size}


# adapters


def _lora(header: Header, model: Model, placement: Placement) -> list[Extra]:
    """Mirror llama_adapter_lora_init_impl: each pair is in its base tensor's memory; all adapters
    are resident, whatever their scale."""
    buffers: dict[str, int] = {}
    for info in header.tensors.values():
        # "blk.0.attn_q.weight.lora_a" -> "blk.0.attn_q.weight", "lora_a"
        base, dot, part = info.name.rpartition(".")
        if not dot or part not in ("lora_a", "lora_b"):
            continue
        # llama_adapter_lora_init_impl loads no adapter into a repacked buffer
        target = placement.lookup(base)
        beside = HOST if target is None or target.buffer == REPACK else target.buffer
        _add(buffers, beside, placement, info.type, info.ne, info.n_bytes)
    exact = placement.exact and not model.inexact
    return [
        Extra("LoRA", device, size, exact) for device, size in _summed(buffers, placement).items()
    ]


def _add(
    buffers: dict[str, int],
    buffer: str,
    placement: Placement,
    type_: str,
    ne: Ne,
    n_bytes: int,
) -> None:
    """Add an adapter's tensor: with -sm tensor every device has a copy."""
    in_ram = placement.is_host(buffer)
    copies = placement.slices and not in_ram
    for where in [device.name for device in placement.devices] if copies else [buffer]:
        backend = CPU if in_ram else on(placement.device(where))
        buffers[where] = buffers.get(where, 0) + backend.padded(type_, ne, n_bytes)
