"""What to say about a launch that was solved: its warnings, and what would raise a limit."""

from __future__ import annotations

from ..backends import METAL, on
from ..flags.params import EXPERTS_REGEX, FFN_REGEX, Params
from ..records import dataclass, replace
from ..units import GiB, MiB, at_least, human
from ..work.expert_cache import loses
from ..work.unfused import may_part
from .embedder import embeds, longest_input
from .evaluate import FULL, RAM_MARGIN, Candidate
from .one.expert_cache import FLAG
from .prices import ENOUGH, low
from .serving import saved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..machine import Device, Machine
    from ..memory.breakdown import Breakdown
    from ..memory.weights import Placement
    from ..work.speed import Answers
    from .plan import HostRow
    from .problem import Problem

_UNQUANTISED = {"f32", "f16", "bf16"}
# types of K and V: the mean KL divergences from an f16 cache that public tables of llama-perplexity
# have, each of one model; the rows of docs/levers.md
MEASURED = {
    ("q4_0", "q4_0"): "0.002 to 0.024, and small models break",
    ("q8_0", "q4_0"): "0.0009",
    ("f16", "q5_1"): "0.0018",
}
LARGE = GiB  # of weights in RAM, from which on their NUMA node matters
WORTH = GiB  # of a raised limit; less changes little


@dataclass(frozen=True)
class Launched:
    """A problem and the launch that solves it, fully measured; `host`: what it takes of the RAM;
    `requests`: what each of several people gets."""

    problem: Problem
    candidate: Candidate
    use: Breakdown
    host: HostRow
    requests: Answers | None = None

    @property
    def params(self) -> Params:
        return self.candidate.params

    @property
    def placement(self) -> Placement:
        return self.problem.evaluator.placement(self.params)


def warnings(seen: Launched) -> Iterator[str]:
    """Yield the lines of all remarks in this order, each once."""
    every = (
        _memory,
        _no_kernel,
        _parted,
        _slow_caches,
        _encodes,
        _caches,
        _in_host_memory,
        _contexts,
        _given,
    )
    yield from dict.fromkeys([line for remarks in every for line in remarks(seen)])


# --- memory


def _memory(seen: Launched) -> Iterator[str]:
    """Yield what the file and the estimate do not know, and memory that is missing."""
    yield from seen.problem.model.header.warnings
    yield from seen.use.warnings
    spare = seen.candidate.ram_spare
    if spare is not None and spare < 0:
        yield (
            f"the launch needs {at_least(seen.host.needed)} of RAM, {at_least(-spare)} more than "
            "is free: it would swap, or read the file again for every token"
        )
    problem = seen.problem
    for name, limit in problem.machine.limits.items():
        margin = sum(size for _, size in seen.candidate.margins.get(name, ()))
        if margin > limit:
            yield (
                f"{name}: the margin alone, {human(margin)}, is more than the {human(limit)} that "
                "are free"
            )
    free = problem.policy.n_ctx == "max" and problem.given.n_gpu_layers is None
    if free and problem.machine.devices and not problem.offloads_all(seen.params):
        speed = problem.cost.price(seen.candidate)
        # Half as long again for a token with a full context is worth a word.
        slow = speed.generation > 1.5 * speed.generation_full
        yield (
            "--ctx max: not everything stays on the GPUs; twice the context may take twice the "
            "time" + f": {speed.generation_full:.2g} tokens/s with a full context" * slow
        )


def _in_host_memory(seen: Launched) -> Iterator[str]:
    """Yield more pinned RAM than Windows and WSL2 let a process pin, and weights on another NUMA
    node."""
    machine = seen.problem.machine
    total = machine.ram_total
    # WDDM is the driver model of Windows, which WSL2 shares.
    if total and any(device.wddm for device in machine.devices):
        size = pinned(seen)
        # the part of the RAM that Windows lets a process pin, and WSL2 of its own
        limit = total // 2
        if size > limit:
            yield (
                f"{human(size)} of RAM would be pinned; Windows and WSL2 pin only about half of "
                f"it, {human(limit)}: loading may fail; without --no-mmap the weights are mapped, "
                "not pinned"
            )
    nodes = machine.host.numa or 1
    if nodes > 1 and seen.params.numa is None and seen.use.host_resident > LARGE:
        yield (
            f"{nodes} NUMA nodes: threads of one read weights in RAM of the other over their link; "
            "--numa distribute spreads both, as does numactl --interleave=all with --numa numactl: "
            "measure which is faster"
        )


def pinned(seen: Launched) -> int:
    """Return the bytes of a launch in pinned host memory: graph buffers, and weights that are not
    mapped."""
    placement = seen.placement
    names = {name for device in placement.devices if (name := on(device).host_buffer)}
    if not names:
        return 0
    # Mapped weights are pages of the file, which are not pinned.
    weights = 0 if placement.mapped else sum(placement.buffers.get(name, 0) for name in names)
    return weights + seen.use.host.compute


