"""What holds for every plan, whatever the model, the machine and the flags: random cases, of which
each number is one.

    python tests/decisions/properties.py [N [SEED]]

    back        a plan's own flags are the same plan
    memory      more memory on a GPU, or more RAM, is never worth less
    contexts    --ctx max has at least the default context, and that at least the floor
    fit         what --fit chooses is never worth more
    idle        a GPU that a launch does not use is named, with the reason
    remedies    a launch that does not fit does with each change that is named
    requests    in as many slots, twice as many requests at once are never worth more;
                given slots are never worth more than chosen ones
"""

from __future__ import annotations

import collections
import random
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import HEADERS, model

import autolayers
from autolayers import Device, LaunchRefused, Model, Plan
from autolayers.api import fit_choice
from autolayers.devices import Host
from autolayers.devices.given import hypothetical, numbered
from autolayers.flags.policy import read
from autolayers.ggml.types import row_size
from autolayers.planner.one.contexts import contexts
from autolayers.planner.plan import FitChoice
from autolayers.planner.prices import ENOUGH, worth
from autolayers.planner.problem import Problem
from autolayers.records import dataclass, replace
from autolayers.request import Request

GiB = 1 << 30
MiB = 1 << 20
LARGE = (
    "llama-3.1-8b-q4_k_m:8",
    "qwen3-30b-a3b-q4_k_m:8",
    "gpt-oss-20b-mxfp4:8",
    "gemma-2-9b-q4_k_m:8",
    "llama-3.2-1b-q8_0",
    "deepseek-v2-lite-q4_k_m:8",
    "qwen3-8b-q4_k_m:8",
    "gemma-3-4b-q8_0:12",
    "granite-4.0-h-small-q4_k_m:10",
    "qwen3-next-80b-a3b-q4_k_m:8",
    "llama-4-scout-q4_k_m:6",
    "llama-3.3-70b-q4_k_m:12",
    "phi-3-mini-q4_k_m:8",
)
WHOLE = (
    "gpt-oss-20b-mxfp4",
    "llama-3.1-8b-q4_k_m",
    "qwen3-30b-a3b-q4_k_m",
    "gemma-3-4b-q8_0",
    "llama-3.3-70b-q4_k_m",
)
SMALL = tuple(
    path.stem for path in sorted(HEADERS.glob("*-dense.gguf")) + sorted(HEADERS.glob("*-moe.gguf"))
)
CARDS = ("rtx-3060", "rtx-3090", "rtx-4090", "rtx-3070", "rtx-2070-super", "rtx-5070-ti")
OTHERS = (
    "rx-7900-xtx",
    "arc-b580",
    "m2-pro-16g",
    "m4-max-64g",
    "radeon-780m-32g",
    "strix-halo-128g",
)
WORDS = (
    ("-c 4096", "-c 16384", "--ctx-min 16k", "--ctx 8k"),
    ("-np 1", "-np 2", "-np 3 -kvu"),
    ("-ub 256", "-ub 1024"),
    ("-ctk q8_0 -ctv q8_0", "--kv-types f16,q8_0", "-fa off"),
    ("-nkvo",),
    ("--strategy layers", "-ngl 4", "--strategy auto -ngl 6"),
    ("-ncmoe 3", "-ot \\.ffn_.*=CPU"),
    ("--workload agent", "--workload 4k+128", "--workload batch"),
    ("--swa-full",),
    ("-fitt 0", "--margin 200MiB"),
)
MISSED = 1.03  # what is left of the best by a search that does not measure everything
# of models that take longer to launch kernels than to read weights: no speed is compared
TINY = 100 * MiB


@dataclass(frozen=True)
class Question:
    model: Model
    words: tuple[str, ...]
    devices: tuple[Device, ...]
    host: Host | None
    text: str

    def plan(self, *more: str, **other: object) -> Plan | None:
        """None if llama.cpp refuses the launch."""
        asked = replace(self, **other)  # type: ignore[arg-type]
        try:
            return autolayers.plan(
                asked.model,
                [*asked.words, *more],
                devices=asked.devices,
                host=asked.host,
                advise=bool(other.get("advise")),
            )
        except LaunchRefused:
            return None


