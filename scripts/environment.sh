# Installs packages into an environment of their own. Other scripts source this file; they define
# `fail REASON`, which ends them.

# environment FOLDER NAME SECONDS REQUIREMENTS...: makes a virtual environment in FOLDER with the
# packages, and tells the user that NAME is being installed. What is there is not installed again.
environment() {
    local folder=$1 name=$2 seconds=$3 python
    shift 3
    mkdir -p "$folder"
    exec 9>"$folder/lock"
    flock 9
    [ ! -e "$folder/.done" ] || return 0
    python=$(dirname "$folder")/../.venv/bin/python
    [ -x "$python" ] || python=python3
    echo "Installing $name ..." >&2
    "$python" -m venv "$folder" >"$folder/pip.log" 2>&1 ||
        fail "there is no environment, see $folder/pip.log"
    timeout "$seconds" "$folder/bin/pip" install --quiet "$@" >>"$folder/pip.log" 2>&1 ||
        fail "pip could not install the packages, see $folder/pip.log"
    touch "$folder/.done"
}
