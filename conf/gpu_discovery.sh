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
# Where somebody has given this process only some of them, CUDA numbers those from 0, and so do we.
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    visible=$(echo "$CUDA_VISIBLE_DEVICES" | tr , '\n' | sed '/^[[:space:]]*$/d' | wc -l)
    indexes=$(seq 0 $((visible - 1)) | sed 's/.*/"&"/' | paste -s -d , -)
fi
printf '{"name":"gpu","addresses":[%s]}\n' "$indexes"
