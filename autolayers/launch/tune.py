"""`autolayers tune`: launches measured by llama-bench within a time limit, the closest ones
repeatedly.

Launches are compared by the workload's seconds at their measured rates. The best repetition counts:
other programs only slow it down.
"""

from __future__ import annotations

import time

from ..flags.params import N_UBATCH
from ..output import say
from ..planner.compare.rivals import Rival, Trial
from ..records import dataclass, replace
from ..units import mib
from .bench import BenchFailed, BenchRates, Program, in_its_words
from .bench import measure as measure_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


CLOSE = 1.1  # launches within this of the best are measured again
ROUNDS = 3
PATIENCE = 4.0  # times the predicted seconds,
LEAST = 60.0  # and at least this many
LOAD = 500e6  # bytes per second of loading a model
TOKENS = 64  # generated ones of a test
PROBE = Trial(64, 8)
QUICK = Trial(512, 32)


@dataclass(frozen=True)
class Bench:
    """What all measurements share. `size`: bytes of the model; `rest`: llama-bench's words for
    every launch; `missing`: bytes that it lacks for a launch, whose logits it keeps for a whole
    micro-batch."""

    program: Program
    size: int
    environ: Mapping[str, str]
    rest: tuple[str, ...] = ()
    missing: Callable[[Rival, Trial], int] = lambda rival, test: 0


@dataclass(frozen=True)
class TunedLaunch:
    """A launch, its rates in tokens per second and the seconds of the workload; `runs` of
    llama-bench."""

    rival: Rival
    rates: BenchRates
    seconds: float
    runs: int = 1

    def again(self, best: float) -> bool:
        """Return whether another measurement may change the answer."""
        return self.seconds <= CLOSE * best or bool(self.rates.doubt)


@dataclass(frozen=True)
class Outcome:
    """The result: the measured launches, fastest first, and their measurements; `interrupted` by
    Ctrl-C."""

    measured: tuple[TunedLaunch, ...]
    test: Trial
    interrupted: bool = False


def tune(rivals: Sequence[Rival], bench: Bench, limit: float) -> Outcome:
    """Measure each launch once, then those near the best again while there is time; a line on
    stderr for each. A short test of the first launch determines the length of the tests."""

    def test_of(end: float) -> tuple[Trial, float]:
        slower = _probe(rivals, bench, end)
        return _test(rivals, slower, end), slower

    return _rounds(rivals, bench, limit, ROUNDS, test_of)


