#!/usr/bin/env bash
# Prints the NVIDIA GPUs of this host for Spark, as one line of JSON:
#     {"name":"gpu","addresses":["0","1"]}
# For spark.worker.resource.gpu.discoveryScript (standalone) and
# spark.executor.resource.gpu.discoveryScript (YARN, Kubernetes). Spark runs the script without a shell:
# keep it executable, and writable by its owner only.

# Only lines with a number are GPUs: nvidia-smi prints its errors to standard output too.
# A host without nvidia-smi has no GPU; Spark itself then refuses requests for GPUs.
indexes=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null |
    sed -n 's/^[[:space:]]*\([0-9][0-9]*\)[[:space:]]*$/"\1"/p' | paste -s -d , -)
# If this process may use only some GPUs, CUDA numbers these GPUs from 0, and so does this script.
# A negative number, such as -1, hides the GPUs that follow.
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    visible=$(echo "$CUDA_VISIBLE_DEVICES" | tr , '\n' | sed '/^[[:space:]]*-/,$d; /^[[:space:]]*$/d' | wc -l)
    indexes=$(seq 0 $((visible - 1)) | sed 's/.*/"&"/' | paste -s -d , -)
fi
printf '{"name":"gpu","addresses":[%s]}\n' "$indexes"
