"""Cases for the comparison of classic mode with the original tool, and the comparison of nodes.

The original's results are in ``tests/compat/answers.json.gz``, which
``tests/compat/record_answers.py`` writes.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from quantkit.compat import parse_classic, run_classic
from quantkit.errors import QuantkitError
from quantkit.formats import graphdef
from quantkit.formats.graphdef.nodes import decode_attr
from quantkit.formats.graphdef.schema import message_class
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Tensor

RESULTS_FILE = Path(__file__).parent.parent / "compat" / "answers.json.gz"
# Maximum number of values of a tensor that is recorded with its values instead of its digest.
RECORDED_VALUES = 64
# Folded values may differ in the last bit from those of another machine and other kernels.
TOLERANCE = 1e-6

NodeRecord = list[Any]


@dataclass(frozen=True)
class ClassicCase:
    """Call of the tool.

    Attributes:
        name: unique name; its first part is the source of the case.
        graph: graph to transform; its own inputs and outputs are ignored.
        inputs: value of ``--inputs``.
        outputs: value of ``--outputs``.
        transforms: value of ``--transforms``.
    """

    name: str
    graph: Graph = field(repr=False)
    inputs: str
    outputs: str
    transforms: str

    @property
    def digest(self) -> str:
        """Digest of the graph and the flags."""
        text = f"{self.inputs} {self.outputs} {self.transforms}"
        return hashlib.sha256(graphdef.encode(self.graph) + text.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Return the case as a line of input for ``original_tool.py``."""
        graph = base64.b64encode(graphdef.encode(self.graph)).decode()
        return json.dumps([graph, self.inputs, self.outputs, self.transforms])

    def run(self) -> dict[str, Any]:
        """Run classic mode, and return the recorded form of its result."""
        try:
            endpoints = (names_of(self.inputs), names_of(self.outputs))
            after, _ = run_classic(parse_classic(self.transforms), self.graph, endpoints)
        except QuantkitError as error:
            return {"error": error.message}
        return describe_graph(graphdef.encode(after))


def names_of(text: str) -> list[str]:
    """Return the names in the value of a flag."""
    return text.split(",") if text else []


def describe_graph(data: bytes) -> dict[str, Any]:
    """Return a GraphDef as JSON values: producer version; name, op, inputs, attributes, device."""
    message = message_class("GraphDef").FromString(data)
    return {"producer": message.versions.producer, "nodes": [_describe_node(node) for node in message.node]}


def _describe_node(node: Any) -> NodeRecord:
    attrs = {key: _attr_text(node.attr[key]) for key in sorted(node.attr)}
    return [node.name, node.op, " ".join(node.input), attrs, *([node.device] if node.device else [])]


def _attr_text(value: Any) -> str:
    if value.WhichOneof("value") != "tensor":
        return str(text_format.MessageToString(value, as_one_line=True)).strip()
    tensor = decode_attr(value)
    if not isinstance(tensor, Tensor):
        return base64.b64encode(value.SerializeToString(deterministic=True)).decode()
    encoding = "packed" if value.tensor.tensor_content else "listed"
    sizes = "x".join(map(str, tensor.shape))
    if tensor.dtype.value == "string":
        return f"{encoding} string {sizes} {tensor.array.tolist()!r}"
    array = np.ascontiguousarray(tensor.array)
    if array.size <= RECORDED_VALUES:
        values = base64.b64encode(array.tobytes()).decode()
    else:
        values = f"#{hashlib.sha256(array.tobytes()).hexdigest()[:16]}"
    return f"{encoding} {tensor.dtype.value} {sizes} {values}"


def first_difference(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Describe the first difference between classic mode and the original; empty if equal."""
    if "nodes" not in actual or "nodes" not in expected:
        texts = [{key: result[key] for key in result if key != "nodes"} for result in (actual, expected)]
        return "" if actual == expected else f"classic mode: {texts[0]}\nthe original: {texts[1]}"
    for number, nodes in enumerate(zip(actual["nodes"], expected["nodes"], strict=False)):
        if not is_equal(*nodes):
            lines = [_format_node(node) for node in nodes]
            return f"node {number}\nclassic mode: {lines[0]}\nthe original: {lines[1]}"
    additional = (
        actual["nodes"][len(expected["nodes"]) :],
        expected["nodes"][len(actual["nodes"]) :],
    )
    for tool, nodes in zip(("classic mode", "the original"), additional, strict=True):
        if nodes:
            return f"{len(nodes)} additional nodes in {tool}, first {_format_node(nodes[0])}"
    producers = actual["producer"], expected["producer"]
    if producers[0] != producers[1]:
        return f"producer {producers[0]} in classic mode, {producers[1]} in the original"
    return ""


def _format_node(node: NodeRecord) -> str:
    return f"{node[0]} = {node[1]}({node[2]}) {node[3]} {''.join(node[4:])}"


def is_equal(actual: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Return True if two recorded nodes are equal, up to rounding of recorded floats."""
    if actual == expected:
        return True
    if [*actual[:3], *actual[4:]] != [*expected[:3], *expected[4:]]:
        return False
    if actual[3].keys() != expected[3].keys():
        return False
    return all(actual[3][key] == value or _is_close(actual[3][key], value) for key, value in expected[3].items())


def _is_close(actual: str, expected: str) -> bool:
    (*kind, values), (*expected_kind, expected_values) = (text.rsplit(" ", 1) for text in (actual, expected))
    has_digest = "#" in values + expected_values
    if kind != expected_kind or " float " not in f" {kind[0]} " or has_digest:
        return False
    arrays = [np.frombuffer(base64.b64decode(text), np.float32) for text in (values, expected_values)]
    return bool(np.allclose(arrays[0], arrays[1], rtol=TOLERANCE, atol=0, equal_nan=True))


def recorded_results() -> dict[str, dict[str, Any]]:
    """Read the original's results by case name."""
    return json.loads(gzip.decompress(RESULTS_FILE.read_bytes()))  # type: ignore[no-any-return]


def write_results(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the original's results, one line for each case, sorted by name."""
    lines = [f"{json.dumps(name)}: {json.dumps(results[name], separators=(',', ':'))}" for name in sorted(results)]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    RESULTS_FILE.write_bytes(gzip.compress(text.encode(), mtime=0))  # equal results are equal bytes


def record_of(output: Mapping[str, str], case: ClassicCase) -> dict[str, Any]:
    """Return the recorded form of an output of ``original_tool.py``."""
    digest = {"digest": case.digest}
    if "graph" in output:
        return digest | describe_graph(base64.b64decode(output["graph"]))
    if "error" in output:
        # The rest of the message names the host of the original.
        return digest | {"error": output["error"].split(" running on ")[0]}
    return digest | dict(output)


def unique(cases: Iterable[ClassicCase]) -> list[ClassicCase]:
    """Return the cases, whose names must be distinct."""
    all_cases = list(cases)
    assert len({case.name for case in all_cases}) == len(all_cases), "two cases have one name"
    return all_cases
