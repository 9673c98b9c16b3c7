"""Thresholds of the decisions about precision: which trials run, and which of their results count.

`SUPPORTED_BY` has the networks on which the rule of each threshold changes a decision, of those in the quantization
guide. Sizes of measurements and time limits need no network.
"""

# --- Samples of trials and error signals

# Number of runs of a trial; the errors of a recurrent model accumulate over many runs.
TRIAL_RUNS, TRIAL_STEPS = 16, 160
# Limits of the number of runs of the error signals of layers, and least number of values of an error signal: the energy
# of few values is mostly chance.
SIGNAL_RUNS, MAX_SIGNAL_RUNS, SIGNAL_VALUES = 8, 32, 4096
# Number of runs for a recurrent model, whose errors accumulate over many runs.
SIGNAL_STEPS = 64
# Number of choices of float layers that the predicted errors are fitted to: all in int8, and random ones.
NUM_CHECKS = 48
# Largest deviation of predicted from measured noise in dB, root mean square, of an error model that holds.
MAX_DEVIATION = 1.0
# Time limit of the error signals as a fraction of the time budget: a slow model gets fewer runs.
SIGNAL_FRACTION = 0.3
# Fraction of the time budget for measured sensitivities: the rest is needed to choose among the measured layers.
SENSITIVITY_FRACTION = 0.6

# --- Fidelity that needs no alternative

# KL divergence of classifiers, error of other outputs.
GOOD_KL, GOOD_ERROR = 0.01, 0.025
# The same for recurrent models, whose errors accumulate over more runs than a trial has.
GOOD_STATE_ERROR = 0.015

# --- Largest fraction of the loss that may remain with an alternative

# Float layers.
MAX_FLOAT_LOSS = 0.75
# Products of two activations and small last layers, which cost little in float, and drifting layers.
MAX_CHEAP_LOSS = 0.9
# Another observer.
MAX_OBSERVER_LOSS = 0.8
# Other corrections, which cost no latency.
MAX_CORRECTED_LOSS = 0.95
# Runs in which such a correction has the smaller loss minus those in which it has the larger one, in standard
# deviations of this difference by chance: a few runs with large errors decide about the sum.
MIN_WINS = 1.0

# --- Candidates

# Largest fraction of the layers that may become float, and the number that may in any case.
MAX_LAYERS, MIN_LAYERS = 0.25, 2
# Number of layers, those with the largest fractions of the noise, that are tried one after the other.
NUM_NOISY_LAYERS = 4
# Runs that measure the fractions, more for outputs with fewer values, whose energy is mostly chance, and the least
# fraction of the noise that remains for a trial, which then needs 1 - `MAX_FLOAT_LOSS`**2 to succeed: a few runs show
# less or more.
FRACTION_RUNS, FRACTION_VALUES, MIN_NOISE_FRACTION = 2, 256, 0.25
# Limit of the MACs of these runs, if each layer is measured by itself: minutes on two cores. A limit of the time would
# give other files on a busy machine.
MAX_FRACTION_MACS = 2.5e11
# The same for the runs of each tensor without and with a zero point.
MAX_GAIN_MACS = 1e12
# Largest fractions of the MACs of the last layers that may become float, and of the loss that may then remain.
LAST_LAYERS = ((0.02, MAX_CHEAP_LOSS), (0.05, MAX_FLOAT_LOSS))
# Error of a recurrent model from which fractions of its layers, those with the noisiest inputs, become float.
DRIFT_ERROR, DRIFT_FRACTIONS = 0.02, (0.25, 0.5)
# Largest loss of a tensor with negative values in dB, by its range, without a zero point that needs a Pad op.
MAX_SIGNED_DB = 0.1
# Largest loss of an output in dB, by the measured noise, against zero points of all tensors: more Pad ops follow.
MAX_UNPADDED_DB = 0.3
# Ratio of the widths of two ranges from which they differ much.
MUCH_WIDER = 1.5
# A channel is lost if its largest absolute value is below this number of quantization steps.
MIN_STEPS = 2
# Fraction of lost channels from which a layer is a candidate for float; fewer channels show no distribution.
MAX_LOST, MIN_CHANNELS = 0.2, 8

# --- Migration of scales

# Strength of each migration, True with multiplications of activations, which cost latency, and the largest fraction of
# the loss that may remain.
MIGRATIONS = ((0.5, False, MAX_CORRECTED_LOSS), (0.75, False, MAX_CORRECTED_LOSS), (0.75, True, 0.8))

# Ratio of the largest channel to the median one from which a migration is worth a trial.
MIN_CHANNEL_RATIO = 2.0
# Largest factor between the scales of a channel and of the median channel.
MAX_SCALE = 16.0

# --- States of recurrent models

# Largest difference of a fed state from the output before, relative to the largest absolute value.
STATE_TOLERANCE = 1e-3
# Least fraction of the runs whose fed state is the output before; a dataset may contain several sequences.
MIN_STATE_FRACTION = 0.5

# --- Convolutions that ONNX Runtime may compute faster in float

