"""Single nodes computed by TensorFlow, for constants that NumPy has no kernel for."""

from collections.abc import Callable, Sequence

import numpy as np

from quantkit.errors import GraphError
from quantkit.formats import graphdef
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, Tensor
from quantkit.ops.tensorflow.signatures import input_dtypes, num_outputs
from quantkit.runtimes.session import require
from quantkit.runtimes.tensorflow import RUNTIME
from quantkit.runtimes.tensorflow_library import module, quiet

# As much as one op takes: its own graph, on the CPU, and nothing that optimizes it away.
Evaluate = Callable[[Node, Sequence[Array]], tuple[Array, ...] | None]


def evaluate_with_tensorflow() -> Evaluate:
    """A function that computes the outputs of one node from the values of its inputs.

    Raises:
        UnavailableError: TensorFlow is not installed.
    """
    require(RUNTIME.available())
    return _evaluate


def _evaluate(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...] | None:
    tf = module()
    count = num_outputs(node)
    if count is None:
        return None
    dtypes = input_dtypes(node)
    fed = [constant(f"input_{slot}", Tensor.of(array, dtypes[slot])) for slot, array in enumerate(inputs)]
    alone = node.with_(name="node", inputs=tuple(Edge(one.name) for one in fed), controls=(), device="")
    definition = tf.compat.v1.GraphDef.FromString(graphdef.encode(Graph.of([*fed, alone])))
    try:
        with quiet(), tf.Graph().as_default() as graph, tf.device("/CPU:0"):
            tf.import_graph_def(definition, name="")
            with tf.compat.v1.Session(graph=graph) as session:
                values = session.run([f"node:{port}" for port in range(count)])
    except (tf.errors.OpError, ValueError) as error:
        raise GraphError(f"TensorFlow can not compute it: {str(error).strip().splitlines()[0]}") from None
    return tuple(np.asarray(value) for value in values)
