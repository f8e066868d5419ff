"""Ranks that train one Keras model, of which each has a part, by the functions of the example."""

import os
import runpy
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples/jax_model_parallel.py"
BATCH, SAVED_AFTER, EPOCHS = 32, 1, 3


def train(folder: Path) -> Any:
    """Train from the start, or from the parts in the folder that `RESUME` names."""
    import numpy as np
    from jax.experimental.multihost_utils import process_allgather

    from sparkdl import context

    example = runpy.run_path(str(EXAMPLE))
    num_parts = int(os.environ["PARTS"])
    example["split_model"](num_parts)
    model = example["classifier"]()
    model.optimizer.build(model.trainable_variables)
    variables = model.variables + model.optimizer.variables
    random = np.random.default_rng(0)
    x = random.normal(size=(256, 64)).astype("float32")
    y = (x @ random.normal(size=(64, 10))).argmax(axis=1)
    # The rows of a step, divided among the copies of the model.
    copy, num_copies = context.rank // num_parts, context.world_size // num_parts
    done = 0
    if resumed := os.environ.get("RESUME"):
        example["load_parts"](variables, resumed)
        done = SAVED_AFTER
    losses = []
    for epoch in range(done, EPOCHS):
        for start in range(0, len(x), BATCH):
            rows = slice(
                start + copy * BATCH // num_copies, start + (copy + 1) * BATCH // num_copies
            )
            logs = model.train_on_batch(x[rows], y[rows], return_dict=True)
        losses.append(float(logs["loss"]))
        model.reset_metrics()
        if epoch + 1 == SAVED_AFTER and not resumed:
            example["save_parts"](variables, str(folder / "parts"))
    wholes = [process_allgather(v.value, tiled=True) for v in model.trainable_variables]
    parts = [v.value.addressable_shards[0].data.shape for v in model.trainable_variables]
    return {"losses": losses, "weights": [w.tolist() for w in wholes], "parts": parts}
