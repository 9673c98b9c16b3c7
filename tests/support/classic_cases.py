"""Graphs and recipes on which the classic mode is compared with the original tool, and how nodes are compared.

The original's answers are in ``tests/compat/answers.json``; ``tests/compat/record_answers.py`` makes it anew.
"""

import base64
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

ANSWERS = Path(__file__).parent.parent / "compat" / "answers.json"
# Tensors of up to so many values are recorded as they are, larger ones by their digest.
RECORDED_VALUES = 64
# Computed on another machine by other kernels, folded numbers may differ in their last bit.
TOLERANCE = 1e-6

Described = list[Any]


@dataclass(frozen=True)
class ClassicCase:
    """A call of the tool.

    Attributes:
        name: unique; its first part tells where the case comes from.
        graph: what is transformed; its own ends do not count.
        inputs: as ``--inputs`` gives them.
        outputs: as ``--outputs`` gives them.
        transforms: as ``--transforms`` gives them.
    """

    name: str
    graph: Graph = field(repr=False)
    inputs: str
    outputs: str
    transforms: str

    @property
    def digest(self) -> str:
        """Of all that is asked."""
        text = f"{self.inputs} {self.outputs} {self.transforms}"
        return hashlib.sha256(graphdef.encode(self.graph) + text.encode()).hexdigest()[:16]

    def question(self) -> str:
        """The case as ``original_tool.py`` reads it."""
        graph = base64.b64encode(graphdef.encode(self.graph)).decode()
        return json.dumps([graph, self.inputs, self.outputs, self.transforms])

    def answer(self) -> dict[str, Any]:
        """What classic mode makes of it, described."""
        try:
            endpoints = (names_of(self.inputs), names_of(self.outputs))
            after, _ = run_classic(parse_classic(self.transforms), self.graph, endpoints)
        except QuantkitError as error:
            return {"error": error.message}
        return described(graphdef.encode(after))


def names_of(text: str) -> list[str]:
    """The names that a flag lists."""
    return text.split(",") if text else []


def described(data: bytes) -> dict[str, Any]:
    """A GraphDef as JSON: nodes with name, op, inputs, device and attributes, and the producer of the graph."""
    message = message_class("GraphDef").FromString(data)
    return {"producer": message.versions.producer, "nodes": [_described(node) for node in message.node]}


def _described(node: Any) -> Described:
    attrs = {key: _attr_text(node.attr[key]) for key in sorted(node.attr)}
    return [node.name, node.op, " ".join(node.input), attrs, *([node.device] if node.device else [])]


def _attr_text(value: Any) -> str:
    if value.WhichOneof("value") != "tensor":
        return text_format.MessageToString(value, as_one_line=True).strip()
    tensor = decode_attr(value)
    if not isinstance(tensor, Tensor):
        return base64.b64encode(value.SerializeToString(deterministic=True)).decode()
    how = "packed" if value.tensor.tensor_content else "listed"
    sizes = "x".join(map(str, tensor.shape))
    if tensor.dtype.value == "string":
        return f"{how} string {sizes} {tensor.array.tolist()!r}"
    array = np.ascontiguousarray(tensor.array)
    if array.size <= RECORDED_VALUES:
        values = base64.b64encode(array.tobytes()).decode()
    else:
        values = f"#{hashlib.sha256(array.tobytes()).hexdigest()[:16]}"
    return f"{how} {tensor.dtype.value} {sizes} {values}"


def first_difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs first between two answers, in full; nothing where they are equal."""
    if "nodes" not in found or "nodes" not in wanted:
        ours, theirs = ({key: found[key] for key in found if key != "nodes"} for found in (found, wanted))
        return "" if found == wanted else f"classic mode: {ours}\nthe original: {theirs}"
    for number, (ours, theirs) in enumerate(zip(found["nodes"], wanted["nodes"], strict=False)):
        if not is_equal(ours, theirs):
            return f"node {number}\nclassic mode: {_line(ours)}\nthe original: {_line(theirs)}"
    more = found["nodes"][len(wanted["nodes"]) :], wanted["nodes"][len(found["nodes"]) :]
    for who, nodes in zip(("classic mode", "the original"), more, strict=True):
        if nodes:
            return f"{len(nodes)} more nodes in {who}, first {_line(nodes[0])}"
    if found["producer"] != wanted["producer"]:
        return f"producer {found['producer']} in classic mode, {wanted['producer']} in the original"
    return ""


def _line(node: Described) -> str:
    return f"{node[0]} = {node[1]}({node[2]}) {node[3]} {''.join(node[4:])}"


def is_equal(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Whether two described nodes are one, up to rounding of recorded floats."""
    if ours == theirs:
        return True
    if [*ours[:3], *ours[4:]] != [*theirs[:3], *theirs[4:]] or ours[3].keys() != theirs[3].keys():
        return False
    return all(ours[3][key] == value or _are_close(ours[3][key], value) for key, value in theirs[3].items())


def _are_close(ours: str, theirs: str) -> bool:
    (*kind, one), (*other_kind, other) = ours.rsplit(" ", 1), theirs.rsplit(" ", 1)
    if kind != other_kind or " float " not in f" {kind[0]} " or "#" in one + other:
        return False
    arrays = [np.frombuffer(base64.b64decode(values), np.float32) for values in (one, other)]
    return bool(np.allclose(*arrays, rtol=TOLERANCE, atol=0, equal_nan=True))


def recorded_answers() -> dict[str, dict[str, Any]]:
    """The original's answers, by case."""
    return json.loads(ANSWERS.read_text())  # type: ignore[no-any-return]


def write_answers(answers: Mapping[str, Mapping[str, Any]]) -> None:
    """Write them, a line for each case."""
    lines = [f"{json.dumps(name)}: {json.dumps(answer, separators=(',', ':'))}" for name, answer in answers.items()]
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def as_recorded(answer: Mapping[str, str], case: ClassicCase) -> dict[str, Any]:
    """An answer of ``original_tool.py`` as it is kept."""
    kept: dict[str, Any] = {"digest": case.digest}
    if "graph" in answer:
        return kept | described(base64.b64decode(answer["graph"]))
    if "error" in answer:
        # The rest tells where the original was built and run.
        return kept | {"error": answer["error"].split(" running on ")[0]}
    return kept | dict(answer)


def unique(cases: Iterable[ClassicCase]) -> list[ClassicCase]:
    """The cases, after a look at their names."""
    listed = list(cases)
    assert len({case.name for case in listed}) == len(listed), "two cases have one name"
    return listed
