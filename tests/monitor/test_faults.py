"""Seeded faults: the monitor names the cause of each scripted job."""

from pathlib import Path
from typing import Any

import pytest
from monitored_jobs import FUTEX, PID, RUN, TICK, ScriptedJob, ScriptedThread, run_job

from quantkit.benchmark.host.machine import this_machine
from quantkit.monitor.bandwidth import Copies, MemoryProbe, probe_memory
from quantkit.monitor.calls import Calls, Period, Purpose
from quantkit.monitor.facts import JobFacts, _select_samples
from quantkit.monitor.prove import Proof
from quantkit.monitor.report import Monitoring
from quantkit.monitor.sample import JobSample, SystemSample
from quantkit.monitor.verdict import (
    INPUT_OR_COMPUTE,
    KINDS,
    UNDECIDED,
    decisive_metric,
    describe_evidence,
    find_bottleneck,
)

NAP = ("S", "hrtimer_nanosleep")
READ = ("D", "folio_wait_bit_common")
PIPE = ("S", "anon_pipe_read")
SOCKET = ("S", "wait_woken")
PILLOW = [("/lib/python3.11/site-packages/PIL/ImageFile.py", "load"), ("/job.py", "main")]
SESSION = [("/lib/python3.11/site-packages/onnxruntime/capi/session.py", "run"), ("/job.py", "main")]
QUEUE = [("/lib/python3.11/threading.py", "wait"), ("/lib/python3.11/queue.py", "get"), ("/job.py", "main")]
FIT = [
    ("/lib/python3.11/site-packages/tensorflow/python/eager/execute.py", "quick_execute"),
    ("/lib/python3.11/site-packages/keras/src/backend/tensorflow/trainer.py", "fit"),
    ("/job.py", "main"),
]
BUSY = ScriptedThread([RUN], user=TICK)


def threads(count: int, **fields: object) -> dict[int, ScriptedThread]:
    """Return equal threads, the main thread first."""
    return {PID + index: ScriptedThread(**{"states": [RUN], **fields}) for index in range(count)}


def steps(step: float, gap: float, count: int = 12) -> list[tuple[bytes, float]]:
    """Return the marks of equal steps."""
    return [mark for _ in range(count) for mark in ((b"s", gap), (b"S", step))]


COUNTERS = "{},,cycles:u,1,100,,\n{},,instructions:u,1,100,,\n{},,cache-misses:u,1,100,,"

