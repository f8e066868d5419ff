#!/usr/bin/env bash
# Runs the tests that need PyTorch, with the packages of .venv, in build/torch: torch.sh [PYTEST ARGUMENTS]
# It creates that environment first, which takes minutes and gigabytes.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() {
    echo "torch.sh: $1" >&2
    exit 1
}
[ -x .venv/bin/python ] || fail "there is no .venv; run make setup first"
. scripts/environment.sh
. scripts/java.sh
environment build/torch "PyTorch" 1800 "torch>=2.4"
purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
.venv/bin/python -c "$purelib" >"$(build/torch/bin/python -c "$purelib")/venv.pth"
export PYTHONPATH=$PWD SPARK_LOCAL_IP=127.0.0.1
[ $# -gt 0 ] || set -- tests/horovod/test_torch.py tests/inference/test_predict_torch.py tests/data/test_torch_rows.py tests/ml/test_torch_stages.py tests/horovod/test_torch_estimator.py tests/models/test_loaders.py tests/test_docstrings.py -k torch
exec build/torch/bin/python -m pytest "$@"