# --- where operations run


def _no_kernel(seen: Launched) -> Iterator[str]:
    """Yield operations that their layers' device has no kernel for."""
    if seen.use.steps is None or not seen.use.steps.fall:
        return
    types = "/".join(dict.fromkeys(_cache_types(seen.params)))
    for (device, op), count in seen.problem.cost.fallen(seen.candidate).items():
        layers = f"{count} layer{'s' * (count != 1)}"
        if op == "FLASH_ATTN_EXT":
            yield (
                f"{device} has no flash attention for {types}: attention of {layers} runs on the "
                "CPU"
            )
        else:
            yield (
                f"{device} has no kernel for {op} as this launch needs it: it runs on the CPU in "
                f"{layers}"
            )


def _parted(seen: Launched) -> Iterator[str]:
    """Warn of a delta net that is not one op (work/unfused.py), with what makes prompts faster."""
    if not may_part(seen.problem.model, seen.problem.evaluator.estimator.rules):
        return
    problem, cost = seen.problem, seen.problem.cost
    if not cost.parts(seen.candidate):
        return
    rate, ways = cost.speed(seen.candidate).prompt, []
    # Without op offload weights in RAM are not copied to a GPU either, which may cost more.
    for way, params in (
        ("-np 1", replace(seen.params, n_parallel=1)),
        ("--no-op-offload", replace(seen.params, op_offload=False)),
    ):
        other = problem.evaluator.candidate(params, FULL, last=True)
        if other is not None and cost.speed(other).prompt > rate:
            ways.append(way)
    avoided = f"{' or '.join(ways)} avoids it, as do builds" if ways else "one op does it in builds"
    yield (
        f"llama.cpp b{cost.estimator.rules.number} computes the delta net of several slots in "
        f"single operations where layers are in RAM: prompts about {rate:.3g} tokens/s; "
        f"{avoided} from b10679 on"
    )


def _slow_caches(seen: Launched) -> Iterator[str]:
    """Yield devices without a fast kernel for the cache's types."""
    types = {*_cache_types(seen.params)} - _UNQUANTISED
    if not types or seen.params.kv_offload is False:
        return
    names = "/".join(sorted(types))
    for device in seen.problem.machine.devices:
        if seen.use.devices[device.name].context and on(device).slow_quantised_cache:
            yield (
                f"{device.name} has no fast kernel for a {names} cache: a long one is read at "
                "about a tenth of the bandwidth"
            )


def _caches(seen: Launched) -> Iterator[str]:
    """Yield more users than can be served, and cache types that change answers."""
    if seen.problem.policy.users is not None:
        from .users import too_many

        yield from too_many(seen.requests)
    yield from of_cache_types(seen.params, seen.use.n_ctx_seq)


def of_cache_types(params: Params, n_ctx_seq: int) -> Iterator[str]:
    """Yield how much answers change with a cache below q8_0."""
    types = _cache_types(params)
    flags = zip(("-ctk", "-ctv"), types, strict=True)
    words = " ".join(f"{flag} {name}" for flag, name in flags if low(name))
    if not words:
        return
    measured = MEASURED.get(types)
    if measured is None:
        yield (
            f"{words}: how much such a cache changes the answers is not measured publicly; "
            "q8_0 hardly does"
        )
        return
    deep = " at shorter contexts" if n_ctx_seq > ENOUGH else ""
    yield (
        f"{words} changes the answers (mean KL divergence{deep} {measured}; q8_0: 0.001): use q8_0 "
        "where they matter"
    )


def _cache_types(params: Params) -> tuple[str, str]:
    return params.cache_type_k or "f16", params.cache_type_v or "f16"


# --- what is served


def _encodes(seen: Launched) -> Iterator[str]:
    """Yield what llama-server refuses of a model without a KV cache: completions, and inputs of
    several micro-batches (server_slot::can_split)."""
    model = seen.problem.model
    use = seen.use
    if model.row.memory != "none":
        return
    if not embeds(seen.params):
        yield (
            f"{model.architecture} has no KV cache: llama-server answers embeddings alone, with "
            "--embedding (or --reranking)"
        )
        return
    longest = min(use.n_ctx_seq, longest_input(seen.problem) or use.n_ctx_seq)
    if use.n_ubatch < longest:
        yield (
            f"llama-server refuses inputs of more than {use.n_ubatch} tokens ({longest} with "
            f"-b {longest} -ub {longest})"
        )


