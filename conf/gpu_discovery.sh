#!/usr/bin/env bash
# Tells Spark which NVIDIA GPUs this host has, as one line of JSON:
#     {"name":"gpu","addresses":["0","1"]}
# For spark.worker.resource.gpu.discoveryScript (standalone) and
# spark.executor.resource.gpu.discoveryScript (YARN). Spark runs it without a shell: keep it
# executable, and writable by nobody but its owner.

# Only lines that are a number count: a driver that does not work says so on standard output too.
# A host without nvidia-smi has no GPU; Spark itself then refuses what asks for one.
indexes=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null |
    sed -n 's/^[[:space:]]*\([0-9][0-9]*\)[[:space:]]*$/"\1"/p' | paste -s -d , -)
printf '{"name":"gpu","addresses":[%s]}\n' "$indexes"
