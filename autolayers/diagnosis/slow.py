"""How fast the server of a log is, next to what is predicted for it, and what helps most.

found = compared(verdict, facts, inputs, launch)  # None: model, machine or rates are not known
found.answers, found.prompts  # _Rate: measured, predicted, lowest, in tokens/s
"""

from __future__ import annotations

from ..errors import AutolayersError
from ..flags.workload import Workload
from ..planner import Plan, plan_request
from ..records import dataclass, replace
from .causes import CauseRemedy
from .working import (
    BUFFERS,
    PLACING,
    ChangedCommand,
    LogInputs,
    Prepared,
    asking,
    changed_launch,
    prepared,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .facts import Facts
    from .hits import Verdict

_SLOWER = 1.15  # below the predicted range by this is no noise of a measurement
_FASTER = 1.3  # what another launch must promise, to be worth a restart
_IN_RAM = 0.25  # of the weights: more than the embeddings
_MANY = 4  # threads; with fewer each may be a core
_SPLITS = 100  # of a graph: an operation of each layer is on the other side
# A launch that failed has no rate of interest
_CAUSES = ("healthy", "not_in_log", "partial_offload", "op_unsupported")
_PROMPT = 512  # tokens; shorter ones are not whole micro-batches
_LONGEST = 16384  # later tokens of a prompt are slower, which no log shows apart


@dataclass(frozen=True)
class _Rate:
    """Tokens/s: measured (of the log), predicted for that launch, and the lowest that is."""

    measured: float
    predicted: float
    lowest: float

    @property
    def slow(self) -> bool:
        """Whether the machine does less than the launch needs."""
        return self.measured * _SLOWER < self.lowest

    @property
    def text(self) -> str:
        """The rates on one line."""
        return (
            f"{self.measured:.1f} tokens/s measured, {self.predicted:.1f} predicted for this launch"
            f" (from {self.lowest:.1f})"
        )

    def to_dict(self) -> dict[str, object]:
        """Tokens/s."""
        return {
            "measured": self.measured,
            "predicted": round(self.predicted, 2),
            "lowest": round(self.lowest, 2),
        }


@dataclass(frozen=True)
class SlowLaunch:
    """The answers' rate, and the prompts' where the log has a long one; `better`: tokens/s of an
    answer by `launch`, which is another one; None where none is much faster."""

    answers: _Rate
    prompts: _Rate | None = None
    launch: ChangedCommand | None = None
    better: float = 0.0
    in_ram: bool = False
    threads: tuple[int, int] = (0, 0)  # that compute, of the CPU's
    splits: bool = False

    @property
    def slow(self) -> bool:
        """Whether answers or prompts are slower than the machine can."""
        return self.answers.slow or self.slow_prompts

    @property
    def slow_prompts(self) -> bool:
        """Whether prompts are."""
        return self.prompts is not None and self.prompts.slow

    @property
    def text(self) -> str:
        """The answers' rates on one line."""
        better = f", {self.better:.1f} for the launch below" if self.launch is not None else ""
        return self.answers.text + better

    def to_dict(self) -> dict[str, object]:
        """Tokens/s of an answer, and of a prompt."""
        return {
            **self.answers.to_dict(),
            "better": round(self.better, 2) if self.launch is not None else None,
            "prompts": self.prompts.to_dict() if self.prompts is not None else None,
        }

    def remedies(self) -> Iterator[CauseRemedy]:
        """Yield what makes a launch slower than it is predicted, the likeliest first."""
        if not self.slow:
            return
        if self.splits:
            yield CauseRemedy(
                (),
                "the graph is cut into many splits: an operation of each layer runs on the other "
                "side; a newer build or driver may have its kernel",
            )
        # Without another launch to take: `launch` has its own batches
        if self.in_ram and self.slow_prompts and self.launch is None:
            yield CauseRemedy(
                ("-b", "2048", "-ub", "2048"),
                "what lies in RAM is copied to the GPU for each micro-batch of a prompt: larger "
                "ones copy less often",
            )
        threads, of = self.threads
        ram = self.in_ram and self.answers.slow
        # More threads than cores: two on a core share its bandwidth and wait for each other
        if ram and threads >= of > _MANY:
            yield CauseRemedy(
                ("-t", str(of // 2)),
                f"all {of} threads of the CPU compute, two on each core: they wait for each other",
            )
        # Answers read all weights in RAM for each token: its bandwidth bounds them
        if ram:
            yield CauseRemedy(
                (),
                "RAM decides here: both channels filled, XMP or EXPO on (autolayers devices shows "
                "its rate)",
            )
            yield CauseRemedy(
                (),
                "-t as many as the CPU has fast cores: with more threads each waits for the others",
            )
        yield CauseRemedy(
            (), "a power limit or heat: nvidia-smi -q -d POWER,PERFORMANCE while it answers"
        )
        yield CauseRemedy(
            (),
            "another program on the GPU, or memory that Windows moved to the system (Task "
            "Manager: shared GPU memory)",
        )


def compared(
    verdict: Verdict, facts: Facts, inputs: LogInputs, launch: ChangedCommand | None
) -> SlowLaunch | None:
    """Return the rates of a server that answers; None where the log says too little to predict
    any."""
    measured = facts.rates.get("answer", 0.0)
    if not measured or verdict.cause not in _CAUSES:
        return None
    try:
        given = prepared(verdict, facts, inputs)
        if isinstance(given, str):
            return None
        # Predicted as it ran: a rate is compared with the same launch's
        as_it_was = _placed(given, facts)
        if as_it_was is None or not as_it_was.speed.generation:
            return None
        speed, host = as_it_was.speed, facts.share_of_host("model")
        prompts = None
        # a prompt that is long enough to say something of its rate
        if _PROMPT <= facts.counts.get("prompt", 0) <= _LONGEST:
            low = speed.prompt / speed.prompt_spread
            prompts = _Rate(facts.rates["prompt"], speed.prompt, low)
        rates = SlowLaunch(
            # The low end of the prediction's range
            _Rate(measured, speed.generation, speed.generation / speed.generation_spread),
            prompts,
            in_ram=host > _IN_RAM,
            threads=facts.threads,
            splits=bool(facts.splits and facts.splits[0] >= _SPLITS),
        )
        other = launch
        # its layers, experts and batches placed again, its context and cache as they were
        if other is None:
            plan = plan_request(given.model, asking(given.request, **PLACING, **BUFFERS))
            other = changed_launch(given, plan) if plan.fits else None
        if other is None or other.plan.speed.generation < _FASTER * speed.generation:
            return rates
        return replace(rates, launch=other, better=other.plan.speed.generation)
    except (AutolayersError, OSError, ValueError, RecursionError, MemoryError):
        return None


def _placed(given: Prepared, facts: Facts) -> Plan | None:
    """Plan the launch as it ran: its flags, and where these say nothing of the layers, as many as
    the log shows."""
    params, model = given.request.params, given.model
    changes: dict[str, object] = {}
    if params.n_gpu_layers is None or params.n_gpu_layers < 0:
        # Nobody knows how many layers were on the GPU
        if facts.offloaded is None:
            return None
        changes["n_gpu_layers"] = facts.offloaded[0]
        # --fit moves experts and prints all layers as offloaded: how many, the weights in RAM tell
        if not params.overrides and model.is_moe and facts.offloaded[0] == facts.offloaded[1]:
            from ..flags.parse import parse

            # e.g. "blk.12.ffn_up_exps.weight": -ncmoe of as many layers as the weights in RAM are
            experts = [info.n_bytes for name, info in model.tensors.items() if "_exps." in name]
            share = facts.share_of_host("model") * facts.weights / sum(experts) if experts else 0.0
            if layers := round(min(1.0, share) * model.n_layer):
                launch = parse(["-ncmoe", str(layers)], command=None)
                changes["overrides"] = launch.params.overrides
    as_it_ran = replace(params, **changes)  # type: ignore[arg-type]
    arguments = replace(given.request.arguments, params=as_it_ran)
    prompt = facts.counts.get("prompt", 0)
    if _PROMPT <= prompt <= _LONGEST:
        # The request that was measured, so that prompts of that length are predicted
        work = Workload(prompt, facts.counts.get("answer", 512))
        arguments = replace(arguments, own={**arguments.own, "workload": work})
    return plan_request(model, given.request.asking(arguments))
