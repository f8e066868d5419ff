#!/usr/bin/env bash
# Builds the source distribution, and from it the wheel, and checks both: dist.sh VENV FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
uv="$1/bin/uv" folder=$2
# uv does not read pip's settings.
index=${PIP_INDEX_URL:-$("$1/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
if [ -n "$index" ]; then export UV_DEFAULT_INDEX=$index; fi
# setuptools would add the files of an earlier list, too.
rm -rf "$folder" ./*.egg-info
"$uv" build --quiet --out-dir "$folder"
"$uv" tool run --quiet twine check --strict "$folder"/*.whl "$folder"/*.tar.gz
