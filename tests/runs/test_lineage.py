"""The versions of models that come from a run."""

import json

from sparkdl.files import storage
from sparkdl.runs.lineage import models_of, versions_of


def test_versions_are_found_by_their_run(root: str) -> None:
    for number, run in ((1, "one"), (2, "two"), (3, "one")):
        record = json.dumps({"name": "digits", "version": number, "run": run})
        storage.write(f"{root}/models/digits/{number}/model.json", record)
    storage.write(f"{root}/models/digits/4/saved_model.pb", "torn")
    storage.write(f"{root}/models/digits/5/model.json", "{")
    versions = versions_of(f"{root}/one")
    assert [*versions] == [f"{root}/models/digits/{number}" for number in (1, 3)]
    assert versions[f"{root}/models/digits/3"]["version"] == 3
    assert models_of(f"{root}/one") == ["model digits version 1", "model digits version 3"]
    assert versions_of(f"{root}/none") == {}
