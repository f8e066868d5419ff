#!/usr/bin/env bash
# Creates the environment of a peer, outside the repository: environment.sh NAME [FOLDER]
# NAME is one of the names below. The environment is FOLDER/NAME; FOLDER is ~/.cache/sparkdl-peers by default.
set -euo pipefail
name=${1:?which peer? trials, torch or tfos}
folder=${2:-$HOME/.cache/sparkdl-peers}/$name

spark="pyspark>=4.1,<5"
case $name in
trials) packages=("$spark" "joblibspark>=0.6,<0.7" "hyperopt>=0.3,<0.4" "pandas<3" pyarrow "setuptools<81" packaging) ;;
torch) packages=("$spark" "torch>=2.4,<3" numpy "pandas<3" pyarrow) ;;
tfos) packages=("$spark" "tensorflowonspark==2.2.5" "tensorflow-cpu>=2.21,<2.22" numpy "setuptools<81") ;;
*) echo "unknown peer: $name" >&2 && exit 1 ;;
esac

[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "uv>=0.9"
"$folder/bin/python" -m uv pip install --quiet --python "$folder/bin/python" "${packages[@]}"
echo "$folder/bin/python"