FAULTS = {
    "one thread decodes": ScriptedJob(
        "input-bound", "one-thread input", {PID: BUSY}, calls=[(True, 80, PILLOW, ""), (True, 20, SESSION, "")]
    ),
    "decoding thread is slower than the model": ScriptedJob(
        "input-bound",
        "one-thread input",
        {PID: ScriptedThread([FUTEX, FUTEX, RUN]), PID + 1: BUSY},
        calls=[(True, 70, QUEUE, "self.not_empty.wait()"), (True, 30, SESSION, ""), (False, 90, PILLOW, "")],
    ),
    "no prefetch": ScriptedJob(
        "input-bound", "no prefetch", {PID: BUSY}, calls=[(True, 45, PILLOW, ""), (True, 55, SESSION, "")]
    ),
    "gap before each step": ScriptedJob("input-bound", "one-thread input", {PID: BUSY}, marks=steps(0.1, 0.2)),
    "slow disk": ScriptedJob(
        "input-bound",
        "slow disk",
        {PID: ScriptedThread([READ, READ, RUN], user=TICK / 3)},
        rates={"read": 2e6},
        calls=[(True, 70, PILLOW, ""), (True, 30, SESSION, "")],
    ),
    "slow disk of an unknown program": ScriptedJob(
        "input-bound", "slow disk", {PID: ScriptedThread([READ, READ, RUN], user=TICK / 3)}, rates={"read": 2e6}
    ),
    "slow pipe": ScriptedJob("input-bound", "slow pipe", {PID: ScriptedThread([PIPE, PIPE, RUN], user=TICK / 3)}),
    "reads that sleep": ScriptedJob(
        "input-bound",
        "slow reads",
        {PID: ScriptedThread([NAP, NAP, RUN], user=TICK / 3)},
        calls=[
            (True, 66, [("/job.py", "read_batch"), ("/job.py", "main")], "time.sleep(0.01)"),
            (True, 34, SESSION, ""),
        ],
    ),
    "fit that waits for its input": ScriptedJob(
        "input-bound",
        "slow reads",
        {PID: ScriptedThread([NAP, NAP, RUN], user=TICK / 3)},
        calls=[(True, 99, FIT, "")],
    ),
    "fit that waits for the disk": ScriptedJob(
        "input-bound",
        "slow disk",
        {PID: ScriptedThread([FUTEX])} | {PID + 1: ScriptedThread([READ, READ, FUTEX])},
        calls=[(True, 99, FIT, "")],
    ),
    "fit with a busy pipeline": ScriptedJob(
        "input-bound",
        "one-thread input",
        {PID: ScriptedThread([RUN], user=TICK / 4)} | {PID + 1: ScriptedThread([RUN], name="tf_data_map", user=TICK)},
        calls=[(True, 99, FIT, "")],
    ),
    "idle GPU with slow input": ScriptedJob(
        "input-bound", "one-thread input", {PID: BUSY}, gpu={"utilization": 0.3, "sm": 0.2}, marks=steps(0.1, 0.2)
    ),
    "transfer to the GPU": ScriptedJob(
        "input-bound", "host-to-device transfer", {PID: BUSY}, gpu={"utilization": 0.9, "sm": 0.1, "pcie": 25e9}
    ),
    "small GPU kernels": ScriptedJob("waiting", "small GPU kernels", {PID: BUSY}, gpu={"utilization": 1.0, "sm": 0.04}),
    "idle GPU with slow host code": ScriptedJob(
        "waiting", "host code", {PID: BUSY}, gpu={"utilization": 0.2}, marks=steps(0.1, 0.001)
    ),
    "busy GPU": ScriptedJob("compute-bound", "GPU", {PID: BUSY}, gpu={"utilization": 0.97, "sm": 0.8, "dram": 0.3}),
    "GPU memory bandwidth": ScriptedJob(
        "memory-bound", "GPU memory bandwidth", {PID: BUSY}, gpu={"utilization": 0.97, "sm": 0.8, "dram": 0.85}
    ),
    "all cores": ScriptedJob(
        "compute-bound or memory-bound", "all cores", threads(4, user=TICK), calls=[(True, 99, SESSION, "")]
    ),
    "one thread": ScriptedJob(
        "compute-bound or memory-bound", "one thread", {PID: BUSY}, calls=[(True, 99, SESSION, "")]
    ),
    "busy fit": ScriptedJob("input-bound or compute-bound", "one thread", {PID: BUSY}, calls=[(True, 99, FIT, "")]),
    "busy fit with other processes": ScriptedJob(
        "input-bound or compute-bound",
        "other processes",
        threads(2, user=TICK / 2, queued=TICK / 2),
        calls=[(True, 99, FIT, "")],
        rates={"other cpu": 3.0},
    ),
    "oversubscription": ScriptedJob("compute-bound", "oversubscription", threads(8, user=TICK / 2, queued=TICK / 2)),
    "other processes": ScriptedJob(
        "compute-bound or memory-bound",
        "other processes",
        threads(2, user=TICK / 2, queued=TICK / 2),
        rates={"other cpu": 3.0},
    ),
    "CPU quota": ScriptedJob("compute-bound", "CPU quota", threads(2, user=TICK / 2), throttled=0.5, cores=1.0),
    "swapping": ScriptedJob("memory-bound", "swapping", {PID: ScriptedThread([READ])}, rates={"swap": 30e6}),
    "page faults with disk access": ScriptedJob(
        "memory-bound", "page faults", {PID: ScriptedThread([READ], major=20)}, memory=0.97
    ),
    "new buffers in each step": ScriptedJob(
        "memory-bound", "page faults", {PID: ScriptedThread([RUN], user=TICK / 2, system=TICK / 2, minor=5000)}
    ),
    "memory bandwidth": ScriptedJob(
        "memory-bound", "memory bandwidth", threads(4, user=TICK), counters=COUNTERS.format(1000, 400, 12)
    ),
    "network": ScriptedJob("waiting", "network", {PID: ScriptedThread([SOCKET, SOCKET, SOCKET, RUN], user=TICK / 4)}),
    "lock contention": ScriptedJob(
        "waiting",
        "lock contention",
        {
            PID: ScriptedThread([FUTEX]),
            **{PID + n: ScriptedThread([FUTEX, FUTEX, RUN], user=TICK / 3) for n in (1, 2, 3)},
        },
    ),
    "interpreter lock": ScriptedJob(
        "waiting",
        "global interpreter lock",
        {
            PID: ScriptedThread([FUTEX]),
            **{PID + n: ScriptedThread([FUTEX, FUTEX, RUN], user=TICK / 3) for n in (1, 2, 3)},
        },
        calls=[
            (True, 90, [("/lib/python3.11/threading.py", "join")], ""),
            (False, 270, [("/job.py", "work")], "total += n"),
        ],
    ),
    "sleep": ScriptedJob("waiting", "sleep", {PID: ScriptedThread([NAP, NAP, NAP, RUN], user=TICK / 4)}),
    "child process": ScriptedJob(
        "waiting",
        "sleep",
        {PID: ScriptedThread([("S", "do_wait")]), PID + 1: ScriptedThread([NAP], pid=PID + 1)},
    ),
    "disk writes": ScriptedJob(
        "waiting", "disk writes", {PID: ScriptedThread([READ, READ, RUN], user=TICK / 3)}, rates={"write": 9e6}
    ),
    "idle server": ScriptedJob("waiting", "events", {PID: ScriptedThread([("S", "do_epoll_wait")])}),
}


