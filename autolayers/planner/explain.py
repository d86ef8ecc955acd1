"""Why this plan: what one more step would cost, what each lever would free, and the
alternatives."""

from __future__ import annotations

from ..backends import HOST
from ..flags.params import ALL_LAYERS, Params
from ..flags.write import to_words
from ..memory.context import CELL_BLOCK
from ..memory.extras import patches_of
from ..model.projectors import kind_of
from ..records import replace
from ..units import human
from ..work.drafts import NAMED
from .best_launch import may_lack
from .complete import typed
from .drafts import may_gain
from .evaluate import FIT, FULL, Candidate, Evaluator
from .frames import processor_alone
from .one.expert_cache import FLAG
from .one.ladder import may_split_tensors
from .plan import Alternative, Lever
from .prices import DRAFT, FASTER, FILLED_FASTER, LARGER, PINNED
from .problem import Q8_0
from .search import Search
from .served import price
from .serving import certain
from .solve import solve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..work.speed import Speed
    from .problem import Problem

_EXPERTS = "exps"  # in the patterns of -ncmoe, -cmoe and people's own
_IN_PLACE = "in place of the given -ncmoe, -cmoe or -ot"
_ONE_SLOT = "one request at a time"


def alternative(
    problem: Problem, chosen: Candidate, change: dict[str, object]
) -> Alternative | None:
    """Return the plan with one of `changes`, if it fits and gains speed or context."""
    given = problem.given
    everything = problem.everything
    here = price(problem, chosen)
    if problem.evaluator.exhausted:
        return None
    # A draft needs its own search: the number of tokens is solved too.
    if "spec_type" in change:
        undrafted = problem.drafting_with(None).with_goals(users=None).with_flags(**change)
        if not may_gain(undrafted, chosen):
            return None
        drafted = solve(undrafted.settled(False))
        other, candidate = drafted.problem, drafted.fitting
        if (
            candidate is None
            or other.cost.speed(candidate).generation < here.generation * DRAFT.factor
        ):
            return None
        change = {**change, "draft_n_max": candidate.params.draft_n_max}
    else:
        # The problem with other flags, which a context takes the place of --ctx max in
        other = problem.with_flags(**change)
        other = other.with_goals(n_ctx=None) if _is_less_than_most(problem, change) else other
        other = other.beside(chosen.params, "device" not in change)
        candidate = solve(other).fitting
    if candidate is None:
        return None
    if "overrides" in change:  # what takes the place of given rules
        # -ncmoe 0 with what the search chose instead of the given rules.
        change = {
            name: getattr(candidate.params, name) for name in ("overrides", "n_batch", "n_ubatch")
        }
        given_layers = given.layers_wanted(everything) if given.gives_layers else 0
        # It must take experts out of RAM, and keep the given layers.
        if (
            candidate.breakdown.host.model >= chosen.breakdown.host.model
            or candidate.params.layers_wanted(everything) < given_layers
        ):
            return None
    candidate, flags = typed(other, candidate)
    if not candidate.fits:
        return None
    speed = price(other, candidate, served=problem.policy.users is not None)
    n_ctx = candidate.breakdown.n_ctx
    # Not shown if it gains neither context nor speed.
    # Whether another launch answers much faster with a full context.
    if (
        n_ctx <= chosen.breakdown.n_ctx * LARGER.factor
        and speed.rate <= here.rate * FASTER.factor
        and speed.prompt <= here.prompt * FASTER.factor
        and not (
            _is_less_than_most(problem, change)
            and (speed.generation_full > here.generation_full * FILLED_FASTER.factor)
        )
    ):
        return None
    words = to_words(Params(**change))  # type: ignore[arg-type]
    if _is_less_than_most(problem, change):
        # Beside --ctx max, -c would be refused.
        words = ["--ctx", str(n_ctx)]
    # -ncmoe 0: no experts in RAM, in place of the given ones.
    none = ("-ncmoe", "0") if change.get("overrides") == () else ()
    # What else a change does
    if "mmproj_offload" in change:
        # What an image of the projector's own size takes on the CPU and on the first device: its
        # matrices' arithmetic for each patch, at the rates of prompts.
        header = problem.request.companions.mmproj
        cost = problem.cost
        assert header is not None
        elements = sum(
            # Only matrices compute; vectors and positions cost nothing here.
            info.n_elements
            for info in header.tensors.values()
            if len(info.ne) > 1 and info.ne[1] > 1
        )
        flops = 2.0 * elements * patches_of(header, kind_of(header))
        device = cost.devices[problem.machine.devices[0].name]
        fast = flops / (device.fp16 * device.rates.matmul)
        slow = flops / cost.core_flops
        note = f"an image takes about {slow:.1f} s instead of {fast:.1f}"
    else:
        if "n_parallel" in change:
            note = _ONE_SLOT
        else:
            note = _IN_PLACE if "overrides" in change else _by_text(speed)
    return _alternative(problem, candidate, flags, (*words, *none), speed, note)


