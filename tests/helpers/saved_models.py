"""SavedModels and Keras files that need no TensorFlow: complete for the registry, not loadable."""

from pathlib import Path

from sparkdl.models.saved_model import saved_model_class

__all__ = ["write_saved_model"]


def write_saved_model(folder: Path, text: str = "weights") -> str:
    """A SavedModel with one signature, from four floats to three; returns its path."""
    from tensorboard.compat.proto.types_pb2 import DT_FLOAT

    saved = saved_model_class()()
    signature = saved.meta_graphs.add().signature_def["serving_default"]
    for tensors, name, width in ((signature.inputs, "x", 4), (signature.outputs, "y", 3)):
        tensors[name].dtype = DT_FLOAT
        for size in (-1, width):
            tensors[name].tensor_shape.dim.add(size=size)
    folder.joinpath("variables").mkdir(parents=True)
    folder.joinpath("saved_model.pb").write_bytes(saved.SerializeToString())
    folder.joinpath("variables", "variables.index").write_text(text)
    return str(folder)
