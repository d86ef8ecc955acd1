"""A supervised launch: started, compared with its prediction, and restarted smaller if memory runs
out."""

from __future__ import annotations

import os
import signal
import string
import sys
import threading
import time

from ..backends import HOST
from ..detect import digest as program_digest
from ..diagnosis.log import META, LaunchLog, OutOfMemory
from ..errors import AutolayersError, LaunchRefused, UsageError
from ..flags.params import FIT_PARAMS_MIN_CTX
from ..flags.parse import parse
from ..memory.breakdown import Breakdown, Usage
from ..net import Limit
from ..output import say, say_all
from ..quoting import shell
from ..records import replace
from ..store import CheckedBuild, Observation, keep, now, of_path
from ..units import MiB
from . import NOT_EXECUTABLE, background, calibrate, cannot_start, supervise, wait
from . import command as commands
from .session import Session, backend
from .verify import LogComparison, compare, in_use, used

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..diagnosis.diagnosis import Diagnosis
    from ..planner import Plan
    from ..request import Request
    from .supervise import Ended

_SMALLER = ("oom_device", "oom_host")  # what less memory helps against
# What helps against other causes, where the user's flags leave it open
_SMALL_BATCH = 128
# buffer_limit: one buffer of scores without flash attention, or of a large batch, is over what the
# driver allows at once, though memory is free
_CHANGES: dict[str, dict[str, Any]] = {
    "buffer_limit": {"n_ubatch": _SMALL_BATCH, "flash_attn": "on"},
    "bad_combo": {"flash_attn": "on"},
}
# What a shell would add to the log of a program that ended so
# `explain` knows a binary built for another CPU by this line, and no shell prints it here
_ENDS = {128 + signal.SIGILL: b"\nIllegal instruction\n"}
_PROBE = 60.0  # seconds that the measured answer may take
_PATIENCE = 20.0  # seconds from a loaded model to the server's answers
# the least by which a retry shrinks, if the log does not say how much was missing
_STEP = 64 * MiB


