"""The prediction compared with the sizes in llama-server's log, line by line."""

from __future__ import annotations

from itertools import chain

from ..backends import HOST
from ..diagnosis.log import META, LaunchLog
from ..memory.breakdown import Breakdown, Usage
from ..records import dataclass, replace
from ..units import MiB, mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..memory.breakdown import Extra


PARTS = ("model", "context", "compute")
# a Breakdown's name -> the model in the log, and its part
# 0 is the target, loaded first, 1 the draft model
_COMPANIONS = {
    "draft model weights": (1, "model"),
    "draft context": (1, "context"),
    "draft compute": (1, "compute"),
    "MTP context": (0, "context (second)"),
    "MTP compute": (0, "compute (second)"),
    "LoRA": (0, "lora"),
}
_ROUNDING = 0.005  # MiB: the log has two decimals
_LAST_DIGIT = round(_ROUNDING * MiB) + 1  # bytes


@dataclass(frozen=True)
class VerifiedPart:
    """One part on one device, bytes. `observed` None: not in the log. `tolerance`: the error of the
    log's rounding. `at_most`: the prediction is an upper bound. `usual`: why a difference is as
    predicted for use."""

    device: str
    part: str
    predicted: int
    observed: int | None
    tolerance: int = 0
    note: str = ""
    at_most: bool = False
    usual: str = ""

    @property
    def difference(self) -> int | None:
        """Observed minus predicted; None if they cannot be compared."""
        return None if self.observed is None or self.note else self.observed - self.predicted

    @property
    def equal(self) -> bool:
        difference = self.difference
        return difference is not None and (
            bool(self.usual) or (difference if self.at_most else abs(difference)) <= self.tolerance
        )


@dataclass(frozen=True)
class LogComparison:
    """A log and its prediction: a Line for each part of each device, and warnings."""

    lines: tuple[VerifiedPart, ...]
    warnings: tuple[str, ...] = ()

    @property
    def seen(self) -> bool:
        """The log has at least one comparable line."""
        return any(line.observed is not None for line in self.lines)

    @property
    def equal(self) -> bool:
        """Every comparable line agrees, and there is one."""
        comparable = [line for line in self.lines if line.difference is not None]
        return bool(comparable) and all(line.equal for line in comparable)

    @property
    def differences(self) -> dict[str, int]:
        """Device -> bytes used above the prediction (negative: below), if there is a difference."""
        sums: dict[str, int] = {}
        for line in self.lines:
            if line.difference is not None and not line.equal:
                sums[line.device] = sums.get(line.device, 0) + line.difference
        return {device: size for device, size in sums.items() if size}

    def table(self) -> str:
        """As text: MiB, one line per part and device."""
        rows = [("", "predicted", "observed", "difference")]
        for line in self.lines:
            observed = "-" if line.observed is None else mib(line.observed)
            title = f"{line.device} {line.part}"
            # How a prediction differs from what was observed, in a word or in MiB
            size = line.difference
            difference = "-" if size is None else f"{'+' if size > 0 else ''}{mib(size)}"
            if line.usual:
                verdict = f"{difference} ({line.usual})"
            elif line.note or not line.equal:
                verdict = line.note or difference
            else:
                verdict = "below" if line.at_most else "equal"
            rows.append((title, mib(line.predicted), observed, verdict))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for title, predicted, observed, verdict in rows:
            cells = [title.ljust(widths[0]), predicted.rjust(widths[1]), observed.rjust(widths[2])]
            lines.append("  ".join([*cells, verdict]).rstrip())
        return "\n".join(lines)


def compare(
    launch: LaunchLog, predicted: Breakdown, margins: dict[str, int] | None = None
) -> LogComparison:
    """Compare a launch's log with its prediction.

    Buffers of the first model and its first context count, and those of drafts, adapters and a
    projector. Without buffer lines the memory breakdown that llama-server prints at exit is used,
    in whole MiB. `margins` (bytes per device) are for the warning about too little free memory.
    """
    observed, rounding, mapped = _sums(launch)
    lines = []
    # drafting with MTP blocks, the first token reserves the model's own graph again: their context
    # has its hidden state
    anew = "compute" if launch.loads and "compute (second)" in launch.loads[0].buffers else ""
    devices = dict(predicted.devices)
    notes: dict[tuple[str, str], str] = {}
    if mapped:
        # "CPU_Mapped model buffer size" is a range of addresses: pages come as needed
        notes["Host", "model"] = "mapped from the file: address range, not memory"
    # -sm tensor: llama.cpp prints the largest part of each device in a single line
    if any(device == META for device, _ in observed):
        largest = [max(getattr(use, part) for use in devices.values()) for part in PARTS]
        devices = {META: Usage(*largest)}
        caches = launch.loads[0].buffers.get("context", {}) if launch.loads else {}
        # Those that are cut over all devices
        if sum(len(sizes) for name, sizes in caches.items() if launch.device_of(name) == META) > 1:
            notes[META, "context"] = "the largest part of each cache, not of one device"
    for device, usage in [*devices.items(), ("Host", predicted.host)]:
        for part in PARTS:
            size, key = getattr(usage, part), (device, part)
            # The bytes of a part of a device, None if the log does not show them
            value: int | None
            if key in observed:
                value = observed[key]
            else:
                # No line means no buffer; but without any line of this part its level hides them
                is_printed = any(part == key[1] for _, part in observed)
                value = 0 if is_printed or (observed and not size) else None
            tolerance, note = rounding.get(key, _LAST_DIGIT), notes.get(key, "")
            lines.append(
                VerifiedPart(device, part, size, value, tolerance, note, at_most=part == anew)
            )
    # Logits and embeddings, in RAM, a buffer of the context
    for extra in predicted.extras:
        if extra.name == "output buffer":
            output = launch.loads[0].buffers.get("output") if launch.loads else None
            value = None
            if output is not None:
                value = round(sum(size for sizes in output.values() for size in sizes) * MiB)
            lines.append(VerifiedPart(extra.device, extra.name, extra.size, value, _LAST_DIGIT))
            break
    return LogComparison((*lines, *_companions(launch, predicted)), tuple(spills(launch, margins)))


