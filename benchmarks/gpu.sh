#!/usr/bin/env bash
# What a GPU makes of the training room, with torch alone and in under 8 minutes: writes one JSON.
#
#   bash benchmarks/gpu.sh [gpu.json]        needs python with torch and numpy, and nothing else of this project
#
# CIFAR-size ResNet-18 (3×3 stem), batch 512, random pictures: darkroom's session in fp32, TF32, bf16 and fp16, with and without
# channels_last, compiled, with the pictures on the device and in memory, beside the plain loop (NCHW float32, DataLoader).
set -euo pipefail
cd "$(dirname "$0")"
exec "${PYTHON:-python}" gpu.py "${1:-gpu.json}"
