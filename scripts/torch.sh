#!/usr/bin/env bash
# Runs the tests that need PyTorch and the tools around it, with the packages of .venv, in build/torch:
# torch.sh [PYTEST ARGUMENTS]
# It creates that environment first, which takes minutes and 5 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
TESTS="tests/horovod/test_torch.py tests/horovod/test_torch_estimator.py tests/inference/test_predict_torch.py
    tests/data/test_torch_rows.py tests/ml/test_torch_stages.py tests/models/test_loaders.py
    tests/cluster/gang/test_torch_programs.py tests/clusters/test_examples.py::test_texts_are_embedded_and_continued
    tests/clusters/test_examples.py::test_adapters_are_searched_and_the_best_one_labels
    tests/clusters/test_notebooks.py::test_language_models"
fail() {
    echo "torch.sh: $1" >&2
    exit 1
}
[ -x .venv/bin/python ] || fail "there is no .venv; run make setup first"
. scripts/environment.sh
. scripts/java.sh
# Both environments have the same version of what both have.
mkdir -p build
.venv/bin/python -m pip freeze --exclude-editable >build/torch-constraints.txt
environment build/torch "PyTorch" 1800 --constraint build/torch-constraints.txt \
    "torch>=2.4" transformers accelerate peft lightning skops
purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
.venv/bin/python -c "$purelib" >"$(build/torch/bin/python -c "$purelib")/venv.pth"
export PYTHONPATH=$PWD SPARK_LOCAL_IP=127.0.0.1
# Unquoted: each name is a word.
[ $# -gt 0 ] || set -- -n 3 $TESTS
exec build/torch/bin/python -m pytest "$@"
