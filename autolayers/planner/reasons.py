"""The reasons for a plan: each part is computed when it is first read."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import islice

from ..errors import AutolayersError
from ..garbage import without_gc
from ..records import lazy, replace
from .complete import flags
from .embedder import embeds
from .evaluate import FULL
from .one.fit import fit
from .plan import FitChoice, Reasons

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ..flags.params import Params
    from ..memory.meter import Meter
    from .advice import Remedy
    from .evaluate import Candidate
    from .plan import Alternative, Elsewhere, Faster, Lever, Smaller
    from .problem import Problem, Solution

NO_MORE = "not every other launch was compared with this one: that would have taken too long"


def fit_choice_of(problem: Problem) -> FitChoice | None:
    """Return what --fit makes of a problem's flags; None if llama.cpp would refuse it, or if the
    program is another one, whose --fit does something else."""
    evaluator = problem.evaluator
    if not evaluator.engine.is_llama_cpp:
        return None
    chosen = fit(evaluator, problem.given, FULL)
    if chosen is None:
        return None
    from .served import price

    use = chosen.breakdown
    # What it leaves open is said too, so that the flags alone are this launch.
    params = replace(
        chosen.params,
        n_ctx=use.n_ctx,
        n_gpu_layers=chosen.params.layers_wanted(problem.everything),
    )
    return FitChoice(
        chosen.params,
        use,
        chosen.fits,
        price(problem, chosen),
        evaluator.described(chosen.params),
        flags(problem, params),
    )


class Explained(Reasons):
    """The reasons for an answer, each computed when it is first read; of a large model all in
    parallel. What ends in an error is left out: the plan stands without it."""

    asked: Problem  # before its draft and its requests were decided
    solution: Solution
    candidate: Candidate
    explain: bool
    processes: int
    meter: Meter
    ended: bool  # the budget did not last for the launch itself, which says so

    def __init__(
        self,
        asked: Problem,
        solution: Solution,
        candidate: Candidate,
        explain: bool,
        processes: int = 1,
    ) -> None:
        """For the launch of a solution, which may draft or have more requests at once than was
        asked. Without `explain` only what would make a launch fit, or is much faster."""
        meter = solution.problem.evaluator.estimator.meter
        # vars(): Reasons is a frozen record, whose fields are computed here.
        vars(self).update(
            asked=asked,
            solution=solution,
            candidate=candidate,
            explain=explain,
            processes=processes,
            meter=meter,
            ended=meter.refused,
        )

    __eq__, __hash__ = object.__eq__, object.__hash__  # to compare parts would compute them

    def __repr__(self) -> str:
        return f"Explained(explain={self.explain})"

    # --- what computes the parts

    @lazy
    def tasks(self) -> dict[str, Sequence[Callable[[], Any]]]:
        """What computes each part of the reasons that may be computed in a process of its own:
        --fit starts first, since it takes the longest."""
        if not self.explain:
            return {}
        from .elsewhere import elsewhere
        from .explain import (
            alternative,
            changes,
            may_move_draft,
            with_draft_on_device,
            with_expert_cache,
            with_pinned_weights,
        )
        from .one.expert_cache import may_cache

        problem, candidate = self.solution.problem, self.candidate
        # Dictionaries keep their order, which is the order of starting.
        tasks: dict[str, Sequence[Callable[[], Any]]] = {}
        if problem.machine.devices:
            tasks["fit_choice"] = [partial(fit_choice_of, problem)]
            tasks["price"] = [self._next_price]
        if candidate.fits:
            others: list[Callable[[], Any]] = [partial(with_pinned_weights, problem, candidate)]
            others += [
                partial(alternative, problem, candidate, change)
                for change in changes(problem, candidate)
            ]
            if self.asked.policy.users is not None:
                from .replicas import replicas

                others.insert(0, partial(replicas, self.asked, self.solution.requests))
            if may_move_draft(self.asked, candidate):
                others.append(partial(with_draft_on_device, self.asked, candidate))
            # With a known upload rate the search itself has tried the cache.
            if (
                candidate.params.overrides
                and not problem.machine.host.expert_upload
                and may_cache(problem, problem.given)
            ):
                others.append(partial(with_expert_cache, problem, candidate))
            tasks["alternatives"] = others
            if not embeds(candidate.params) and not candidate.params.spec_type:
                tasks["elsewhere"] = [partial(elsewhere, problem, candidate)]
        return tasks

    def _next_price(self) -> tuple[str, ...]:
        from .explain import price_of

        step = self._next_step()
        return price_of(self.solution.problem.evaluator, self.candidate, step) if step else ()

    def _next_step(self) -> tuple[str, Params] | None:
        from .one.ladder import Ladders

        problem = self.solution.problem
        return Ladders(problem, problem.given).next_step(self.candidate.params)

    def _advice(self) -> Iterator[Remedy]:
        """Yield what would make it fit, one after the other."""
        problem = self.solution.problem
        if self.candidate.fits or problem.evaluator.exhausted:
            return iter(())
        from .advice import remedies

        # Without the draft, and with the requests that were asked for: advice is about the model's
        # own launch.
        workload = self.asked.policy.workload
        undrafted = problem.drafting_with(None).with_goals(workload=workload)
        return remedies(undrafted, self.candidate)

    @property
    def _may_hint(self) -> bool:
        """Whether a hint may be given of what is much faster: not where the input layer's weights
        alone are in RAM."""
        problem, chosen = self.solution.problem, self.candidate
        evaluator = problem.evaluator
        drafts = chosen.params.spec_type or evaluator.estimator.companions.draft is not None
        other = drafts or problem.policy.users is not None or embeds(chosen.params)
        if not chosen.fits or other or evaluator.exhausted:
            return False
        # The input layer is in RAM in every launch, so it is no hint.
        devices = {device.name for device in evaluator.machine.devices}
        layers = [group for group in evaluator.placement(chosen.params).groups if group.layer >= 0]
        return any(buffer not in devices for group in layers for buffer in group.buffers)

    @lazy
    def shared(self) -> dict[str, list[Any]] | None:
        """The parts that several processes computed; None where they do not pay: they do not share
        what they measure, a third more CPU time for half of the time of a large model."""
        # A search that laid out few nodes of graphs is faster than starting processes.
        if self.processes < 2 or self.meter.spent <= 50_000:
            return None
        from ..parallel import in_processes

        meter = self.meter
        work = [(name, task) for name, tasks in self.tasks.items() for task in tasks]
        before = meter.spent
        budget = meter.budget
        was_refused = meter.refused
        # They do not share what they spend: each gets an equal part of what is left.
        part = max(0, budget - before) // max(1, len(work))

        def timed(row: tuple[str, Callable[[], Any]]) -> tuple[Any, int, bool]:
            start = meter.spent
            # A process computes several tasks: what was refused to one says nothing of the next.
            meter.budget = start + part
            meter.refused = False
            return row[1](), meter.spent - start, meter.refused

        answers = in_processes(timed, work, self.processes)
        spent = sum(answer[1] for answer in answers if not isinstance(answer, AutolayersError))
        # What the processes spent counts for the question.
        meter.budget = budget
        meter.spent = max(meter.spent, before + spent)
        meter.refused = was_refused
        by_part: dict[str, list[Any]] = {}
        for (name, task), answer in zip(work, answers, strict=True):
            if isinstance(answer, AutolayersError):
                continue
            result, _, refused = answer
            if refused and budget - meter.spent > part:
                # The others left more than its part, which did not last.
                with suppress(AutolayersError):
                    result = without_gc(task)()
            else:
                meter.refused = meter.refused or refused
            by_part.setdefault(name, []).append(result)
        return by_part

    def answers(self, part: str) -> Iterator[Any]:
        """Yield the answers of a part's tasks, one after the other."""
        if self.shared is not None:
            yield from self.shared.get(part, ())
            return
        for task in self.tasks.get(part, ()):
            with suppress(AutolayersError):
                yield without_gc(task)()

    @lazy
    def price(self) -> tuple[str, ...]:
        return next(self.answers("price"), ())

    @lazy
    def levers(self) -> tuple[Lever, ...]:
        if "price" not in self.tasks:
            return ()
        from .explain import levers

        evaluator = self.solution.problem.evaluator
        return without_gc(levers)(evaluator, self.candidate, self._next_step())

    @lazy
    def fit_choice(self) -> FitChoice | None:
        return next(self.answers("fit_choice"), None)

    @lazy
    def alternatives(self) -> tuple[Alternative, ...]:
        return tuple(self._alternatives())

    def _alternatives(self) -> Iterator[Alternative]:
        """Yield the five that are shown."""
        if not self.explain:
            return iter(())
        return islice(filter(None, self.answers("alternatives")), 5)

    @lazy
    def remedies(self) -> tuple[Remedy, ...]:
        return tuple(self._advice())  # what a search held is collected before the next

    @lazy
    def faster(self) -> Faster | None:
        if self.explain or not self._may_hint:
            return None
        from .faster import with_cache

        with suppress(AutolayersError):
            return without_gc(with_cache)(self.solution.problem, self.candidate)
        return None

    @lazy
    def smaller(self) -> Smaller | None:
        if not self._may_hint:
            return None
        from .faster import smaller

        with suppress(AutolayersError):
            return without_gc(smaller)(self.solution.problem, self.candidate, self.explain)
        return None

    @lazy
    def elsewhere(self) -> Elsewhere | None:
        return next(self.answers("elsewhere"), None)

    @lazy
    def warnings(self) -> tuple[str, ...]:
        """A line where the budget did not last for all of them, which are computed to know it."""
        if not self.ended:
            self.all()
        return (NO_MORE,) if self.meter.refused and not self.ended else ()

    def all(self) -> None:
        """Computes every part but the levers. A plan that is only advised may be kept for as long
        as its launch runs: it then lets go of what it was computed from."""
        for part in (
            self.fit_choice,
            self.price,
            self.alternatives,
            self.remedies,
            self.smaller,
            self.faster,
            self.elsewhere,
        ):
            _ = part
        # These hold graphs and measurements; the plan needs them no longer.
        if not self.explain:
            for name in ("asked", "solution", "candidate", "tasks"):
                vars(self).pop(name, None)

    def in_steps(self) -> Iterator[Reasons]:
        """Yield what is known, with one part more each time."""
        so_far = Reasons()
        if self.tasks.get("price"):
            yield (so_far := replace(so_far, fit_choice=self.fit_choice))
            yield (so_far := replace(so_far, price=self.price, levers=self.levers))
        for other in self._alternatives():
            yield (so_far := replace(so_far, alternatives=(*so_far.alternatives, other)))
        advice = self._advice()
        while (remedy := next(advice, None)) is not None:
            yield (so_far := replace(so_far, remedies=(*so_far.remedies, remedy)))
        if self.elsewhere is not None:
            yield (so_far := replace(so_far, elsewhere=self.elsewhere))
        smaller = self.smaller
        cut = (NO_MORE,) if self.meter.refused and not self.ended else ()
        if smaller is not None or cut:
            yield replace(so_far, smaller=smaller, warnings=cut)
