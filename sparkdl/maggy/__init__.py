"""The API of maggy, on the driver and in trials. Programs change only their import lines.

```python
from sparkdl.maggy import AblationStudy, Searchspace, experiment
from sparkdl.maggy.callbacks import KerasBatchEnd
```

Modules, functions, arguments and defaults are those of maggy 1.1, 1.0 and 0.5
(https://github.com/logicalclocks/maggy). Each module is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sparkdl.maggy.refusals import refuse

if TYPE_CHECKING:
    from sparkdl.maggy.ablation import AblationStudy
    from sparkdl.maggy.searchspace import Searchspace

_MODULES = (
    *("ablation", "callbacks", "config", "core", "earlystop", "experiment", "experiment_config"),
    *("optimizer", "searchspace", "tensorboard"),
)
_CLASSES = {"AblationStudy": "ablation", "Searchspace": "searchspace"}

__all__ = ["AblationStudy", "Searchspace", "experiment"]


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        return getattr(importlib.import_module(f"sparkdl.maggy.{_CLASSES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"sparkdl.maggy.{name}")
    raise refuse("sparkdl.maggy", name, (*_CLASSES, *_MODULES))


def __dir__() -> list[str]:
    return sorted((*_CLASSES, *_MODULES))
