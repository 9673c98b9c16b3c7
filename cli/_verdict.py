"""What ``quantkit quantize`` says when it is done: precision, left-overs, size, answers, speed, and what to do next."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit.benchmark.comparison import Comparison
from quantkit.benchmark.machine import this_machine
from quantkit.evaluation.classification_metrics import ClassificationMetrics, Proportion
from quantkit.evaluation.output_sqnr import OutputSqnr
from quantkit.quantization import Plan, Ranges
from quantkit.quantization.census import EIGHT_BITS, FLOAT, Census
from quantkit.quantization.fallback import Fallback
from quantkit.runtimes.session import RuntimeVersion

from ._next import Next
from ._render import size_text

if TYPE_CHECKING:
    from rich.console import Console

ADVICE = {
    "onnx": "OpenVINO and ONNX Runtime choose their threads well by themselves",
    "tensorflow": "run it with intra-op 1 and inter-op as many as there are cores: --intra-op 1 --inter-op {cores}",
    "eightbit": "threads hardly matter: each op runs on one",
    "litert": "as many threads as there are cores: --intra-op {cores}",
}
SHOWN = 5
# Instructions that multiply numbers of 16 bits with the range of float32, the fastest first, and the targets whose
# engines use them.
BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")
BFLOAT16_TARGETS = ("onnx", "tensorflow")
# A smaller share of equal answers is worth another look.
FEW_DIFFER = 0.98
# Where noise has a tenth of the size of the signal, in decibels.
NOISY = 20.0


@dataclass(frozen=True)
class Verdict:
    """What came of it."""

    model: str
    output: Path
    plan: Plan
    ranges: Ranges
    census: Census
    float_bytes: int = 0
    engine: RuntimeVersion | None = None
    quality: ClassificationMetrics | None = None
    fidelity: OutputSqnr | None = None
    float_top1: Proportion | None = None
    judged_on: str = ""
    refusals: tuple[str, ...] = ()
    speed: Comparison | None = None
    milliseconds: tuple[float, float] | None = None
    unmeasured: str = ""
    fallback: Fallback | None = None
    kept_in: str = FLOAT
    next: Next | None = None

    @property
    def _next(self) -> Next:
        return self.next or Next(self.model, self.output)

    @property
    def num_bytes(self) -> int:
        return self.output.stat().st_size

    @property
    def threads(self) -> str:
        if self.plan.scheme.weights_only:
            return "those of the float model"
        return ADVICE[self.plan.scheme.target].format(cores=cores())

    @property
    def next_step(self) -> tuple[str, str]:
        """Why it is not faster, and the one command to run next; empty where it is."""
        if self.speed is None or self.speed.low > 1:
            return "", ""
        target = self.plan.scheme.target
        if self.plan.scheme.weights_only:
            return (
                "only the weights are 8 bits: the arithmetic is that of float",
                self._next.quantize(target),
            )
        if target == "eightbit":
            return (
                "the classic ops run on reference kernels on x86, whatever their ranges",
                self._next.fused(),
            )
        bfloat16 = self._bfloat16
        if self.census.share < 0.5 and not bfloat16:
            first = self.census.left_overs[0]
            return (
                f"most of the work is still float, above all {first.name} ({first.op}): {first.reason}",
                self._next.summarize(),
            )
        reason = (
            "most of the work is still float"
            if self.census.share < 0.5
            else f"{self.census.conversions} conversions and the engine's overhead weigh more than the arithmetic saved"
        )
        engine = self.engine.name if self.engine else self.plan.scheme.target
        if bfloat16:
            return f"{reason}; {bfloat16}", self._next.benchmark(engine, "--precision", "float32,bfloat16")
        return reason, self._next.benchmark(engine, "--runs", "300")

    @property
    def _bfloat16(self) -> str:
        """That 16 bits may suit this machine better, which a measurement tells; empty: it has no such arithmetic."""
        found = [name for name in BFLOAT16 if name in this_machine().isa]
        if not found or self.plan.scheme.target not in BFLOAT16_TARGETS:
            return ""
        return f"this processor has bfloat16 arithmetic ({found[0]}), which was not measured here"

    @property
    def quality_step(self) -> tuple[str, str]:
        """What may lose less, where answers differ much, and the command that tells; empty where they do not."""
        agreement, bfloat16 = self.quality.agreement if self.quality else None, self._bfloat16
        is_near = agreement is None or agreement.value >= FEW_DIFFER
        is_clear = self.fidelity is None or self.fidelity.worst >= NOISY
        if self.plan.scheme.weights_only or (is_near and is_clear):
            return "", ""
        target = self.plan.scheme.target
        if bfloat16 and not is_near:
            engine = self.engine.name if self.engine else target
            return f"answers differ; {bfloat16}", self._next.evaluate(engine, "--precision", "bfloat16")
        if self.fallback is not None or self._next.source[0] != "--calibration":
            return "", ""
        what = "answers differ; --max-drop keeps in float the layers that are to blame"
        return what, self._next.quantize(target, "--max-drop", "0.01")

    def to_json(self) -> dict[str, Any]:
        reason, command = self.next_step if self.next_step[0] else self.quality_step
        return {
            "model": self.model,
            "output": str(self.output),
            "target": self.plan.scheme.target,
            "scheme": self.plan.scheme.to_json(),
            "calibration": {
                "pictures": self.ranges.provenance.count,
                "data": self.ranges.provenance.data,
                "remarks": list(self.ranges.remarks),
            },
            **self.census.to_json(),
            "weights": len(self.plan.weights),
            "num_bytes": self.num_bytes,
            "float_num_bytes": self.float_bytes,
            "engine": None if self.engine is None else {"name": self.engine.name, "version": self.engine.version},
            "quality": None if self.quality is None else {"on": self.judged_on, **self.quality.to_json()},
            "fidelity": None if self.fidelity is None else {"on": self.judged_on, **self.fidelity.to_json()},
            "float_top1": None if self.float_top1 is None else self.float_top1.to_json(),
            "refusals": list(self.refusals),
            "speed_up": None if self.speed is None else self.speed.to_json(),
            "milliseconds": None if self.milliseconds is None else list(self.milliseconds),
            "not_measured": self.unmeasured or None,
            "threads": self.threads,
            "fallback": None if self.fallback is None else {**self.fallback.to_json(), "kept_in": self.kept_in},
            "reason": reason or None,
            "next_command": command or None,
        }

    def print(self, console: "Console") -> None:
        for line in self.lines():
            console.print(line, markup=False)

    def lines(self) -> Iterator[str]:
        counted, size = self.census, self.num_bytes
        times = self.float_bytes / max(size, 1)
        change = f"{1 / times:.1f} times larger" if 0 < times < 1 else f"{times:.1f} times smaller"
        yield f"{self.output}: {size_text(size)}, {change} than in float"
        yield ""
        if self.plan.scheme.weights_only:
            rest = (
                "LiteRT rounds what meets them in each run"
                if self.plan.scheme.target == "litert"
                else "all arithmetic is in float"
            )
            yield f"weights in 8 bits: {len(self.plan.weights)} constants; {rest}"
        else:
            yield from self._precision_lines()
        for one in counted.left_overs[:SHOWN]:
            cost = f", {_count(one.multiply_adds)} multiply-adds" if one.multiply_adds else ""
            yield f"  float: {one.name} ({one.op}{cost}): {one.reason}"
        if len(counted.left_overs) > SHOWN:
            yield f"  float: {len(counted.left_overs) - SHOWN} more (--save-plan lists them)"
        for remark in self.ranges.remarks[:SHOWN]:
            yield f"  careful: {remark}"
        if len(self.ranges.remarks) > SHOWN:
            yield f"  careful: {len(self.ranges.remarks) - SHOWN} more (--save-ranges lists them)"
        if self.fallback is not None:
            yield from self._fallback_lines(self.fallback)
        yield from self._quality_lines()
        yield from self._speed_lines()

    def _precision_lines(self) -> Iterator[str]:
        """Nodes by op and precision."""
        counted = self.census
        width = max(map(len, (*counted.table, "op")))
        yield f"{'op':<{width}}  {EIGHT_BITS:>6}  {FLOAT:>6}"
        for op, (coded, kept) in counted.table.items():
            yield f"{op:<{width}}  {coded or '':>6}  {kept or '':>6}"
        yield ""
        conversions = "1 conversion is" if counted.conversions == 1 else f"{counted.conversions} conversions are"
        # Rounded down: all is said of all only.
        share = floor(1000 * counted.share) / 10
        which = ""
        if counted.unknown:
            names = ", ".join(f"{count} {op}" for op, count in counted.unknown.items())
            which = f" that are known (not those of {names})"
        yield f"{share:.1f} % of the multiply-adds{which} are 8 bits; {conversions} left"

    def _fallback_lines(self, found: Fallback) -> Iterator[str]:
        """What each layer that stays float bought, and the work it keeps from 8 bits."""
        yield f"drop {found.baseline.drop:.4f} with everything in 8 bits, {found.loss.drop:.4f} as written"
        kept = [row for row in found.rows if row.is_float]
        if kept:
            costs = {one.name: one.multiply_adds for one in self.census.left_overs}
            head = f"kept in {self.kept_in}"
            width = max(len(head), *(len(row.unit) for row in kept))
            yield f"  {head:<{width}}  {'drop bought':>11}  {'KL bought':>9}  {'multiply-adds':>13}"
            for row in kept:
                bought, cost = row.bought or row.gain, costs.get(row.unit)
                numbers = f"{bought.drop:>11.4f}  {bought.divergence:>9.4f}" if bought else f"{'':>11}  {'':>9}"
                yield f"  {row.unit:<{width}}  {numbers}  {'' if cost is None else _count(cost):>13}"
        if not found.is_complete:
            yield "  the time was over before the search was: the same command goes on, with more --time-budget"

    def _quality_lines(self) -> Iterator[str]:
        quality = self.quality
        for refusal in self.refusals:
            yield f"  careful: {refusal.splitlines()[0]}"
        if self.refusals and quality is None and self.fidelity is None:
            yield "answers not compared with float: no engine here runs it"
        if quality is not None and quality.agreement is not None and quality.kl_divergence is not None:
            yield f"agreement with float {quality.agreement}, KL {quality.kl_divergence:.4f}, on {self.judged_on}"
            if quality.top1 is not None and self.float_top1 is not None:
                yield f"top-1 {quality.top1}, in float {self.float_top1}"
        elif self.fidelity is not None:
            yield f"{self.fidelity}, on {self.judged_on}"
        judged = quality or self.fidelity
        if judged is not None and judged.not_finite:
            yield f"  {judged.not_finite} answers hold NaN or infinity: quantkit compare names the layer"

    def _speed_lines(self) -> Iterator[str]:
        if self.speed is not None and self.milliseconds is not None:
            before, after = self.milliseconds
            yield f"in {self.engine}: {self.speed.verdict}, {_short(before)} -> {_short(after)} ms"
        elif self.unmeasured:
            yield f"speed not measured: {self.unmeasured}"
        yield f"threads: {self.threads}"
        (reason, command), (doubt, other) = self.next_step, self.quality_step
        if reason:
            yield f"not faster: {reason}"
        elif doubt:
            yield doubt
        if command or other:
            yield f"next: {command or other}"


def _count(number: int) -> str:
    return f"{number / 1e6:.1f} million" if number >= 1e5 else f"{number / 1e3:.1f} thousand"


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.1f}" if milliseconds >= 1 else f"{milliseconds:.2g}"


def cores() -> int:
    """How many cores this process may use."""
    machine = this_machine()
    return min(machine.physical_cores or machine.logical_cores, len(machine.affinity) or machine.logical_cores)
