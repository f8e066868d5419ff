#!/usr/bin/env bash
# Kubernetes runs this before it ends the pod of an executor, if spark.decommission.enabled is true, see
# Dockerfile. The executor tells the driver, which tells the trials; the script waits until the executor has
# ended, at most for the terminationGracePeriodSeconds of the pod.
executor=$(pgrep -o -f KubernetesExecutorBackend) || exit 0
kill -PWR "$executor"
while kill -0 "$executor" 2>/dev/null; do sleep 0.5; done
