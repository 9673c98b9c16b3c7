r"""Text form of graphs, one line per node, for golden files, differences and messages.

    inputs: x
    outputs: c
    x = Placeholder[1x8x8x3]()
    w = Const[3x3x3x4]()
    a = Conv2D(x, w, padding=SAME, strides=[1, 1, 1, 1])
    s = Const([1.0, 2.0, 0.5, -1.0])
    b = Mul(a, s)
    c = Identity(b, split:1, ^before) @"/cpu:0"

Brackets have the element type (float is omitted) and the shape: of the value of a constant, or the attributes ``dtype``
and ``shape`` of a placeholder. A constant without values has random values, seeded by its name. Bare names are bytes
or element types; ``<1x?x3>`` is a shape and ``<*>`` a shape of unknown rank. Attributes are sorted by name. Versions
and uninterpreted fields are not written.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np

from quantkit.arguments import public
from quantkit.errors import GraphError
from quantkit.ir.functions import Function, FunctionName, Library
from quantkit.ir.graph import Attr, Edge, Graph, Node, Opaque, constant
from quantkit.ir.tensor import Array, DType, Shape, Tensor

# Constants up to this number of values are written in full; for larger ones only the range, unless they are the seeded
# random values.
MAX_WRITTEN_VALUES = 16

_NAME = re.compile(r"[A-Za-z0-9_.][\w./>\-]*")
_BARE_NAME = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\(.)")
_NUMBER = re.compile(r"-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?)(?![\w.])")
_PORT = re.compile(r":(\d+)")
_KEY = re.compile(r"([A-Za-z_]\w*)\s*=")
_DIMS = re.compile(r"\*|(?:\d+|\?)(?:x(?:\d+|\?))*")
_BLANK = re.compile(r"\s*")
_HEADER = re.compile(r"(inputs|outputs|dialect)\s*:\s*(.*)")
_FUNCTION = re.compile(r"\s*function\s[^=]*\(")
_HEX = re.compile(r"\([0-9a-f]*\)")
_TYPE_NAMES = frozenset(dtype.value for dtype in DType)
_RESERVED_NAMES = frozenset({"true", "false", "inf", "nan", "Tensor", "Opaque"})
_BOOLEANS = {"true": True, "false": False}


def seeded_tensor(name: str, shape: tuple[int, ...], dtype: DType = DType.FLOAT) -> Tensor:
    """Return the values of a constant without written values: normal, or small integers, seeded by ``name``."""
    random = np.random.default_rng(crc32(name.encode()))
    if dtype.is_float:
        return Tensor.of(random.standard_normal(shape, np.float32).astype(dtype.numpy), dtype)
    return Tensor.of(random.integers(0, 2 if dtype is DType.BOOL else 100, shape).astype(dtype.numpy), dtype)


@public
def to_text(graph: Graph) -> str:
    """Return the text of a graph; `from_text` reads it unless it has large constants that are not seeded."""
    functions = (line for function in graph.library.values() for line in _function_lines(function))
    return "\n".join([*_headers(graph), *map(node_text, graph.nodes.values()), *functions]) + "\n"


def _function_lines(function: Function[Graph]) -> Iterable[str]:
    results = [
        f"{_name_text(name)}{'' if dtype is DType.FLOAT or dtype is None else f'[{dtype.value}]'} = {_edge_text(edge)}"
        for (name, dtype), edge in zip(function.results.items(), function.graph.outputs, strict=True)
    ]
    controls = [f"^{_name_text(name)} = {_name_text(node)}" for name, node in function.controls.items()]
    yield f"function {_name_text(function.name)}({', '.join([*results, *controls])})"
    yield from map(node_text, function.graph.nodes.values())
    yield "end"


def _headers(graph: Graph) -> Iterable[str]:
    if graph.dialect != "tensorflow":
        yield f"dialect: {graph.dialect}"
    for role, edges in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        if edges:
            yield f"{role}: {', '.join(map(_edge_text, edges))}"


def node_text(node: Node) -> str:
    """Return the line of one node.

    >>> node_text(Node("b", "Mul", (Edge("a"), Edge("s", 1)), ("c",)))
    'b = Mul(a, s:1, ^c)'
    """
    attrs = dict(node.attrs)
    brackets, values = "", ""
    value = attrs.get("value")
    if node.is_constant and isinstance(value, Tensor):
        if node.op == "Const" and attrs.get("dtype") is value.dtype:
            del attrs["dtype"]
        del attrs["value"]
        brackets, values = _constant_text(node.name, value)
    elif node.op == "Placeholder" and isinstance(attrs.get("dtype"), DType):
        brackets = _brackets(attrs.pop("dtype"), attrs.pop("shape", None))
    arguments = [
        *([values] if values else []),
        *map(_edge_text, node.inputs),
        *(f"^{_name_text(name)}" for name in node.controls),
        *(f"{name}={_attr_text(attrs[name])}" for name in sorted(attrs)),
    ]
    device = f" @{_quote(node.device.encode())}" if node.device else ""
    return f"{_name_text(node.name)} = {node.op}{brackets}({', '.join(arguments)}){device}"


def _constant_text(name: str, value: Tensor) -> tuple[str, str]:
    """Return brackets and values of a constant."""
    brackets = _brackets(value.dtype, Shape(value.shape), always=True)
    # A scalar is always written, even if it equals the seeded random value.
    may_be_seeded = value.dtype is not DType.STRING and value.num_elements > 1
    if not value.num_elements or (may_be_seeded and value == seeded_tensor(name, value.shape, value.dtype)):
        return brackets, ""
    if value.num_elements > MAX_WRITTEN_VALUES:
        return brackets, f"~ {_range_text(value)}"
    return _brackets(value.dtype, None), _values_text(value.array, value.dtype)


def _range_text(value: Tensor) -> str:
    """Return the smallest and the largest value with three digits, which are equal on all machines."""
    if value.dtype in (DType.STRING, DType.BOOL, DType.COMPLEX64, DType.COMPLEX128):
        return value.digest.hex()[:8]
    array = value.array.astype(np.float64)
    return f"{array.min():.3g}..{array.max():.3g}"


def _brackets(dtype: object, shape: object, *, always: bool = False) -> str:
    parts = [dtype.value] if isinstance(dtype, DType) and dtype is not DType.FLOAT else []
    if isinstance(shape, Shape):
        parts.append(_shape_text(shape) if always or shape.dims else f"<{_shape_text(shape)}>")
    return f"[{' '.join(parts)}]" if parts else ""


def _shape_text(shape: Shape) -> str:
    if shape.dims is None:
        return "*"
    return "x".join("?" if size is None else str(size) for size in shape.dims)


def _values_text(values: Array, dtype: DType) -> str:
    if dtype.is_float and dtype is not DType.DOUBLE:
        values = values.astype(np.float32, copy=False)  # exact for every narrower float, and the shortest text
    return _nested_text(values.tolist(), dtype)


def _nested_text(value: Any, dtype: DType) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_nested_text(item, dtype) for item in value)}]"
    if isinstance(value, bytes | str | complex):
        return _quote(value if isinstance(value, bytes) else str(value).encode())
    if isinstance(value, float) and dtype is DType.DOUBLE:
        return repr(value)
    return _number_text(value) if dtype.is_float else str(value).lower()


def _number_text(value: Any) -> str:
    """Return the shortest decimal that is the same float32."""
    single = np.float32(value)
    text = str(single)
    return text if any(mark in text for mark in ".en") else f"{text}.0"


def _attr_text(value: Any) -> str:
    for kind, to_text_of_kind in _ATTR_TEXTS:
        if isinstance(value, kind):
            return to_text_of_kind(value)
    return f"[{', '.join(map(_attr_text, value))}]"


def _tensor_text(value: Tensor) -> str:
    brackets = _brackets(value.dtype, Shape(value.shape), always=True)
    return f"Tensor{brackets}({_values_text(value.array, value.dtype)})"


def _bytes_text(value: bytes) -> str:
    name = value.decode("latin-1")
    is_bare = _BARE_NAME.fullmatch(name) and name not in _TYPE_NAMES | _RESERVED_NAMES
    return name if is_bare else _quote(value)


def _quote(value: bytes) -> str:
    text = "".join(chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\x{byte:02x}" for byte in value)
    return f'"{text}"'


def _unquote(body: str) -> bytes:
    """Return the bytes of a quoted text, given without the quotes."""
    text = _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)) if escape[1] else escape[2], body)
    return text.encode("latin-1")


_ATTR_TEXTS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (bool, lambda value: str(value).lower()),
    (int, str),
    (float, _number_text),
    (bytes, _bytes_text),
    (DType, lambda value: str(value.value)),
    (Shape, lambda value: f"<{_shape_text(value)}>"),
    (Tensor, _tensor_text),
    (FunctionName, lambda value: f"&{_name_text(value.name)}" + (f"({value.extra.hex()})" if value.extra else "")),
    (Opaque, lambda value: f"Opaque({_quote(value.data.hex().encode())})"),
)


def _name_text(name: str) -> str:
    return name if _NAME.fullmatch(name) else _quote(name.encode())


def _edge_text(edge: Edge) -> str:
    return f"{_name_text(edge.node)}:{edge.port}" if edge.port else _name_text(edge.node)


@public
def from_text(text: str) -> Graph:
    """Parse the text of a graph. Input names are not resolved: `verify` checks them.

    Raises:
        GraphError: a line cannot be parsed, or two nodes have the same name.
    """
    top: list[Node] = []
    nodes = top
    functions: dict[str, Function[Graph]] = {}
    endpoints: dict[str, tuple[Edge, ...]] = {}
    dialect = "tensorflow"
    for number, line in enumerate(text.splitlines(), 1):
        parser = _LineParser(line, number)
        header = _HEADER.match(line.strip())
        if header and header[1] == "dialect":
            dialect = header[2].strip()
        elif header:
            endpoints[header[1]] = _LineParser(header[2], number).list_until("", _LineParser.edge)
        elif _FUNCTION.match(line):
            nodes, function = [], parser.function()
            functions[function.name] = function
        elif functions and line.strip() == "end":
            functions[function.name] = _with_body(function, nodes)
            nodes = top
        elif line.strip() and not line.lstrip().startswith("#"):
            nodes.append(parser.node())
    inputs, outputs = (endpoints.get(role, ()) for role in ("inputs", "outputs"))
    return Graph.of(top, inputs, outputs, dialect=dialect, library=Library(functions))


def _with_body(function: Function[Graph], nodes: list[Node]) -> Function[Graph]:
    arguments = [Edge(node.name) for node in nodes if node.op == "_Arg"]
    return replace(function, graph=Graph.of(nodes, arguments, function.graph.outputs))


class _LineParser:
    """Recursive-descent parser of one line."""

    def __init__(self, line: str, number: int) -> None:
        self._line = line
        self._number = number
        self._position = 0

    def node(self) -> Node:
        name = self.name()
        self._expect("=")
        op = self._take(_NAME) or self._fail("an op")
        dtype, shape = self._in_brackets()
        self._expect("(")
        value: Tensor | None = None
        if op in ("Const", "Constant"):
            value = self._constant(name, dtype, shape)
            _ = self._skip(",")
        inputs: list[Edge] = []
        controls: list[str] = []
        attrs: dict[str, Attr] = {}
        self.list_until(")", lambda parser: parser._argument(inputs, controls, attrs))
        device = _unquote(self._quoted_text()).decode() if self._skip("@") else ""
        if self._rest():
            self._fail("the end of the line")
        if value is not None:
            attrs = {**constant(name, value).attrs, **attrs} if op == "Const" else {"value": value, **attrs}
        elif op == "Placeholder":
            attrs = {"dtype": dtype, **({"shape": shape} if shape else {}), **attrs}
        return Node(name, op, tuple(inputs), tuple(controls), attrs, device)

    def function(self) -> Function[Graph]:
        """Parse the first line of a function; the body has no nodes yet."""
        self._expect("function")
        name = self.name()
        results: dict[str, DType | None] = {}
        controls: dict[str, str] = {}
        edges: list[Edge] = []
        self._expect("(")
        self.list_until(")", lambda parser: parser._result(results, edges, controls))
        return Function(name, Graph.of([], [], edges), results, controls)

    def _result(self, results: dict[str, DType | None], edges: list[Edge], controls: dict[str, str]) -> None:
        if self._skip("^"):
            name = self.name()
            self._expect("=")
            controls[name] = self.name()
        else:
            name = self.name()
            results[name], _ = self._in_brackets()
            self._expect("=")
            edges.append(self.edge())

    def _argument(self, inputs: list[Edge], controls: list[str], attrs: dict[str, Attr]) -> None:
        if self._skip("^"):
            controls.append(self.name())
        elif key := self._match(_KEY):
            attrs[key[1]] = self._attr()
        else:
            inputs.append(self.edge())

    def name(self) -> str:
        if self._rest().startswith('"'):
            return _unquote(self._quoted_text()).decode()
        return self._take(_NAME) or self._fail("a name")

    def edge(self) -> Edge:
        name = self.name()
        port = _PORT.match(self._line, self._position)
        self._position = port.end() if port else self._position
        return Edge(name, int(port[1]) if port else 0)

    def list_until(self, end: str, parse_item: "Callable[[_LineParser], Any]") -> tuple[Any, ...]:
        """Parse items separated by commas, up to a bracket or the end of the line."""
        items: list[Any] = []
        while not (self._skip(end) if end else not self._rest()):
            if items:
                self._expect(",")
            items.append(parse_item(self))
        return tuple(items)

    def _in_brackets(self) -> tuple[DType, Shape | None]:
        dtype, shape = DType.FLOAT, None
        if not self._skip("["):
            return dtype, shape
        while not self._skip("]"):
            if self._rest().startswith("<"):
                shape = self._shape()
            elif dims := self._take(_DIMS):
                shape = _parse_shape(dims)
            else:
                dtype = self._dtype()
        return dtype, shape

    def _constant(self, name: str, dtype: DType, shape: Shape | None) -> Tensor:
        if self._rest().startswith("~"):
            self._fail("the values of a constant: this text has only their range")
        if self._rest()[:1] in (")", "^") or _KEY.match(self._rest()):
            return seeded_tensor(name, shape.sizes if shape else (), dtype)
        return self._tensor(dtype, shape)

    def _tensor(self, dtype: DType, shape: Shape | None) -> Tensor:
        values = self._literal()
        if dtype is DType.STRING:
            array = np.array(values, dtype=object)
        elif dtype in (DType.COMPLEX64, DType.COMPLEX128):
            array = np.vectorize(lambda text: complex(text.decode()))(np.array(values, dtype=object))
        else:
            array = np.array(values, dtype=np.float64 if dtype.is_float else None)
        if dtype is not DType.STRING:
            array = array.astype(dtype.numpy)
        return Tensor.of(array.reshape(shape.sizes) if shape else array, dtype)

    def _literal(self) -> Any:
        if self._skip("["):
            return list(self.list_until("]", _LineParser._literal))
        if self._rest().startswith('"'):
            return _unquote(self._quoted_text())
        if number := self._take(_NUMBER):
            return float(number) if any(mark in number for mark in ".en") else int(number)
        name = self._take(_BARE_NAME)
        return _BOOLEANS[name] if name in _BOOLEANS else self._fail("a value")

    def _attr(self) -> Attr:
        rest = self._rest()
        if rest.startswith("["):
            self._skip("[")
            return tuple(self.list_until("]", _LineParser._attr))
        if rest.startswith("<"):
            return self._shape()
        if self._skip("&"):
            return FunctionName(self.name(), bytes.fromhex(self._take(_HEX)[1:-1]))
        if rest.startswith('"'):
            return _unquote(self._quoted_text())
        if number := self._take(_NUMBER):
            return float(np.float32(number)) if any(mark in number for mark in ".en") else int(number)
        name: str = self._take(_BARE_NAME) or self._fail("an attribute value")
        return self._named_attr(name)

    def _named_attr(self, name: str) -> Attr:
        """Parse the rest of an attribute value that begins with a name."""
        if name in _BOOLEANS:
            return _BOOLEANS[name]
        if name == "Tensor":
            dtype, shape = self._in_brackets()
            self._expect("(")
            tensor = self._tensor(dtype, shape)
            self._expect(")")
            return tensor
        if name == "Opaque":
            self._expect("(")
            data = bytes.fromhex(_unquote(self._quoted_text()).decode())
            self._expect(")")
            return Opaque(data)
        return DType(name) if name in _TYPE_NAMES else name.encode()

    def _shape(self) -> Shape:
        self._expect("<")
        dims = self._take(_DIMS)
        self._expect(">")
        return _parse_shape(dims)

    def _dtype(self) -> DType:
        name = self._take(_BARE_NAME)
        return DType(name) if name in _TYPE_NAMES else self._fail("an element type or a shape")

    def _quoted_text(self) -> str:
        match = self._match(_QUOTED)
        return match[1] if match else self._fail("a quoted text")

    def _rest(self) -> str:
        self._match(_BLANK)
        return self._line[self._position :]

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        start = _BLANK.match(self._line, self._position)
        match = pattern.match(self._line, start.end() if start else self._position)
        self._position = match.end() if match else self._position
        return match

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = self._match(pattern)
        return match[0] if match else ""

    def _skip(self, mark: str) -> bool:
        is_present = self._rest().startswith(mark)
        self._position += len(mark) if is_present else 0
        return is_present

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            self._fail(repr(mark))

    def _fail(self, expected: str) -> Any:
        rest = self._rest() or "the end of the line"
        raise GraphError(
            f"line {self._number}: expected {expected}, but found {rest}",
            hint="a node is written as: name = Op(input, other:1, ^control, key=value)",
        )


def _parse_shape(dims: str) -> Shape:
    """Parse ``1x?x3``, ``*`` for an unknown rank, or an empty text for a scalar."""
    if dims == "*":
        return Shape(None)
    return Shape(tuple(None if size == "?" else int(size) for size in dims.split("x")) if dims else ())