def _contexts(seen: Launched) -> Iterator[str]:
    """Yield an expert cache that loses, more context than the model was trained for, less than the
    workload takes, and conversations that are read again."""
    if seen.params.moe_cache_mib and (slower := loses(seen.problem.machine)):
        yield f"{FLAG}: {slower}"
    n_ctx = seen.use.n_ctx_seq
    trained = seen.problem.model.n_ctx_train
    if trained and n_ctx > trained:
        yield f"a slot's context of {n_ctx} is more than the {trained} the model was trained for"
    work = seen.problem.policy.workload
    # A named workload says its context; P+G@D takes the sum.
    wanted = work.context or (0 if work.name else work.depth + work.prompt + work.generate)
    if n_ctx < wanted:
        yield f"a slot's context of {n_ctx} is less than the {wanted} that --workload takes"
    here = saved(seen.params, seen.use, work)
    if here is None or here.count != 0:
        return
    way = f"-cram {-(-here.each // MiB)} keeps one"
    if here.checkpoints > 1:
        way += ", or fewer checkpoints with -ctxcp"
    # The plan's own limit is all that there is
    if seen.problem.given.cache_ram is None and seen.params.cache_ram is not None:
        way = "there is no more RAM for it"
    yield (
        f"of {here.tokens} tokens no conversation fits --cache-ram {(here.limit or 0) // MiB}, and "
        f"one that comes back is read again: {way}"
    )


# --- flags that change nothing


def _given(seen: Launched) -> Iterator[str]:
    given = seen.problem.given
    rules = given.overrides
    if not seen.problem.model.is_moe and any(EXPERTS_REGEX in pattern for pattern, _ in rules):
        yield "the model has no experts: -cmoe and -ncmoe change nothing"
    shares = len(given.tensor_split or ())
    devices = len(seen.problem.machine.devices)
    if shares > devices:
        yield (
            f"-ts has {shares} shares for {devices} device{'s' * (devices != 1)}: the last ones "
            "change nothing"
        )
    names = seen.problem.evaluator.device_names(seen.params)
    left_out = names[shares:] if shares else []
    if left_out:
        yield (
            f"-ts has {shares} share{'s' * (shares != 1)} for {shares + len(left_out)} devices: "
            f"{', '.join(left_out)} get{'s' * (len(left_out) == 1)} nothing"
        )
    # Those of -cmoe, -ncmoe and -ncffn may match fewer layers than given.
    patterns = [
        pattern for pattern, _ in rules if EXPERTS_REGEX not in pattern and FFN_REGEX not in pattern
    ]
    if not patterns:
        return
    # Imported late: a matcher of std::regex is only for given -ot.
    from ..memory.ecmascript import TensorMatcher

    tensors = TensorMatcher([*seen.problem.model.tensors])
    for pattern in patterns:
        if not tensors.find(pattern):
            yield (
                f"-ot {pattern}=...: no tensor of this model has such a name, so it changes nothing"
            )


# --- what raises a limit


def how_to_raise(machine: Machine, candidate: Candidate, movable: int) -> tuple[str, ...]:
    """Return the setting that gives a GPU without memory of its own more of the RAM, and what it
    leaves to the system; none where its limit does not bind, or RAM is short too. `movable`: bytes
    of the launch that are in RAM and could be the GPU's."""
    from ..devices.assumed import kept

    ram = machine.ram
    ram_spare = candidate.ram_spare
    if ram is None or ram_spare is None or ram_spare < 0:
        return ()
    total = machine.ram_total or ram
    # The system keeps a part, and what other programs hold cannot be given away.
    highest = min(total - kept(total), ram - RAM_MARGIN)
    lines = []
    for device in machine.devices:
        spare = candidate.spare.get(device.name, 0)
        limit = min(device.total + ram_spare + movable - max(0, spare), highest)
        # Only where the limit is what binds, and a budget of the user does not.
        binds = spare < WORTH and machine.limits[device.name] == device.total
        setting = _setting(device, limit)
        if setting and binds and limit - device.total >= WORTH:
            lines.append(
                f"{device.name} may use {device.total // MiB} MiB of the RAM: {setting}, and "
                f"leaves {(total - limit) / GiB:.1f} GiB to the system"
            )
    return tuple(lines)


def _setting(device: Device, limit: int) -> str:
    """Return what gives it `limit` bytes; "" where nothing does."""
    if not device.in_ram:
        return ""
    if device.backend == METAL:
        return f"sudo sysctl iogpu.wired_limit_mb={limit // MiB} gives it more"
    from ..devices.ttm import NEWEST, is_amds, parameters

    if not is_amds(device):
        return ""
    here = parameters(device.driver, limit)
    elsewhere = (
        f"Linux: {parameters(NEWEST, limit)}, before 6.15 amdgpu.gttsize={limit // MiB} too; "
        "Windows: more in the firmware"
    )
    return f"a larger GTT gives it more ({f'kernel parameters {here}' if here else elsewhere})"
