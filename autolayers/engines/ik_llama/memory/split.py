"""Where ik_llama.cpp puts layers: llm_load_tensors and get_layer_sizes (src/llama.cpp),
create_tensors_helper (src/llama-load-tensors.cpp), 8337e4cd.

    layout = split(model, params, devices, settings)
    layout.layers[3], layout.layers[-1]   # "CUDA0", "CPU": the output layer last
    layout.overrides                      # of -ncmoe and --fit, as -ot would say them
"""

from __future__ import annotations

from ....backends import HOST
from ....errors import LaunchRefused
from ....flags.params import N_BATCH, N_UBATCH, Params
from ....gguf import row_size
from ....memory.split import float32
from ....records import dataclass, replace
from ....units import MiB
from ..architectures import split_of
from .cache import derived_type, estimated, is_latent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....machine import Device
    from ....model import Model
    from .. import Said

    Overrides = tuple[tuple[str, str], ...]

_EXPERTS = ("ffn_up_exps", "ffn_gate_exps", "ffn_down_exps", "ffn_gate_up_exps")
_SHARED = ("ffn_up_shexp", "ffn_gate_shexp", "ffn_down_shexp")
_DENSE = ("ffn_up", "ffn_gate", "ffn_down")
_NORMS = frozenset(
    (
        "attn_norm",
        "attn_norm_2",
        "attn_output_norm",
        "post_attention_norm",
        "ffn_norm",
        "post_ffw_norm",
        "layer_output_norm",
    )
)
_UNCOUNTED = frozenset(
    (
        "output_norm.weight",
        "rope_freqs.weight",
        "mtp_pre_proj.weight",
        "mtp_post_proj.weight",
        "mtp_centroids.weight",
        "mtp_token_ordering.weight",
        "nextn.post_projection.weight",
        "nextn.pre_projection.weight",
    )
)
_OF_OUTPUT = (
    "per_layer_token_embd.weight",
    "per_layer_model_proj.weight",
    "per_layer_proj_norm.weight",
)


@dataclass(frozen=True)
class Split:
    """The device of each layer, the output last; patterns of tensors that go to RAM; the shares,
    cumulated, of the devices; whether layers are cut (-sm graph, attn)."""

    layers: tuple[str, ...]
    overrides: Overrides
    shares: tuple[float, ...]
    mode: str
    defaults: tuple[int, ...]  # default_layer_device: for layers in RAM too


@dataclass(frozen=True)
class Sizes:
    """Bytes of each layer with its cache, the output last, of the largest layer's compute, and of
    its experts."""

    layers: list[float]
    compute: float
    experts: list[list[int]]


def _micro_batch(params: Params) -> int:
    """Return n_ubatch, with n_batch at most a context that is given (get_batch_ubatch)."""
    batch = params.n_batch or N_BATCH
    if params.n_ctx:
        batch = min(batch, params.n_ctx)
    return min(batch, params.n_ubatch or N_UBATCH)