def _alternative(
    problem: Problem,
    candidate: Candidate,
    flags: tuple[str, ...],
    change: tuple[str, ...],
    speed: Speed,
    note: str = "",
) -> Alternative:
    """Return a launch as an alternative, which these words make of the plan."""
    params = candidate.params
    return Alternative(
        flags,
        problem.evaluator.described(params),
        params.layers_wanted(problem.everything),
        candidate.breakdown.n_ctx,
        speed,
        note,
        change=change,
    )


def _is_less_than_most(problem: Problem, change: dict[str, object]) -> bool:
    """Return whether a change is a context in place of --ctx max."""
    return problem.policy.n_ctx == "max" and "n_ctx" in change


def _by_text(speed: Speed) -> str:
    """Return the tokens per second of code and of prose, if a draft makes them differ."""
    return (
        ""
        if speed.draft is None
        else ", ".join(f"{text} {rate:.0f} tokens/s" for text, rate in speed.draft.rates)
    )


def with_draft_on_device(asked: Problem, chosen: Candidate) -> Alternative | None:
    """Return the launch with a q8_0 cache that leaves a device room for a draft which is in RAM or
    left out; None if that is not faster. `asked`: the problem with the draft's place open."""
    solution = solve(asked.with_flags(**Q8_0))
    other, cost = solution.fitting, solution.problem.cost
    if other is None or other.params.device_draft == ():
        return None
    speed = cost.price(other)
    if (
        speed.draft is None
        or speed.generation <= asked.cost.price(chosen).generation * DRAFT.factor
    ):
        return None
    words = tuple(to_words(Params(**Q8_0)))  # type: ignore[arg-type]
    return _alternative(
        solution.problem, *typed(solution.problem, other), words, speed, _by_text(speed)
    )


def may_move_draft(asked: Problem, chosen: Candidate) -> bool:
    """Return whether a draft model is in RAM, or left out, though no flag says so, and a smaller
    cache may make room for it."""
    given = asked.given
    placed = given.device_draft is not None or given.n_gpu_layers_draft is not None
    if placed or not asked.may_quantise or not asked.machine.devices:
        return False
    aside = chosen.params.device_draft == () or chosen.params.model_draft is None
    return asked.request.companions.draft is not None and aside


def with_expert_cache(problem: Problem, chosen: Candidate) -> Alternative | None:
    """Return the plan with a cache of experts at an assumed upload rate, if it then gains: the
    machine's own decides."""
    candidate = Search(problem, problem.given).with_cache(chosen)
    if candidate is None or not candidate.fits:
        return None
    speed = price(problem, candidate)
    if speed.rate <= price(problem, chosen).rate * FASTER.factor:
        return None
    words = FLAG, str(candidate.params.moe_cache_mib)
    return _alternative(problem, *typed(problem, candidate), words, speed)


def with_pinned_weights(problem: Problem, chosen: Candidate) -> Alternative | None:
    """Return the launch with its weights in RAM pinned instead of mapped from the file, if prompts
    then are PINNED times faster: the GPU copies pinned memory itself, without the CPU. With the
    experts of 40 layers pinned, a 26k prompt went from 166 to 330 tokens/s on two RTX 3090
    (ggml-org/llama.cpp#28223)."""
    cost = problem.cost
    evaluator = problem.evaluator
    if problem.given.load_mode is not None or not cost.in_ram(chosen):
        return None
    params = replace(chosen.params, load_mode="none")
    candidate = evaluator.candidate(params, FULL)
    if candidate is None or not candidate.fits:
        return None
    speed = price(problem, candidate)
    if speed.prompt < PINNED.factor * cost.price(chosen).prompt:
        return None
    words = tuple(to_words(Params(load_mode="none"), problem.build.knows))
    note = "the weights in RAM are pinned, not mapped"
    return _alternative(problem, *typed(problem, candidate), words, speed, note)


def changes(problem: Problem, chosen: Candidate) -> Iterator[dict[str, object]]:
    """Yield the flags of each alternative, which is planned by itself."""
    given = problem.given
    whole = problem.offloads_all(chosen.params)
    # A q8_0 cache may be tried, and leaves memory to something: at the trained context with all
    # weights on the GPUs it gains nothing.
    longest = chosen.breakdown.n_ctx_seq >= problem.model.n_ctx_train
    gains = not whole or (_context_is_open(problem) and not longest)
    if problem.may_quantise and gains:
        yield Q8_0
    # The given overrides keep experts in RAM and do nothing else.
    every = not given.gives_layers or problem.offloads_all(given)
    experts = [_EXPERTS in pattern and buffer == HOST for pattern, buffer in given.overrides]
    if every and experts and all(experts):
        yield {"overrides": (), "n_gpu_layers": None}
    if given.flash_attn == "off":
        yield {"flash_attn": "on"}
    # -sm tensor needs all weights on the devices.
    if whole and may_split_tensors(problem.evaluator, given):
        yield {"split_mode": "tensor", "n_gpu_layers": ALL_LAYERS}
    # The projector for images is on a device because no flag says where.
    open_ = given.mmproj_offload is None and given.mmproj_device is None and given.device != ()
    companions = problem.request.companions
    if companions.mmproj is not None and problem.machine.devices and open_:
        yield {"mmproj_offload": False}
    # An MTP block that this build drafts with, and no flag says what drafts.
    model, rules = problem.model, problem.evaluator.estimator.rules
    has_block = model.hparams.n_layer_nextn and model.row.mtp
    if (
        has_block
        and not given.spec_type
        and companions.draft is None
        and not rules.lacks(model.row.mtp_after)
        and rules.number >= NAMED
    ):
        yield {"spec_type": ("draft-mtp",)}
    if processor_alone(problem, given) and chosen.params.device is None:
        yield {"device": ()}
    if _has_idle_slots(problem, chosen, whole):
        yield {"n_parallel": 1}
    if may_lack(problem, chosen):
        yield {"ctx_checkpoints": 0}
    for n_ctx in _contexts(problem, chosen, whole):
        yield {"n_ctx": n_ctx}


