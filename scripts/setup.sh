#!/usr/bin/env bash
# Creates a virtual environment with sparkdl and the dependencies of an extra: setup.sh VENV EXTRA
set -euo pipefail
venv=$1 extra=$2
. "$(dirname "$0")/java.sh"

suits() {
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

for python in python3 python3.12 python3.11 python3.13 python3.10; do
    if suits "$python"; then break; fi
    python=
done
if [ -z "${python:-}" ]; then
    echo "sparkdl needs Python 3.10 to 3.13: install one (such as python3.12) and run this again." >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    echo "$python lacks the venv module: install it (on Debian: apt-get install python3-venv)." >&2
    exit 1
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "Installing sparkdl and its dependencies into $venv ..."
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv>=0.9"
# uv chooses among the versions within seconds, where pip may take ten minutes. It does not read pip's settings.
index=${PIP_INDEX_URL:-$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
if [ -n "$index" ]; then export UV_DEFAULT_INDEX=$index; fi
# The name of this package until 0.1.0: both would own the same folder.
if [ -n "$(find "$venv"/lib/python3*/site-packages -maxdepth 1 -name "sparkdl-*.dist-info" -print -quit)" ]; then
    "$venv/bin/python" -m uv pip uninstall --quiet --python "$venv/bin/python" sparkdl
fi
"$venv/bin/python" -m uv pip install --quiet --compile-bytecode --python "$venv/bin/python" --editable ".[$extra]"