def question(seed: int) -> Question:
    rng = random.Random(seed)
    whole = rng.random() < 0.06  # all layers, on GPUs as they are sold
    name = rng.choice(WHOLE if whole else LARGE if rng.random() < 0.6 else SMALL)
    found = model(name)
    words = [
        word for choices in WORDS if rng.random() < 0.15 for word in rng.choice(choices).split()
    ]
    count = rng.choice((0, 1, 1, 1, 2, 2, 3))
    cards = [rng.choice((*CARDS, f"{rng.randint(2, 9)}GiB")) for _ in range(count)]
    if rng.random() < 0.2:
        cards = [rng.choice(OTHERS)]
    sizes = [
        int(found.size * rng.uniform(0.1, 1.5) / max(1, count)) + rng.randint(300, 900) * MiB
        for _ in cards
    ]
    bought = [hypothetical(card)[0] for card in cards]
    if whole:
        sizes = [device.total for device in bought]
    devices = numbered(
        [replace(device, total=size, free=size) for device, size in zip(bought, sizes, strict=True)]
    )
    ram = (
        None
        if rng.random() < 0.3
        else int(found.size * rng.uniform(0.3, 3)) + rng.randint(1, 4) * GiB
    )
    host = None if ram is None else Host(ram, ram, "given")
    gpus = ",".join(f"{card}@{size // MiB}MiB" for card, size in zip(cards, sizes, strict=True))
    return Question(
        found,
        tuple(words),
        tuple(devices),
        host,
        f"{seed}: {name} {gpus or 'no GPU'} --ram {(ram or 0) / GiB:.2f}GiB {' '.join(words)}",
    )


def told(plan: Plan) -> str:
    return (
        f"{' '.join(plan.flags)} ({plan.breakdown.n_ctx}, {plan.speed.request:.4f} s"
        f"{'' if plan.fits else ', does not fit'})"
    )


def less(
    asked: Question, rich: Plan, poor: Plan | FitChoice, larger: Question | None = None
) -> bool:
    """Whether a plan, of a `larger` machine, is worth less than another one, by more than a search
    may miss."""
    if not rich.fits:
        return poor.fits
    return poor.fits and worth_of(larger or asked, rich) > worth_of(asked, poor) * MISSED


def problem_of(asked: Question) -> Problem:
    return Problem(asked.model, Request.of(asked.words, devices=asked.devices, host=asked.host))


def worth_of(asked: Question, plan: Plan | FitChoice) -> float:
    """Seconds times the prices."""
    return worth(problem_of(asked), replace(plan.params, n_threads=None), plan.breakdown)


def back(asked: Question, found: Plan) -> Iterator[str]:
    """What the flags open is closed: the same sizes, the same verdict."""
    try:
        again = autolayers.plan(asked.model, found.flags, devices=asked.devices, host=asked.host)
    except LaunchRefused as refused:
        yield f"{told(found)} is refused: {refused}"
        return
    if (again.flags, again.breakdown.devices, again.breakdown.host, again.fits) != (
        found.flags,
        found.breakdown.devices,
        found.breakdown.host,
        found.fits,
    ) and not ({"--margin", "-fitt"} & set(asked.words)):
        yield f"{told(found)} is then {told(again)}"


def memory(asked: Question, found: Plan, rng: random.Random) -> Iterator[str]:
    if asked.model.size < TINY or ("-ngl" in asked.words and len(asked.devices) > 1):
        return  # given layers stay where llama.cpp's own split puts them
    more = rng.choice((1.02, 1.1, 1.3, 2.0))
    larger = []
    if asked.devices:
        which = rng.randrange(len(asked.devices))
        one = asked.devices[which]
        size = int(one.free * more)
        devices = (
            *asked.devices[:which],
            replace(one, total=size, free=size),
            *asked.devices[which + 1 :],
        )
        larger.append((f"{one.name} of {size // MiB} MiB", replace(asked, devices=devices)))
    if asked.host is not None:
        size = int((asked.host.available or 0) * more)
        larger.append(
            (f"{size / GiB:.2f} GiB of RAM", replace(asked, host=Host(size, size, "given")))
        )
    for what, more_of in larger:
        rich = more_of.plan()
        if rich is not None and rich.fits and _wider(rich, found):
            # of --kv-types the first that reaches the floor, whatever the others reach
            continue
        if rich is None or less(asked, rich, found, more_of):
            yield f"{told(found)}, with {what} {told(rich) if rich else 'refused'}"


def _wider(one: Plan, other: Plan) -> bool:
    """Whether the cache has a type of more bits."""
    types = [each.params.cache_type_k or "f16" for each in (one, other)]
    return row_size(types[0], 256) > row_size(types[1], 256)


def least(asked: Question) -> int:
    """The least context that the plan may have."""
    problem = problem_of(asked)
    return contexts(problem, problem.given).smallest or 0


def contexts_grow(asked: Question, found: Plan) -> Iterator[str]:
    params, policy = read(asked.words, None)
    floor = least(asked)
    if not found.fits or policy.n_ctx is not None or params.n_ctx is not None:
        return
    if found.breakdown.n_ctx < floor:
        yield f"{told(found)} is less than {floor}"
    most = asked.plan("--ctx", "max")
    if most is None or not most.fits or most.breakdown.n_ctx < found.breakdown.n_ctx:
        yield f"{told(found)}, --ctx max {told(most) if most else 'refused'}"


