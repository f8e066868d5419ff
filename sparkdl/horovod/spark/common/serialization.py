"""Runs on the driver. The counterpart of `horovod.spark.common.serialization`."""

from sparkdl.horovod.absent_names import absent_names

_NAMES = ("HorovodParamsReader", "HorovodParamsWriter")
_INSTEAD = (
    "A trained model is saved by model.save(path) and loaded by "
    "sparkdl.horovod.spark.keras.KerasModel.load(path)."
)

__getattr__ = absent_names(__name__, instead=dict.fromkeys(_NAMES, _INSTEAD))
