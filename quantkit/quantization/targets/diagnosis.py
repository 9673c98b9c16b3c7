"""State of the quantization targets on this machine."""

from collections.abc import Collection

from quantkit.benchmark.diagnosis import TargetDiagnosis
from quantkit.errors import UnavailableError
from quantkit.quantization.targets import Target, targets


def diagnose_targets(working: Collection[str]) -> tuple[TargetDiagnosis, ...]:
    """Return the state of each target.

    Args:
        working: names of the runtimes that work here.
    """
    return tuple(_diagnose(target, working) for target in targets().values())


def _diagnose(target: Target, working: Collection[str]) -> TargetDiagnosis:
    names = tuple(name for name in target.runtimes if name in working)
    try:
        target.check_installation(weights_only=False)
    except UnavailableError as error:
        return TargetDiagnosis(target.name, (), f"{error.message} (hint: {error.hint})")
    missing = f"none of its runtimes works here: {', '.join(target.runtimes)}"
    return TargetDiagnosis(target.name, names, target.slow_reason if names else missing)