def fit(asked: Question, found: Plan) -> Iterator[str]:
    if asked.model.size < TINY or "--strategy" in asked.words:
        return  # whole layers are asked for, whatever they are worth
    rival = fit_choice(asked.model, asked.words, asked.devices, asked.host)
    if rival is None or not rival.fits or rival.breakdown.n_ctx < least(asked):
        return
    if found.breakdown.host.context and rival.breakdown.n_ctx_seq > ENOUGH:
        return  # with a cache in RAM, contexts that take long to read are left out (search.py)
    if less(asked, found, rival):
        yield (
            f"{told(found)}, --fit {rival.placement}, {rival.breakdown.n_ctx}, "
            f"{rival.speed.request:.4f} s: worth {worth_of(asked, found):.4f} instead of "
            f"{worth_of(asked, rival):.4f}"
        )


def idle(asked: Question, found: Plan) -> Iterator[str]:
    text = " ".join((*found.reasons, *found.warnings))
    for device in found.devices if found.fits and "-ngl" not in asked.words else ():
        if not device.used and device.name not in text:
            yield f"{told(found)}: {device.name} is idle without a reason"


def remedies(asked: Question, found: Plan) -> Iterator[str]:
    if found.fits:
        return
    advised = autolayers.plan(
        asked.model, asked.words, devices=asked.devices, host=asked.host, advise=True
    )
    for remedy in advised.remedies:
        devices, host, of = asked.devices, asked.host, asked.model
        if remedy.kind == "file":
            of = of.quantised(remedy.type, larger=True)
        more = dict(remedy.devices)
        devices = tuple(
            [
                replace(
                    one,
                    total=one.total + more.get(one.name, 0),
                    free=one.free + more.get(one.name, 0),
                )
                for one in devices
            ]
        )
        if remedy.ram:
            # of a card that uses RAM, the usual size where none is given
            known = (host and host.available) or problem_of(asked).machine.ram or 0
            host = Host(known + remedy.ram, known + remedy.ram, "given")
        try:
            then = autolayers.plan(of, [*asked.words, *remedy.change], devices=devices, host=host)
        except autolayers.AutolayersError as error:
            yield f"{told(found)}: {remedy} is refused: {error}"
            continue
        if not then.fits:
            yield f"{told(found)}: {remedy} does not: {told(then)}"


def requests(asked: Question, found: Plan, rng: random.Random) -> Iterator[str]:
    if {"--workload", "-np"} & set(asked.words) or asked.model.size < TINY:
        return
    count = rng.choice((1, 2, 3, 4, 8))
    once = replace(asked, words=(*asked.words, "--workload", f"512+64x{count}"))
    slots = replace(once, words=(*once.words, "-np", str(count)))
    twice = replace(asked, words=(*slots.words, "--workload", f"512+64x{2 * count}"))
    free, one, two = (each.plan() for each in (once, slots, twice))
    if one is None or two is None or not two.fits:
        return
    if not one.fits or worth_of(slots, one) > worth_of(twice, two) * MISSED:
        yield f"{count}: {told(one)}, {2 * count}: {told(two)}"
    # the slots of one request are llama.cpp's, and given ones may be too small for one
    holds = one.breakdown.n_ctx_seq >= 512 + 64
    if free is not None and free.fits and _wider(free, one):
        # of --kv-types the first with which nothing is in RAM, whatever the slots
        return
    if count > 1 and holds and (free is None or less(slots, free, one, once)):
        yield f"{count}: {told(free) if free else 'refused'}, -np {count}: {told(one)}"


def failures(seed: int) -> list[tuple[str, str]]:
    """(property, what is wrong) of one case."""
    asked, rng = question(seed), random.Random(seed + 1)
    found = asked.plan()
    if found is None:
        return []
    checks = {
        "back": back(asked, found),
        "memory": memory(asked, found, rng),
        "contexts": contexts_grow(asked, found),
        "fit": fit(asked, found),
        "idle": idle(asked, found),
        "remedies": remedies(asked, found),
        "requests": requests(asked, found, rng),
    }
    return [
        (name, f"{asked.text}\n      {text}") for name, check in checks.items() for text in check
    ]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    wrong: collections.Counter[str] = collections.Counter()
    for seed in range(first, first + count):
        for name, text in failures(seed):
            wrong[name] += 1
            print(f"{name:10}{text}", flush=True)
        if seed % 25 == 24:
            print(f"{seed + 1 - first} of {count}", file=sys.stderr, flush=True)
    print(f"{count} cases, {sum(wrong.values())} failures {dict(wrong)}")


if __name__ == "__main__":
    main()
