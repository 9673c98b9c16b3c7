"""Constraints of Keras variables that keep zeros, or equal values, during a training.

An optimizer of Keras 3 applies the constraint of a variable after each update. The model needs no other layers: it is
saved and exported as any other model.
"""

from typing import Any

from quantkit.ir.tensor import Array
from quantkit.runtimes.tensorflow_library import import_tensorflow
from quantkit.training.schedule import PruningSchedule


class MagnitudeConstraint:
    """Zeros at the weights of smallest magnitude, selected by a schedule.

    A selected weight stays zero: later selections only add zeros.
    """

    def __init__(self, variable: Any, schedule: PruningSchedule) -> None:
        self.tf = tf = import_tensorflow()
        self.before = variable.constraint
        self.steps = tf.constant(schedule.selections, tf.int64)
        self.sparsities = tf.constant([schedule.sparsity(step) for step in schedule.selections], tf.float64)
        self.step = tf.Variable(0, trainable=False, dtype=tf.int64)
        self.mask = tf.Variable(tf.ones(variable.shape, tf.bool), trainable=False)

    def __call__(self, weights: Any) -> Any:
        """Return the weights with zeros, and count the step."""
        tf = self.tf
        weights = tf.convert_to_tensor(weights if self.before is None else self.before(weights))
        index = tf.searchsorted(self.steps, [self.step])[0]
        index = tf.minimum(index, len(self.steps) - 1)
        mask = tf.cond(
            self.steps[index] == self.step,
            lambda: self.mask.assign(self._select(weights, self.sparsities[index])),
            lambda: self.mask.value(),
        )
        self.step.assign_add(1)
        return tf.where(mask, weights, tf.zeros_like(weights))

    def _select(self, weights: Any, sparsity: Any) -> Any:
        """Return the mask without the smallest weights; those that are zero already are among them."""
        tf = self.tf
        magnitudes = tf.reshape(tf.where(self.mask, tf.abs(weights), -tf.ones_like(weights)), [-1])
        count = tf.cast(tf.round(sparsity * float(magnitudes.shape[0])), tf.int32)
        ranks = tf.argsort(tf.argsort(magnitudes, stable=True))
        return tf.logical_and(self.mask, tf.reshape(ranks >= count, weights.shape))


class ClusterConstraint:
    """One value for all weights of a cluster: their mean after each update.

    The mean moves by the mean gradient of the cluster, as a shared weight does (Han et al., "Deep Compression", 2016).
    """

    def __init__(self, variable: Any, clusters: Array) -> None:
        self.tf = import_tensorflow()
        self.before = variable.constraint
        self.clusters = clusters
        self.count = int(clusters.max()) + 1

    def __call__(self, weights: Any) -> Any:
        """Return the weights with the mean of each cluster."""
        return self.merge(weights if self.before is None else self.before(weights))

    def merge(self, weights: Any) -> Any:
        """Return the mean of the cluster of each weight."""
        tf = self.tf
        means = tf.math.unsorted_segment_mean(tf.convert_to_tensor(weights), self.clusters, self.count)
        return tf.gather(means, self.clusters)


CONSTRAINTS = (MagnitudeConstraint, ClusterConstraint)


def is_constrained(model: Any) -> bool:
    """Return True if a Keras 3 model is pruned or clustered."""
    return any(isinstance(variable.constraint, CONSTRAINTS) for variable in model.trainable_variables)
