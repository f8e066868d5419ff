"""Models of Keras and PyTorch as stages of Spark ML (runs on the driver).

```python
from pyspark.ml import Pipeline
from sparkdl.ml import KerasEstimator

fitted = Pipeline(stages=[assembler, KerasEstimator(model, numWorkers=4)]).fit(df)
```
"""

from typing import TYPE_CHECKING

from sparkdl.host.lazy_names import lazy_names

if TYPE_CHECKING:
    from sparkdl.ml.estimator import KerasEstimator
    from sparkdl.ml.model import KerasModel
    from sparkdl.ml.saved_functions import saved_by_name
    from sparkdl.ml.torch_estimator import TorchEstimator
    from sparkdl.ml.torch_model import TorchModel

__all__ = ["KerasEstimator", "KerasModel", "TorchEstimator", "TorchModel", "saved_by_name"]

__getattr__ = lazy_names(
    "sparkdl.ml",
    {
        "sparkdl.ml.estimator": "KerasEstimator",
        "sparkdl.ml.model": "KerasModel",
        "sparkdl.ml.saved_functions": "saved_by_name",
        "sparkdl.ml.torch_estimator": "TorchEstimator",
        "sparkdl.ml.torch_model": "TorchModel",
    },
    __all__,
)