def facts_of(job: ScriptedJob, folder: Path) -> JobFacts:
    return run_job(job, folder)[0]


@pytest.mark.parametrize("name", FAULTS)
def test_cause_of_a_fault(name: str, tmp_path: Path) -> None:
    job = FAULTS[name]
    facts = facts_of(job, tmp_path)
    verdict = find_bottleneck(facts)
    evidence = "\n".join(describe_evidence(facts))
    assert (verdict.kind, verdict.cause) == (job.verdict, job.cause), f"{verdict}\n{evidence}"
    assert verdict.advice
    assert verdict.reason
    assert "--intra-op" not in verdict.advice  # a flag of benchmark, not of the job
    assert evidence.startswith("gap before each step")


OWN = [("/job.py", "copy_blocks"), ("/job.py", "<module>")]
NUMPY = "/lib/python3.11/site-packages/numpy/_core/numeric.py"


@pytest.mark.parametrize(
    ("calls", "label"),
    [
        ([(True, 2, [(NUMPY, "ones"), *OWN[1:]], ""), (True, 60, OWN, "np.copyto(target, source)")], "copy_blocks"),
        ([(True, 9, [(NUMPY, "zeros_like"), *OWN], ""), (True, 40, OWN, "total += value")], "copy_blocks"),
        ([(True, 5, SESSION, ""), (True, 30, OWN, "table[key] = value")], "copy_blocks"),
        ([(True, 30, SESSION, ""), (True, 5, OWN, "table[key] = value")], "session.py:run"),
        ([(True, 3, OWN, ""), (True, 30, [("/job.py", "sort_rows"), *OWN], "rows.sort()")], "sort_rows"),
    ],
)
def test_evidence_names_the_function_that_runs(calls: Any, label: str, tmp_path: Path) -> None:
    facts = facts_of(ScriptedJob("", "", {PID: BUSY}, calls=calls), tmp_path)
    verdict = find_bottleneck(facts)
    assert label in verdict.reason
    assert facts.calls is not None
    assert label in facts.calls.labels["compute"]


