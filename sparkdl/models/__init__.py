"""The model registry: export models as numbered versions, and find them again (on the driver).

```python
from sparkdl import models

version = models.export(run.best, "digits", profile=df, if_better="accuracy")
models.alias("digits", "stable", version.version)
experiment.predict(models.get("digits", alias="stable"), df, feature_cols="image")
```

`export` is imported when it is first used: to read the registry takes neither Spark nor Arrow.
"""

from typing import TYPE_CHECKING

from sparkdl.host.lazy_names import lazy_names
from sparkdl.models.aliases import AliasMove
from sparkdl.models.comparison import compare
from sparkdl.models.registry import alias, alias_history, best, get
from sparkdl.models.registry import list_versions as list  # noqa: A004
from sparkdl.models.rollout import promote, roll_back
from sparkdl.models.version import ModelVersion

if TYPE_CHECKING:
    from sparkdl.models.affected_versions import Affected, affected
    from sparkdl.models.exporting import export
    from sparkdl.models.unseen_rows import new_rows

__all__ = [
    "Affected",
    "AliasMove",
    "ModelVersion",
    "affected",
    "alias",
    "alias_history",
    "best",
    "compare",
    "export",
    "get",
    "list",
    "new_rows",
    "promote",
    "roll_back",
]


__getattr__ = lazy_names(
    "sparkdl.models",
    {
        "sparkdl.models.affected_versions": "Affected affected",
        "sparkdl.models.exporting": "export",
        "sparkdl.models.unseen_rows": "new_rows",
    },
    __all__,
)
