"""Run one model on many inputs with batch size 1, and save latency and outputs.

    python tests/bench/run_model.py MODEL@RUNTIME[:INTRA,INTER] INPUT.npy OUTPUT.npz

INPUT.npy contains normalized images (n, h, w, c) float32, (x - 128) / 128. A model with a uint8 input gets the images
x instead. OUTPUT.npz contains `seconds` (n,) and `probabilities` (n, k), without ten warm-up iterations.
"""

import sys
from pathlib import Path
from time import perf_counter

import numpy as np

from quantkit.model import load
from quantkit.runtimes import open_session
from quantkit.runtimes.session import SessionOptions

WARM_UPS = 10


def main(model: str, source: str, target: str) -> None:
    """Run the model and write latency and outputs."""
    file, _, settings = model.rpartition("@")
    runtime, _, threads = settings.partition(":")
    intra, inter = map(int, threads.split(",")) if threads else (2, 1)
    rows = np.load(source, mmap_mode="r")
    with open_session(load(Path(file)).runnable, runtime, SessionOptions(intra, inter)) as session:
        info, output = session.inputs[0], session.outputs[0].name
        is_uint8 = info.dtype.numpy == np.uint8
        seconds, probabilities = [], []
        for number in range(-WARM_UPS, len(rows)):
            row = np.asarray(rows[number % len(rows)])[None]
            if is_uint8:
                row = np.rint(row * 128 + 128).astype(np.uint8)
            start = perf_counter()
            prediction = session.run({info.name: row})[output]
            elapsed = perf_counter() - start
            if number >= 0:
                seconds.append(elapsed)
                probabilities.append(prediction[0])
    np.savez(target, seconds=seconds, probabilities=np.stack(probabilities))


if __name__ == "__main__":
    main(*sys.argv[1:])