def _context_is_open(problem: Problem) -> bool:
    given = problem.given
    return given.n_ctx is None and problem.policy.n_ctx is None and not given.kv_unified_per_slot


def _has_idle_slots(problem: Problem, chosen: Candidate, whole: bool) -> bool:
    """Return whether the caches of one slot take so much less than those of llama.cpp's own number
    that the context may grow by LARGER with it, or weights that are in RAM by FASTER less."""
    if problem.given.n_parallel is not None or chosen.breakdown.n_seq_max <= 1:
        return False
    alone = problem.evaluator.static(replace(chosen.params, n_parallel=1))
    now = problem.evaluator.static(chosen.params)
    if alone is None or now is None:
        return False
    # checkpoints are one for each slot at least
    freed = now.caches - alone.caches + certain(chosen.params, now) - certain(chosen.params, alone)
    fewer = not whole and freed > (FASTER.factor - 1) * now.host.model
    return freed > (LARGER.factor - 1) * now.caches or fewer


def _contexts(problem: Problem, chosen: Candidate, whole: bool) -> Iterator[int]:
    """Yield larger ones, half of a given one, or a common one in place of --ctx max."""
    n_ctx = chosen.breakdown.n_ctx
    trained = problem.model.n_ctx_train
    common = 8192, 16384, 32768
    if _context_is_open(problem):
        # One that is nearly the trained one is left out, as that is tried too.
        shorter = [n for n in common if n * (4 / 3) <= trained]
        yield from [n for n in (*shorter, trained) if n_ctx * LARGER.factor < n]
    elif problem.given.n_ctx and not whole and n_ctx > 8192 and problem.policy.users is None:
        yield n_ctx // 2
    elif problem.policy.n_ctx == "max" and not whole:
        yield from [n for n in common if n * LARGER.factor < n_ctx][-1:]


def price_of(
    evaluator: Evaluator, candidate: Candidate, step: tuple[str, Params]
) -> tuple[str, ...]:
    """Return what the next step costs on each device, and how much of it is missing."""
    name, params = step
    after = evaluator.candidate(params, FIT)
    if after is None:
        return ()
    lines = []
    for device, usage in after.breakdown.devices.items():
        # The next step's launch minus this one's, per device.
        price = usage.total - candidate.breakdown.devices[device].total
        left = after.spare.get(device, 0)
        if left < 0:
            lines.append(
                f"{name} would take {human(price)} more on {device}: {human(-left)} missing"
            )
    return tuple(lines)


def levers(
    evaluator: Evaluator, candidate: Candidate, step: tuple[str, Params] | None
) -> tuple[Lever, ...]:
    """Return the five usual changes that free device memory, each tried alone, with the bytes that
    it frees: of the next step's launch, if there is one."""
    # The bytes freed matter for the next step, so it is measured on that.
    base = (evaluator.candidate(step[1], FIT) if step else None) or candidate
    useful = []
    for name, words, values in _usual_changes(candidate):
        after = evaluator.candidate(replace(base.params, **values), FIT)  # type: ignore[arg-type]
        saved = 0 if after is None else base.breakdown.on_devices - after.breakdown.on_devices
        if after is not None and saved > 0:
            useful.append(Lever(name, words, saved, base is not candidate and after.fits))
    return tuple(useful)


def _usual_changes(
    candidate: Candidate,
) -> Iterator[tuple[str, tuple[str, ...], dict[str, object]]]:
    """Yield (what, its words, its values) of each that a launch leaves."""
    use = candidate.breakdown
    params = candidate.params
    half = max(CELL_BLOCK, use.n_ctx // 2 // CELL_BLOCK * CELL_BLOCK)
    if half < use.n_ctx:
        yield "half the context", ("-c", str(half)), {"n_ctx": half}
    if (params.cache_type_k or "f16") in ("f16", "f32", "bf16") and params.flash_attn != "off":
        yield "a q8_0 cache", ("-ctk", "q8_0", "-ctv", "q8_0"), Q8_0
    if use.n_ubatch > 64:
        smaller = use.n_ubatch // 2
        yield "half the micro-batch", ("-ub", str(smaller)), {"n_ubatch": smaller}
    if use.n_seq_max > 1:
        yield "one slot", ("-np", "1"), {"n_parallel": 1, "kv_unified": None}
    if not use.flash_attn:
        yield "flash attention", ("-fa", "on"), {"flash_attn": "on"}
