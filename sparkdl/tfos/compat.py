"""Runs in the training process. Hide differences between TensorFlow and Keras versions."""

from typing import Any

from sparkdl.errors import named_type
from sparkdl.files.model_formats import library_of_object
from sparkdl.tfos.absent_names import absent_names
from sparkdl.tfos.node import saved_model

__all__ = ["disable_auto_shard", "export_saved_model", "is_gpu_available"]

__getattr__ = absent_names(__name__, __all__)


def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
    """Write a Keras model as a SavedModel. All workers call it; only the chief's model is kept.

    The signature `serving_default` has the input and output names of Keras 2. The name of an input
    is the name of its `Input` layer; inputs without a name are `<first layer>_input` in a
    `Sequential`, and `input_1`, `input_2` ... in other models. The name of an output is the name
    of its layer, or `output_1` ... in a subclassed model. A model of tf_keras
    (`TF_USE_LEGACY_KERAS=1`) is written by `model.save`.

    Args:
        model: a built model of Keras 3 or tf_keras.
        export_dir: a local folder or a URL; existing files are overwritten.
        is_chief: True if the model of this worker is kept.

    Raises:
        ValueError: if `model` is not a Keras model, or has never been called.

    Example:
        >>> import keras, tensorflow as tf
        >>> total = keras.layers.Dense(1, name="total", kernel_initializer="ones")
        >>> model = keras.Sequential([keras.Input((2,), name="x"), total])
        >>> export_saved_model(model, "exported", is_chief=True)
        >>> function = tf.saved_model.load("exported").signatures["serving_default"]
        >>> function(x=tf.constant([[4.0, 3.0]]))["total"].numpy().tolist()
        [[7.0]]
    """
    library = library_of_object(model)
    if library is None:
        raise ValueError(
            f"export_saved_model got {named_type(model)}; expected a Keras model. Export "
            "other models with tf.saved_model.save."
        )
    with saved_model.uploaded_folder(export_dir if is_chief else None) as folder:
        if library == "tf_keras":
            model.save(folder, save_format="tf")
        else:
            saved_model.write_keras(model, folder)


def disable_auto_shard(options: Any) -> None:
    """Let each worker read a whole dataset, for datasets that already differ between workers.

    Args:
        options: a `tf.data.Options`, changed in place.

    Example:
        >>> import tensorflow as tf
        >>> options = tf.data.Options()
        >>> disable_auto_shard(options)
        >>> options.experimental_distribute.auto_shard_policy.name
        'OFF'
    """
    import tensorflow as tf

    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF


def is_gpu_available() -> bool:
    """Return True if TensorFlow sees a GPU.

    Unlike `gpu_info.is_gpu_available`, this function initializes TensorFlow's devices.

    Example:
        >>> is_gpu_available() in (True, False)
        True
    """
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU")) > 0
