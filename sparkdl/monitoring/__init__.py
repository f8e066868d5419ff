"""Compare the data that a model sees with the data that it was trained with (on the driver).

```python
from sparkdl import models, monitoring

version = models.get("digits", alias="stable")  # Exported with profile=, its training data.
found = monitoring.drift(version, df)
print(found)
```
"""

from sparkdl.host.supported_versions import explained_by_versions

with explained_by_versions():
    from sparkdl.monitoring.drift import drift, thresholds
    from sparkdl.monitoring.drift_table import Drift
    from sparkdl.monitoring.expectation import Expectation
    from sparkdl.monitoring.performance import performance
    from sparkdl.monitoring.read_log import read_log
    from sparkdl.monitoring.results import acknowledge, results
    from sparkdl.monitoring.retraining import Decision, should_retrain
    from sparkdl.monitoring.watch import Watch, watch
    from sparkdl.profiles import profile

__all__ = [
    "Decision",
    "Drift",
    "Expectation",
    "Watch",
    "acknowledge",
    "drift",
    "performance",
    "profile",
    "read_log",
    "results",
    "should_retrain",
    "thresholds",
    "watch",
]
