"""Keras models that TF-MOT prepared."""

import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def trained_files(suffix: str) -> list[bytes]:
    """Return Keras models that TF-MOT prepared; none without it."""
    return [file[f"a{suffix}"] for file in _trained_models() if f"a{suffix}" in file]


def trained_saved_model() -> dict[str, bytes]:
    return _trained_models()[-1]


@cache
def _trained_models() -> list[dict[str, bytes]]:
    """Return quantization-aware and clustered models as files, and one as a SavedModel; none without TF-MOT."""
    if find_spec("tensorflow_model_optimization") is None or find_spec("tf_keras") is None:
        return []
    from quantkit.model.importers import keras2
    from quantkit.runtimes.tensorflow_library import import_tensorflow, suppress_log

    with suppress_log(), tempfile.TemporaryDirectory() as name:
        import_tensorflow()
        tfmot, keras = keras2.import_tfmot("the fuzzer"), keras2.import_tf_keras("the fuzzer")
        layers = keras.layers
        base = keras.Sequential([layers.Input((4, 4, 2)), layers.Conv2D(3, 2), layers.Flatten(), layers.Dense(3)])
        models = [
            tfmot.quantization.keras.quantize_model(base),
            tfmot.clustering.keras.cluster_weights(base, 4, tfmot.clustering.keras.CentroidInitialization.LINEAR),
        ]
        folders = [Path(name, str(number)) for number in range(3)]
        for folder, model in zip(folders, models, strict=False):
            folder.mkdir()
            for suffix in (".h5", ".keras"):
                model.save(folder / f"a{suffix}")
        models[0].save(folders[2], save_format="tf")
        return [
            {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            for folder in folders
        ]
