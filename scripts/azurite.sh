#!/usr/bin/env bash
# Fetches Azurite, Microsoft's emulator of Azure's blob storage, from npm for the tests, and prints the
# program that `node` runs: azurite.sh [FOLDER]
# Where it cannot be fetched, it prints a sentence that says why to the standard error, and exits with
# code 1; the tests are then skipped with that sentence.
set -euo pipefail
version=3.35.0
folder=${1:-$(dirname "$(dirname "$(realpath "$0")")")/build/azurite}
lib=$folder/$version

fail() {
    echo "Azurite $version is not here: $1" >&2
    exit 1
}

mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
if [ ! -e "$lib/.done" ]; then
    command -v npm >/dev/null 2>&1 || fail "it is fetched by npm; install Node.js"
    timeout 300 npm install --prefix "$lib" --no-audit --no-fund --ignore-scripts --loglevel=error \
        "azurite@$version" >&2 || fail "npm has not fetched it"
    touch "$lib/.done"
fi
echo "$lib/node_modules/azurite/dist/src/blob/main.js"
