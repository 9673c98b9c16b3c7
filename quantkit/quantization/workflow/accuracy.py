"""Accuracy of a quantized file: its outputs compared with those of the float model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from quantkit.errors import GraphError, InputError, QuantkitError, UnavailableError
from quantkit.evaluation.classification_metrics import ClassificationMetrics
from quantkit.evaluation.output_sqnr import OutputSqnr
from quantkit.formats.temporary import temporary_folder
from quantkit.ir.graph import Graph
from quantkit.model import load
from quantkit.quantization.fallback import Loss
from quantkit.quantization.report import AccuracyReport
from quantkit.quantization.targets.base import names_endpoints
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.runtimes import find_runtime, open_session
from quantkit.runtimes.session import Session


def measure_accuracy(
    file: Path, conversion: Conversion, reference: FloatReference, runtimes: Sequence[str] = (), *, by_run: bool = False
) -> AccuracyReport:
    """Run a quantized file in the first runtime that can, and compare its outputs with the float model's.

    Args:
        file: quantized model.
        conversion: origin of the file.
        reference: outputs of the float model.
        runtimes: names of the runtimes to try; without one, those of the conversion. Samples of different sizes run
            last in those that compile for each size.
        by_run: measure each run by itself, too.

    Raises:
        UnavailableError, GraphError, InputError: no runtime can run the file; the error of the fastest one.
    """
    model = _load(file, conversion)
    failures: list[UnavailableError | GraphError | InputError] = []
    names = runtimes or conversion.runtimes
    if reference.varies:
        names = sorted(names, key=lambda name: find_runtime(name).compiles_sizes)
    for name in names:
        try:
            with open_session(model, name, conversion.session_options) as session:
                runs: list[ClassificationMetrics | OutputSqnr] = []
                metrics = reference.compare(session, runs if by_run else None)
                return AccuracyReport(
                    metrics,
                    session.runtime,
                    reference.source,
                    reference.top1,
                    tuple(error.message for error in failures),
                    int8_nodes=session.int8_nodes if names_endpoints(conversion.target) else None,
                    by_run=tuple(runs),
                )
        except (UnavailableError, GraphError, InputError) as error:
            failures.append(error)
    raise failures[0]


def measure_loss(conversion: Conversion, reference: FloatReference) -> Loss:
    """Write the quantized model to a temporary file; return its loss.

    Raises:
        UnavailableError, GraphError, InputError: no runtime can run the model.
    """
    with write_trial_file(conversion) as file:
        metrics = measure_accuracy(file, conversion, reference).metrics
    assert metrics is not None, "a measured accuracy has metrics"
    return reference.loss(metrics)


@contextmanager
def write_trial_file(conversion: Conversion) -> Iterator[Path]:
    """Write a quantized model to a temporary file."""
    with temporary_folder() as folder:
        file = folder / f"trial{conversion.target.suffixes[0]}"
        conversion.write(file)
        yield file


@contextmanager
def open_conversion(conversion: Conversion) -> Iterator[Session]:
    """Open a quantized model in its fastest installed runtime.

    Raises:
        UnavailableError, GraphError, InputError: the runtime cannot run the model.
    """
    with (
        write_trial_file(conversion) as file,
        open_session(_load(file, conversion), conversion.runtimes[0], conversion.session_options) as session,
    ):
        yield session


def _load(file: Path, conversion: Conversion) -> Path | Graph:
    """Return the file, or its graph if the file does not name its inputs and outputs."""
    graph = conversion.graph
    return file if names_endpoints(conversion.target) else load(file, graph.inputs, graph.outputs).graph


def try_measure_accuracy(file: Path, conversion: Conversion, reference: FloatReference) -> AccuracyReport:
    """Return the accuracy of a quantized file, or the reason that it is not known."""
    if not len(reference):
        return AccuracyReport()
    try:
        return measure_accuracy(file, conversion, reference)
    except QuantkitError as error:  # the output is written: the report has the reason
        return AccuracyReport(failures=(error.message,))