class Attempts:
    """Launches of one session, until one is ready, fails for another reason, or cannot shrink
    further."""

    def __init__(
        self, session: Session, plan: Plan, added: list[str], retries: int, verify: bool, wait: bool
    ) -> None:
        self.session = session
        self.plan = plan
        self.added = added
        self.retries = retries
        self.verify = verify
        self.wait = wait
        self.compared = False
        self.probe_limit = Limit(_PROBE)
        self.given = parse(session.command.plannable, session.seen, session.files, command=None)

    def run(self) -> int:
        """Return the exit code of the last launch."""
        request = self.session.request
        code = NOT_EXECUTABLE
        for attempt in range(self.retries + 1):
            # made again for each attempt, as the added words change
            # e.g. "-lv 4", which the build needs to print buffer sizes at all
            # The words with which buffer sizes are shown: level 4 (trace)
            chosen = self.given.value("-lv") is not None or self.given.value("-v") is not None
            # The words for colours: the log comes through a pipe, which llama.cpp
            # gives no colours: on where they go to a terminal after all
            environ, given = self.session.environ, self.given.value("--log-colors") is not None
            unwanted = environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
            able = self.session.build.rules.log_colors and self.session.program() is not None
            shown = sys.stdout.isatty() and sys.stderr.isatty()
            coloured = able and shown and not (self.wait or given or unwanted)
            words = commands.complete(
                self.session.command,
                [
                    *self.added,
                    *(
                        ["-lv", "4"]
                        if self.verify and self.session.build.buffers_need_trace and not chosen
                        else []
                    ),
                    *(["--log-colors", "on"] if coloured else []),
                ],
            )
            started = self.plan
            try:
                outcome = self._start(words)
            except OSError as error:
                return cannot_start(words[0], error)
            code = outcome.code
            failure = memory_failure(outcome)
            # the machine with no more memory than this log shows that there was
            smaller = (
                # None where RAM ran out and nobody knows how much there is
                smaller_machine(request, self.plan, outcome.launch, failure) if failure else None
            )
            # what helps against another cause than memory, such as a driver's limit
            other = self._explained(outcome, smaller or request, attempt < self.retries)
            if failure is None and other is None:
                if self.verify and not self.compared:
                    # an aborted launch's log is incomplete: shown, not kept
                    # a server that was ended on request has printed everything
                    whole = outcome.launch.ready or outcome.code == 0 or outcome.requested
                    if not self._compare(outcome.launch, whole):
                        say("nothing to compare: its log has no buffer sizes")
                return code
            if failure is not None and other is None:
                # Say which device ran out of memory, and the log's line
                device = failure.device or "an unnamed device"
                say(f"out of memory on {device} while loading: {failure.message}")
            # The last attempt has said why it died
            if attempt == self.retries:
                return code
            # each attempt starts from what the last one taught
            has_changed, request = bool(smaller or other), other or smaller or request
            # Without new knowledge the search would return the launch that has just failed
            why_not = "cannot plan again: the size of the memory is unknown"
            if has_changed:
                before = (self.plan.flags, self.added)
                self.plan, self.added = self._next(request)
                why_not = "" if self.plan.fits else "no smaller plan fits"
                if (self.plan.flags, self.added) == before:
                    why_not = "cannot retry smaller: the flags you gave leave nothing to reduce"
            if why_not and not self._proposed(outcome, request, started, why_not):
                self._explained(outcome, request, False)
                return code
            say(f"attempt {attempt + 2} of {self.retries + 1}: " + shell(self.added))
        return code

    def _explained(self, outcome: Ended, request: Request, again: bool) -> Request | None:
        """Say why a launch died; return the request for another start where something else than
        less memory helps."""
        if outcome.code == 0 or outcome.requested:
            return None
        # A retry plans anyway, so `explain` need not: planning is its slow part
        why = self._diagnosis(outcome, None if again else request)
        if not why.known or why.cause == "healthy":
            return None
        # a retry with less memory says enough by itself
        if not (again and why.cause in _SMALLER):
            # the cause, then its figures
            line, *table = why.text().rstrip("\n").split("\n")
            say(line, *table)
        given, changes = request.params, _CHANGES.get(why.cause, {})
        # never a flag that the user gave
        changes = {name: value for name, value in changes.items() if getattr(given, name) is None}
        if not (again and changes):
            return None
        # Kept in the session: attempts after this one need the flags too
        self.session.ask_for(replace(request.arguments, params=replace(given, **changes)))
        return self.session.request

    def _diagnosis(self, outcome: Ended, request: Request | None) -> Diagnosis:
        """Return what the log shows; with a `request` also the launch that works on its machine."""
        from ..diagnosis.diagnosis import explain

        words, log = self.session.command.words, outcome.log + _ENDS.get(outcome.code, b"")
        if request is None:
            # Without files: the model that the log names need not be opened again
            return explain(log, words=words, files=False)
        return explain(
            log,
            words=words,
            model=self.session.model,
            devices=request.machine.devices,
            host=request.host,
        )

    def _proposed(self, outcome: Ended, request: Request, started: Plan, why_not: str) -> bool:
        """Take the launch that `explain` proposes for this log, unless it lacks some given flags:
        those are named then."""
        diagnosis = self._diagnosis(outcome, request)
        launch = diagnosis.launch
        # A proposal that takes as much would fail in the same way
        if launch is None or not _less(launch.plan, started, diagnosis.device):
            say(why_not)
            return False
        # the user decides whether to give up a flag
        # The given flags, variables and config-file keys that a launch does without, as
        # they were written
        against: dict[str, None] = {}
        for (flag, value), written in zip(self.given.given, self.given.written, strict=True):
            # Flags of no field do not affect memory, and files are the command's own
            field = commands.field_of(flag)
            if not field or field in ("model", *commands.FILES):
                continue
            wanted, planned = getattr(self.given.params, field), getattr(launch.plan.params, field)
            # A plan may add overrides behind the given ones
            if field == "overrides":
                planned = planned[: len(wanted)]
            if planned != wanted:
                against[f"{written} {value}".rstrip()] = None
        if against:
            say(f"{why_not}; a launch that fits is without the given {', '.join(against)}")
            return False
        self.plan = launch.plan
        self.added, _ = commands.additions(
            self.session.command,
            launch.plan.flags,
            self.session.build,
            self.session.seen,
            self.session.files,
        )
        return True

    def _next(self, request: Request) -> tuple[Plan, list[str]]:
        """Return the plan for less memory. One that gives a device up is the last resort: a margin
        can be smaller before, and the context."""
        best = self.session.plan(request)
        # devices that hold layers
        with_layers = _with_layers(self.plan)
        if best[0].fits and with_layers <= _with_layers(best[0]):
            return best
        # Smaller margins and the smallest context before a
        # GPU loses all its layers, which costs more
        for gentler in _gentler(request, best[0]):
            answer = self._or(best, gentler)
            if answer[0].fits and with_layers <= _with_layers(answer[0]):
                return answer
            best = best if best[0].fits else answer
        # graph buffers, where all else is given
        if not best[0].fits and request.params.n_ubatch is None:
            # Compute buffers shrink with the micro-batch; layers and context stay as given
            small = request.asking(
                replace(request.arguments, params=replace(request.params, n_ubatch=_SMALL_BATCH))
            )
            answer = self._or(best, small)
            best = answer if answer[0].fits else best
        return best

    def _or(self, best: tuple[Plan, list[str]], other: Request) -> tuple[Plan, list[str]]:
        """Return the plan of another request, `best` where llama.cpp would refuse it."""
        try:
            return self.session.plan(other)
        except LaunchRefused:
            return best

    def _start(self, words: list[str]) -> Ended:
        if self.wait:
            given, environ = self.given, self.session.environ
            # Only the server learns its port otherwise
            if not wait.is_known(given):
                raise UsageError(
                    "--wait needs a --host and a --port that are known before the server starts"
                )
            at = wait.Address.of(given, self.session.build.default_port)
            # The other server would answer /health in place of this one, which cannot listen
            if wait.taken(at):
                raise AutolayersError(
                    f"the port is in use at {at.place}: stop what listens there, or give another "
                    "--port"
                )
            # what starts it otherwise (a container, a script) may not be its parent
            direct = len(self.session.command.launcher) == 1 and self.session.program() is not None
            # [the address at which the process itself listens], once it does
            own: list[wait.Address] = []

            def ready(process: int) -> bool:
                if not wait.healthy(at):
                    return False
                host = wait.listening(process, at.port)
                own[:] = [replace(at, host=host)] if host else []
                # A direct child must be the one that listens:
                # otherwise another process has taken the port
                return wait.healthy(own[0]) if own else not direct

            pid, outcome = background.run(words, environ, at.port, ready)
            if pid:
                authorization = wait.authorization(given, environ)
                rate = None
                if own or not authorization:  # a key goes to nobody else
                    # Two tokens show that it works; a rate that is kept needs more
                    tokens = calibrate.PROBE.generate if self.verify else 2
                    rate = wait.speed(own[0] if own else at, authorization, tokens)
                if rate and self.verify and direct:
                    self._keep_rate(rate)
                speed = f", {rate:.1f} tokens/s" if rate else ""
                say(f"ready at {at.url}{speed}, process {pid}")
            return outcome
        on_ready = self._ready if self.verify else None
        # llama-server does not end while a client waits for its answer, and the probe is one
        self.probe_limit = Limit(_PROBE)
        return supervise.run(words, self.session.environ, on_ready, on_end=self.probe_limit.end)

    def _ready(self, launch: LaunchLog) -> None:
        self._compare(launch, True)
        if not self.wait:
            # this one empties the server's pipe
            # In a thread of its own: waiting here would fill
            # the pipe, and the server would stop at a write
            threading.Thread(target=self._probe, daemon=True).start()

    def _probe(self) -> None:
        """Measure the tokens per second of a server at a known address, without a key."""
        given = self.given
        if self.session.program() is None or len(self.session.command.launcher) > 1:
            return
        # Whether the server answers those alone who have its key.
        key = given.value("--api-key-file") or wait.authorization(given, self.session.environ)
        if key or not wait.is_known(given):
            return
        at = wait.Address.of(given, self.session.build.default_port)
        until = time.monotonic() + _PATIENCE
        # /health answers 503 until the model is ready to serve
        while not wait.healthy(at):
            if time.monotonic() > until:
                return
            time.sleep(0.5)
        rate = wait.speed(at, "", calibrate.PROBE.generate, self.probe_limit)
        if rate:
            say(f"{calibrate.PROBE.generate} tokens of it: {rate:.1f} tokens/s")
            self._keep_rate(rate)

    def _keep_rate(self, rate: float) -> None:
        """Keep the rate for the predictions of every model."""
        try:
            calibrate.keep_probe(self.session, self.plan, rate)
        except AutolayersError as error:
            say(f"the speed cannot be kept: {error}")

    def _compare(self, launch: LaunchLog, whole: bool) -> bool:
        """Print the table and, for a complete launch, keep the differences; return False if the log
        has no buffers."""
        margins = {row.name: row.margin for row in self.plan.devices}
        predicted = self.plan.breakdown
        comparison = in_use(compare(launch, predicted, margins), predicted, len(predicted.devices))
        if not comparison.seen:
            return False
        self.compared = True
        say("prediction and llama-server's own numbers:", *comparison.table().split("\n"))
        say_all(comparison.warnings)
        if whole:
            self._keep(comparison)
        return True

    def _keep(self, comparison: LogComparison) -> None:
        session, build = self.session, self.session.build
        if not session.digest:
            return
        date, program = now(), session.program()
        flags = tuple(self.plan.flags)
        seen = Observation(build.number, backend(self.plan), flags, comparison.differences, date)
        differences = {
            # Rounding of the log is no difference
            f"{line.part} {line.device}": line.difference
            for line in comparison.lines
            if line.difference and not line.equal
        }
        try:
            keep([seen], session.environ, session.digest)
            # The results of `autolayers check` for this program; an upper bound differs from the
            # log without any fault of the build
            if program is not None and self.plan.breakdown.exact and not session.another_build:
                checked = CheckedBuild(
                    program_digest(program),
                    build.number,
                    build.commit,
                    date,
                    {session.model.architecture: differences},
                    os.path.realpath(program),
                )
                keep([checked], session.environ, of_path(program))
        except AutolayersError as error:
            say(f"the observation cannot be kept: {error}")


