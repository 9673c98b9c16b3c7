"""Search for the layers with most noise; layers that share a tensor that is rounded twice become float together."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quantkit.errors import UnavailableError
from quantkit.ir.text import from_text
from quantkit.quantization import Scheme, annotate
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.workflow import error_signals, lossy_layers
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.lossy_layers import exclude_noisy_layers
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.trials import Trials

TEXT = """
    inputs: x
    outputs: y
    x = Placeholder[1x8x8x4]()
    w1 = Const[3x3x4x4]()
    c1 = Conv2D(x, w1, T=float, strides=[1, 1, 1, 1], padding=SAME)
    s1 = Sigmoid(c1, T=float)
    m1 = Mul(c1, s1, T=float)
    w2 = Const[3x3x4x4]()
    c2 = Conv2D(m1, w2, T=float, strides=[1, 1, 1, 1], padding=SAME)
    r2 = Relu(c2, T=float)
    w3 = Const[1x1x4x4]()
    c3 = Conv2D(r2, w3, T=float, strides=[1, 1, 1, 1], padding=SAME)
    r3 = Relu(c3, T=float)
    w4 = Const[1x1x4x4]()
    y = Conv2D(r3, w4, T=float, strides=[1, 1, 1, 1], padding=SAME)
"""
NEIGHBORS = {"c1": {"c2"}, "c2": {"c1", "c3"}, "c3": {"c2", "y"}, "y": {"c3"}}


class ScriptedTrials(Trials):
    """Trials in which a function decides whether the float forms of layers are better."""

    def __init__(self, decide: Callable[[set[str]], bool]) -> None:
        super().__init__(FloatReference(), Options(None))
        self.decide, self.is_possible = decide, True

    def is_good(self, conversion: Conversion) -> bool:
        return False

    def is_better(
        self,
        alternative: Conversion,
        conversion: Conversion,
        max_loss: float,
        layers: Iterable[str] = (),
        *,
        in_most_runs: bool = False,
    ) -> bool:
        return self.decide(set(layers))


@pytest.mark.parametrize("first", NEIGHBORS)
@pytest.mark.parametrize("fraction", [0.6, 0.1])
def test_the_noisiest_layer_is_tried_with_its_noisiest_neighbor(
    first: str, fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = from_text(TEXT)
    plan = annotate(graph, Scheme.for_target("litert"))
    conversion = Conversion(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0))))
    measured, tried = [set[str]()], list[set[str]]()

    def measure(*arguments: Any) -> dict[str, float]:
        if len(arguments) == 3:
            return {first: 0.2} | {layer: 0.1 for layer in NEIGHBORS if layer != first}
        layers: Collection[str] = arguments[3]
        assert arguments[4] == first
        measured[0] = set(layers)
        return {layer: fraction - 0.01 * number for number, layer in enumerate(sorted(layers))}

    def accept(layers: set[str]) -> bool:
        tried.append(layers)
        return True

    monkeypatch.setattr(lossy_layers, "measure_noise_fractions", measure)
    result = ScriptedTrials(accept).improve(conversion, [exclude_noisy_layers])
    assert measured == [NEIGHBORS[first]]
    pair = {first, min(NEIGHBORS[first])}
    assert tried == ([pair] if fraction > 0.25 else [])
    assert result.plan.pattern_of.keys() & NEIGHBORS.keys() == NEIGHBORS.keys() - (pair if tried else set())


def test_the_two_noisiest_layers_are_tried_if_the_noise_of_the_outputs_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = from_text(TEXT)
    plan = annotate(graph, Scheme.for_target("litert"))
    sqnr = {pattern.input: ratio for pattern, ratio in zip(plan.patterns, (30.0, 10.0, 40.0, 20.0), strict=True)}
    conversion = Conversion(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0)), sqnr=sqnr))
    tried: list[set[str]] = []

    def accept(layers: set[str]) -> bool:
        tried.append(layers)
        return len(layers) == 2

    monkeypatch.setattr(lossy_layers, "measure_noise_fractions", lambda *arguments: {})
    ScriptedTrials(accept).improve(conversion, [exclude_noisy_layers])
    noisiest = [plan.patterns[index].layer for index in (1, 3)]
    assert tried[-1] == set(noisiest)


def test_one_of_two_layers_stays_in_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT[: TEXT.index("    w3 =")].replace("r2 = Relu(c2", "y = Relu(c2")
    graph = from_text(text)
    plan = annotate(graph, Scheme.for_target("litert"))
    conversion = Conversion(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0))))
    assert len(plan.patterns) == 2
    tried: list[set[str]] = []

    def accept(layers: set[str]) -> bool:
        tried.append(layers)
        return len(layers) == 2

    monkeypatch.setattr(lossy_layers, "measure_noise_fractions", lambda *arguments: {"c1": 0.5, "c2": 0.5})
    assert ScriptedTrials(accept).improve(conversion, [exclude_noisy_layers]) is conversion
    assert tried == [{"c1"}, {"c2"}]


@pytest.mark.parametrize(
    ("energies", "fractions"),
    [
        ({}, {"c0": 1 / 64}),
        ({"c5": 126.0}, {"c5": 126 / 189}),
        ({"c5": 40.0, "c40": 60.0}, {"c40": 60 / 162, "c5": 40 / 162}),
        # With c5 in float, less noise is enough for the next trial.
        ({"c5": 178.0, "c40": 40.0}, {"c5": 178 / 280, "c40": 40 / 280}),
        # The halves of c4 and c2 cause enough noise only after c8 is found.
        (
            {f"c{number}": 0.0 for number in range(64)}
            | {"c0": 9.0, "c1": 7.0, "c2": 9.0, "c3": 7.0, "c4": 20.0, "c5": 1.0, "c8": 45.0, "c9": 2.0},
            {"c8": 0.45, "c4": 0.2, "c0": 0.09, "c2": 0.09},
        ),
        ({"c5": np.nan}, {}),
    ],
)
def test_few_measurements_find_the_layers_with_most_noise(
    energies: Mapping[str, float], fractions: Mapping[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["inputs: x", "outputs: c63", "x = Placeholder[1x4x4x2]()"]
    for number in range(64):
        source = f"c{number - 1}" if number else "x"
        lines += [f"w{number} = Const[1x1x2x2]()"]
        lines += [f"c{number} = Conv2D({source}, w{number}, T=float, strides=[1, 1, 1, 1], padding=SAME)"]
    graph = from_text("\n".join(lines))
    plan = annotate(graph, Scheme.for_target("litert"))
    conversion = Conversion(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0))))
    measured = list[frozenset[str]]()

    def noise(layers: frozenset[str]) -> float:
        measured.append(layers)
        return sum(energies.get(layer, 1.0) for layer in layers)

    @contextmanager
    def open_probe(*arguments: Any) -> Iterator[Any]:
        switched = SimpleNamespace(switches=lambda plan: frozenset(pattern.layer for pattern in plan.patterns))
        yield lambda num_runs: SimpleNamespace(switched=switched, noise=noise)

    monkeypatch.setattr(error_signals, "_open_probe", open_probe)
    values = np.zeros((1, 4, 4, 2), np.float32)
    reference = FloatReference(feeds=[{"x": values}], outputs=[{"c63": values}])
    result = error_signals.measure_noise_fractions(conversion, reference, Options(None))
    assert result == pytest.approx(fractions)
    assert list(result) == list(fractions)
    assert len(measured) < 32


def test_no_noise_is_measured_where_the_sizes_of_an_output_depend_on_values(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = from_text(TEXT)
    plan = annotate(graph, Scheme.for_target("litert"))
    conversion = Conversion(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0))))
    opened: list[Conversion] = []

    def open_probe(conversion: Conversion, reference: Any) -> Any:
        opened.append(conversion)
        raise UnavailableError("the sizes of an output depend on values")

    monkeypatch.setattr(error_signals, "_open_probe", open_probe)
    values = np.zeros((1, 8, 8, 4), np.float32)
    reference = FloatReference(feeds=[{"x": values}], outputs=[{"y": values}])
    assert error_signals.measure_noise_fractions(conversion, reference, Options(None)) == {}
    assert opened == [conversion]