LAST_CALLS = [("compute", "", False, 4.0), ("compute", "", True, 19.0), ("waiting", "sleep", False, 19.0)]
KERAS = "/lib/python3.11/site-packages/keras/src"
WRAPPER = [(f"{KERAS}/utils/traceback_utils.py", "error_handler"), ("/job.py", "<module>")]
FEED = [
    (f"{KERAS}/trainers/data_adapters/generator_data_adapter.py", "get_tf_iterator"),
    ("/lib/python3.11/site-packages/tensorflow/python/data/ops/from_generator_op.py", "generator_py_func"),
    ("/lib/python3.11/site-packages/tensorflow/python/ops/script_ops.py", "__call__"),
]


@pytest.mark.parametrize(
    ("frames", "text", "cause", "location"),
    [
        ([("/job.py", "stream")], "time.sleep(0.1)", "slow reads", "stream (job.py:7: time.sleep(0.1))"),
        (
            [("/job.py", "unpack"), ("/job.py", "stream")],
            "total += 1",
            "one-thread input",
            "unpack (job.py:7: total += 1)",
        ),
        ([(NUMPY, "ones"), ("/job.py", "stream")], "", "one-thread input", "stream (job.py:7: _core/numeric.py:ones)"),
    ],
)
def test_a_fit_names_the_function_that_feeds_it(
    frames: list[tuple[str, str]], text: str, cause: str, location: str, tmp_path: Path
) -> None:
    calls = [(True, 60, FIT, ""), (True, 2, WRAPPER, "return fn(*args, **kwargs)"), (False, 50, [*frames, *FEED], text)]
    states = [NAP] if cause == "slow reads" else [RUN]
    facts = facts_of(ScriptedJob("", "", {PID: ScriptedThread(states, user=TICK / 20)}, calls=calls), tmp_path)
    verdict = find_bottleneck(facts)
    assert (verdict.kind, verdict.cause) == ("input-bound", cause)
    assert verdict.reason.endswith(f"of the time is spent on input, mostly in {location}")
    assert "error_handler" not in "\n".join(describe_evidence(facts))


@pytest.mark.parametrize(("kind", "cause", "uses_gpu", "end"), LAST_CALLS)
def test_a_long_release_of_a_dataset_is_not_judged(kind: str, cause: str, uses_gpu: bool, end: float) -> None:
    """A call of a compute library without a busy core is the release; a long sleep is the purpose of the job."""
    samples = [JobSample(float(second), SystemSample((), 0, 0)) for second in range(20)]
    fit, last = Purpose("input or compute", "", "Keras fit"), Purpose(kind, cause, "job.py:<module>")
    calls = Calls(PID, tuple(Period(float(second), {fit if second < 4 else last: 5}, {}) for second in range(20)))
    assert _select_samples(samples, None, calls, uses_gpu=uses_gpu)[-1].seconds == end


def test_a_fit_with_pauses_of_its_input_names_it_without_a_verdict(tmp_path: Path) -> None:
    calls = [(True, 60, FIT, ""), (False, 20, [("/job.py", "stream"), *FEED], "decode(row)")]
    verdict = find_bottleneck(facts_of(ScriptedJob("", "", threads(4, user=TICK), calls=calls), tmp_path))
    assert verdict.kind == "input-bound or compute-bound"
    assert "takes its input: stream (job.py:7: decode(row)) prepares it 33% of the time" in verdict.reason


@pytest.mark.parametrize("name", ["one thread", "all cores", "other processes"])
def test_memory_is_separated_by_an_experiment(name: str, tmp_path: Path) -> None:
    facts = facts_of(FAULTS[name], tmp_path)
    verdict = find_bottleneck(facts)
    assert "without hardware counters, computing and accesses to the memory look the same" in verdict.reason
    assert "quantkit monitor --prove" in verdict.advice
    assert "--prove" not in find_bottleneck(facts, is_tried=True).advice
    alone = find_bottleneck(facts, memory=MemoryProbe(during=9.6e9, alone=10e9))
    assert (alone.kind, alone.cause) == ("compute-bound", verdict.cause)
    assert "proof: a second worker copies memory at 0.96x its rate (9.6 GB/s during the job" in alone.reason
    shared = find_bottleneck(facts, memory=MemoryProbe(during=4e9, alone=10e9))
    assert (shared.kind, shared.cause) == ("memory-bound", "memory bandwidth")


