"""Quantize an ONNX model with NNCF; for an environment of its own with the packages nncf, openvino and numpy.

    python tests/bench/quantize_with_nncf.py MODEL.onnx SAMPLES.npz OUTPUT.xml [--transformer]

SAMPLES.npz has one array for each sample and input, with the name NUMBER/INPUT. NNCF has its documented settings:
the preset "mixed" for activations of both signs, all samples, and the model type of transformers where that is stated.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np


def main() -> None:
    import nncf
    import openvino

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--transformer", action="store_true", help="model type transformer")
    arguments = parser.parse_args()
    samples: dict[int, dict[str, np.ndarray]] = defaultdict(dict)
    with np.load(arguments.samples) as arrays:
        for key, array in arrays.items():
            number, _, name = key.partition("/")
            samples[int(number)][name] = array
    quantized = nncf.quantize(
        openvino.Core().read_model(arguments.model),
        nncf.Dataset([samples[number] for number in sorted(samples)]),
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(samples),
        model_type=nncf.ModelType.TRANSFORMER if arguments.transformer else None,
    )
    openvino.save_model(quantized, arguments.output, compress_to_fp16=False)


if __name__ == "__main__":
    main()
