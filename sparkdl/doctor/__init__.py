"""Check that this host and the executors of Spark can run sparkdl (runs on the driver).

```python
from sparkdl.doctor import examine

print(examine())
```
"""

from sparkdl.doctor.examination import examine
from sparkdl.doctor.report import Check, HealthReport, State

__all__ = ["Check", "HealthReport", "State", "examine"]
