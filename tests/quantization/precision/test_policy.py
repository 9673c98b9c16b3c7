"""Thresholds of the decisions about precision: all in one module, each with the networks that support it."""

import ast
import json
import re
from pathlib import Path

from quantkit.quantization.precision import policy

ROOT = Path(__file__).parents[3]
# Sizes of measurements, and limits of their time.
SIZES = {
    *("TRIAL_RUNS", "TRIAL_STEPS", "SIGNAL_RUNS", "MAX_SIGNAL_RUNS", "SIGNAL_VALUES", "SIGNAL_STEPS", "NUM_CHECKS"),
    *("MAX_DEVIATION", "SIGNAL_FRACTION", "SENSITIVITY_FRACTION", "PROFILE_ROUNDS", "PROFILE_SECONDS", "MIN_CALLS"),
    *("MAX_CALLS", "MAX_FRACTION_MACS", "MAX_GAIN_MACS"),
}
# Modules that decide about precision.
DECIDING = (
    *("fallback", "lost_channels", "scale_migration", "states", "workflow/lossy_layers", "workflow/observer_choice"),
    *(
        "workflow/trials",
        "workflow/costly_kernels",
        "workflow/slow_kernels",
        "workflow/error_signals",
        "workflow/zero_point_choice",
    ),
)


def test_each_threshold_has_the_networks_that_support_it() -> None:
    names = {name for name in vars(policy) if name.isupper() and not name.startswith("_")} - {"SUPPORTED_BY"}
    assert names == policy.SUPPORTED_BY.keys() | SIZES
    bench = ROOT / "tests" / "bench"
    networks = set(json.loads((bench / "onnx_networks.json").read_text())["networks"])
    networks |= {row["name"] for row in json.loads((bench / "networks.json").read_text())["rows"]}
    for name, supporting in policy.SUPPORTED_BY.items():
        assert supporting, f"no network needs {name}"
        assert set(supporting) <= networks, name


def test_each_threshold_is_used() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "quantkit" / "quantization").rglob("*.py"))
    for name in policy.SUPPORTED_BY.keys() | SIZES:
        assert re.search(rf"policy\.{name}\b", code), f"no decision uses {name}"


def test_deciding_modules_have_no_thresholds_of_their_own() -> None:
    for module in DECIDING:
        tree = ast.parse((ROOT / "quantkit" / "quantization" / f"{module}.py").read_text())
        fractions = [
            ast.unparse(node)
            for node in tree.body
            if isinstance(node, ast.Assign)
            and any(isinstance(part, ast.Constant) and isinstance(part.value, float) for part in ast.walk(node.value))
        ]
        assert not fractions, f"{module} has a threshold: move {fractions} to precision/policy.py"
