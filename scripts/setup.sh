#!/usr/bin/env bash
# Creates a virtual environment with sparkdl and the dependencies of its tests: setup.sh VENV
set -euo pipefail
venv=$1
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
echo "Installing sparkdl and its dependencies into $venv (takes minutes the first time) ..."
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "pip>=24"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[test]"
