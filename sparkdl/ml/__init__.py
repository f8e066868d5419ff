"""Keras models as stages of Spark ML (runs on the driver).

```python
from pyspark.ml import Pipeline
from sparkdl.ml import KerasEstimator

fitted = Pipeline(stages=[assembler, KerasEstimator(model, numWorkers=4)]).fit(df)
```
"""

from sparkdl.ml.estimator import KerasEstimator
from sparkdl.ml.model import KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
