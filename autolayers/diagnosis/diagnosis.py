"""x"""

from __future__ import annotations

from ..records import dataclass
from .decide import Verdict, decide
from .facts import Facts
from .lines import lines


@dataclass(frozen=True)
class Diagnosis:
    verdict: Verdict

    def to_dict(self):
        v = self.verdict
        return {"cause": v.cause, "phase": v.phase, "device": v.device, "bytes": v.bytes, "fatal": v.fatal, "evidence": list(v.evidence)}


def explain(data):
    found = lines(data)
    return Diagnosis(decide(found, Facts.of(found)))
