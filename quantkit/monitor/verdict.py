"""Bottleneck of a job: rules on its facts, the strongest evidence first.

Thresholds of the input and of the GPU are those of TensorFlow's profiler (xprof): a job is highly input-bound from 20 %
of the step time, moderately from 5 %.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quantkit.monitor.bandwidth import MemoryProbe
from quantkit.monitor.calls import MIXED
from quantkit.monitor.facts import CallFacts, GpuFacts, JobFacts, ThreadFacts
from quantkit.monitor.prove import Proof
from quantkit.monitor.sample import CHILD, DISK, EVENTS, LOCK, NETWORK, OTHER, PIPE, RUNNING, SLEEP

INPUT_BOUND, COMPUTE_BOUND, MEMORY_BOUND, WAITING = "input-bound", "compute-bound", "memory-bound", "waiting"
KINDS = (INPUT_BOUND, COMPUTE_BOUND, MEMORY_BOUND, WAITING)
# Pairs of kinds that look the same, until an experiment separates them.
INPUT_OR_COMPUTE, COMPUTE_OR_MEMORY = f"{INPUT_BOUND} or {COMPUTE_BOUND}", f"{COMPUTE_BOUND} or {MEMORY_BOUND}"
UNDECIDED = (INPUT_OR_COMPUTE, COMPUTE_OR_MEMORY)

HIGHLY_INPUT_BOUND = 0.2
MODERATELY_INPUT_BOUND = 0.05
BUSY_GPU = 0.8
# A GPU whose utilization is high, and whose multiprocessors are mostly idle, runs kernels that are too small.
BUSY_SM = 0.3
BUSY_DRAM = 0.6
BUSY_PCIE = 0.6
MIN_SWAP = 1 << 20
MIN_MAJOR_FAULTS = 50.0
# Fraction of the CPU time in the kernel, and page faults per second of CPU time, of a job that allocates and frees its
# buffers in every step. Pages are small, or huge.
MIN_KERNEL_AND_FAULTS = ((0.3, 5000.0), (0.5, 500.0))
MIN_THROTTLED = 0.1
MIN_QUEUED = 0.25
MIN_LOCKED = 0.5
MIN_INTERPRETER_LOCKED = 0.25
MIN_IDLE = 0.5
# Time below which the report warns that the verdict has little evidence.
MIN_SECONDS = 1.0
# Fraction of the input time blocked by the disk, from which its time in the kernel counts as disk accesses as well.
MIN_DISK = 0.1
# Input that takes more than this fraction of a serial job is the longer part: overlap alone does not remove it.
LONGER_PART = 0.6
_FEWER_BYTES = "use int8, smaller batches or fused ops: fewer bytes per op"
# Causes that limit a job whether it computes, takes its input or accesses the memory.
_CERTAIN = ("CPU quota", "oversubscription", "GPU")
_ACTIVITIES = {
    DISK: "the disk",
    NETWORK: "the network",
    PIPE: "a pipe",
    LOCK: "a lock",
    SLEEP: "a timer (sleep)",
    CHILD: "a child process",
    EVENTS: "events (poll)",
    OTHER: "the kernel",
}

# Advice if the interventions have no result: the input of the job is unknown.
_NAME_THE_INPUT = (
    "show the input of the job: --prove --pipeline FILE.py:FUNCTION names the function that returns it, and "
    "quantkit.monitor.batches marks its batches"
)


@dataclass(frozen=True)
class Verdict:
    """Bottleneck of a job.

    Attributes:
        kind: one of `KINDS`, or of `UNDECIDED` if only an experiment decides between two of them.
        cause: cause in a few words, for example ``one-thread input``.
        reason: evidence that decided, as a clause.
        advice: next step.
    """

    kind: str
    cause: str
    reason: str
    advice: str

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {"verdict": self.kind, "cause": self.cause, "reason": self.reason, "advice": self.advice}


def find_bottleneck(
    facts: JobFacts, proof: Proof | None = None, memory: MemoryProbe | None = None, *, is_tried: bool = False
) -> Verdict:
    """Return the bottleneck of a job.

    Args:
        facts: facts about the job.
        proof: gains of the interventions, which are stronger than any other evidence.
        memory: rates of a copy during the job and alone.
        is_tried: True if the interventions were tried, with or without a result.
    """
    verdicts = (rule(facts) for rule in _RULES)
    verdict = next(filter(None, verdicts), None) or _processor_verdict(facts)
    if proof is not None:
        verdict = _apply_proof(verdict, facts, proof)
    if verdict.kind != COMPUTE_BOUND:
        return verdict
    is_proven = proof is not None and proof.input_gain is not None
    return _separate_kinds(verdict, facts, memory, is_proven=is_proven, is_tried=is_tried)


def _separate_kinds(
    verdict: Verdict, facts: JobFacts, memory: MemoryProbe | None, *, is_proven: bool, is_tried: bool
) -> Verdict:
    """Separate computing from input and memory accesses by the experiments; without them, return both.

    Args:
        verdict: verdict on a job that seems to compute.
        facts: facts about the job.
        memory: rates of a copy during the job and alone.
        is_proven: True if an intervention shows that the input is not the limit.
        is_tried: True if the interventions were tried.
    """
    calls = facts.calls
    if memory is not None:
        reason = f"{verdict.reason}; proof: {memory}"
        shared = Verdict(MEMORY_BOUND, "memory bandwidth", reason, _FEWER_BYTES)
        return shared if memory.is_shared else replace(verdict, reason=reason)
    if verdict.cause in _CERTAIN:
        return verdict
    if calls is not None and calls.mixed >= MIN_IDLE and facts.steps is None and not is_proven:
        label = calls.labels.get(MIXED, "")
        reason = f"{verdict.reason}; {calls.mixed:.0%} of the time is spent in {label}, which also takes its input"
        reason += _producer(calls)
        if is_tried:
            return Verdict(INPUT_OR_COMPUTE, verdict.cause, reason, _NAME_THE_INPUT)
        reason += "; --prove decides: it repeats one batch, which costs no input"
        return Verdict(INPUT_OR_COMPUTE, verdict.cause, reason, "quantkit monitor --prove -- COMMAND")
    if facts.counters.missing:
        reason = f"{verdict.reason}; without hardware counters, computing and accesses to the memory look the same"
        if is_tried:
            return Verdict(COMPUTE_OR_MEMORY, verdict.cause, reason, verdict.advice)
        reason += "; --prove decides: it copies memory next to the job"
        advice = f"{verdict.advice}; quantkit monitor --prove -- COMMAND measures whether the memory is the limit"
        return Verdict(COMPUTE_OR_MEMORY, verdict.cause, reason, advice)
    return verdict


def _apply_proof(verdict: Verdict, facts: JobFacts, proof: Proof) -> Verdict:
    """Replace a verdict that the interventions disprove, and add their result to one that they prove."""
    gain = proof.input_gain
    if gain is None:
        return verdict
    effect = f"one repeated batch makes the steps {gain:.2f}x as fast"
    if gain >= 1 / (1 - HIGHLY_INPUT_BOUND):
        if verdict.kind == INPUT_BOUND:
            return replace(verdict, reason=f"{verdict.reason}; proof: {effect}")
        cause, advice = _input_cause(facts, 1 - 1 / gain)
        return Verdict(INPUT_BOUND, cause, f"proof: {effect}", advice)
    if gain < 1 / (1 - MODERATELY_INPUT_BOUND):
        computing = _processor_verdict(facts) if verdict.kind == INPUT_BOUND else verdict
        return replace(computing, reason=f"{computing.reason}; proof: {effect}")
    return verdict


def _check_swap(facts: JobFacts) -> Verdict | None:
    """Check if the memory is too small: pages go to the swap device, or file pages are read repeatedly."""
    advice = "reduce the batch size, the number of workers or the buffers until the job fits in memory"
    is_hit = facts.major_faults >= 1 or facts.activity(DISK) >= HIGHLY_INPUT_BOUND  # else another process swaps
    if facts.swapped >= MIN_SWAP and is_hit:
        return Verdict(MEMORY_BOUND, "swapping", f"{facts.swapped / 1e6:.1f} MB/s of swap traffic", advice)
    if facts.major_faults >= MIN_MAJOR_FAULTS and facts.memory_fraction > 0.9:
        reason = f"{facts.major_faults:.0f} page faults/s with disk access, memory {facts.memory_fraction:.0%} used"
        return Verdict(MEMORY_BOUND, "page faults", reason, advice)
    return None


def _check_gap(facts: JobFacts) -> Verdict | None:
    """Check the gap before each step, from the marks of the job."""
    steps = facts.steps
    if steps is None or steps.gap_fraction is None or steps.gap_fraction < HIGHLY_INPUT_BOUND:
        return None
    cause, advice = _input_cause(facts, steps.gap_fraction)
    reason = f"{steps.gap_fraction:.0%} of each step is the gap before it ({_milliseconds(steps.gap or 0.0)})"
    return Verdict(INPUT_BOUND, cause, reason, advice)


def _check_gpu(facts: JobFacts) -> Verdict | None:
    """Check the GPU: busy, or idle because of the host."""
    gpu = facts.gpu
    if gpu is None or gpu.utilization is None:
        return None
    return _examine_busy_gpu(gpu) if gpu.utilization >= BUSY_GPU else _explain_idle_gpu(facts, gpu)


def _examine_busy_gpu(gpu: GpuFacts) -> Verdict:
    """Return the bottleneck of a busy GPU."""
    utilization = f"GPU utilization {gpu.utilization:.0%}"
    if gpu.sm_utilization is not None and gpu.sm_utilization < BUSY_SM:
        if gpu.pcie is not None and gpu.pcie >= BUSY_PCIE:
            return Verdict(
                INPUT_BOUND,
                "host-to-device transfer",
                f"{utilization}, SM utilization {gpu.sm_utilization:.0%}, PCIe link {gpu.pcie:.0%} used",
                "transfer uint8 instead of float, from pinned memory, while the GPU computes",
            )
        return Verdict(
            WAITING,
            "small GPU kernels",
            f"{utilization}, but SM utilization {gpu.sm_utilization:.0%}: kernels are too small or launched too slowly",
            "raise the batch size, fuse ops (XLA, TensorRT, torch.compile) or record a CUDA graph",
        )
    if gpu.dram_utilization is not None and gpu.dram_utilization >= BUSY_DRAM:
        return Verdict(
            MEMORY_BOUND,
            "GPU memory bandwidth",
            f"{utilization}, GPU memory bandwidth {gpu.dram_utilization:.0%} used",
            "use float16 or int8, and fuse element-wise ops",
        )
    note = "" if gpu.sm_utilization is None else f", SM utilization {gpu.sm_utilization:.0%}"
    if gpu.sm_utilization is None:
        note = "; SM utilization is not available on this GPU, and one small kernel after another also reads 100 %"
    return Verdict(COMPUTE_BOUND, "GPU", utilization + note, "quantize the model: quantkit quantize")


def _explain_idle_gpu(facts: JobFacts, gpu: GpuFacts) -> Verdict:
    """Return the cause on the host for which the GPU is idle."""
    utilization = f"GPU utilization {gpu.utilization:.0%}"
    host = _host_verdict(facts)
    if host.kind in (INPUT_BOUND, MEMORY_BOUND) or host.cause not in ("one thread", "all cores"):
        return Verdict(host.kind, host.cause, f"{utilization}; {host.reason}", host.advice)
    return Verdict(
        WAITING,
        "host code",
        f"{utilization}: the GPU waits for the host, where {host.reason}",
        "move work of the host into the input pipeline or onto the GPU, and raise the batch size",
    )


def _host_verdict(facts: JobFacts) -> Verdict:
    for rule in _HOST_RULES:
        if verdict := rule(facts):
            return verdict
    return _processor_verdict(facts)


def _check_calls(facts: JobFacts) -> Verdict | None:
    """Check the time in calls of input functions, without marks."""
    calls = facts.calls
    if calls is None or calls.input < HIGHLY_INPUT_BOUND or calls.input < calls.waiting:
        return None
    cause, advice = _input_cause(facts, calls.input)
    label = calls.labels.get("input", "")
    return Verdict(INPUT_BOUND, cause, f"{calls.input:.0%} of the time is spent on input, mostly in {label}", advice)


def _input_cause(facts: JobFacts, fraction: float) -> tuple[str, str]:
    """Return the cause of slow input, and the advice.

    Args:
        facts: facts about the job.
        fraction: fraction of the time that the job spends on input.
    """
    calls = facts.calls
    blocked = calls.input_causes if calls else {}
    enough = fraction / 2
    in_kernel = facts.activity(RUNNING) * facts.system  # disk accesses also cost CPU time there
    if facts.activity(DISK) >= MIN_DISK * fraction and facts.activity(DISK) + in_kernel >= enough:
        return "slow disk", "pack small files into shards, read several files in parallel, or use a faster disk"
    if facts.activity(NETWORK) >= enough or blocked.get("network", 0.0) >= 0.5:
        return "slow network input", "read several files in parallel, or copy the data to a local disk"
    if facts.activity(PIPE) >= enough and not _has_processes(facts):
        return "slow pipe", "speed up the program at the other end of the pipe"
    if blocked.get("sleep", 0.0) >= 0.5 or (facts.activity(SLEEP) >= enough):
        return "slow reads", "the input sleeps between reads: look for a poll, a retry or a rate limit"
    if calls and not calls.is_overlapped and calls.compute and fraction < LONGER_PART:
        return (
            "no prefetch",
            "prepare the next batch during the step: prefetch(1), DataLoader(num_workers=1), a queue and a thread; "
            "quantkit data optimize finds the options of a tf.data pipeline",
        )
    return (
        "one-thread input",
        "prepare batches in parallel: map(num_parallel_calls=AUTOTUNE), PyDataset or DataLoader with workers, "
        "in plain Python multiprocessing.Pool.imap; quantkit data optimize finds the options of a tf.data pipeline",
    )


def _has_processes(facts: JobFacts) -> bool:
    return len({thread.pid for thread in facts.threads}) > 1


def _check_disk(facts: JobFacts) -> Verdict | None:
    """Check disk accesses and pipes, of a job whose calls are not known."""
    disk, pipe = facts.activity(DISK), facts.activity(PIPE)
    if disk >= HIGHLY_INPUT_BOUND and disk >= facts.activity(SLEEP, LOCK, NETWORK, EVENTS):
        if facts.written > facts.read:
            reason = f"{disk:.0%} of the time goes to disk writes ({facts.written / 1e6:.1f} MB/s)"
            return Verdict(WAITING, "disk writes", reason, "write less often, or in a background thread")
        reason = f"{disk:.0%} of the time goes to disk reads ({facts.read / 1e6:.1f} MB/s)"
        return Verdict(INPUT_BOUND, "slow disk", reason, _input_cause(facts, disk)[1])
    if pipe >= HIGHLY_INPUT_BOUND and facts.activity(RUNNING) + pipe > 0.8 and not _has_processes(facts):
        reason = f"{pipe:.0%} of the time the job is blocked by a pipe"
        return Verdict(INPUT_BOUND, "slow pipe", reason, "speed up the program at the other end of the pipe")
    return None


def _check_pipeline(facts: JobFacts) -> Verdict | None:
    """Check the threads of known input pipelines, of a job whose calls do not show the input."""
    if facts.calls is not None and facts.calls.mixed < MIN_IDLE:
        return None
    workers = [thread for thread in facts.threads if thread.name.startswith(("tf_data", "pt_data", "pin_memory"))]
    busy = sum(thread.cpu for thread in workers)
    if busy < facts.cpu / 2 or not busy:
        return None
    cause = "one-thread input" if len(workers) == 1 else "input pipeline"
    reason = f"{busy:.1f} of {facts.cpu:.1f} used cores prepare input (threads {workers[0].name})"
    return Verdict(INPUT_BOUND, cause, reason, "diagnose the pipeline: quantkit data profile")


def _check_mixed_calls(facts: JobFacts) -> Verdict | None:
    """Check if no thread runs during calls that take their input inside."""
    calls = facts.calls
    blocked = 1 - facts.activity(RUNNING)
    if calls is None or not facts.activities or min(calls.mixed, blocked) < MIN_IDLE:
        return None
    cause, advice = _input_cause(facts, blocked)
    reason = f"the job is blocked {blocked:.0%} of the time, in {calls.labels[MIXED]}, which takes its input inside"
    reason += _producer(calls)
    return Verdict(INPUT_BOUND, cause, reason, advice)


def _producer(calls: CallFacts) -> str:
    """Return the function of other threads that prepares the input, as a clause; empty without one."""
    if calls.producing < MODERATELY_INPUT_BOUND:
        return ""
    return f": {calls.labels['input']} prepares it {calls.producing:.0%} of the time"


def _check_locks(facts: JobFacts) -> Verdict | None:
    """Check if threads run one after another."""
    calls = facts.calls
    rivals = [thread for thread in facts.threads if thread.locked >= MIN_LOCKED]
    is_serial = facts.cpu <= max(1.2, 0.6 * facts.cores) and facts.cores > 1
    if calls is not None and calls.locked >= MIN_LOCKED and len(rivals) > 1:
        reason = f"{calls.locked:.0%} of the time of {len(rivals)} threads goes to a lock"
    elif calls is None and is_serial and len(rivals) > 1 and _is_contended(facts, rivals):
        reason = f"{len(rivals)} active threads are blocked by locks, and the job uses {facts.cpu:.1f} cores"
    elif calls is not None and is_serial and calls.parallel >= 2 and _mean_locked(facts) >= MIN_INTERPRETER_LOCKED:
        return Verdict(
            WAITING,
            "global interpreter lock",
            f"{calls.parallel:.1f} Python threads are ready to run, and the job uses {facts.cpu:.1f} cores",
            "use processes instead of threads, or functions that release the interpreter lock",
        )
    else:
        return None
    return Verdict(WAITING, "lock contention", reason, "hold the lock for less time, or give each thread its own data")


def _mean_locked(facts: JobFacts) -> float:
    """Return the mean fraction of the time at a lock, of the threads that need most of the CPU time."""
    demands = [thread.cpu + thread.queued for thread in facts.threads]
    working = [thread for thread, demand in zip(facts.threads, demands, strict=True) if 2 * demand >= max(demands)]
    return sum(thread.locked for thread in working) / len(working) if len(working) > 1 else 0.0


def _is_contended(facts: JobFacts, rivals: list[ThreadFacts]) -> bool:
    """Return True if several of the threads do a similar part of the work."""
    working = [thread for thread in rivals if thread.cpu >= facts.cpu / (2 * len(rivals))]
    return len(working) > 1 and sum(thread.cpu for thread in working) >= facts.cpu / 2


def _check_idle(facts: JobFacts) -> Verdict | None:
    """Check if the job mostly does not run."""
    idle = 1 - facts.activity(RUNNING, DISK)
    causes = facts.calls.waiting_causes if facts.calls else {}
    waiting = facts.calls.waiting if facts.calls else 0.0
    if not facts.activities or max(idle, waiting) < MIN_IDLE:
        return None
    cause = _main_cause(facts, causes if waiting >= MIN_IDLE else {})
    label = facts.calls.labels.get("waiting", "") if facts.calls else ""
    location = f", mostly in {label}" if label and waiting >= MIN_IDLE else ""
    reason = f"the job is blocked {max(idle, waiting):.0%} of the time by {_ACTIVITIES.get(cause, cause)}{location}"
    return Verdict(WAITING, cause, reason, _WAITING_ADVICE.get(cause, "look at the blocked threads"))


def _main_cause(facts: JobFacts, causes: Mapping[str, float]) -> str:
    """Return the most frequent cause of waiting: that of the calls, else the activity of the kernel."""
    calls = {cause: fraction for cause, fraction in causes.items() if cause}
    if calls:
        return max(calls, key=lambda cause: calls[cause])
    blocked = {name: fraction for name, fraction in facts.activities.items() if name not in (RUNNING, DISK)}
    return max(blocked, key=lambda name: blocked[name], default=OTHER)


_WAITING_ADVICE = {
    SLEEP: "remove the sleep, or replace it by an event",
    NETWORK: "send requests in parallel, or move the service closer",
    LOCK: "hold the lock for less time, or give each thread its own data",
    CHILD: "monitor the child process: quantkit monitor --pid PID",
    EVENTS: "the job is idle between requests: send more of them, or in larger batches",
    PIPE: "speed up the program at the other end of the pipe",
    "queue": "the producer of the queue is too slow: look at its threads",
}


def _processor_verdict(facts: JobFacts) -> Verdict:
    """Return the verdict on a job that mostly computes."""
    for rule in (_check_quota, _check_page_faults, _check_cache_misses, _check_run_queue):
        if verdict := rule(facts):
            return verdict
    label = facts.calls.labels.get("compute") or facts.calls.labels.get(MIXED) if facts.calls else ""
    location = f", mostly in {label}" if label else ""
    used = f"the job uses {facts.cpu:.1f} of {facts.cores:g} cores{location}"
    if facts.seconds < MIN_SECONDS:
        used += f" (only {facts.seconds:.1f} s measured: too short for a sound verdict)"
    if facts.cpu <= 1.2 and facts.cores >= 2:
        advice = "raise the number of threads of the library that computes, or run several processes"
        return Verdict(COMPUTE_BOUND, "one thread", used, advice)
    return Verdict(COMPUTE_BOUND, "all cores", used, "quantize or optimize the model: quantkit quantize")


def _check_quota(facts: JobFacts) -> Verdict | None:
    """Check if the CPU quota was exhausted."""
    if facts.throttled is None or facts.throttled < MIN_THROTTLED:
        return None
    reason = f"the CPU quota was exhausted {facts.throttled:.0%} of the time ({facts.cores:g} cores)"
    return Verdict(COMPUTE_BOUND, "CPU quota", reason, "raise the quota, or use no more threads than its cores")


def _check_page_faults(facts: JobFacts) -> Verdict | None:
    """Check if the kernel spends the time on new pages."""
    faults = facts.minor_faults / facts.cpu if facts.cpu else 0.0
    if not any(facts.system >= kernel and faults >= least for kernel, least in MIN_KERNEL_AND_FAULTS):
        return None
    reason = f"{facts.system:.0%} of the CPU time is in the kernel, with {facts.minor_faults:,.0f} page faults/s"
    return Verdict(MEMORY_BOUND, "page faults", reason, "reuse buffers instead of allocating them in each step")


def _check_cache_misses(facts: JobFacts) -> Verdict | None:
    """Check if the hardware counters show that memory limits the processor."""
    counters = facts.counters
    if not counters.is_memory_bound:
        return None
    reason = (
        f"{counters.instructions_per_cycle:.2f} instructions per cycle, "
        f"{counters.misses_per_1000:.0f} cache misses per 1000 instructions"
    )
    return Verdict(MEMORY_BOUND, "memory bandwidth", reason, _FEWER_BYTES)


def _check_run_queue(facts: JobFacts) -> Verdict | None:
    """Check if threads lack a core: too many threads of the job, or other processes."""
    if facts.queued is None or facts.queued < MIN_QUEUED:
        return None
    others = max(facts.host_cpu - facts.cpu, 0.0)
    demand = sum(thread.cpu + thread.queued for thread in facts.threads)
    runnable = sum(thread.cpu + thread.queued >= 0.5 for thread in facts.threads)
    reason = f"runnable threads are without a core {facts.queued:.0%} of the time"
    if others >= 0.5 * facts.cpu and runnable <= facts.cores and demand <= 1.2 * facts.cores:
        reason += f": other processes use {others:.1f} cores"
        return Verdict(COMPUTE_BOUND, "other processes", reason, "end them, or give the job its own cores: taskset")
    if demand <= 1.2 * facts.cores:
        return None
    reason += f": {demand:.1f} runnable threads on {facts.cores:g} cores"
    return Verdict(
        COMPUTE_BOUND,
        "oversubscription",
        reason,
        "use one thread per core in each library, for example OMP_NUM_THREADS",
    )


# Titles of the time series that show a cause, by cause; those of all other causes are the run states of the job.
_METRICS = {
    **dict.fromkeys(("slow disk", "disk writes"), "disk"),
    "slow network input": "network of the host",
    **dict.fromkeys(("one thread", "all cores", "oversubscription", "CPU quota", "memory bandwidth"), "CPU of the job"),
    "input pipeline": "CPU of the job",
    "other processes": "CPU, all cores",
    "swapping": "memory",
    "page faults": "page faults of the job",
    **dict.fromkeys(("GPU", "GPU memory bandwidth", "small GPU kernels", "host code"), "GPU 0"),
    "host-to-device transfer": "GPU 0, PCIe",
}


def decisive_metric(verdict: Verdict) -> str:
    """Return the title of the time series that shows the cause of a verdict."""
    return _METRICS.get(verdict.cause, "run states of the job")


_Rule = Callable[[JobFacts], Verdict | None]
_HOST_RULES: tuple[_Rule, ...] = (
    _check_gap,
    _check_calls,
    _check_mixed_calls,
    _check_locks,
    _check_disk,
    _check_pipeline,
    _check_idle,
)
_RULES: tuple[_Rule, ...] = (_check_swap, _check_gpu, *_HOST_RULES)


def describe_evidence(facts: JobFacts) -> Iterator[str]:
    """Yield a sentence about each fact, for every verdict: the gap and the GPU first."""
    yield _gap_text(facts)
    yield _gpu_text(facts.gpu)
    yield (
        f"CPU: {facts.cpu:.2f} of {facts.cores:g} cores used by the job ({facts.system:.0%} in the kernel), "
        f"{facts.host_cpu:.2f} by all processes, iowait {facts.iowait:.0%}"
    )
    if facts.activities:
        parts = sorted(facts.activities.items(), key=lambda item: -item[1])
        yield f"run states of the job, {facts.seconds:.1f} s judged: " + ", ".join(
            f"{name} {fraction:.0%}" for name, fraction in parts if fraction >= 0.005
        )
    if facts.calls:
        yield _calls_text(facts.calls)
    if facts.queued is not None:
        yield f"run queue: runnable threads without a core {facts.queued:.0%} of the time"
    if facts.throttled:
        yield f"CPU quota: exhausted {facts.throttled:.0%} of the time"
    yield (
        f"page faults: {facts.minor_faults:,.0f}/s, {facts.major_faults:,.0f}/s with disk access; "
        f"swap {facts.swapped / 1e6:.1f} MB/s; memory {facts.memory_fraction:.0%} used"
    )
    yield f"disk: {facts.read / 1e6:.1f} MB/s read, {facts.written / 1e6:.1f} MB/s written by the job"
    yield f"network: {facts.received / 1e6:.1f} MB/s received by the host"
    if not facts.counters.missing:  # the report lists the reason
        yield _counters_text(facts)


def describe_gap(facts: JobFacts) -> str:
    """Return the gap before each step, in a few words."""
    steps = facts.steps
    if steps is None or steps.gap is None or steps.gap_fraction is None:
        return "gap before each step unknown (no marks)"
    return f"gap before each step {_milliseconds(steps.gap)} ({steps.gap_fraction:.0%})"


def describe_gpu(facts: JobFacts) -> str:
    """Return both utilizations of the GPU, in a few words."""
    gpu = facts.gpu
    if gpu is None:
        return "no GPU in use"
    values = [("GPU utilization", gpu.utilization), ("SM utilization", gpu.sm_utilization)]
    return ", ".join(f"{name} {'not available' if value is None else f'{value:.0%}'}" for name, value in values)


def _gap_text(facts: JobFacts) -> str:
    steps = facts.steps
    if steps is None:
        return "gap before each step: unknown, the job does not mark its steps (quantkit.monitor.step)"
    if steps.gap_fraction is None or steps.gap is None:
        return (
            f"gap before each step: unknown, {steps.count} steps of {_milliseconds(steps.seconds)} without an end mark"
        )
    level = "high" if steps.gap_fraction >= HIGHLY_INPUT_BOUND else "moderate"
    level = "low" if steps.gap_fraction < MODERATELY_INPUT_BOUND else level
    return (
        f"gap before each step: {_milliseconds(steps.gap)} of {_milliseconds(steps.seconds)} "
        f"({steps.gap_fraction:.0%}, {level}; longest {_milliseconds(steps.longest_gap or 0.0)}, {steps.count} steps)"
    )


def _gpu_text(gpu: GpuFacts | None) -> str:
    if gpu is None:
        return "GPU: not used by the job"

    def text(value: float | None) -> str:
        return "not available" if value is None else f"{value:.0%}"

    return (
        f"GPU: utilization {text(gpu.utilization)} (time with any kernel), SM utilization {text(gpu.sm_utilization)}, "
        f"memory bandwidth {text(gpu.dram_utilization)}, PCIe {text(gpu.pcie)} ({gpu.name})"
    )


def _calls_text(calls: CallFacts) -> str:
    parts = [("input", calls.input), ("compute", calls.compute), (MIXED, calls.mixed), ("waiting", calls.waiting)]
    labels = ", ".join(f"{kind} {fraction:.0%} ({calls.labels.get(kind, '-')})" for kind, fraction in parts if fraction)
    return f"calls: {labels}; {calls.samples} samples"


def _counters_text(facts: JobFacts) -> str:
    counters = facts.counters
    misses = counters.misses_per_1000
    return (
        f"hardware counters: {counters.instructions_per_cycle:.2f} instructions per cycle, "
        f"{'unknown' if misses is None else f'{misses:.1f}'} cache misses per 1000 instructions"
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 10 else f"{seconds:.3g} s"
