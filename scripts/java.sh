# To be sourced: finds a Java for the Spark that is installed, or installs one if this user is root.
# Spark 4 takes Java 17 and newer, Spark 3.5 takes Java 8 to 17.
# Sets JAVA_HOME only if `java` is not a suitable one.

java_version() {
    "$1" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1
}

oldest_java=17 newest_java=99
for jar in "${SPARK_HOME:-/}"/jars/spark-core_*-3.*.jar \
    "${VIRTUAL_ENV:-.venv}"/lib/python3*/site-packages/pyspark/jars/spark-core_*-3.*.jar; do
    if [ -e "$jar" ]; then oldest_java=8 newest_java=17; fi
done

suits() {
    command -v "$1" >/dev/null 2>&1 || return 1
    version=$(java_version "$1")
    [ "$version" -ge "$oldest_java" ] 2>/dev/null && [ "$version" -le "$newest_java" ]
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
        echo "Spark needs Java $oldest_java or newer, such as Java 17: install it (on Debian and Ubuntu:" \
            "sudo apt-get install openjdk-17-jre-headless) and run this again." >&2
        exit 1
    fi
fi