def memory_failure(outcome: Ended) -> OutOfMemory | None:
    """Return why a load failed, if memory ran out; None for anything else, and once the model was
    loaded."""
    if outcome.code == 0 or outcome.requested or outcome.launch.ready:
        return None
    failure = outcome.launch.out_of_memory
    if failure is None and outcome.oom_killed:
        return OutOfMemory("Host", None, "the kernel killed it")
    return failure


def _less(plan: Plan, than: Plan, device: str | None) -> bool:
    """Return whether a plan uses less of the device that ran out."""
    if device == HOST:
        return plan.breakdown.resident < than.breakdown.resident
    use, before = plan.breakdown.devices.get(device or ""), than.breakdown.devices.get(device or "")
    return before is not None and (use.total if use else 0) < before.total


def _with_layers(plan: Plan) -> set[str]:
    return {name for name, usage in plan.breakdown.devices.items() if usage.model}


def _gentler(request: Request, plan: Plan) -> Iterator[Request]:
    """Yield the request with the smallest usual context, and with margins halved up to three times,
    as far as the user's flags leave that open."""
    policy, params = request.policy, request.params
    small = params.n_ctx is None and policy.n_ctx is None and policy.n_ctx_min is None
    # --fit-target and --margin are the user's word on what stays free
    margins = [device.margin for device in plan.devices]
    free = margins and policy.margin is None and not params.fit_target
    policies = [policy]
    for halved in (1, 2, 3) if free else ():
        # a half, a quarter, an eighth
        policies.append(replace(policy, margin=tuple(size >> halved for size in margins)))
    for at in policies:
        if at is not policy:
            yield replace(request, policy=at)
        if small:
            yield replace(request, policy=replace(at, n_ctx=FIT_PARAMS_MIN_CTX))


