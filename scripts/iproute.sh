# Installs the command `ip`, with which the tests of several hosts make networks, if this user is
# root on Debian or Ubuntu. Without it, those tests are skipped.
if ! command -v ip >/dev/null 2>&1 && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing iproute2 ..."
    { apt-get update && apt-get install -y --no-install-recommends iproute2; } >/dev/null 2>&1 || true
fi
