"""Asks the llama-fit-params beside a llama-server what a planned launch takes, before it starts.

The tool is a program of its own, so what it prints is compared with what our rules say of *its*
launch of the same words (engine llama-fit-params, llama.cpp's own measuring). What it prints above
that is added to the plan of llama-server, which is planned again with it. Of b11549:
tools/fit-params, common_fit_print (common/fit.cpp): whole MiB, rounded down.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time

from ..backends import on
from ..detect import digest as digest_of
from ..detect import read_version
from ..engines import LLAMA_SERVER, engine
from ..errors import AutolayersError
from ..flags.params import HOST_BUFFER, Params, Scaled
from ..flags.table import rows_of
from ..flags.write import to_words
from ..memory.bound import of_sequences
from ..memory.breakdown import Usage
from ..memory.estimate import Estimator
from ..model.body import Body
from ..planner.plan import Confirmed
from ..programs import NoAnswer, Output, ask
from ..records import lazy, replace
from ..store import Answered, keep, read
from ..tables import listed
from ..units import MiB, mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..model import Model
    from ..planner import Plan
    from ..request import Request

TOOL = "llama-fit-params"
PATIENCE = 10.0  # seconds for all rounds together
ROUNDS = 3
PARTS = ("model", "context", "compute")
HOST_ROW = "Host"
_NOTHING = (0, 0, 0)
# what a model is measured at: micro-batches, and cells, to the trained context if that is less
TOKENS = (512, 2048)
SHORT, LONG = 4096, 1 << 20
HEAD = r"^(output|token_embd)\.weight"
_ROW = re.compile(r"^(\w+)(?:\[\S*\])? (\d{1,9}) (\d{1,9}) (\d{1,9})[ \r]*$", re.MULTILINE)
_SPARE = 256 * MiB  # of a bound: less than a layer of most models that do not fit
_SANE = 10  # a part of the weights by which it may differ: they are the header's
# of the server, with figures or rules of their own: the tool's launch has them not, and no need to
_APART = frozenset(
    (
        *listed("model n_threads n_threads_batch numa warmup cache_ram cache_reuse"),
        *("ctx_checkpoints", "fit", "fit_target", "fit_ctx", "mmproj", "mmproj_offload"),
        *("mmproj_device", "image_max_tokens", "kv_unified_per_slot", "kv_unified", "n_parallel"),
    )
)


def beside(server: str | None) -> str | None:
    """Return the tool in the folder of this llama-server (a path or a name), None if there is
    none."""
    path = shutil.which(server) if server else None
    if path is None:
        return None
    ending = ".exe" if path.lower().endswith(".exe") else ""
    # a package's bin/ may hold links to a folder that has all programs
    for folder in dict.fromkeys((os.path.dirname(path), os.path.dirname(os.path.realpath(path)))):
        if found := shutil.which(os.path.join(folder, TOOL + ending)):
            return found
    return None


class Referee:
    """The tool, for one model. `digest` of the model's header, "" to keep nothing."""

    def __init__(
        self, tool: str, path: str, digest: str, request: Request, environ: Mapping[str, str]
    ) -> None:
        self.tool = os.path.abspath(tool)
        self.folder = os.path.dirname(self.tool)
        self.path = os.path.abspath(path)
        self.digest = digest
        self.request = request
        # LLAMA_ARG_* of the launch are in its words already
        self.environ = {k: v for k, v in environ.items() if not k.startswith("LLAMA_ARG_")}
        self.state = environ
        self.program = digest_of(tool)
        self.build = replace(request.build, engine=engine(TOOL), flags=None)
        self.left = PATIENCE  # seconds, of its own

    def on(self, request: Request) -> Referee:
        """Return the same for another question on this machine."""
        return Referee(self.tool, self.path, self.digest, request, self.state)

    def confirmed(self, plan: Plan, again: Callable[[Request], Plan]) -> tuple[Plan, str]:
        """Return the plan with what the tool says of it, or as it is, and a line that says which.
        `again` plans for a machine with other memory."""
        if plan.engine != LLAMA_SERVER.name:
            return plan, ""
        first = plan
        added: dict[str, tuple[int, ...]] = {}
        agreed = None
        try:
            for rounds in range(1, ROUNDS + 1):
                build, difference, shortage = self._difference(plan)
                # Bytes that the plan leaves free; of RAM of an unknown size nothing is compared
                left = plan.host.remaining
                room = {HOST_ROW: 1 << 60 if left is None else max(0, left)}
                room |= {row.name: max(0, row.remaining) for row in plan.devices}
                # The best launch stays the best with less memory, as long as it fits
                enough = all(
                    sum(row) <= sum(added.get(name, _NOTHING)) + room.get(name, 0)
                    for name, row in shortage.items()
                )
                if enough:
                    agreed = plan, difference, shortage, build, rounds
                # with what is left of a bound there may be a better one
                spare = plan.model.body is not None and any(
                    sum(row) < sum(added.get(name, _NOTHING)) - _SPARE
                    for name, row in shortage.items()
                    if name != HOST_ROW
                )
                if rounds == ROUNDS or (enough and not spare):
                    break
                # the larger one of all rounds, or two launches would take turns
                added = {
                    name: row if enough else max(row, added.get(name, _NOTHING), key=sum)
                    for name, row in shortage.items()
                }
                plan = again(_without(self.request, added))
        except NoAnswer as why:
            return first, f"{TOOL} was not used: {why}"
        except AutolayersError as why:
            return first, f"{TOOL} was not used: with its figures {why}"
        plan = self._with(*(agreed or (plan, difference, shortage, build, rounds)))
        # What nothing can be planned with is not worth more than our rules
        if first.fits and not plan.fits:
            unused = f"{TOOL} was not used: no launch that it agrees to was found"
            # A plan that the tool disagrees with; as it is if no device could hold
            # what it says
            if any(sum(shortage.get(row.name, _NOTHING)) > row.total for row in first.devices):
                doubted = first
            else:
                said = f"{TOOL} says that this launch takes more: it may not start"
                doubted = replace(
                    first,
                    breakdown=replace(first.breakdown, exact=False),
                    noted=(*first.noted, said),
                )
            return doubted, unused
        return plan, line(plan)

    def measured(self, model: Model, params: Params) -> Model:
        """Return a model without rules, or one for a backend without, with what the tool measures
        of it: with all layers on one device, and the head, which is planned by its own rules, in
        RAM."""
        devices = self.request.machine.devices
        if not devices or (model.row.proven and all(on(device).modelled for device in devices)):
            return model
        types = (params.cache_type_k or "f16", params.cache_type_v or "f16")
        device = devices[0].name
        longest = max(4 * SHORT, min(model.n_ctx_train, LONG))
        # in the middle of their doublings: a graph's buffer is not linear
        middle = SHORT << ((longest // SHORT).bit_length() // 2)
        few, many = TOKENS
        sizes = {}
        try:
            for n_ubatch, n_ctx in (
                (few, SHORT),
                (few, middle),
                (few, longest),
                (many, SHORT),
                (many, longest),
            ):
                asked = Params(
                    model=self.path,
                    n_gpu_layers=model.n_layer + 1,
                    n_ctx=n_ctx,
                    n_batch=many,
                    n_ubatch=n_ubatch,
                    n_parallel=1,
                    flash_attn=params.flash_attn,
                    cache_type_k=params.cache_type_k,
                    cache_type_v=params.cache_type_v,
                    device=(device,),
                    overrides=((HEAD, HOST_BUFFER),),
                    op_offload=False,
                    override_kv=params.override_kv,
                )
                _, context, compute = self._answer(asked).printed[device]
                # no graph has less than a column of its tokens
                if compute * MiB < 4 * n_ubatch * model.hparams.n_embd:
                    return model
                sizes[n_ubatch, n_ctx] = (context + 1) * MiB, (compute + 1) * MiB
        except (NoAnswer, KeyError):
            return model
        return model.measured(Body(params.flash_attn != "off", types, sizes))

    def _difference(
        self, plan: Plan
    ) -> tuple[int, dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """Return the build; the bytes that the tool prints above (or below) the prediction of its
        own launch, by device and part, 0 where both are the same MiB; and the bytes that the plan
        is short of at most, if anything differs. Raises NoAnswer, LaunchRefused."""
        # The launch that the tool is asked for, in flags that it has.
        use = plan.breakdown
        kept = {
            name: value
            for name, value in vars(plan.params).items()
            if name not in _APART and self._has(name)
        }
        # It has no -kvu: one cache for all slots is that of one sequence
        sequences = 1 if use.kv_unified else use.n_seq_max
        params = Params(
            **{
                **kept,
                "lora": tuple(map(_absolute, plan.params.lora)),
                "control_vector": tuple(map(_absolute, plan.params.control_vector)),
                "model": self.path,
                "n_gpu_layers": plan.n_gpu_layers,
                "n_ctx": use.n_ctx,
                "n_batch": use.n_batch,
                "n_ubatch": use.n_ubatch,
                "n_parallel": sequences,
            }
        )
        # What our rules say that the tool measures.
        model = plan.model.overridden(params.override_kv)
        use = Estimator(model, self.build).breakdown(
            params, self.request.machine.devices, measuring=True
        )
        rows = {**use.devices, HOST_ROW: use.host}
        answer = self._answer(params)
        # Raise NoAnswer for figures of other devices, or of weights that are not the
        # header's
        if not answer.printed.keys() <= rows.keys():
            names = ", ".join(sorted(answer.printed.keys() - rows.keys()))
            raise NoAnswer(f"it sees {names[:80]}, which is not planned for")
        if missing := [
            name for name, use in rows.items() if use.total and name not in answer.printed
        ]:
            raise NoAnswer(f"it does not see {', '.join(missing)}")
        ours = sum(use.model for use in rows.values())
        theirs = sum(row[0] for row in answer.printed.values()) * MiB
        if abs(ours - theirs) > ours // _SANE + len(rows) * MiB:
            raise NoAnswer(f"its weights are {mib(theirs)}, the file's {mib(ours)}")
        seen = {name: row for name, row in rows.items() if name in answer.printed}
        difference = {
            name: tuple(
                # As the most that it may be; nothing where it is the same MiB
                0 if size == getattr(row, part) // MiB else (size + 1) * MiB - getattr(row, part)
                for part, size in zip(PARTS, answer.printed[name], strict=True)
            )
            for name, row in seen.items()
        }
        planned = {**plan.breakdown.devices, HOST_ROW: plan.breakdown.host}
        shortage = difference
        if plan.model.body is not None:
            shortage = {
                name: self._of_bounds(plan, row, answer.printed[name][-1], planned[name])
                for name, row in difference.items()
            }
        elif any(map(any, difference.values())):
            # llama-server picks few rows in the last layer, the tool none: its graph is laid out
            # otherwise, and took up to a tenth of this more
            more = 4 * use.n_ubatch * plan.model.hparams.n_embd
            shortage = {
                name: _short(
                    answer.printed[name], row, planned[name], 0 if name == HOST_ROW else more
                )
                for name, row in seen.items()
            }
        return answer.build, difference, shortage

    def _of_bounds(
        self, plan: Plan, difference: tuple[int, ...], printed: int, planned: Usage
    ) -> tuple[int, ...]:
        """Return what a device is short of, below 0 where its bounds are too large: a graph of
        llama-server has no more than the tool's, which is asked for one sequence if all share a
        cache."""
        use, unasked = plan.breakdown, self._whole(plan)
        model, context, compute = difference
        n = 1 if not unasked else use.n_seq_max
        if unasked:
            context = max(0, context)
        if compute <= 0 and unasked in ((), ("-kvu",)):
            more = of_sequences(plan.model, n, use.n_ctx, use.n_ubatch)
            compute = min(0, (printed + 1) * MiB + more - planned.compute)
        return model, context, compute

    def _has(self, field: str) -> bool:
        return any(self.build.knows(row.canonical) for row in rows_of(field))

    def _whole(self, plan: Plan) -> tuple[str, ...]:
        """Return what of the launch the tool was not asked for, as llama-server's flags."""
        use, nothing = plan.breakdown, Params()
        unasked = [
            rows_of(name)[0].canonical
            for name, value in vars(plan.params).items()
            if name not in _APART and value not in (getattr(nothing, name), False)
            if not self._has(name)
        ]
        return (*unasked, *(("-kvu",) if use.kv_unified and use.n_seq_max > 1 else ()))

    def _answer(self, params: Params) -> Answered:
        """Return what the tool prints for a launch, now or before. Raises NoAnswer."""
        words = tuple(to_words(params))
        devices = [f"{d.name}={d.total}" for d in self.request.machine.devices]
        key = (*words, *devices)
        if self.digest and self.program:
            for known in read(Answered, self.state, self.digest):
                if known.key == (self.program, key):
                    return known
        said = self._ask(*words, "--fit-print", "on")
        rows = _ROW.findall(said.out)
        if said.code or not rows:
            # Why there is no answer, with the reason that the program prints
            reason = (
                next(
                    (text.strip() for text in said.err.splitlines() if "error" in text.lower()), ""
                )
                .encode("ascii", "replace")
                .decode()
            )
            if not said.code:
                failed = "it printed no figures"
            else:
                failed = f"it ended with {said.code}" + (f": {reason[:120]}" if reason else "")
            raise NoAnswer(failed)
        printed = {name: tuple(map(int, sizes)) for name, *sizes in rows}
        if len(printed) < len(rows) or HOST_ROW not in printed:
            raise NoAnswer("what it printed is not a row a device and one of the host")
        answer = Answered(self.program, key, self.number, printed)
        if self.digest and self.program:
            with contextlib.suppress(AutolayersError):
                keep([answer], self.state, self.digest)
        return answer

    @lazy
    def number(self) -> int:
        """Return the tool's build, 0 if it does not say."""
        with contextlib.suppress(NoAnswer):
            said = self._ask("--version")
            return read_version(said.out + said.err)[0]
        return 0

    def _ask(self, *words: str) -> Output:
        """Return its answer. Raises NoAnswer."""
        started = time.monotonic()
        try:
            # not in the current directory, whose libraries it could take for backends
            return ask([self.tool, *words], self.environ, self.left, self.folder)
        except NoAnswer as why:
            slow = "did not end" in str(why)
            raise NoAnswer(f"it did not end within {PATIENCE:g} s" if slow else str(why)) from None
        finally:
            self.left = max(0.0, self.left - (time.monotonic() - started))

    def _with(
        self,
        plan: Plan,
        difference: dict[str, tuple[int, ...]],
        shortage: dict[str, tuple[int, ...]],
        build: int,
        rounds: int,
    ) -> Plan:
        """Return the plan with these bytes added on the memory of the whole machine."""
        free = self.request.machine.limits
        devices = tuple(
            replace(
                row,
                free=free.get(row.name, row.free),
                **_added(row, shortage.get(row.name, _NOTHING)),
            )
            for row in plan.devices
        )
        more = shortage.get(HOST_ROW, _NOTHING)
        host = replace(
            plan.host,
            free=self.request.machine.ram,
            resident=max(0, plan.host.resident + sum(more)),
            **_added(plan.host, more),
        )
        use = plan.breakdown
        use = replace(
            use,
            devices={
                name: replace(usage, **_added(usage, shortage.get(name, _NOTHING)))
                for name, usage in use.devices.items()
            },
            host=replace(use.host, **_added(use.host, more)),
        )
        equal = not any(map(any, difference.values()))
        confirmed = Confirmed(
            TOOL,
            build,
            rounds,
            equal,
            {name: dict(zip(PARTS, row, strict=True)) for name, row in difference.items()},
            self._whole(plan),
        )
        fits = plan.fits
        if not equal:
            left = host.remaining
            fits = all(r.remaining >= 0 for r in devices if r.used) and (left is None or left >= 0)
            use = replace(use, exact=False)
        noted = plan.noted
        # Why sizes were no more than bounds is answered
        if confirmed.exact:
            noted = tuple(line for line in noted if "upper bound" not in line)
        return replace(
            plan,
            devices=devices,
            host=host,
            breakdown=use,
            fits=fits,
            noted=noted,
            confirmed=confirmed,
        )


def line(plan: Plan) -> str:
    """Return what a plan's confirmation says in one line; "" without one."""
    confirmed = plan.confirmed
    if confirmed is None:
        return ""
    who = f"{confirmed.program} b{confirmed.build}" if confirmed.build else confirmed.program
    if confirmed.exact:
        return f"confirmed by {who}"
    if confirmed.equal:
        return (
            f"confirmed by {who}, but for {', '.join(confirmed.unasked)}, which it cannot be "
            "asked for"
        )
    parts = ", ".join(
        f"{name} {part} {'+' if size > 0 else '-'}{mib(abs(size))}"
        for name, row in confirmed.difference.items()
        for part, size in row.items()
        if size
    )
    return f"corrected by {who} ({parts}): an upper bound that was measured"


def _absolute(path: str) -> str:
    """Return a path that is the same in every folder."""
    whole = os.path.abspath(path)
    return Scaled(whole, path.scale) if isinstance(path, Scaled) else whole


def _short(
    printed: tuple[int, ...], predicted: Usage, planned: Usage, more: int
) -> tuple[int, ...]:
    """Return the most that llama-server may take in addition to its plan. The tool's logits of a
    micro-batch may hide what is more elsewhere in its graph, so all of its buffer counts, and
    `more` bytes."""
    ours = (
        predicted.model,
        predicted.context,
        min(predicted.compute, planned.compute),
    )
    model, context, compute = (
        (size + 1) * MiB - of_ours if size or of_ours else 0
        for size, of_ours in zip(printed, ours, strict=True)
    )
    return model, context, max(0, compute + more if compute > 0 else compute)


def _added(usage: Any, row: tuple[int, ...]) -> dict[str, Any]:
    """Return the parts of a device with what it takes more."""
    model, context, compute = row
    return {
        "model": max(0, usage.model + model),
        "context": max(0, usage.context + context),
        "compute": max(0, usage.compute + compute),
    }


def _without(request: Request, shortage: Mapping[str, tuple[int, ...]]) -> Request:
    """Return the request on a machine without the memory that is short, or with what is left."""
    sizes = {name: sum(row) for name, row in shortage.items()}
    budget = tuple(
        (name, max(0, size - sizes.get(name, 0))) for name, size in request.policy.budget
    )
    return request.with_goals(budget=budget).less(sizes, sizes.get(HOST_ROW, 0))