def _device(failure: OutOfMemory, predicted: Breakdown) -> str | None:
    """Return the plan's name of the device that ran out of memory: ROCm prints CUDA names."""
    name = failure.device
    if name is None or failure.certain or name in ("Host", *predicted.devices):
        return name
    # "CUDA1" of a ROCm build's log means ROCm1
    number = name.lstrip(string.ascii_letters)
    return next((device for device in predicted.devices if device.endswith(number)), name)


def smaller_machine(
    request: Request, plan: Plan, launch: LaunchLog, failure: OutOfMemory
) -> Request | None:
    """Return the request with less free memory: less than the failed allocation would have used.

    The bytes allocated before on that device plus the requested ones exceed its memory; if the log
    does not have them, the plan's own use does. None if RAM ran out and its size is unknown.
    """
    predicted = plan.breakdown
    device = _device(failure, predicted)
    if device == "Host":
        # The request with less RAM than the launch would have used, None if its size is
        # unknown
        host = request.host
        if host is None:
            return None
        most = min(host.available, predicted.resident)
        if failure.requested:
            most = min(
                most, _held(launch, "Host", predicted.host, failure.requested) + failure.requested
            )
        # At least 64 MiB less, or the search might return the same launch
        return request.on(request.machine.devices, replace(host, available=max(0, most - _STEP)))
    devices = []
    for each in request.machine.devices:
        if device is None or each.name == device:
            # No device in the log: each one may be the one that was full
            requested = failure.requested if each.name == device else None
            # The bytes of a device that the failed launch did not get. `requested`: the bytes of
            # the allocation that failed there, if it is known.
            usage = predicted.devices.get(each.name)
            limit = each.free if usage is None else min(each.free, usage.total)
            if requested:
                held = _held(launch, each.name, usage or Usage(), requested)
                limit = min(limit, held + requested)
            if each.name in launch.free:
                # What the log lists at the start, in MiB, is newer than this process's figure
                limit = min(limit, launch.free[each.name] * MiB)
            each = replace(each, free=max(0, limit - 1))
        devices.append(each)
    return request.on(devices, request.host)


def _held(launch: LaunchLog, device: str, usage: Usage, requested: int) -> int:
    """Return the bytes that were allocated on a device when it was asked for `requested` more: the
    log's, or the prediction if the log level shows no buffers. Weights come first, then caches,
    which may be two, then graph buffers."""
    held_by_device = used(launch)
    # META: under -sm tensor the log has one line for all devices
    seen = held_by_device.get(device, 0) + held_by_device.get(META, 0)
    if seen:
        return seen
    before = 0
    for size in (usage.model, usage.context, usage.compute):
        # A request of one part's size, to 1 %: this part failed, and those before it are held
        if size and abs(size - requested) <= size // 100:
            return before
        before += size
    # Smaller than a later part: taken to be one buffer of it, so the weights are held
    return usage.model if requested <= max(usage.context, usage.compute) else 0