def quick(rivals: Sequence[Rival], bench: Bench, limit: float) -> Outcome:
    """Measure each launch once by a short test, in order, while there is time; a line on stderr for
    each."""
    n_ctx = min(rival.n_ctx_seq for rival in rivals)
    prompt = max(1, min(QUICK.prompt, n_ctx - QUICK.generate))
    test = Trial(prompt, min(QUICK.generate, max(1, n_ctx // 2)))
    return _rounds(rivals, bench, limit, 1, lambda end: (test, 1.0))


def _rounds(
    rivals: Sequence[Rival],
    bench: Bench,
    limit: float,
    rounds: int,
    test_of: Callable[[float], tuple[Trial, float]],
) -> Outcome:
    """Measure all launches, then in further rounds those near the best. `test_of` says for the time
    of the end which test is measured, and how many times slower than predicted launches are."""
    end = time.monotonic() + limit
    measured: dict[int, TunedLaunch] = {}
    took: dict[int, float] = {}
    test = PROBE
    try:
        test, slower = test_of(end)
        depth = f", {test.depth} before them" if rounds > 1 else ""
        say(
            f"measuring {len(rivals)} launch{'es' * (len(rivals) > 1)}: prompts of {test.prompt} "
            f"tokens, {test.generate} generated{depth}; at most {limit:g} s"
        )
        # Turn 0 measures all of them, the later ones those that are close to the best or doubtful
        for turn in range(rounds):
            best = min((launch.seconds for launch in measured.values()), default=0.0)
            near = [i for i in sorted(measured) if measured[i].again(best)]
            near = near if turn else [*range(len(rivals))]
            if turn and len(near) < 2 and not any(measured[i].rates.doubt for i in near):
                break
            for i in near:
                left = end - time.monotonic()
                # A repetition takes about as long as the one before
                if left <= 0 or took.get(i, 0.0) > left:
                    if turn == 0:
                        say(
                            f"the time limit of {limit:g} s is reached: {len(measured)} of "
                            f"{len(rivals)} measured"
                        )
                    return _outcome(measured, test)
                begin = time.monotonic()
                result = _measure(i, rivals, bench, test, left, slower)
                took[i] = time.monotonic() - begin
                if result is None:
                    continue
                if before := measured.get(i):
                    # Other programs make a run slower, never faster
                    quicker = min(before, result, key=lambda launch: launch.seconds)
                    result = replace(quicker, runs=before.runs + 1)
                measured[i] = result
    except KeyboardInterrupt:
        say(f"interrupted: {len(measured)} of {len(rivals)} measured")
        return _outcome(measured, test, interrupted=True)
    return _outcome(measured, test)


def _test(rivals: Sequence[Rival], slower: float, end: float) -> Trial:
    """Return the test that the slowest launch should finish in its share of the time, if all are
    `slower` times slower than predicted: the workload's depth and prompt, shortened if they take
    too long, the prompt never below a micro-batch. It fits in every launch's context, so that
    llama-bench needs no larger cache than the launch."""
    work = rivals[0].speed.workload
    n_ctx = min(rival.n_ctx_seq for rival in rivals)
    generate = min(work.generate, TOKENS, max(1, n_ctx // 2))
    prompt = max(1, min(work.prompt, n_ctx - generate))
    widest = max(rival.params.n_ubatch or N_UBATCH for rival in rivals)
    shortest = min(prompt, widest)
    trial = Trial(prompt, generate, min(work.depth, max(0, n_ctx - prompt - generate)))
    # One share is left for repetitions of the closest
    share = (max(1.0, end - time.monotonic())) / (len(rivals) + 1)
    while slower * max(_seconds(rival, trial) for rival in rivals) > share:
        # First the depth, which is a prompt of its own before the test
        if trial.depth:
            trial = replace(trial, depth=trial.depth // 2 if trial.depth > 512 else 0)
        elif trial.prompt > shortest:
            trial = replace(trial, prompt=max(shortest, trial.prompt // 2))
        elif trial.generate > 16:
            trial = replace(trial, generate=trial.generate // 2)
        else:
            break
    return trial


def _outcome(
    measured: Mapping[int, TunedLaunch], test: Trial, interrupted: bool = False
) -> Outcome:
    return Outcome(
        tuple(sorted(measured.values(), key=lambda launch: launch.seconds)), test, interrupted
    )


def _probe(rivals: Sequence[Rival], bench: Bench, end: float) -> float:
    """Return how many times slower than predicted the first measurable launch is, by a short
    test."""
    for rival in rivals:
        left = end - time.monotonic()
        if left <= 0:
            break
        words, _ = in_its_words(rival.params, bench.program.flags)
        try:
            rates = measure_once(
                bench.program,
                [*words, *bench.rest],
                PROBE,
                min(left, LEAST + bench.size / LOAD),
                bench.environ,
                repetitions=1,
            )
        except BenchFailed:
            continue  # reported when it is measured
        prompt, tokens = rival.expected(PROBE)
        # Measured by predicted seconds, of the prompt and of the tokens: the slower of both counts
        return max(PROBE.prompt / rates.prompt / prompt, PROBE.generate / rates.token / tokens, 0.1)
    return 1.0


def _measure(
    i: int, rivals: Sequence[Rival], bench: Bench, test: Trial, left: float, slower: float
) -> TunedLaunch | None:
    """Measure one launch and report it; None if it fails."""
    rival = rivals[i]
    head = f"{i + 1} of {len(rivals)}: {rival.placement}"
    if lacks := bench.missing(rival, test):
        say(
            f"{head}: not measured: llama-bench keeps the logits of a whole micro-batch, for which "
            f"{mib(lacks)} are missing"
        )
        return None
    words, _ = in_its_words(rival.params, bench.program.flags)
    # Loading, then the predicted seconds as the first test corrected them, four times over
    patience = round(
        min(left, max(LEAST, bench.size / LOAD + PATIENCE * slower * _seconds(rival, test))), 1
    )
    try:
        rates = measure_once(bench.program, [*words, *bench.rest], test, patience, bench.environ)
    except BenchFailed as error:
        say(f"{head}: not measured: {error}")
        return None
    doubt = f" ({rates.doubt})" if rates.doubt else ""
    say(f"{head}: {rates.token:.4g} tokens/s, prompts {rates.prompt:.4g}{doubt}")
    return TunedLaunch(rival, rates, rival.seconds(rates.prompt, rates.token, test))


def _seconds(rival: Rival, test: Trial) -> float:
    """Return the predicted seconds of llama-bench: a warmup and two repetitions, after one prompt
    of the depth."""
    prompt, tokens = rival.expected(test)
    return 3 * prompt + 2 * tokens + (rival.clock.prompt(test.depth, 0) if test.depth else 0.0)
