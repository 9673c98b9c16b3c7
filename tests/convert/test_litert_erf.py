"""Error functions in LiteRT."""

import math
from pathlib import Path

import numpy as np
import pytest

from quantkit.convert.litert_erf import replace_error_functions
from quantkit.ir.check import verify
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.ir.text import from_text
from quantkit.runtimes import find_runtime, open_session

ORDERS = {
    "last": "p = Mul(x, gate, T=float)\n y = Mul(p, half, T=float)",
    "divided": "p = Mul(gate, x, T=float)\n y = RealDiv(p, two, T=float)",
    "gate": "p = Mul(half, gate, T=float)\n y = Mul(p, x, T=float)",
    "fusible": "p = Mul(half, x, T=float)\n y = Mul(gate, p, T=float)",
    "first": "p = RealDiv(x, two, T=float)\n y = Mul(p, gate, T=float)",
}


def gelu(order: str, factor: float = math.sqrt(0.5), outputs: str = "y") -> Graph:
    return from_text(f"""
        inputs: x
        outputs: {outputs}
        x = Placeholder[?x4]()
        half = Const(0.5)
        one = Const(1)
        two = Const(2)
        factor = Const({factor})
        scaled = Mul(factor, x, T=float)
        e = Erf(scaled, T=float)
        gate = AddV2(one, e, T=float)
        {ORDERS[order]}
    """)


def erf(values: Array) -> Array:
    result: Array = np.vectorize(math.erf)(values)
    return result


@pytest.mark.parametrize("order", ORDERS)
def test_gelu_gets_the_order_that_the_converter_fuses(order: str) -> None:
    graph = replace_error_functions(gelu(order))
    verify(graph)
    assert graph.op_counts == {"Placeholder": 1, "Const": 3, "Mul": 3, "Erf": 1, "AddV2": 1}
    x = np.linspace(-5, 5, 64, dtype=np.float32).reshape(-1, 4)
    with open_session(graph, "reference") as session:
        y = session.run({"x": x})["y"]
    np.testing.assert_allclose(y, x / 2 * (1 + erf(x / np.sqrt(2))), atol=1e-6)
    assert ("scaled" in graph) == (order == "fusible")


def test_error_functions_outside_gelu_become_a_ratio() -> None:
    for graph in (gelu("last", factor=0.6), gelu("last", outputs="y, e")):
        ops = replace_error_functions(graph).op_counts
        assert ops["RealDiv"] == 1
        assert ops.get("Erf", 0) == len(graph.outputs) - 1


@pytest.mark.parametrize("name", ["reference", pytest.param("litert", marks=pytest.mark.engine)])
def test_error_of_the_ratio(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not find_runtime(name).available().ok:
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    graph = from_text("""
        inputs: x
        outputs: a, b, y
        x = Placeholder[?]()
        half = Const(0.5)
        one = Const(1)
        root = Const(1.41421356)
        a = Erf(x, T=float)
        b = Erfc(x, T=float)
        scaled = RealDiv(x, root, T=float)
        e = Erf(scaled, T=float)
        gate = AddV2(e, one, T=float)
        p = Mul(x, gate, T=float)
        y = Mul(p, half, T=float)
    """)
    x = np.append(np.linspace(-6, 6, 100_001, dtype=np.float32), np.array([-np.inf, 1e-30, np.inf], np.float32))
    with open_session(replace_error_functions(graph), name) as session:
        outputs = session.run({"x": x})
    assert np.abs(outputs["a"] - erf(x)).max() < 5e-7
    assert np.abs(outputs["b"] - (1 - erf(x))).max() < 5e-7
    finite = x[:-3]
    np.testing.assert_allclose(outputs["y"][:-3], finite / 2 * (1 + erf(finite / math.sqrt(2))), atol=2e-6)
