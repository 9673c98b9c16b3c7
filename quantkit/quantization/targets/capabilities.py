"""Methods of few targets, in classes that such a target inherits from in addition to `Target`."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets.finding import Build, Finding


class NeedsPackage(ABC):
    """Target whose files cannot be written or checked without a package."""

    @abstractmethod
    def check_installation(self, *, weights_only: bool) -> None:
        """Check that the package is installed.

        Args:
            weights_only: True for a plan of `Scheme.weights_only`.

        Raises:
            UnavailableError: the package is not installed; the hint is the command that installs it.
        """


class WrittenByConverter(NeedsPackage):
    """Target whose files another program makes of float graphs."""

    @abstractmethod
    def check_form(self, graph: Graph) -> None:
        """Check that `Target.write` can write a graph, at a small part of its costs.

        Args:
            graph: graph of `Target.convert` or `store_weights`; its ranges may be uncalibrated.

        Raises:
            UnavailableError: an op has no form in the file format.
        """

    @abstractmethod
    def store_weights(self, graph: Graph, plan: Plan) -> Graph:
        """Return the graph of which `Target.write` makes a file with int8 weights, for a plan of `Scheme.weights_only`.

        Raises:
            UnavailableError: the converter cannot store the weights of the plan.
        """


class KernelChecks(NeedsPackage):
    """Target whose int8 kernels depend on the ranges, and compute wrong values on some hosts."""

    @abstractmethod
    def missing_kernels(self, graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[str, str]:
        """Return the int8 layers of a plan without an int8 kernel for its ranges, with the reason of each."""

    @abstractmethod
    def check_host(
        self, graph: Graph, plan: Plan, ranges: Ranges, quantized: Graph, feeds: Mapping[str, Array]
    ) -> None:
        """Compare the kernels of this host with float.

        Args:
            graph: float graph.
            plan: plan of ``graph``.
            ranges: ranges of every edge of the plan.
            quantized: graph of `Target.convert`.
            feeds: one run's arrays of the calibration data, by input name; empty without data.

        Raises:
            CheckError: a kernel computes wrong values; the message names its node.
            UnavailableError: no runtime here can run the graph.
        """


class RuntimeRules(ABC):
    """Target with rules for the ops that its runtimes compute in int8."""

    @abstractmethod
    def slow_nodes(self, graph: Graph, runtime: str) -> Mapping[str, str]:
        """Return the nodes that a runtime computes faster in float than in int8, with the reason.

        Args:
            graph: float graph of `Target.prepare`.
            runtime: name of the runtime; ``auto`` for the form that serves all runtimes of the target.
        """

    def refinable_layers(self, graph: Graph, plan: Plan) -> Collection[str]:
        """Return the int8 layers that have a more precise form, which takes more time; `Plan.refined` selects it.

        Args:
            graph: float graph.
            plan: plan of ``graph``.
        """
        return ()

    def find_tables(self, graph: Graph, plan: Plan) -> Collection[str]:
        """Return the Gather nodes whose constant tables the runtimes read in int8 as fast as in float.

        Args:
            graph: float graph.
            plan: plan of ``graph``.
        """
        return ()

    def edge_formats(self, graph: Graph, plan: Plan) -> Mapping[Edge, Spec]:
        """Return the number format of each edge to quantize, which may depend on its consumers.

        Args:
            graph: float graph.
            plan: plan of ``graph`` with the number formats of the scheme.
        """
        return plan.activations


class FileChecks(ABC):
    """Target that examines quantized files of any tool."""

    @abstractmethod
    def examine(self, graph: Graph) -> tuple[Finding, ...]:
        """Return the faults of a quantized file in the runtimes of the target, the gravest first.

        Args:
            graph: graph of the file.
        """

    @abstractmethod
    def check_build(self, graph: Graph) -> Build:
        """Build a quantized file with the compiler of the target's runtimes, and return its int8 layers.

        Args:
            graph: graph of the file.

        Raises:
            UnavailableError: the compiler is not installed.
        """
