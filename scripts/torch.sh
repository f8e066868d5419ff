#!/usr/bin/env bash
# Runs the tests that need PyTorch and the tools around it, in the environment build/torch, which has the
# packages of .venv, too: torch.sh [--once] [PYTEST ARGUMENTS]
# It creates that environment first, of 6 GB. --once leaves nothing of it, and runs no test where the disk
# is too full or a download fails.
set -euo pipefail
cd "$(dirname "$0")/.."
FOLDER=build/torch
TOOLS="torch transformers accelerate peft lightning skops"
NEEDED_GB=12
TESTS="tests/horovod/test_torch.py tests/horovod/test_torch_estimator.py tests/inference/test_predict_torch.py
    tests/data/test_torch_rows.py tests/ml/test_torch_stages.py tests/models/test_loaders.py
    tests/cluster/gang/test_torch_programs.py tests/clusters/test_examples.py::test_texts_are_embedded_and_continued
    tests/clusters/test_examples.py::test_adapters_are_searched_and_the_best_one_labels"

say() { echo "torch.sh: $1" >&2; }

install() {
    local constraints=$FOLDER/constraints.txt purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
    [ ! -e "$FOLDER/.done" ] || return 0
    say "installing PyTorch ..."
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$FOLDER" &&
        .venv/bin/uv pip freeze --quiet --exclude-editable --python .venv/bin/python >"$constraints" &&
        .venv/bin/uv pip install --quiet --python "$FOLDER/bin/python" --constraint "$constraints" $TOOLS &&
        .venv/bin/python -c "$purelib" >"$("$FOLDER/bin/python" -c "$purelib")/venv.pth" &&
        touch "$FOLDER/.done"
}

[ -x .venv/bin/uv ] || { say "there is no .venv; run make setup first"; exit 1; }
mkdir -p build
once=
if [ "${1:-}" = --once ]; then
    once=yes
    shift
    free=$(($(df --output=avail -k build | tail -1) / 1000000))
    [ "$free" -ge "$NEEDED_GB" ] || { say "SKIPPED, as $free GB of the disk are free, and it needs $NEEDED_GB"; exit 0; }
    export UV_CACHE_DIR=$PWD/build/torch-cache
    trap 'rm -rf "$FOLDER" "$UV_CACHE_DIR"' EXIT
fi
if ! install; then
    [ -z "$once" ] || { say "SKIPPED, as its packages were not installed"; exit 0; }
    exit 1
fi
. scripts/java.sh
export PYTHONPATH=$PWD SPARK_LOCAL_IP=127.0.0.1
[ $# -gt 0 ] || set -- -n 3 $TESTS
"$FOLDER/bin/python" -m pytest "$@"
