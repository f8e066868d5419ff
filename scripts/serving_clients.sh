#!/usr/bin/env bash
# Installs clients of model servers, Triton's and KServe's, into an environment of their own for the
# tests of the model server, and prints the path of its Python: serving_clients.sh [FOLDER]
# Where they cannot be installed, it prints a sentence that says why to the standard error, and exits
# with code 1; the tests are then skipped with that sentence.
set -euo pipefail
folder=${1:-$(dirname "$(dirname "$(realpath "$0")")")/build/serving-clients}

fail() {
    echo "the clients of Triton and KServe are not here: $1" >&2
    exit 1
}

. "$(dirname "$(realpath "$0")")/environment.sh"
environment "$folder" "the clients of Triton and KServe (about 150 MB, once)" 600 'tritonclient[http,grpc]>=2.73' 'kserve>=0.21'
echo "$folder/bin/python"
