#!/bin/sh
# Watches the requests of the last hour, and trains the model of train_and_serve.py again after drift.
# A line for cron, with the Python of sparkdl, and the folder of runs, models, log and labels:
#     5 * * * * SPARKDL_PYTHON=/opt/venv/bin/python SPARKDL_FOLDER=/shared/bikes .../hourly.sh
set -u
circle="$(dirname "$(dirname "$(realpath "$0")")")/train_and_serve.py"
python="${SPARKDL_PYTHON:-python3}"
# The name of the round that is not finished yet.
unfinished="$SPARKDL_FOLDER/round"
# Cron starts programs with a short PATH, on which Java may be missing.
PATH="/usr/local/bin:/usr/bin:/bin:$PATH"
[ -z "${JAVA_HOME:-}" ] || PATH="$JAVA_HOME/bin:$PATH"
export PATH

step() {
    "$python" "$circle" "$1" --round "$name" --folder "$SPARKDL_FOLDER"
}

begin_round() {
    date +%Y%m%d-%H > "$unfinished.new" && mv "$unfinished.new" "$unfinished"
}

mkdir -p "$SPARKDL_FOLDER"
# A call that comes while another one goes on ends at once.
exec 9>"$SPARKDL_FOLDER/hourly.lock"
flock -n 9 || exit 0

if [ ! -e "$unfinished" ] && [ ! -d "$SPARKDL_FOLDER/runs/models/bikes" ]; then
    begin_round || exit  # The first version.
elif [ ! -e "$unfinished" ]; then
    # A canary is promoted or rolled back as soon as enough labels are known.
    name=none
    step decide
    code=$?
    [ $code -ne 99 ] || exit 0  # Nothing is trained until then, and no drift is lost.
    [ $code -eq 0 ] || exit $code
    [ -d "$SPARKDL_FOLDER/log" ] || exit 0  # The model server has not been asked.

    # Beside its Python: cron does not look there.
    "$(dirname "$(command -v "$python")")/sparkdl" monitor bikes@stable "$SPARKDL_FOLDER/log" \
        --root "$SPARKDL_FOLDER/runs" --available-now --metric psi
    code=$?
    # 0: no feature has drifted; 2: an error, and the next call reads what this one has not.
    [ $code -eq 1 ] || exit $code
    begin_round || exit
fi

# A round that was killed is finished by the next call.
name=$(cat "$unfinished")
for part in prepare search train export canary; do
    step $part
    code=$?
    [ $code -ne 99 ] || break  # The model is not better.
    [ $code -eq 0 ] || exit $code
done
rm "$unfinished"
