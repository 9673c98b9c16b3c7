"""Single nodes computed by TensorFlow, for constants of ops without a NumPy kernel."""

from collections.abc import Sequence

import numpy as np

from quantkit.errors import GraphError
from quantkit.formats import graphdef
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, Tensor
from quantkit.ops.kernels import Evaluate
from quantkit.ops.tensorflow.signatures import input_dtypes, num_outputs
from quantkit.runtimes.availability import require
from quantkit.runtimes.tensorflow_library import available, import_tensorflow, suppress_log


def evaluate_with_tensorflow() -> Evaluate:
    """Return a function that computes the outputs of one node from the values of its inputs.

    Raises:
        UnavailableError: TensorFlow is not installed.
    """
    require(available())
    return _evaluate


def _evaluate(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...] | None:
    """Run a graph of this node and its inputs on the CPU."""
    tf = import_tensorflow()
    count = num_outputs(node)
    if count is None:
        return None
    dtypes = input_dtypes(node)
    constants = [constant(f"input_{index}", Tensor.of(array, dtypes[index])) for index, array in enumerate(inputs)]
    single = node.with_(name="node", inputs=tuple(Edge(value.name) for value in constants), controls=(), device="")
    definition = tf.compat.v1.GraphDef.FromString(graphdef.encode(Graph.of([*constants, single])))
    try:
        with suppress_log(), tf.Graph().as_default() as graph, tf.device("/CPU:0"):
            tf.import_graph_def(definition, name="")
            with tf.compat.v1.Session(graph=graph) as session:
                values = session.run([f"node:{port}" for port in range(count)])
    except (tf.errors.OpError, ValueError) as error:
        raise GraphError(f"TensorFlow cannot compute the node: {str(error).strip().splitlines()[0]}") from None
    return tuple(np.asarray(value) for value in values)
