"""Contract of the roles of one dialect."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, Shape, Tensor
from quantkit.ops.layers import Layer
from quantkit.ops.table import LAYER, Fact, find_ops


class Roles(ABC):
    """Roles of the op types of one dialect, and the facts about a node that its role needs.

    Attributes:
        weights_ops: layers whose weights can be stored in int8.
        layer_ops: layers of fused patterns; their weights are input `WEIGHTS_INDEX`.
        quantized_output_ops: layers whose int8 kernels have int8 outputs only.
        bias_ops: ops that can add a constant per channel to a layer.
        sum_ops: ops that can add a residual to a layer.
        sum_layer_ops: layers whose kernels can add a residual.
        concat_ops: concatenations.
        average_ops: average pools and means.
        pass_through_ops: ops that compute on quantized values without weights.
        elementwise_ops: pass-through ops with quantization parameters of their own for each input and the output.
        selection_ops: pass-through ops that select a part of their input, whose range may be smaller.
        non_growing_ops: pass-through ops with at most as many output as input values, which are float after float ops.
        view_ops: pass-through ops that only move values, which are int8 also after an input of the graph.
        activation_ops: op types of `is_activation`; their outputs are never negative.
        nonnegative_ops: other op types whose outputs are never negative.
        amplifying_ops: ops that turn small errors of small values into large ones.
        source_ops: constants, inputs and other ops without computation.
        float_reasons: reasons why op types stay float.
    """

    dialect: str
    non_growing_ops: frozenset[str]
    view_ops: frozenset[str]
    float_reasons: Mapping[str, str]

    def __init__(self) -> None:
        self.layer_ops = self.find(LAYER) - self.find(Fact.UNFUSED)
        self.weights_ops = self.find(LAYER | Fact.RECURRENT | Fact.LOOKUP)
        self.quantized_output_ops = self.find(Fact.INT8_OUTPUT)
        self.bias_ops = self.find(Fact.ADDITION | Fact.BIAS)
        self.sum_ops = self.find(Fact.ADDITION)
        self.sum_layer_ops = self.find(Fact.SUM_LAYER)
        self.concat_ops = self.find(Fact.CONCAT)
        self.average_ops = self.find(Fact.AVERAGE)
        self.pass_through_ops = self.find(Fact.PASS_THROUGH)
        self.elementwise_ops = self.find(Fact.REQUANTIZING)
        self.selection_ops = self.find(Fact.SELECTION)
        self.activation_ops = self.find(Fact.FUSED)
        self.nonnegative_ops = self.find(Fact.NONNEGATIVE)
        self.amplifying_ops = self.find(Fact.AMPLIFYING)
        self.source_ops = self.find(Fact.SOURCE)

    def find(self, facts: Fact) -> frozenset[str]:
        """Return the op types of the dialect with one of some facts."""
        return find_ops(facts, self.dialect)

    def is_valid(self, node: Node) -> bool:
        """Return True if a node has the inputs that its role needs; other nodes stay float."""
        return True

    @abstractmethod
    def find_layer(self, graph: Graph, layer: Node) -> Layer | None:
        """Return the channel axes of a layer with constant weights; None if they are not known."""

    @abstractmethod
    def weights_axes(self, graph: Graph, node: Node) -> Mapping[int, tuple[int, ...]]:
        """Return the input index of each weights constant of a node, with the axes of its output channels."""

    @abstractmethod
    def pair_axes(self, graph: Graph, layer: Node) -> tuple[int, ...]:
        """Return the dimensions of the weights whose products a kernel adds: its positions, then the input channels.

        Empty for a depthwise convolution, whose kernels add single products.
        """

    @abstractmethod
    def layer_objection(self, graph: Graph, layer: Node) -> str:
        """Return why a layer has no int8 form, apart from its operands, or an empty string."""

    @abstractmethod
    def weights_objection(self, graph: Graph, layer: Node, weights: Tensor) -> str:
        """Return why a layer with these weights has no int8 form, or an empty string."""

    @abstractmethod
    def product_objection(self, graph: Graph, layer: Node) -> str:
        """Return why a layer with computed weights has no int8 form, or an empty string."""

    @abstractmethod
    def is_bias(self, graph: Graph, layer: Node, value: Tensor) -> bool:
        """Return True if the addition of a constant to the output of a layer is its bias."""

    @abstractmethod
    def bias_input(self, graph: Graph, layer: Node, bias: str) -> tuple[Node, int] | None:
        """Return the node and the input index of the bias of a layer; None if it cannot have one.

        Args:
            graph: graph of the layer.
            layer: layer with constant weights.
            bias: node that adds the bias in the fused pattern of the layer, or empty.

        Returns:
            The input index is the number of inputs if the layer can add a bias and has no bias.
        """

    def bias_constant(self, graph: Graph, layer: Node, bias: str = "") -> str:
        """Return the name of the constant at `bias_input`; empty without a bias."""
        bias_input = self.bias_input(graph, layer, bias)
        inputs = () if bias_input is None else bias_input[0].inputs[bias_input[1] :]
        return inputs[0].node if inputs else ""

    @abstractmethod
    def mean_outputs(self, layer: Node, weights: Array, means: Array) -> Array | None:
        """Return the outputs of a layer, without its bias, for constant input channels.

        Args:
            layer: layer of a fused pattern.
            weights: weights of the layer, or other values in their shape.
            means: value of each input channel, (c_in,).

        Returns:
            (c_out,); None if the outputs differ between positions.
        """

    @abstractmethod
    def sum_objection(self, shapes: tuple[Shape | None, Shape | None]) -> str:
        """Return why two summands of these shapes cannot be added in int8, or an empty string."""

    @abstractmethod
    def is_activation(self, graph: Graph, node: Node) -> bool:
        """Return True if the kernel of a layer can compute a node."""

    @abstractmethod
    def pass_through_inputs(self, graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> tuple[Edge, ...]:
        """Return the data inputs of a pass-through node; empty if its form is not supported."""

    @abstractmethod
    def is_global(self, average: Node, shapes: Mapping[Edge, Shape]) -> bool:
        """Return True if an average reduces all positions to one."""
