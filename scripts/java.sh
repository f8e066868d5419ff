# To be sourced: finds Java 17 or newer, which Spark 4 needs, or installs Java if this user is root.
# Sets JAVA_HOME only if `java` is not a suitable one.

java_version() {
    "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

suits() {
    command -v "$1" >/dev/null 2>&1 && [ "$(java_version "$1")" -ge 17 ] 2>/dev/null
}

if [ -n "${JAVA_HOME:-}" ] && suits "$JAVA_HOME/bin/java"; then
    :
elif suits java; then
    unset JAVA_HOME
else
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "Installing Java 17 (openjdk-17-jre-headless) ..."
        { apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless; } \
            >/dev/null 2>&1 || true
    fi
    unset JAVA_HOME
    for candidate in /usr/lib/jvm/java-*/bin/java; do
        if suits "$candidate"; then
            JAVA_HOME=$(dirname "$(dirname "$candidate")")
            export JAVA_HOME
            break
        fi
    done
    if [ -z "${JAVA_HOME:-}" ]; then
        echo "sparkdl needs Java 17 or newer for Spark: install it (on Debian and Ubuntu:" \
            "sudo apt-get install openjdk-17-jre-headless) and run this again." >&2
        exit 1
    fi
fi
