"""Progress of long calls in a pipe: one line for each stage that may take long."""

from argparse import Namespace
from importlib import import_module

import pytest

import quantkit as qk
from quantkit.progress import Progress
from quantkit.runtimes import find_runtime

REPORTS = (
    Progress("calibrating", 3, 100),
    Progress("measuring", 0, 3, seconds=12.4),
    Progress("measuring", 1, 3, seconds=14.0),
    Progress("writing", 0, seconds=1.0),
)


@pytest.mark.parametrize(("is_quiet", "text"), [(False, "measuring, about 12 s\n"), (True, "")])
def test_a_pipe_gets_the_time_of_long_stages(is_quiet: bool, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with import_module("quantkit.cli._render").show_progress(Namespace(quiet=is_quiet)) as on_progress:
        for report in REPORTS:
            on_progress(report)
    assert capsys.readouterr() == ("", text)


@pytest.mark.engine
def test_quantize_states_what_it_measures_and_how_long() -> None:
    reports: list[Progress] = []
    result = qk.quantize("digits", "assets/digits_heldout.npz", limit=8, runs=1, on_progress=reports.append)
    seconds = {report.stage: report.seconds for report in reversed(reports) if report.seconds is not None}
    latency = result.report.latency.benchmark
    assert latency is not None
    assert seconds["measuring the time of the layers in OpenVINO and ONNX Runtime"] == 6.0
    stage = next(name for name in seconds if name.startswith("measuring the latency of float and int8 in "))
    assert seconds[stage] == import_module("quantkit.quantization.workflow.latency").FURTHER_BUDGET
    assert all(find_runtime(row.runtime).title in stage for row in latency.rows)
    assert all(report.done <= (report.total or report.done) for report in reports)
