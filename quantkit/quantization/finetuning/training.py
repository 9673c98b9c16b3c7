"""Training loop: batches, learning rates, early stopping on held-out samples, and the state on disk.

1. A part of the samples is held out: it measures the progress and selects the best variables.
2. Each step averages the gradients of micro-batches that fit the memory limit, and updates all variables (Adam).
3. The learning rate rises during the first steps, and then falls with a cosine to 0. If the held-out loss doubles, the
   training returns to the best variables, and continues with smaller steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import cos, inf, isfinite, pi, sqrt
from pathlib import Path
from time import monotonic

import numpy as np

from quantkit.arguments import parse_duration
from quantkit.errors import UsageError
from quantkit.formats.state_files import read_state, write_state
from quantkit.ir.tensor import Array
from quantkit.progress import OnProgress, Progress, ignore_progress
from quantkit.quantization.finetuning.samples import SampleStore
from quantkit.quantization.finetuning.simulator import MicroBatch, OutOfMemoryError, Simulator
from quantkit.quantization.finetuning.variables import Floats

LAYERWISE = "layerwise"
# Largest and smallest number of samples of one step.
BATCH, LEAST_BATCH = 32, 8
# Largest change of a variable per step: quantization steps of weights, steps of biases, and the logarithm of a scale.
WEIGHT_RATE, BIAS_RATE, SCALE_RATE = 0.01, 0.1, 0.003
MOMENTUM, SQUARES_MOMENTUM, EPSILON = 0.9, 0.99, 1e-12
# Fraction of the samples that is held out, and its largest number of samples.
HELD_OUT, MAX_HELD_OUT = 0.2, 128
# Number of evaluations of a training, and of evaluations without improvement that end it. The loss falls most in the
# last part, with a small learning rate.
EVALUATIONS, PATIENCE = 15, 12
# Fraction of the budget with a rising learning rate.
WARM_UP = 0.05
# Increase of the held-out loss that returns to the best variables, and the factor of the learning rate after it: steps
# that are small for one network are large for a network of many layers, whose loss is small after the calibration.
DIVERGENCE, BACK_OFF = 2.0, 0.25
SAVE_SECONDS = 30.0
_NUMBERS = ("best_loss", "rate", "seconds")
_COUNTS = ("step", "updates", "failures", "evaluations")


@dataclass(frozen=True)
class Budget:
    """Length of a training: a number of steps, or seconds; without both, layer by layer."""

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, value: int | str) -> "Budget":
        """Return the length of a value of ``--finetune``.

        Raises:
            UsageError: the value is not a number of steps, a time or ``layerwise``.

        >>> Budget.parse("300"), Budget.parse("10m"), Budget.parse("layerwise").is_layerwise
        (Budget(steps=300, seconds=None), Budget(steps=None, seconds=600.0), True)
        """
        if value == LAYERWISE:
            return cls()
        text = str(value)
        if text.isdecimal() and int(text) > 0:
            return cls(steps=int(text))
        if text[-1:] in ("s", "m", "h"):
            return cls(seconds=parse_duration(text, "finetune"))
        raise UsageError(
            f"finetune is {value!r}, and must be a number of steps, a time or {LAYERWISE}",
            hint="for example 300, 10m or layerwise",
        )

    @property
    def is_layerwise(self) -> bool:
        """True if each layer is fitted by itself, without gradients of the whole graph."""
        return self.steps is None and self.seconds is None

    def part(self, fraction: float) -> "Budget":
        """Return a fraction of the length, at least one step."""
        steps = None if self.steps is None else max(1, round(fraction * self.steps))
        return Budget(steps, None if self.seconds is None else fraction * self.seconds)

    def fraction(self, step: int, seconds: float) -> float:
        """Return the finished fraction after a step."""
        if self.steps is not None:
            return min(step / self.steps, 1.0)
        assert self.seconds is not None, "a budget has steps or seconds"
        return min(seconds / self.seconds, 1.0)


@dataclass(frozen=True)
class TrainingResult:
    """Values of the variables after a training.

    Attributes:
        simulator: simulation of ``values``.
        values: the variables with the smallest held-out loss.
        before, after: loss of the calibrated model and of ``values`` on the held-out samples.
        steps: number of steps.
        stopped: reason for an early end; empty if the budget is used up.
    """

    simulator: Simulator
    values: list[Floats]
    before: float
    after: float
    steps: int
    stopped: str = ""


@dataclass
class _State:
    """Variables and moments of the optimizer, and the best variables so far.

    Attributes:
        updates: number of updates of the moments since they were 0.
    """

    values: list[Floats]
    means: list[Floats]
    squares: list[Floats]
    best: list[Floats]
    best_loss: float = inf
    rate: float = 1.0
    step: int = 0
    updates: int = 0
    seconds: float = 0.0
    failures: int = 0
    evaluations: int = 0

    @classmethod
    def of(cls, start: list[Floats]) -> "_State":
        """Return the state before the first step."""
        values, best = ([array.copy() for array in start] for _ in range(2))
        means, squares = ([np.zeros_like(array) for array in start] for _ in range(2))
        return cls(values, means, squares, best)

    def back_off(self) -> None:
        """Continue from the best variables, with smaller steps."""
        self.rate *= BACK_OFF
        self.updates = 0
        for value, best in zip(self.values, self.best, strict=True):
            value[...] = best
        for moment in (*self.means, *self.squares):
            moment[...] = 0


@dataclass
class Training:
    """One training of an simulator's variables.

    Attributes:
        simulator: loss and gradients.
        store: samples.
        budget: length of the training.
        seed: seed of the order of the samples.
        batch: number of samples of one step.
        micro_batch: largest number of runs computed together.
        start: values of the variables before the training; None for 0.
        augmented_runs: runs of augmented training samples.
        steps_before: number of steps of earlier trainings.
        path: file of the state; None disables saving.
        key: text that identifies graph, plan, samples and options in the file.
        on_progress: callback for finished steps.
        clock: function that returns the time in seconds.
    """

    simulator: Simulator
    store: SampleStore
    budget: Budget
    seed: int = 0
    batch: int = BATCH
    micro_batch: int = BATCH
    start: list[Floats] | None = None
    augmented_runs: Sequence[int] = ()
    steps_before: int = 0
    path: Path | None = None
    key: str = ""
    on_progress: OnProgress = ignore_progress
    clock: Callable[[], float] = monotonic
    _held_out: list[int] = field(init=False)
    _start: float | None = field(init=False, default=None)
    training_runs: list[int] = field(init=False)

    def __post_init__(self) -> None:
        counts = self.store.counts[: len(self.store) - len(self.augmented_runs)]
        order = np.random.default_rng(self.seed).permutation(len(counts)).tolist()
        limit, count = min(max(1.0, HELD_OUT * sum(counts)), MAX_HELD_OUT), 0
        held_out: list[int] = []
        while count < limit and len(held_out) < len(order) - 1:
            held_out.append(order[len(held_out)])
            count += counts[held_out[-1]]
        # A single run trains and measures.
        self._held_out = held_out or order
        self.training_runs = [*order[len(held_out) :], *self.augmented_runs]

    def run(self) -> TrainingResult:
        """Train until the budget is used up, or the held-out loss stops falling."""
        state = self.saved_state() or _State.of(self.start or self.simulator.variables.zeros())
        before = self.evaluate_start()
        if state.best_loss == inf:
            state.best_loss = before if self.start is None else self.evaluate(state.values)
        start, saved = self.clock() - state.seconds, self.clock()
        stopped = ""
        try:
            while (done := self.budget.fraction(state.step, self.clock() - start)) < 1 and not stopped:
                loss = self._step(state, done)
                state.seconds = self.clock() - start
                text = f"loss {loss:.4f}"
                if not isfinite(loss):
                    stopped = f"the loss is not finite after step {state.step}"
                elif (done := self.budget.fraction(state.step, state.seconds)) >= (state.evaluations + 1) / EVALUATIONS:
                    text, stopped = self._select(state, done)
                self.on_progress(Progress("fine-tuning", state.step, self.budget.steps, text))
                if self.clock() - saved > SAVE_SECONDS:
                    saved = self.clock()
                    self._save(state)
        except KeyboardInterrupt:
            self._save(state)
            raise
        except OutOfMemoryError as error:
            stopped = error.message
        after = self.evaluate(state.best)
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        return TrainingResult(self.simulator, state.best, before, after, state.step + self.steps_before, stopped)

    def _step(self, state: _State, done: float) -> float:
        """Update the variables with the gradients of one batch; return its loss."""
        loss, gradients = self._batch_gradients(state.values, self._batch(state.step))
        state.step += 1
        if not isfinite(loss) or not all(np.isfinite(gradient).all() for gradient in gradients):
            return inf if isfinite(loss) else loss
        # The noise of the gradients allows rates in proportion to the square root of the batch (Malladi et al., 2022).
        rate = state.rate * sqrt(self.batch / BATCH) * (1 + cos(pi * done)) / 2 * min(1.0, (done + 1e-3) / WARM_UP)
        state.updates += 1
        corrections = 1 - MOMENTUM**state.updates, 1 - SQUARES_MOMENTUM**state.updates
        for index, (gradient, largest_rate) in enumerate(zip(gradients, self._rates(), strict=True)):
            mean, squares = state.means[index], state.squares[index]
            mean *= MOMENTUM
            mean += (1 - MOMENTUM) * gradient
            squares *= SQUARES_MOMENTUM
            squares += (1 - SQUARES_MOMENTUM) * gradient * gradient
            state.values[index] -= (
                rate * largest_rate * (mean / corrections[0]) / (np.sqrt(squares / corrections[1]) + EPSILON)
            ).astype(np.float32)
        return loss

    def _rates(self) -> list[float]:
        """Return the largest learning rate of each variable."""
        variables = self.simulator.variables
        rates = [BIAS_RATE if constant.limits is None else WEIGHT_RATE for constant in variables.constants]
        return rates + [SCALE_RATE] * (len(variables.clipped) + len(variables.scales))

    def _batch(self, step: int) -> list[int]:
        """Return the runs of a step: every epoch has its own order."""
        per_run = max(self.store.counts)
        size = min(max(1, self.batch // per_run), len(self.training_runs))
        per_epoch = len(self.training_runs) // size
        epoch, position = divmod(step, per_epoch)
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.training_runs))
        return [self.training_runs[index] for index in order[position * size : (position + 1) * size]]

    def _batch_gradients(self, values: list[Floats], runs: list[int]) -> tuple[float, list[Floats]]:
        """Return the mean loss and gradients of some runs; a micro-batch that does not fit into memory is halved."""
        while True:
            try:
                return self.simulator.gradients(values, self._read_batches(runs))
            except OutOfMemoryError:
                if self.micro_batch == 1:
                    raise
                self.micro_batch = max(1, self.micro_batch // 2)

    def _read_batches(self, runs: list[int]) -> Iterator[MicroBatch]:
        for batch in self.micro_batches(runs):
            yield MicroBatch(*self.store.read(batch), weight=len(batch) / len(runs))

    def micro_batches(self, runs: Sequence[int]) -> Iterator[list[int]]:
        """Yield the runs that are computed together."""
        for start in range(0, len(runs), self.micro_batch):
            yield list(runs[start : start + self.micro_batch])

    def _select(self, state: _State, done: float) -> tuple[str, str]:
        """Keep the variables if they are the best so far; return the evaluation, and the reason to stop if any."""
        loss = self.evaluate(state.values)
        state.evaluations = int(done * EVALUATIONS)
        if loss < state.best_loss:
            state.best_loss, state.failures = loss, 0
            state.best = [value.copy() for value in state.values]
        else:
            state.failures += 1
            if loss > DIVERGENCE * state.best_loss:
                state.back_off()
        is_over = state.failures >= PATIENCE
        return f"loss {loss:.4f}", f"no better held-out loss in {PATIENCE} evaluations" if is_over else ""

    def evaluate_start(self) -> float:
        """Measure the model before the training on the samples that are held out."""
        if self._start is None:
            self._start = self.evaluate(self.simulator.variables.zeros())
        return self._start

    def evaluate(self, values: list[Floats]) -> float:
        """Return the loss of the samples that are held out from the training."""
        tensors = self.simulator.quantize(values)
        losses, counts = [], []
        for batch in self.micro_batches(self._held_out):
            feeds, expected, _ = self.store.read(batch)
            losses.append(self.simulator.objective.measure(self.simulator.run(tensors, feeds), expected))
            counts.append(sum(self.store.counts[run] for run in batch))
        return float(np.average(losses, weights=counts))

    # State

    def _save(self, state: _State) -> None:
        if self.path is None:
            return
        arrays: dict[str, Array] = {
            f"{name}/{index}": array
            for name in ("values", "means", "squares", "best")
            for index, array in enumerate(getattr(state, name))
        }
        facts = {name: getattr(state, name) for name in (*_NUMBERS, *_COUNTS)}
        arrays.update({name: np.array(value) for name, value in {**facts, "key": self.key}.items()})
        write_state(self.path, arrays)

    def saved_state(self) -> _State | None:
        """Return the state of the file; None without a file, or if it is damaged or belongs to another training."""
        stored = None if self.path is None else read_state(self.path)
        if stored is None or str(stored["key"]) != self.key or not stored.keys() >= {*_NUMBERS, *_COUNTS}:
            return None  # older versions have no number of updates
        state = _State.of(self.simulator.variables.zeros())
        for name in ("values", "means", "squares", "best"):
            getattr(state, name)[:] = [stored[f"{name}/{index}"] for index in range(len(state.values))]
        for name in _NUMBERS:
            setattr(state, name, float(stored[name]))
        for name in _COUNTS:
            setattr(state, name, int(stored[name]))
        return state
