"""State of the quantization targets and of the plugins on this machine, for `quantkit doctor`."""

from collections.abc import Collection
from dataclasses import replace

from quantkit import runtimes
from quantkit.benchmark.diagnosis import Diagnosis, TargetDiagnosis
from quantkit.errors import UnavailableError
from quantkit.evaluation import tasks
from quantkit.quantization import observers
from quantkit.quantization.targets import REGISTRY, Target, targets
from quantkit.quantization.targets.advice import find_slow_reason
from quantkit.quantization.targets.capabilities import NeedsPackage
from quantkit.recipes.named import RECIPE_REGISTRY
from quantkit.transforms.plugins import load_installed


def complete_diagnosis(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis of a machine with the state of each target, and the problems of plugins."""
    working = [runtime.name for runtime in diagnosis.runtimes if not runtime.problem]
    return replace(diagnosis, targets=diagnose_targets(working), plugin_problems=find_plugin_problems())


def find_plugin_problems() -> tuple[str, ...]:
    """Return a sentence for each plugin of an installed package that cannot be loaded."""
    registries = (REGISTRY, runtimes.REGISTRY, observers.REGISTRY, RECIPE_REGISTRY, tasks.REGISTRY)
    return (*(problem for registry in registries for problem in registry.problems()), *load_installed())


def diagnose_targets(working: Collection[str]) -> tuple[TargetDiagnosis, ...]:
    """Return the state of each target.

    Args:
        working: names of the runtimes that work here.
    """
    return tuple(_diagnose(target, working) for target in targets().values())


def _diagnose(target: Target, working: Collection[str]) -> TargetDiagnosis:
    names = tuple(name for name in target.runtimes if name in working)
    try:
        if isinstance(target, NeedsPackage):
            target.check_installation(weights_only=False)
    except UnavailableError as error:
        return TargetDiagnosis(target.name, (), f"{error.message} (hint: {error.hint})")
    missing = f"none of its runtimes works here: {', '.join(target.runtimes)}"
    return TargetDiagnosis(target.name, names, find_slow_reason(target) if names else missing)
