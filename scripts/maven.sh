# Fetches jars from Maven Central. Other scripts source this file; they define `fail REASON`, which ends
# them, and hold a lock on the folder.

# fetch LIB NAME ARTIFACTS [JARS]: copies the jars of artifacts (group:id:version) and of all that they
# need into the folder LIB, or of these only the named ones. What is there is not fetched again.
fetch() {
    local lib=$1 name=$2 artifacts=$3 jars=${4:-} dependencies= artifact group id number
    [ ! -e "$lib/.done" ] || return 0
    command -v mvn >/dev/null 2>&1 || fail "its jars are fetched by Maven; install the command mvn"
    . "$(dirname "${BASH_SOURCE[0]}")/java.sh" || fail "it needs Java 17 or newer"
    for artifact in $artifacts; do
        IFS=: read -r group id number <<<"$artifact"
        dependencies+="<dependency><groupId>$group</groupId><artifactId>$id</artifactId>"
        dependencies+="<version>$number</version></dependency>"
    done
    cat >"$lib.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>sparkdl</groupId>
  <artifactId>$name</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>$dependencies</dependencies>
</project>
POM
    echo "Fetching $name from Maven Central (once) ..." >&2
    if ! timeout 600 mvn --quiet --batch-mode --file "$lib.xml" \
        dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$lib" \
        ${jars:+"-DincludeArtifactIds=$jars"} \
        >"$lib.log" 2>&1; then
        fail "Maven could not fetch its jars, see $lib.log"
    fi
    touch "$lib/.done"
}
