#!/usr/bin/env bash
# Fetches a broker of Kafka (KRaft mode: one process, no ZooKeeper) and Spark's source for Kafka from
# Maven Central, for tests and for trying things out: kafka.sh [FOLDER]
# Prints two folders of jars: that of the broker, and that of Spark's source, for --jars.
# kafka.sh --start FOLDER [PORT [ADDRESS]] runs a broker on loopback, or on another address of this
# host, whose data is below FOLDER, until it is killed. The variable PYTHON names the Python whose
# Spark it is; by default that of .venv.
# Where the jars cannot be fetched, it prints a sentence that says why to the standard error, and
# exits with code 1; the tests are then skipped with that sentence.
set -euo pipefail
version=3.9.2  # The version of the clients that Spark 4.3 is built with.
repository=$(dirname "$(dirname "$(realpath "$0")")")
data=
if [ "${1:-}" = --start ]; then
    data=${2:?the folder of the data is missing}
    port=${3:-9092}
    address=${4:-127.0.0.1}
    set --
fi
folder=${1:-$repository/build/kafka}

fail() {
    echo "Kafka $version is not here: $1" >&2
    exit 1
}

# These are not in pyspark; what else they need is.
from_spark=spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2

. "$repository/scripts/maven.sh"
mkdir -p "$folder"
broker=$folder/$version
exec 9>"$folder/lock"
flock 9
fetch "$broker" kafka "org.apache.kafka:kafka_2.13:$version org.slf4j:slf4j-simple:1.7.36"

if [ -n "$data" ]; then
    exec 9>&-
    . "$(dirname "$0")/java.sh"
    mkdir -p "$data"
    controller=$((port + 1))
    cat >"$data/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
listeners=PLAINTEXT://$address:$port,CONTROLLER://127.0.0.1:$controller
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dir=$(realpath "$data")/log
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
PROPERTIES
    path="$broker/*"
    if [ ! -e "$data/log/meta.properties" ]; then
        java -Xmx256m -cp "$path" kafka.tools.StorageTool format \
            -t "$(head -c 16 /dev/urandom | base64 | tr '+/' 'ab' | cut -c 1-22)" \
            -c "$data/server.properties" >&2
    fi
    exec java -Xmx512m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp "$path" \
        kafka.Kafka "$data/server.properties"
fi

python=${PYTHON:-$repository/.venv/bin/python}
spark=$("$python" -c 'import pyspark; print(pyspark.__version__)') || fail "pyspark is not installed"
# Some mirrors of Maven Central are late: the source of Spark 4.2 works with Spark 4.3, too.
for number in "$spark" 4.2.0; do
    artifact=org.apache.spark:spark-sql-kafka-0-10_2.13:$number
    if (fetch "$folder/spark-$number" "spark-sql-kafka" "$artifact" "$from_spark"); then
        echo "$broker"
        echo "$folder/spark-$number"
        exit 0
    fi
done
exit 1
