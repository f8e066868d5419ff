"""Serve models of the registry over HTTP, while versions come and go (on the driver).

```python
from sparkdl import serving

with serving.start("digits", alias="stable", batching=True) as server:
    requests.post(f"{server.url}/v1/models/digits:predict", json={"instances": rows})
```
"""

from sparkdl.serving.batching import Batching
from sparkdl.serving.inference_log import Log
from sparkdl.serving.kserve import kserve
from sparkdl.serving.log_sinks import KafkaSink, LogSink
from sparkdl.serving.server import Server
from sparkdl.serving.starting import start

__all__ = ["Batching", "KafkaSink", "Log", "LogSink", "Server", "kserve", "start"]
