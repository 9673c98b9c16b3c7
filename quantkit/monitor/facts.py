"""Facts about a monitored job, computed from its samples: the evidence on which the verdict is based."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from quantkit.benchmark.host.machine import Machine
from quantkit.monitor import calls as calls_of_job
from quantkit.monitor.calls import Calls, Purpose, add_counts
from quantkit.monitor.counters import HardwareCounters
from quantkit.monitor.sample import LOCK, RUNNING, GpuSample, JobSample, ThreadSample
from quantkit.monitor.steps import Steps

# A thread is active if it uses or awaits a core for this fraction of the time, or is woken so often per second.
MIN_ACTIVE = 0.03
MIN_WAKES = 20.0
MIN_SAMPLES = 3
# Cores that an idle job uses at most, the sampler of its calls included.
MAX_IDLE = 0.1
# Fraction of the samples, from which a producer never pauses. A sample needs the interpreter lock, which a producer
# releases at its end, so samples find it less often than it runs.
MIN_PRODUCING = 0.65
# Lower limit of the fraction of the needed cores: a smaller one would multiply the noise of the ticks.
MIN_OBTAINED = 0.2


@dataclass(frozen=True)
class CallFacts:
    """Fractions of the time of the thread that drives the job, by purpose.

    Attributes:
        input, compute, mixed, waiting: fractions; their sum is 1. Mixed calls compute and take their input inside.
        input_causes, waiting_causes: fractions of the input and the waiting by cause; the empty cause is computing.
        labels: most frequent function by purpose, and its most frequent line.
        producing: fraction of the time in which other threads or processes prepare input.
        is_overlapped: other threads or processes prepare the input.
        locked: fraction of the samples of the other threads in which a lock blocks them.
        parallel: mean number of other threads that are not blocked.
        samples: number of samples.
    """

    input: float
    compute: float
    mixed: float
    waiting: float
    input_causes: Mapping[str, float]
    waiting_causes: Mapping[str, float]
    labels: Mapping[str, str]
    producing: float
    is_overlapped: bool
    locked: float
    parallel: float
    samples: int


@dataclass(frozen=True)
class GpuFacts:
    """Means of the gauges of the busiest GPU; None for a gauge that it does not report."""

    name: str
    utilization: float | None
    sm_utilization: float | None
    sm_occupancy: float | None
    dram_utilization: float | None
    pcie: float | None


@dataclass(frozen=True)
class ThreadFacts:
    """Time of one thread.

    Attributes:
        name: name that the kernel shows.
        pid, tid: process and thread.
        cpu: mean number of used cores, at most 1.
        queued: mean fraction of the time in the run queue without a core.
        locked: fraction of the ticks in which the thread was blocked by a lock.
        wakes: context switches per second after which it ran again.
    """

    name: str
    pid: int
    tid: int
    cpu: float
    queued: float
    locked: float
    wakes: float

    @property
    def is_active(self) -> bool:
        return self.cpu + self.queued >= MIN_ACTIVE or self.wakes >= MIN_WAKES


@dataclass(frozen=True)
class JobFacts:
    """Mean values over the judged time: from the end of the job's start to the end of its work.

    Attributes:
        seconds: judged time.
        start: monitored time before it.
        cores: cores that the job may use: affinity and CPU quota.
        cpu: cores that the job used.
        system: fraction of that time in the kernel.
        host_cpu: cores that all processes used.
        iowait: fraction of the time of all cores without work during a disk access.
        activities: fraction of the time by activity of the job, without the time in which other processes
            had its cores.
        threads: active threads, the busiest one first.
        queued: fraction of the runnable time of the threads without a core; None if unknown.
        minor_faults, major_faults: page faults per second.
        swapped, read, written, received: bytes per second.
        memory_fraction: used fraction of the host's memory.
        throttled: fraction of the time in which the CPU quota was exhausted; None if unknown.
        steps, calls, gpu, counters: facts that not every job has.
    """

    seconds: float
    cores: float
    cpu: float
    system: float
    host_cpu: float
    iowait: float
    activities: Mapping[str, float]
    start: float = 0.0
    threads: tuple[ThreadFacts, ...] = ()
    queued: float | None = None
    minor_faults: float = 0.0
    major_faults: float = 0.0
    swapped: float = 0.0
    read: float = 0.0
    written: float = 0.0
    received: float = 0.0
    memory_fraction: float = 0.0
    throttled: float | None = None
    steps: Steps | None = None
    calls: CallFacts | None = None
    gpu: GpuFacts | None = None
    counters: HardwareCounters = field(default_factory=lambda: HardwareCounters({}, "not counted"))

    def activity(self, *names: str) -> float:
        """Return the fraction of the time in some activities."""
        return sum(self.activities.get(name, 0.0) for name in names)


def cpu_limit(machine: Machine) -> float:
    """Return the number of logical cores that a job may use: those of its affinity, limited by the CPU quota."""
    cores = float(len(machine.affinity) or machine.logical_cores)
    return min(cores, machine.cpu_quota or cores)


def gather_facts(
    samples: Sequence[JobSample],
    *,
    cores: float,
    steps: Steps | None,
    calls: Sequence[Calls],
    counters: HardwareCounters,
    uses_gpu: bool,
) -> JobFacts:
    """Compute the facts of a job.

    Args:
        samples: at least two samples, in order.
        cores: cores that the job may use.
        steps: marked steps.
        calls: sampled calls of each Python process.
        counters: hardware counters.
        uses_gpu: the job has opened a GPU.
    """
    driver = _driver(calls)
    start = samples[0].seconds
    samples = _select_samples(samples, steps, driver, uses_gpu=uses_gpu)
    first, last = samples[0], samples[-1]
    calls = [each.until(last.seconds) for each in calls]
    seconds = max(last.seconds - first.seconds, 1e-9)
    threads = _threads(samples, seconds)
    used = sum(thread.cpu for thread in threads)
    queued = sum(thread.queued for thread in threads)
    kernel = _increase(samples, lambda thread: thread.system)
    activities = _fractions(add_counts(sample.activities for sample in samples[1:]))
    obtained = _obtained_fraction(used, queued, cores, activities.get(RUNNING, 0.0))

    def rate(value: Callable[[JobSample], float]) -> float:
        steps = (value(after) - value(before) for before, after in pairwise(samples))
        return sum(step for step in steps if step > 0) / seconds

    host_cpu, iowait = _host_use(first, last)
    memory = last.system.memory_used + last.system.memory_available
    has_queue = any(thread.queued is not None for thread in last.threads or first.threads)
    return JobFacts(
        seconds=seconds,
        start=first.seconds - start,
        cores=cores,
        cpu=used,
        system=kernel / (used * seconds) if used else 0.0,
        host_cpu=host_cpu,
        iowait=iowait,
        activities=_fractions({**activities, RUNNING: activities[RUNNING] * obtained})
        if RUNNING in activities
        else activities,
        threads=tuple(thread for thread in threads if thread.is_active),
        queued=queued / (used + queued) if has_queue and used + queued else None,
        minor_faults=_increase(samples, lambda thread: thread.minor_faults) / seconds,
        major_faults=_increase(samples, lambda thread: thread.major_faults) / seconds,
        swapped=rate(lambda sample: sample.system.swapped_in + sample.system.swapped_out),
        read=rate(lambda sample: sample.read),
        written=rate(lambda sample: sample.written),
        received=rate(lambda sample: sample.system.network_received),
        memory_fraction=last.system.memory_used / memory if memory else 0.0,
        throttled=None if last.throttled is None else rate(lambda sample: sample.throttled or 0.0),
        steps=steps,
        calls=_call_facts(_driver(calls), calls, obtained),
        gpu=_gpu_facts(samples) if uses_gpu else None,
        counters=counters,
    )


def _host_use(first: JobSample, last: JobSample) -> tuple[float, float]:
    """Return the number of cores that all processes used, and the fraction of the time that they waited for a disk."""
    cores = list(zip(first.system.cores, last.system.cores, strict=False))
    total = sum(after.total - before.total for before, after in cores) or 1.0
    idle = sum(after.idle + after.iowait - before.idle - before.iowait for before, after in cores)
    return len(cores) * (1 - idle / total), sum(after.iowait - before.iowait for before, after in cores) / total


def _obtained_fraction(used: float, queued: float, cores: float, running: float) -> float:
    """Return the fraction of the cores that the job needs and obtains, while other processes compete for them.

    A job needs as many cores as it has runnable threads, at most the existing ones. On a busy machine it runs longer;
    the other activities keep their duration, so the running time is reduced by this fraction.

    Args:
        used, queued: mean number of threads that run, and that are in the run queue.
        cores: cores that the job may use.
        running: fraction of the time in which a thread is runnable.
    """
    needed = min(used + queued, cores * running)
    return min(max(used / needed, MIN_OBTAINED), 1.0) if needed else 1.0


def _select_samples(
    samples: Sequence[JobSample], steps: Steps | None, driver: Calls | None, *, uses_gpu: bool
) -> Sequence[JobSample]:
    """Return the samples between the start of the job and its idle end; all of them if too few remain."""
    start = steps.start if steps else driver.started if driver else None
    end = steps.end if steps else driver.ended if driver else None
    selected = [sample for sample in samples if start is None or sample.seconds >= start] or samples
    work = [sample for sample in selected if end is None or sample.seconds <= end + 1]
    periods = driver.periods if driver else ()
    last = periods[-1].main if periods else {}
    # The end of the interpreter, after a last call, has no samples of calls and uses a core.
    limit = periods[-1].end if periods and end is not None and end < periods[-1].end else selected[-1].seconds
    tail = [sample for sample in selected[max(len(work) - 1, 0) :] if sample.seconds <= limit] or selected[-1:]
    is_idle = steps or _increase(tail, lambda thread: thread.cpu) <= MAX_IDLE * (tail[-1].seconds - tail[0].seconds)
    is_compute = all((each.kind, each.cause) == (calls_of_job.COMPUTE, "") for each in last)
    is_release = bool(last) and is_compute and not uses_gpu
    if is_idle and (is_release or 3 * len(work) > len(selected)):  # else waiting is what the job does
        selected = work
    return selected if len(selected) >= MIN_SAMPLES else samples


def _increase(samples: Sequence[JobSample], value: Callable[[ThreadSample], float]) -> float:
    """Return the sum of the increases of a counter over all threads; a new thread starts at 0."""
    total = 0.0
    for before, after in pairwise(samples):
        old = {thread.tid: value(thread) for thread in before.threads}
        total += sum(max(value(thread) - old.get(thread.tid, 0), 0) for thread in after.threads)
    return total


def _threads(samples: Sequence[JobSample], seconds: float) -> list[ThreadFacts]:
    """Return the facts of all threads, the busiest one first."""
    history: dict[int, list[ThreadSample]] = {}
    for sample in samples:
        for thread in sample.threads:
            history.setdefault(thread.tid, []).append(thread)
    initial = {thread.tid for thread in samples[0].threads}
    facts = []
    for tid, states in history.items():
        first, last = states[0], states[-1]
        is_new = tid not in initial
        activities = _fractions(add_counts(state.activities for state in states[not is_new :]))
        switches = last.voluntary - first.voluntary * (not is_new)
        facts.append(
            ThreadFacts(
                name=last.name,
                pid=last.pid,
                tid=tid,
                cpu=(last.cpu - first.cpu * (not is_new)) / seconds,
                queued=((last.queued or 0.0) - (first.queued or 0.0) * (not is_new)) / seconds,
                locked=activities.get(LOCK, 0.0),
                wakes=switches / seconds,
            )
        )
    return sorted(facts, key=lambda thread: -thread.cpu)


def _fractions(counts: Mapping[str, float]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def _driver(calls: Sequence[Calls]) -> Calls | None:
    """Return the calls of the process that consumes the input: the one with most computing, else the first one."""
    computing = (calls_of_job.COMPUTE, calls_of_job.MIXED)
    return max(calls, key=lambda each: (each.count(*computing), -each.pid), default=None)


def _worker_calls(driver: Calls, calls: Sequence[Calls]) -> tuple[Counter[Purpose], float]:
    """Return the running calls of all threads but the main one of the driver, and the fraction that a lock blocks.

    Idle calls and the start of a process do not count.
    """
    workers: Counter[Purpose] = Counter()
    locked = total = 0
    for process in calls:
        for purpose, count in [*process.others.items(), *(process.main.items() if process is not driver else ())]:
            if purpose.kind == calls_of_job.STARTUP or purpose.cause in ("queue", "child process"):
                continue
            total += count
            if purpose.cause == "lock":
                locked += count
            else:
                workers[purpose] += count
    return workers, locked / total if total else 0.0


def _call_facts(driver: Calls | None, calls: Sequence[Calls], obtained: float) -> CallFacts | None:
    """Return the fractions of the main thread; where it depends on other threads, their calls replace its own.

    Args:
        driver: process that consumes the input.
        calls: all processes.
        obtained: fraction of the needed cores that the job obtains.
    """
    if driver is None:
        return None
    main = {purpose: count for purpose, count in driver.main.items() if purpose.kind != calls_of_job.STARTUP}
    if not main:
        return None
    workers, locked = _worker_calls(driver, calls)
    count_main = sum(main.values())
    inputs = {purpose: count for purpose, count in workers.items() if purpose.kind == calls_of_job.INPUT}
    producers = sum(process.producers for process in calls if process.count(calls_of_job.INPUT))
    producing = min(sum(inputs.values()) / (count_main * max(producers, 1)), 1.0)
    resolved = _resolve(main, workers, inputs, producing)
    effective = {purpose: count * (1.0 if purpose.cause else obtained) for purpose, count in resolved.items()}
    weight = sum(effective.values())

    def causes(kind: str) -> dict[str, float]:
        counts: defaultdict[str, float] = defaultdict(float)
        for purpose, count in effective.items():
            if purpose.kind == kind:
                counts[purpose.cause] += count
        return _fractions(counts)

    def fraction(*kinds: str) -> float:
        return sum(count for purpose, count in effective.items() if purpose.kind in kinds) / weight

    return CallFacts(
        input=fraction(calls_of_job.INPUT),
        compute=fraction(calls_of_job.COMPUTE, calls_of_job.OTHER),
        mixed=fraction(calls_of_job.MIXED),
        waiting=fraction(calls_of_job.WAITING),
        input_causes=causes(calls_of_job.INPUT),
        waiting_causes=causes(calls_of_job.WAITING),
        labels=_labels(inputs) | _labels(effective),
        producing=producing,
        is_overlapped=bool(inputs),
        locked=locked,
        parallel=sum(workers.values()) / count_main,
        samples=count_main,
    )


def _resolve(
    main: Mapping[Purpose, int], workers: Mapping[Purpose, int], inputs: Mapping[Purpose, int], producing: float
) -> Mapping[Purpose, float]:
    """Replace the samples in which the main thread depends on other threads by the purposes of those threads.

    A mixed call depends on the producers of its input if these never pause: with a full buffer they would.
    """
    effective: defaultdict[Purpose, float] = defaultdict(float)
    for purpose, count in main.items():
        depends = purpose.kind == calls_of_job.WAITING and purpose.cause in calls_of_job.INTERNAL_CAUSES
        is_input = purpose.kind == calls_of_job.MIXED and producing >= MIN_PRODUCING
        sources, fraction = (workers, 1.0) if depends else (inputs, producing) if is_input else ({}, 0.0)
        total = sum(sources.values())
        for worker, samples in sources.items():
            effective[worker] += fraction * count * samples / total
        if not total or fraction < 1:
            effective[purpose] += (1 - fraction if total else 1) * count
    return effective


def _labels(purposes: Mapping[Purpose, float]) -> dict[str, str]:
    """Return the most frequent function of each kind; other functions count as computing, as in the fractions."""
    functions: dict[str, defaultdict[str, float]] = {}
    for purpose, count in purposes.items():
        functions.setdefault(_counted_kind(purpose), defaultdict(float))[purpose.label] += count
    labels = {}
    for kind, counts in functions.items():
        label = max(counts, key=lambda each: counts[each])
        lines = [each for each in purposes if (_counted_kind(each), each.label) == (kind, label)]
        labels[kind] = max(lines, key=lambda each: purposes[each]).location
    return labels


def _counted_kind(purpose: Purpose) -> str:
    return calls_of_job.COMPUTE if purpose.kind == calls_of_job.OTHER else purpose.kind


def _gpu_facts(samples: Sequence[JobSample]) -> GpuFacts | None:
    """Return the means of the busiest GPU."""
    histories = [list(each) for each in zip(*(sample.gpus for sample in samples[1:] if sample.gpus), strict=False)]
    facts = [_mean_gpu(history) for history in histories]
    return max(facts, key=lambda gpu: gpu.utilization or 0.0, default=None)


def _mean_gpu(history: Sequence[GpuSample]) -> GpuFacts:
    def mean(value: Callable[[GpuSample], float | None]) -> float | None:
        values = [each for each in map(value, history) if each is not None]
        return sum(values) / len(values) if values else None

    def pcie(gpu: GpuSample) -> float | None:
        rates = [rate for rate in (gpu.pcie_received, gpu.pcie_sent) if rate is not None]
        return max(rates) / gpu.pcie_limit if rates and gpu.pcie_limit else None

    return GpuFacts(
        name=history[0].name,
        utilization=mean(lambda gpu: gpu.utilization),
        sm_utilization=mean(lambda gpu: gpu.sm_utilization),
        sm_occupancy=mean(lambda gpu: gpu.sm_occupancy),
        dram_utilization=mean(lambda gpu: gpu.dram_utilization),
        pcie=mean(pcie),
    )
