"""From a float graph, a plan and ranges to the 8-bit graph and its file."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from quantkit import formats
from quantkit.errors import CheckError
from quantkit.ir.graph import Graph
from quantkit.quantization import Plan, Ranges, annotate, convert
from quantkit.quantization.census import FLOAT
from quantkit.transforms.precision.convert_precision import convert_precision

KEPT = "the answers need it in more than 8 bits: --max-drop"


@dataclass(frozen=True)
class Conversion:
    """What becomes 8 bits, and how.

    Attributes:
        graph: in float, prepared.
        plan: of it.
        ranges: of every edge that the plan quantizes.
        kept_in: precision of the layers that `keeping` leaves out.
        layers: those layers.
    """

    graph: Graph
    plan: Plan
    ranges: Ranges
    kept_in: str = FLOAT
    layers: frozenset[str] = frozenset()

    @property
    def target(self) -> str:
        return self.plan.scheme.target

    @property
    def is_checked(self) -> bool:
        """Whether the graph is made of ops some of whose kernels are known to be broken on some hosts."""
        return self.target == "tensorflow" and not self.plan.scheme.weights_only

    def keeping(self, layers: frozenset[str]) -> "Conversion":
        """The conversion that leaves these layers out, besides those of its scheme."""
        scheme = self.plan.scheme
        plan = annotate(self.graph, scheme.with_(keep_float=(*scheme.keep_float, *sorted(layers))))
        kept = {name: KEPT if name in layers else why for name, why in plan.float_fallbacks.items()}
        return replace(self, plan=replace(plan, float_fallbacks=kept), layers=layers)

    @cached_property
    def quantized(self) -> Graph:
        """The 8-bit graph.

        Raises:
            InputError: an edge has no range.
            UnavailableError: the target can not be made here.
        """
        quantized = convert(self.graph, self.plan, self.ranges)
        if self.kept_in == FLOAT or not self.layers:
            return quantized
        # The plan has no patterns of layers that it leaves out: that of all layers knows their nodes.
        pattern_of = annotate(self.graph, self.plan.scheme.with_(keep_float=())).pattern_of
        half = {name for layer in self.layers if layer in pattern_of for name in pattern_of[layer].nodes} | self.layers
        keep = tuple(name for name, node in quantized.nodes.items() if name not in half and not node.is_constant)
        return convert_precision(quantized, to=self.kept_in, weights_only=False, keep=keep)

    def check(self) -> None:
        """See that this host computes the graph right.

        Raises:
            CheckError: it does not.
        """
        from quantkit.quantization.targets.tensorflow.check import check_on_this_host

        try:
            check_on_this_host(self.graph, self.plan, self.ranges, self.quantized)
        except CheckError as error:
            if not self.ranges.remarks:
                raise
            raise CheckError(
                f"{error.message}; {self.ranges.remarks[0]}",
                hint=f"--max-drop keeps such layers in float, or {error.hint.removeprefix('keep it in float: ')}",
            ) from None

    def write(self, output: Path) -> None:
        """Write the 8-bit graph; it appears complete or not at all."""
        if self.target == "litert":
            from quantkit.convert.to_litert import save_litert

            save_litert(self.quantized, output, small_weights=self.plan.scheme.weights_only)
        else:
            formats.save(self.quantized, output)
