#!/usr/bin/env bash
# Creates the environment of a peer, outside the repository: environment.sh NAME [FOLDER]
# NAME is one of the names below. The environment is FOLDER/NAME; FOLDER is ~/.cache/sparkdl-peers by default.
set -euo pipefail
name=${1:?which peer? trials, mlflow, ray, torch, tfos or petastorm}
folder=${2:-$HOME/.cache/sparkdl-peers}/$name

spark="pyspark>=4.1,<5"
case $name in
trials) packages=("$spark" "joblibspark>=0.6,<0.7" "hyperopt>=0.3,<0.4" "pandas<3" pyarrow "setuptools<81" packaging) ;;
mlflow) packages=("$spark" "mlflow>=3.17,<4" "optuna>=4.6" "pandas<3" pyarrow) ;;
ray) packages=("$spark" "ray[client,tune,train]>=2.50,<3" "torch>=2.4,<3" numpy "pandas<3" pyarrow) ;;
torch) packages=("$spark" "torch>=2.4,<3" numpy "pandas<3" pyarrow) ;;
tfos) packages=("$spark" "tensorflowonspark==2.2.5" "tensorflow-cpu>=2.21,<2.22" numpy "setuptools<81") ;;
# petastorm imports no newer pyarrow than 14, which needs NumPy 1, and pyspark 4 no older one than 18.
petastorm) packages=("pyspark>=3.5,<4" "petastorm==0.13.1" "pyarrow==14.0.2" "numpy<2" "pandas<2.3" "tensorflow-cpu>=2.18,<2.22" "setuptools<70") ;;
*) echo "unknown peer: $name" >&2 && exit 1 ;;
esac

[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "uv>=0.9"
"$folder/bin/python" -m uv pip install --quiet --python "$folder/bin/python" "${packages[@]}"
echo "$folder/bin/python"
