"""Run one model over many inputs, one at a time, and note times and answers.

    python tests/bench/run_model.py MODEL@RUNTIME[:INTRA,INTER] INPUT.npy OUTPUT.npz

INPUT.npy holds (n, h, w, c) float32 as the float model takes them. Models that take uint8 pixels are fed the pixels
these were made of: (x - 128) / 128. OUTPUT.npz gets `seconds` (n,) and `probabilities` (n, k); ten warm-up calls are
left out.
"""

import sys
from pathlib import Path
from time import perf_counter

import numpy as np

from quantkit.model import load
from quantkit.runtimes import open_session
from quantkit.runtimes.session import SessionOptions

WARM_UPS = 10


def main(word: str, source: str, target: str) -> None:
    """Run, and write the answers."""
    file, _, engine = word.rpartition("@")
    runtime, _, threads = engine.partition(":")
    intra, inter = map(int, threads.split(",")) if threads else (2, 1)
    rows = np.load(source, mmap_mode="r")
    with open_session(load(Path(file)).runnable, runtime, SessionOptions(intra, inter)) as session:
        info, output = session.inputs[0], session.outputs[0].name
        is_pixels = info.dtype.numpy == np.uint8
        seconds, probabilities = [], []
        for number in range(-WARM_UPS, len(rows)):
            row = np.asarray(rows[number % len(rows)])[None]
            if is_pixels:
                row = np.rint(row * 128 + 128).astype(np.uint8)
            start = perf_counter()
            answer = session.run({info.name: row})[output]
            elapsed = perf_counter() - start
            if number >= 0:
                seconds.append(elapsed)
                probabilities.append(answer[0])
    np.savez(target, seconds=seconds, probabilities=np.stack(probabilities))


if __name__ == "__main__":
    main(*sys.argv[1:])