def test_counters_need_no_experiment(tmp_path: Path) -> None:
    job = ScriptedJob("", "", threads(4, user=TICK), counters=COUNTERS.format(1000, 2400, 1))
    verdict = find_bottleneck(facts_of(job, tmp_path))
    assert verdict.kind == "compute-bound"
    assert "--prove" not in verdict.advice


def test_copies_are_timed() -> None:
    copies = Copies()
    memory = probe_memory(lambda: copies.take(40))  # long enough for the start of the other process
    rate = copies.end()
    assert memory is not None
    assert rate is not None
    assert 0.05 < memory.during / rate < 20
    assert 0.05 < memory.alone / rate < 20


@pytest.mark.parametrize("rates", [{}, {"other cpu": 3.0}])
def test_a_busy_fit_names_the_experiment(rates: dict[str, float], tmp_path: Path) -> None:
    queued = TICK / 2 if rates else 0.0
    job = ScriptedJob(
        "", "", threads(2, user=TICK - queued, queued=queued), calls=[(True, 99, FIT, "")], rates=rates, cores=2.0
    )
    facts = facts_of(job, tmp_path)
    verdict = find_bottleneck(facts)
    assert verdict.kind == "input-bound or compute-bound"
    assert "100% of the time is spent in Keras fit (job.py:7), which also takes its input" in verdict.reason
    assert "--prove decides: it repeats one batch" in verdict.reason
    assert "quantkit monitor --prove" in verdict.advice
    tried = find_bottleneck(facts, is_tried=True)
    assert (tried.kind, "decides" in tried.reason) == (verdict.kind, False)
    assert "--pipeline FILE.py:FUNCTION" in tried.advice
    assert "input or compute 100% (Keras fit (job.py:7))" in "\n".join(describe_evidence(facts))
    proof = Proof(seconds=1.0, repeated_seconds=0.4, drained_seconds=0.7, steps=10)
    assert find_bottleneck(facts, proof).kind == "input-bound"
    # The intervention excludes the input; a copy of memory then excludes the memory.
    proof = Proof(seconds=1.0, repeated_seconds=0.99, drained_seconds=0.1, steps=10)
    assert find_bottleneck(facts, proof).kind == "compute-bound or memory-bound"
    assert find_bottleneck(facts, proof, MemoryProbe(during=9.6e9, alone=10e9)).kind == "compute-bound"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "one thread decodes",
            "fit that waits for its input",
            "idle GPU with slow input",
            "transfer to the GPU",
            "busy GPU",
        ),
        *("one thread", "busy fit", "other processes", "swapping", "memory bandwidth", "sleep", "disk writes"),
    ],
)
def test_page_marks_the_measurement_that_decides(name: str, tmp_path: Path) -> None:
    facts, recorder = run_job(FAULTS[name], tmp_path)
    samples = tuple(recorder.samples)
    verdict = find_bottleneck(facts)
    result = Monitoring(verdict, facts, samples, 9.0, ("job",), PID, 0, False, 0.0, this_machine())
    page = result.html()
    assert page.count('<figure class="marked">') == 1
    marked = page.partition('<figure class="marked">')[2].partition("</figure>")[0]
    title = marked.partition("<b>")[2].partition("</b>")[0].partition(" [")[0]
    if "of each step is the gap before it" in verdict.reason:
        assert title == "time of a step"
    elif "of the time is spent on input" in verdict.reason or verdict.kind == INPUT_OR_COMPUTE:
        assert title == "time by purpose of the calls"
    else:
        assert title == decisive_metric(verdict)
    assert f"<h1>{verdict.kind.capitalize()}: {verdict.cause}</h1>" in page
    assert page.count(f"<b>{title} [") + page.count(f"<b>{title}<") == 1


