#!/usr/bin/env bash
# Installs schemathesis, which makes requests from an OpenAPI document, into an environment of its own
# for the tests of the model server, and prints the path of its program: schemathesis.sh [FOLDER]
# Where it cannot be installed, it prints a sentence that says why to the standard error, and exits
# with code 1; the tests are then skipped with that sentence.
set -euo pipefail
folder=${1:-$(dirname "$(dirname "$(realpath "$0")")")/build/schemathesis}

fail() {
    echo "schemathesis is not here: $1" >&2
    exit 1
}

. "$(dirname "$(realpath "$0")")/environment.sh"
environment "$folder" "schemathesis (about 60 MB, once)" 300 'schemathesis>=4.32'
echo "$folder/bin/schemathesis"
