#!/usr/bin/env bash
# The entry point of the image, see Dockerfile: starts the driver or an executor in a pod. Spark's
# Kubernetes scheduler gives the word "driver" or "executor", and the variables SPARK_*.
set -euo pipefail

if [ -z "${SPARK_HOME:-}" ]; then
    SPARK_HOME=$(python3 -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
    export SPARK_HOME
fi
java=${JAVA_HOME:+$JAVA_HOME/bin/}java

case ${1:-} in
driver)
    shift
    "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        "$@" &
    java_process=$!
    # Pass SIGTERM to the Python program below the Java process, not to the Java process: the program
    # then ends its runs while Spark is still there, and its last lines reach the log.
    told=
    trap 'told=yes; pkill -TERM -P "$java_process" || kill -TERM "$java_process"' TERM
    code=0
    wait "$java_process" || code=$?
    while [ -n "$told" ]; do # A signal ends `wait`: wait again for the process.
        told= code=0
        wait "$java_process" || code=$?
    done
    exit "$code"
    ;;
executor)
    # SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...: one option of the JVM each.
    options=()
    for ((n = 0; ; n++)); do
        name=SPARK_JAVA_OPT_$n
        [ -n "${!name+set}" ] || break
        options+=("${!name}")
    done
    exec "$java" ${options[@]+"${options[@]}"} "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$SPARK_HOME/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$@"
    ;;
esac
