"""Runs in the training process. What differs between versions of TensorFlow and of Keras."""

from typing import Any

from sparkdl.inference.loader import library_of_object
from sparkdl.tfos.node import saved_model

__all__ = ["disable_auto_shard", "export_saved_model", "is_gpu_available"]


def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
    """Write a Keras model as a SavedModel. All workers call it, and the chief's is kept.

    Its function `serving_default` has the names that Keras 2 gave: an input is called as its
    `Input` layer, and, where that has no name of its own, `<first layer>_input` in a `Sequential`
    and `input_1`, `input_2` ... elsewhere; an output as the layer that it comes from (`output_1`
    ... of a class of your own). With tf_keras (`TF_USE_LEGACY_KERAS=1`) it is what `model.save`
    writes.

    Args:
        model: of Keras 3 or tf_keras, built.
        export_dir: a local folder or a URL; files there are overwritten.
        is_chief: whether this worker's is the one that is kept.

    Raises:
        ValueError: it is no Keras model, or was never called.

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
            f"export_saved_model got a {type(model).__name__}; expected a Keras model. Export "
            "others with tf.saved_model.save."
        )
    with saved_model.placed(export_dir if is_chief else None) as folder:
        if library == "tf_keras":
            model.save(folder, save_format="tf")
        else:
            saved_model.write_keras(model, folder)


def disable_auto_shard(options: Any) -> None:
    """Let every worker read the whole of a dataset: for data that differ between workers already.

    Args:
        options: a `tf.data.Options`, which is changed.

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
    """Whether TensorFlow sees a GPU; unlike `gpu_info.is_gpu_available` it starts TensorFlow.

    Example:
        >>> is_gpu_available() in (True, False)
        True
    """
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU")) > 0