def in_use(comparison: LogComparison, predicted: Breakdown, devices: int) -> LogComparison:
    """Return the comparison with what is no difference in a launch on `devices` devices: with
    several a load may take less than llama.cpp measures, which is what is predicted, and a warm-up
    may grow a graph buffer by what is predicted for use."""
    peak = predicted.runtime_peak or {}

    def usual(line: VerifiedPart) -> str:
        if line.part != "compute" or line.equal or line.difference is None:
            return ""
        if abs(line.difference - peak.get(line.device, 0)) <= line.tolerance:
            return "as predicted for use"
        return "less: pipelined" if devices > 1 and line.difference < 0 else ""

    return replace(
        comparison, lines=tuple(replace(line, usual=usual(line)) for line in comparison.lines)
    )


def _companions(launch: LaunchLog, predicted: Breakdown) -> list[VerifiedPart]:
    """Return the draft model (loaded after its target), MTP contexts and adapters, as far as their
    predictions are exact, and a projector."""
    lines = _projector(launch, predicted)
    for extra in predicted.extras:
        index, part = _COMPANIONS.get(extra.name, (len(launch.loads), ""))
        if not extra.exact or index >= len(launch.loads):
            continue
        buffers = launch.loads[index].buffers.get(part, {})
        names = [name for name in buffers if launch.device_of(name) == extra.device]
        # A mapped range is no allocation
        if names and not any(name.endswith("_Mapped") for name in names):
            lines.append(_of_extra(extra, [size for name in names for size in buffers[name]]))
    return lines


def _projector(launch: LaunchLog, predicted: Breakdown) -> list[VerifiedPart]:
    weights = {launch.device_of(name): sizes for name, sizes in launch.projector_model.items()}
    compute = {launch.device_of(name): [size] for name, size in launch.projector.items()}
    lines = []
    for extra in predicted.extras:
        sizes = {"mmproj weights": weights, "mmproj compute": compute}.get(extra.name, {}).get(
            extra.device
        )
        if sizes:
            lines.append(replace(_of_extra(extra, sizes), at_most=not extra.exact))
    return lines


def _of_extra(extra: Extra, sizes: Sequence[float]) -> VerifiedPart:
    """Return what the log's sizes (MiB) make of it; each of them is rounded by itself."""
    seen, tolerance = round(sum(sizes) * MiB), int(_ROUNDING * MiB * len(sizes)) + 1
    return VerifiedPart(extra.device, extra.name, extra.size, seen, tolerance)


def _sums(launch: LaunchLog) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], int], bool]:
    """Return (bytes per device and part, tolerance of each, whether host weights are mapped)."""
    sums: dict[tuple[str, str], float] = {}
    tolerance: dict[tuple[str, str], float] = {}
    mapped = False
    buffers = launch.loads[0].buffers if launch.loads else {}
    for part in PARTS:
        for name, sizes in buffers.get(part, {}).items():
            key = (launch.device_of(name), part)
            mapped = mapped or (name.startswith(HOST) and name.endswith("_Mapped"))
            sums[key] = sums.get(key, 0) + sum(sizes) * MiB
            # Each of several lines, such as two caches, is rounded by itself
            tolerance[key] = tolerance.get(key, 0) + _ROUNDING * MiB * len(sizes)
    if not sums:
        # The table that llama-server prints when it ends: total, free, model, context, compute
        rows = {device: row[2:5] for device, row in launch.breakdown.items()}
        rows |= {} if launch.host is None else {"Host": launch.host}
        for device, row in rows.items():
            for part, size in zip(PARTS, row, strict=True):
                # the table truncates the fraction
                sums[device, part] = size * MiB + MiB // 2
                tolerance[device, part] = MiB / 2
    return (
        {key: round(total) for key, total in sums.items()},
        {key: int(error) + 1 for key, error in tolerance.items()},
        mapped,
    )


def used(launch: LaunchLog) -> dict[str, int]:
    """Device -> bytes of all its buffers in the log, of all models and contexts."""
    sums: dict[str, float] = {}
    of_loads = (part.items() for load in launch.loads for part in load.buffers.values())
    buffers = [*chain.from_iterable(of_loads), *launch.projector_model.items()]
    named = [(name, sum(sizes)) for name, sizes in buffers]
    for name, size in [*named, *launch.projector.items()]:
        device = launch.device_of(name)
        sums[device] = sums.get(device, 0) + size * MiB
    return {device: round(size) for device, size in sums.items()}


def spills(launch: LaunchLog, margins: dict[str, int] | None = None) -> list[str]:
    """Warnings about devices with nothing left, and about devices that allocated more than was free
    at the start: that is no error if the driver moves memory to system RAM (Windows, unified
    memory)."""
    warnings = []
    for device, size in used(launch).items():
        free = launch.free.get(device)
        if free is None or device == "Host":
            continue
        left = free * MiB - size
        if left < 0:
            warnings.append(
                f"{device}: {mib(size)} allocated with {free} MiB free: {mib(-left)} spilled into "
                "system RAM, which is slow; use a smaller -c or -ngl"
            )
        # A quarter of the margin that the plan left: the
        # rest has gone to what no line of the log shows
        elif left < (margins or {}).get(device, 64 * MiB) // 4:
            warnings.append(
                f"{device}: only {mib(left)} left free after the load; a long prompt or another "
                "program may fail"
            )
    return warnings
