"""Files of models that would run code are refused, whatever library reads them."""

import json
from pathlib import Path
from typing import Any

import h5py
import pytest

from sparkdl.files.model_formats import load_keras

BY_KERAS_2: Any = {"function": ["4wEAAAA=", None, None], "function_type": "lambda"}
BY_KERAS_3: Any = {"function": {"class_name": "__lambda__", "config": {"code": "4wEAAAA="}}}


@pytest.mark.parametrize("config", [BY_KERAS_2, BY_KERAS_3])
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("name", ["m.h5", "m.hdf5", "m.keras"])
def test_a_lambda_in_an_hdf5_file_is_refused_before_a_library_reads_it(
    tmp_path: Path, config: Any, library: str, name: str
) -> None:
    """Also below the layers of a layer, and whatever the name of the file is."""
    hidden = {"class_name": "Lambda", "config": config}
    wrapper = {"class_name": "TimeDistributed", "config": {"layer": hidden}}
    model = {"class_name": "Sequential", "config": {"layers": [{}, wrapper]}}
    with h5py.File(tmp_path / name, "w") as file:
        file.attrs["model_config"] = json.dumps(model)
    with pytest.raises(ValueError, match=f"{name} has a Lambda layer with a Python lambda"):
        load_keras(tmp_path / name, library)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_lambda_runs_only_in_a_trusted_file(tmp_path: Path, library: str) -> None:
    keras = pytest.importorskip(library)
    row = keras.layers.Input((2,))
    model = keras.Model(row, keras.layers.Lambda(lambda x: x * 2, output_shape=(2,))(row))
    for name in ("m.keras", "m.h5"):
        model.save(tmp_path / name)
        with pytest.raises(ValueError, match="Lambda"):
            load_keras(tmp_path / name, library)
        assert load_keras(tmp_path / name, library, trusted=True).layers
