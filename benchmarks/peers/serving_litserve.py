"""LitServe's server for `serving_peers.py`, which starts it.

    serving_litserve.py MODEL.keras PORT WORKERS

Batches have the settings of sparkdl's batches. Each worker calls a traced function of the model,
and as many processes take requests.
"""

import sys
from typing import Any

import litserve
import numpy as np
from fastapi import Request

__all__ = ["Model"]


class Model(litserve.LitAPI):  # type: ignore[misc]
    """The model; LitServe's worker imports this class.

    Args:
        path: the file of a Keras model.
    """

    def __init__(self, path: str) -> None:
        super().__init__(max_batch_size=32, batch_timeout=0.001)
        self.path = path

    def setup(self, device: str) -> None:
        import keras
        import tensorflow as tf

        model = keras.saving.load_model(self.path)
        rows = tf.TensorSpec([None, *model.inputs[0].shape[1:]], tf.float32)
        self.function = tf.function(model, input_signature=[rows])

    def decode_request(self, request: Request) -> Any:
        # LitServe has read the JSON object of a request of this type.
        return np.array(request["instances"], np.float32)

    def batch(self, inputs: Any) -> Any:
        self.sizes = [len(rows) for rows in inputs]
        return np.concatenate(inputs)

    def predict(self, x: Any) -> Any:
        return self.function(x).numpy()

    def unbatch(self, output: Any) -> Any:
        return np.split(output, np.cumsum(self.sizes)[:-1])

    def encode_response(self, output: Any) -> Any:
        return {"predictions": output.tolist()}


if __name__ == "__main__":
    path, port, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    server = litserve.LitServer(Model(path), accelerator="cpu", workers_per_device=workers)
    server.run(
        host="127.0.0.1",
        port=port,
        num_api_servers=workers,
        generate_client_file=False,
        log_level="warning",
    )
