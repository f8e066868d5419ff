#!/usr/bin/env bash
# Fetches the daemons of Hadoop (NameNode, DataNode, ResourceManager, NodeManager) from Maven Central
# for the tests of HDFS and YARN, and prints the folder of their jars: hadoop.sh [FOLDER]
# Where the jars cannot be fetched, it prints a sentence that says why to the standard error, and
# exits with code 1; the tests are then skipped with that sentence.
set -euo pipefail
version=3.5.0  # The version of the Hadoop client that pyspark 4.3 contains.
folder=${1:-$(dirname "$(dirname "$(realpath "$0")")")/build/hadoop}
lib=$folder/$version

fail() {
    echo "Hadoop $version is not here: $1" >&2
    exit 1
}

. "$(dirname "$(realpath "$0")")/maven.sh"
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
artifacts=
for artifact in hadoop-common hadoop-hdfs hadoop-hdfs-client hadoop-yarn-client \
    hadoop-yarn-server-nodemanager hadoop-yarn-server-resourcemanager \
    hadoop-yarn-server-timelineservice; do
    artifacts+=" org.apache.hadoop:$artifact:$version"
done
fetch "$lib" hadoop "$artifacts"
echo "$lib"
