"""Time of the ops of a model by precision, measured by the runtime in a process of its own."""

from dataclasses import dataclass, replace
from typing import Any

from quantkit.benchmark.candidate import Candidate
from quantkit.benchmark.process import WorkerError, WorkerProcess
from quantkit.runtimes.session import CONVERSION, FLOAT, INT8, OpTime

# Calls of the model; their number weakens the effect of the first one, which is slower.
CALLS = 50
TIMEOUT = 60.0


@dataclass(frozen=True)
class OpProfile:
    """Time of the ops of a model in one runtime.

    Attributes:
        op_times: time of each op in all calls; at least one.
    """

    op_times: tuple[OpTime, ...]

    @property
    def fractions(self) -> dict[str, float]:
        """Fraction of the time by precision."""
        total = sum(time.seconds for time in self.op_times)
        return {
            precision: sum(time.seconds for time in self.op_times if time.precision == precision) / max(total, 1e-12)
            for precision in (INT8, FLOAT, CONVERSION)
        }

    def __str__(self) -> str:
        int8, other, conversions = (f"{100 * fraction:.0f} %" for fraction in self.fractions.values())
        text = f"{int8} of the time of its ops is in int8, {other} in float, {conversions} in conversions"
        others = [time for time in self.op_times if time.precision != INT8]
        if not others:
            return text
        slowest = max(others, key=lambda time: time.seconds)
        return f"{text}, above all {slowest.name} ({slowest.op})"


def profile_ops(candidate: Candidate) -> OpProfile | None:
    """Return the time of each op of a model; None if the runtime does not measure it, or cannot run the model."""
    settings = candidate.settings
    settings = replace(settings, options=replace(settings.options, profile=True))
    with WorkerProcess(settings.environment, settings.cpus) as worker:
        try:
            opened: dict[str, Any] = worker.ask(replace(candidate, settings=settings).to_request(seed=0), TIMEOUT)
            response = opened if "error" in opened else worker.ask({"do": "profile", "calls": CALLS}, TIMEOUT)
        except WorkerError:
            return None
    times = tuple(OpTime(**time) for time in response.get("op_times", ()))
    return OpProfile(times) if times else None