def _layer_sizes(model: Model, params: Params, settings: Said, mla: int) -> Sizes:
    """Mirror get_layer_sizes; its max_ctx_size is the context as typed."""
    hp, n = model.hparams, model.hparams.n_layer_all
    u, n_ctx = _micro_batch(params), params.n_ctx or hp.n_ctx_train
    result, compute = [0.0] * (n + 1), [0.0] * n
    parts = [[0, 0, 0] for _ in range(n)]  # experts, shared, dense
    normed = [False] * n
    experts: list[list[int]] = [[] for _ in range(n)]
    embedding = output = misc = 0
    for name, info in model.tensors.items():
        if name == "token_embd.weight":
            embedding = info.n_bytes
        elif name == "output.weight" or name.startswith(("output_hc_", "hc_head_")):
            output += info.n_bytes
        elif name in _OF_OUTPUT:
            misc += info.n_bytes
        elif name.startswith("blk.") and name not in _UNCOUNTED:
            block, _, rest = name.removeprefix("blk.").partition(".")
            il = int(block) if block.isdigit() else n
            if il >= n or il >= hp.n_layer:  # MTP blocks are not loaded
                continue
            result[il] += info.n_bytes
            base, _, suffix = rest.rpartition(".")
            # counted above in bytes, not in what a layer computes
            if suffix in ("bias", "scale"):
                continue
            if base in _EXPERTS:
                parts[il][0] += info.ne[1] * u * hp.n_expert_used(il) * 4
                experts[il].append(info.n_bytes)
            elif base in _SHARED:
                parts[il][1] += info.ne[1] * u * 4
            elif base in _DENSE:
                parts[il][2] += info.ne[1] * u * 4
            normed[il] = normed[il] or base in _NORMS
    for il in range(n):
        # inner rows of the largest network, and the input, twice where it is normed
        compute[il] = max(parts[il]) + hp.n_embd * u * 4 * (1 + normed[il])
        if is_latent(model):
            more, cached = _latent(model, il, settings, mla, n_ctx)
            result[il] += more
            compute[il] = max(compute[il], cached)
    result[n] = (output or embedding) + misc
    largest = max(compute, default=0.0)
    for il in range(n):
        result[il] += estimated(model, params, settings, mla, il, n_ctx)
    rows = settings.logit_rows or u
    # logits only as far as they exceed the compute buffer that every device has anyway
    result[n] += int(max(hp.n_vocab * rows * 4, largest) - largest)
    return Sizes(result, largest, experts)