def test_all_verdicts_are_covered() -> None:
    assert {job.verdict for job in FAULTS.values()} == {*KINDS, *UNDECIDED}
    assert len({job.cause for job in FAULTS.values()}) >= 20


def test_high_gpu_utilization_without_gpm_is_not_trusted(tmp_path: Path) -> None:
    job = ScriptedJob("", "", {PID: BUSY}, gpu={"utilization": 1.0})
    verdict = find_bottleneck(facts_of(job, tmp_path))
    assert verdict.kind == "compute-bound"
    assert "SM utilization is not available" in verdict.reason


def test_few_cache_misses_are_not_memory_bound(tmp_path: Path) -> None:
    job = ScriptedJob("", "", threads(4, user=TICK), counters=COUNTERS.format(1000, 400, 1))
    assert find_bottleneck(facts_of(job, tmp_path)).kind == "compute-bound"


def test_facts_are_rates_of_the_counters(tmp_path: Path) -> None:
    job = ScriptedJob("", "", threads(2, user=TICK / 2, system=TICK / 4, minor=10), rates={"read": 3e6})
    facts = facts_of(job, tmp_path)
    assert facts.cpu == pytest.approx(1.5, rel=0.02)
    assert facts.system == pytest.approx(1 / 3, rel=0.02)
    assert facts.minor_faults == pytest.approx(2 * 10 / TICK, rel=0.02)
    assert facts.read == pytest.approx(3e6, rel=0.02)
    assert facts.activities == {"running": 1.0}
    assert [thread.cpu for thread in facts.threads] == pytest.approx([0.75, 0.75], rel=0.02)


@pytest.mark.parametrize("queued", [0.0, 0.8])
def test_other_processes_do_not_hide_the_cause(queued: float, tmp_path: Path) -> None:
    states = [NAP, NAP, RUN] if not queued else [NAP] * 2 + [RUN] * 5
    thread = ScriptedThread(states, user=TICK / len(states), queued=queued * TICK * 5 / 7)
    job = ScriptedJob("", "", {PID: thread}, rates={"other cpu": 4.0 if queued else 0.0})
    facts = facts_of(job, tmp_path)
    assert facts.activities["sleep"] == pytest.approx(2 / 3, abs=0.05)
    assert find_bottleneck(facts).cause == "sleep"


def test_swap_of_other_processes_is_not_the_cause(tmp_path: Path) -> None:
    job = ScriptedJob("", "", {PID: BUSY}, rates={"swap": 30e6})
    assert find_bottleneck(facts_of(job, tmp_path)).cause == "one thread"


@pytest.mark.parametrize(
    ("name", "repeated", "kind", "is_proof"),
    [
        ("one thread decodes", 0.4, "input-bound", True),
        ("one thread decodes", 0.99, "compute-bound or memory-bound", True),
        ("one thread decodes", 0.9, "input-bound", False),
        ("one thread decodes", None, "input-bound", False),
        ("one thread", 0.5, "input-bound", True),
        ("one thread", 0.99, "compute-bound or memory-bound", True),
    ],
)
def test_interventions_overrule_other_evidence(
    name: str, repeated: float | None, kind: str, is_proof: bool, tmp_path: Path
) -> None:
    proof = Proof(seconds=1.0, repeated_seconds=repeated, drained_seconds=0.5, steps=10)
    verdict = find_bottleneck(facts_of(FAULTS[name], tmp_path), proof)
    assert verdict.kind == kind
    assert ("proof: one repeated batch" in verdict.reason) == is_proof


def test_gains_of_a_proof() -> None:
    proof = Proof(seconds=1.0, repeated_seconds=0.25, drained_seconds=0.8, steps=10)
    assert (proof.input_gain, proof.compute_gain, proof.overlap_gain) == (4.0, 1.25, 1.25)
    assert "faster input: at most 4.00x" in str(proof)
    incomplete = Proof(seconds=1.0, repeated_seconds=None, drained_seconds=0.8, steps=10)
    assert (incomplete.input_gain, incomplete.overlap_gain) == (None, None)
    assert "faster input: unknown" in str(incomplete)