# Largest product of the input channels and the output channels of a first layer.
MAX_CHANNEL_PRODUCT = 160
# The same for a kernel of one position, which needs no gathering, after such a layer.
MAX_POINTWISE_PRODUCT = 256
# Largest number of channels of a depthwise layer.
MAX_DEPTHWISE_CHANNELS = 32
# Least number of output positions: smaller layers cost little in any precision.
MIN_POSITIONS = 4096

# --- Time

# Alternating profiles of each model, and the time limit of each in seconds.
PROFILE_ROUNDS, PROFILE_SECONDS = 3, 0.5
# Limits of the number of calls of a model in each round of a comparison.
MIN_CALLS, MAX_CALLS = 5, 100
# Factors of the time of a boundary for which the cut is measured: a larger one gives fewer and larger float parts.
BOUNDARY_FACTORS = (1.0, 3.0)
# Least fraction of the latency that float layers must save, predicted and measured.
MIN_SAVED = 0.03
# The same by the table of costs, whose times are not those of this machine: in LiteRT, two of three networks with
# predicted savings of 4 to 5 % take 4 to 5 % more time. In other runtimes, no network is between 0.3 and 8 %.
MIN_PREDICTED_SAVED = 0.08
# Least speed-up of the layers by the table of costs, else the report of a file that is not measured advises the float
# model: 0.5 to 1.01 are predicted for files that take 0.98 to 1.4 times as long as float, 1.03 for BERT, GPT-2 and ViT,
# which take 0.67 to 0.94 times as long. An exception is the Whisper encoder with 0.74: its float ops get faster.
MIN_PREDICTED_SPEEDUP = 1.02
# Largest fraction of the loss of a form that may remain with its faster form.
MAX_FASTER_LOSS = 1.05

_STATES = ("dtln_1", "dtln_2", "gtcrn_stream", "silero_vad_op15")
_NOISY = ("dtln_2", "gtcrn_stream", "pplcnet_orientation", "silero_vad_op15")
_CORRECTED = ("gtcrn_stream", "pplcnet_orientation", "silero_vad_op15", "yolox_nano")
_MIGRATED = ("fastestdet", "kwt1", "sediment_unet", "stories260k", "super_resolution_10", "yunet_n_320")
_LOSSY = ("gtcrn_stream", "yolox_nano")
_LAST = ("sediment_unet", "yunet_n_320")
_FIRST = ("pplcnet_orientation", "sediment_unet", "ultraface_rfb320", "xfeat", "yunet_n_320")
SUPPORTED_BY = {
    "GOOD_KL": ("kwt1", "pplcnet_orientation"),
    "GOOD_ERROR": ("fastestdet", "yolox_nano", "yunet_n_320"),
    "GOOD_STATE_ERROR": ("dtln_2", "gtcrn_stream", "silero_vad_op15"),
    "MAX_FLOAT_LOSS": (*_LOSSY, *_NOISY),
    "MAX_CHEAP_LOSS": (*_LAST, "gtcrn_stream", "kwt1"),
    "MAX_OBSERVER_LOSS": ("sediment_unet",),
    "MAX_CORRECTED_LOSS": _CORRECTED,
    "MIN_WINS": ("kwt1", "pplcnet_orientation", "vittrack"),
    "MAX_SIGNED_DB": ("pplcnet_orientation", "vittrack", "yolox_nano", "yunet_n_320"),
    "MAX_UNPADDED_DB": ("fastestdet", "ultraface_rfb320", "vittrack", "xfeat"),
    "MAX_LAYERS": _LOSSY,
    "MIN_LAYERS": ("dtln_2", "silero_vad_op15"),
    "NUM_NOISY_LAYERS": _NOISY,
    "FRACTION_RUNS": _NOISY,
    "FRACTION_VALUES": ("pplcnet_orientation",),
    "MIN_NOISE_FRACTION": _NOISY,
    "LAST_LAYERS": _LAST,
    "DRIFT_ERROR": ("gtcrn_stream", "silero_vad_op15"),
    "DRIFT_FRACTIONS": ("gtcrn_stream", "silero_vad_op15"),
    "MUCH_WIDER": ("sediment_unet",),
    "MIN_STEPS": _LOSSY,
    "MAX_LOST": _LOSSY,
    "MIN_CHANNELS": _LOSSY,
    "MIGRATIONS": _MIGRATED,
    "MIN_CHANNEL_RATIO": _MIGRATED,
    "MAX_SCALE": _MIGRATED,
    "STATE_TOLERANCE": _STATES,
    "MIN_STATE_FRACTION": _STATES,
    "MAX_CHANNEL_PRODUCT": _FIRST,
    "MAX_POINTWISE_PRODUCT": _FIRST,
    "MAX_DEPTHWISE_CHANNELS": _FIRST,
    "MIN_POSITIONS": _FIRST,
    "MIN_SAVED": ("yunet_n_320",),
    "MIN_PREDICTED_SAVED": ("BERT", "DistilBERT", "GPT-2", "MobileNetV3Small", "PP-OCRv4 recognition", "dtln_2"),
    "MIN_PREDICTED_SPEEDUP": ("PP-OCR direction", "SegFormer", "gtcrn_stream"),
    "BOUNDARY_FACTORS": ("yunet_n_320",),
    "MAX_FASTER_LOSS": ("yunet_n_320",),
}
