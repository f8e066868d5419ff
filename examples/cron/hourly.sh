#!/bin/sh
# Watches the requests of the last hour, and trains the model of train_and_serve.py again after drift.
# A line for cron, with the folder of runs, models, log and labels:
#     5 * * * * SPARKDL_FOLDER=/shared/bikes /opt/sparkdl/examples/cron/hourly.sh
set -u
circle="$(dirname "$(dirname "$(realpath "$0")")")/train_and_serve.py"
name=$(date +%Y%m%d-%H)

step() {
    "${SPARKDL_PYTHON:-python3}" "$circle" "$1" --round "$name" --folder "$SPARKDL_FOLDER"
}

# A call that comes while another one goes on ends at once.
exec 9>"$SPARKDL_FOLDER/hourly.lock"
flock -n 9 || exit 0

# A canary is promoted or rolled back as soon as enough labels are known.
step decide
code=$?
[ $code -eq 0 ] || [ $code -eq 99 ] || exit $code

sparkdl monitor bikes@stable "$SPARKDL_FOLDER/log" --root "$SPARKDL_FOLDER/runs" --available-now \
    --metric psi
code=$?
# 0: no feature has drifted; 2: an error, and the next call reads what this one has not.
[ $code -eq 1 ] || exit $code
for part in prepare search train export canary; do
    step $part
    code=$?
    [ $code -ne 99 ] || exit 0  # The model is not better.
    [ $code -eq 0 ] || exit $code
done