def _latent(model: Model, il: int, settings: Said, mla: int, n_ctx: int) -> tuple[float, float]:
    """Return (bytes of weights that are derived, twice; of keys and values made of the cache) of
    one layer."""
    names = {part: model.tensors.get(f"blk.{il}.attn_{part}_b.weight") for part in ("k", "v", "kv")}
    k, v, kv = names["k"], names["v"], names["kv"]
    more = 0.0
    if k and v and not kv:
        # attn_kv_b twice, as get_layer_sizes counts it
        more = row_size(derived_type(k.type), v.ne[0]) * (v.ne[1] + k.ne[1]) * v.ne[2] * 2
    elif kv:
        more = (0 if k else kv.n_bytes // 2) + (0 if v else kv.n_bytes // 2)
    if mla != 3 or not v:
        return more, 0.0
    heads, taken = v.ne[2], v.ne[2]
    whole = 2 * v.ne[1] * v.ne[2] * n_ctx * 4 / MiB
    if 0 < settings.attention_mib < whole:
        taken = next(
            (
                heads // steps
                for steps in range(2, heads)
                if heads % steps == 0 and whole / steps <= settings.attention_mib
            ),
            1,
        )
    return more, 2.0 * v.ne[1] * taken * n_ctx * 4


def latent_form(model: Model, params: Params, settings: Said) -> int:
    """Return -mla as llm_load_tensors changes it for some layers on GPUs, and llama_kv_cache_init
    for layers that are cut, without attn_kv_b."""
    wanted = params.layers_wanted(1 << 20)
    if is_latent(model) and 0 < wanted < model.hparams.n_layer_all:
        return 3
    whole = "blk.0.attn_k_b.weight" in model.tensors and not settings.mla
    return (
        1 if whole and settings.split == "graph" and is_latent(model) and wanted else settings.mla
    )


def cuts(model: Model) -> bool:
    """Whether -sm graph splits its layers; not with an embedding for each layer
    (unsupported_gemma_split)."""
    return bool(split_of(model.architecture)) and not model.hparams.n_embd_per_layer


def split(model: Model, params: Params, devices: Sequence[Device], settings: Said) -> Split:
    """Return where each layer goes. Raises LaunchRefused where it does not load."""
    n = model.hparams.n_layer_all
    wanted = 999 if settings.fit else params.layers_wanted(1 << 20)
    mode = settings.split or params.split_mode or "layer"
    if mode in ("graph", "attn") and not cuts(model):
        mode = "layer"
    if mode in ("graph", "attn") and len(devices) < 2:
        raise LaunchRefused("It is not possible to use split mode 'graph' with less than 2 devices")
    if settings.fit and params.overrides and devices:
        raise LaunchRefused("Manual tensor overrides cannot be used with --fit")
    if not devices or not wanted:
        return Split((HOST,) * (n + 1), (), (), "layer", (0,) * (n + 1))
    # the last layers go to GPUs, and with -sm layer the output only with all of them
    start = max(0, n - wanted)
    sizes = _layer_sizes(model, params, settings, latent_form(model, params, settings))
    memory = _free(devices, settings)
    shares = _shares(params, memory)
    last = n + 1 if wanted > n else n
    default = _by_bytes(sizes, shares, start, last, len(devices), n)
    # a device whose memory is below the compute buffer counts nothing
    available = sum(int(free - sizes.compute) for free in memory if free > sizes.compute)
    overrides: Overrides = ()
    if settings.fit and sum(map(int, sizes.layers)) > available:
        default, overrides, start = _fit(sizes, default, memory, mode, available, n)
    elif settings.moe_layers:
        # the overrides of -ncmoe (create_tensors_helper's constructor): the experts of the last
        # layers that have some, or of each device's
        wanted_layers = _moved(model, settings.moe_layers, default, len(devices), mode)
        scales = _from_the_end(model, settings.moe_layers, len(devices), mode)
        overrides = tuple([_pattern(il, scales) for il in wanted_layers])
    layers = [HOST if il < start else devices[default[il]].name for il in range(n)]
    # create_tensors: with any other mode the output is on a GPU as soon as a layer is
    on_gpu = wanted > n or mode != "layer"
    where = default[n] if wanted > n else default[n - 1]
    layers.append(devices[max(0, where)].name if on_gpu else HOST)
    return Split(tuple(layers), overrides, tuple(shares), mode, tuple(default))


def free_mib(devices: Sequence[Device], settings: Said) -> list[int]:
    """Return the MiB of each device that its default split goes by."""
    return [free // MiB for free in _free(devices, settings)]


def mib_of(model: Model, params: Params, settings: Said, counts: Sequence[int]) -> list[int]:
    """Return the MiB of these counts of layers in their order, the last device with the rest: what
    -ts needs for them."""
    n = model.hparams.n_layer_all
    wanted = params.layers_wanted(1 << 20)
    at, last = max(0, n - wanted), n + 1 if wanted > n else n
    sizes = _layer_sizes(model, params, settings, latent_form(model, params, settings))
    sizes_mib = []
    for i, count in enumerate(counts):
        end = min(last, at + count) if i + 1 < len(counts) else last
        sizes_mib.append(round((sizes.compute + sum(sizes.layers[at:end])) / MiB))
        at = end
    return sizes_mib


def _free(devices: Sequence[Device], settings: Said) -> list[int]:
    margins = dict(settings.margins)
    return [
        max(0, device.free - margins.get(i, settings.fit_margin) * MiB)
        for i, device in enumerate(devices)
    ]


def _shares(params: Params, memory: Sequence[int]) -> list[float]:
    """Return each device's part of all bytes, cumulated, in float32."""
    if len(memory) < 2:
        return [1.0]
    given = list((params.tensor_split or ())[: len(memory)])
    given += [0.0] * (len(memory) - len(given))
    # float32 as there: the sums decide at which layer a device ends
    cumulated, total = [], 0.0
    for part in given if any(given) else memory:
        total = float32(total + float32(float(part)))
        cumulated.append(total)
    if not total:
        return [float("nan")] * len(memory)  # as there; all layers go to the last device
    return [float32(part / total) for part in cumulated]


def _by_bytes(
    sizes: Sizes, shares: Sequence[float], start: int, last: int, count: int, n: int
) -> list[int]:
    """Return default_layer_device: layers in order, each device until its part of all bytes is
    full."""
    devices = [count - 1] * (n + 1)
    if count < 2:
        return devices
    total = sizes.compute * count
    for il in range(start, last):
        total += sizes.layers[il]
    loaded, il = 0.0, start
    for device, share in enumerate(shares):
        loaded = float32(loaded + sizes.compute)
        limit = float32(share * total)
        while il < last:
            with_it = loaded + sizes.layers[il]
            # the layer that crosses the limit is taken if it exceeds it by less than
            # it would leave free
            fits = with_it <= limit
            if not fits and not with_it - limit < limit - loaded:
                break
            devices[il] = device
            loaded = float32(with_it)
            il += 1
            if not fits:
                break
    return devices


def _fit(
    sizes: Sizes, default: list[int], memory: list[int], mode: str, available: int, n: int
) -> tuple[list[int], Overrides, int]:
    """Return (default_layer_device, experts in RAM, the first layer on a GPU) of --fit, where not
    all fits."""
    if not any(sizes.experts):
        # place whole layers, from the output down, onto the devices from the last one up
        room, default, device, il = list(memory), [0] * (n + 1), len(memory) - 1, n
        while il >= 0:
            if room[device] >= sizes.layers[il]:
                room[device] -= int(sizes.layers[il])
                default[il] = device
                il -= 1
                continue
            device -= 1
            if device < 0:
                break
        return default, (), il + 1
    moved: list[int] = []
    if mode in ("graph", "attn"):
        # from the first layer on, until all devices together have room
        taken = sum(map(int, sizes.layers))
        for il in range(n):
            taken -= sum(sizes.experts[il])
            moved += [il] * bool(sizes.experts[il])
            if taken <= available - sizes.compute:
                break
        if taken > available or memory[default[n]] <= sizes.layers[n]:
            raise LaunchRefused("Unable to auto-fit model")
        return default, tuple(map(_pattern, moved)), 0
    # each device from its last layer down, against its own memory
    for device, free in enumerate(memory):
        mine = [il for il in range(n + 1) if default[il] == device]
        left = int(sum(sizes.layers[il] for il in mine))
        for il in reversed([il for il in mine if il < n]):
            if left <= free:
                break
            left -= sum(sizes.experts[il])
            moved += [il] * bool(sizes.experts[il])
        if left > free:
            raise LaunchRefused("Unable to auto-fit model")
    return default, tuple(map(_pattern, moved)), 0


def _pattern(il: int, scales: bool = True) -> tuple[str, str]:
    ends = r"(weight|scale)" if scales else "weight"
    return rf"blk\.{il}\.ffn_(up|down|gate|gate_up)_exps\.{ends}", HOST


def in_ram(
    model: Model, params: Params, devices: Sequence[Device], settings: Said, count: int
) -> tuple[int, ...]:
    """Return the layers whose experts -ncmoe `count` keeps in RAM, in its order."""
    layout = split(model, params, devices, replace(settings, moe_layers=0, fit=False))
    return tuple(_moved(model, count, layout.defaults, len(devices), layout.mode))


def _from_the_end(model: Model, wanted: int, count: int, mode: str) -> bool:
    return mode in ("graph", "attn") or wanted >= model.hparams.n_layer_all or count < 2


def _moved(model: Model, wanted: int, default: Sequence[int], count: int, mode: str) -> list[int]:
    """Return the layers whose experts -ncmoe `wanted` moves to RAM, in its order."""
    n = model.hparams.n_layer_all
    if _from_the_end(model, wanted, count, mode):
        layers = [
            il
            for il in reversed(range(model.hparams.n_layer))
            if f"blk.{il}.ffn_down_exps.weight" in model.tensors
        ]
        return layers[:wanted]
    if mode != "layer":
        return []
    # shared out in proportion to each device's layers, rounded, then corrected one by one
    counts = [list(default[:n]).count(device) for device in range(count)]
    # Round a number that is not negative, as roundf does.
    taken = [int(float32(float32(mine / n) * wanted) + 0.5) for mine in counts]
    wants = [float32(float32(mine * wanted) / n) for mine in counts]
    while sum(taken) > wanted:
        errors = [(taken[i] - 1 - wants[i], -i) for i in range(count) if taken[i]]
        taken[-max(errors)[1]] -= 1
    while sum(taken) < wanted:
        errors = [(taken[i] + 1 - wants[i], i) for i in range(count) if taken[i] < counts[i]]
        if not errors:
            break
        taken[min(errors)[1]] += 1
    moved = []
    # a layer without experts uses up one of its device's, too
    for il in reversed(range(n)):
        if taken[default[il]] > 0:
            taken[default[il]] -= 1
            moved.append(il)
    return moved
