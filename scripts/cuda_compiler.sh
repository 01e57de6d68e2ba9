#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches NVIDIA's compiler from PyPI into build/cuda (190 MB; no CUDA library, no driver), where the build finds it
# (cmake/cuda.cmake). With an nvcc of version 13 in PATH, and where the compiler is there already, it does nothing.
# Exit code 1, and the reason: there is none. The build then goes on without kernels for NVIDIA's devices.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# nvcc, its headers, its code generator, and what each source file includes by itself.
wanted=("nvidia-cuda-nvcc==13.0.*" "nvidia-cuda-crt==13.0.*" "nvidia-nvvm==13.0.*" "nvidia-cuda-runtime==13.0.*")
folder="$root/build/cuda"

if nvcc --version 2> /dev/null | grep -qF "release 13." || "$folder/nvidia/cu13/bin/nvcc" --version > /dev/null 2>&1; then
  exit 0
fi

mkdir -p "$root/build"
fresh=$(mktemp -d "$root/build/cuda-XXXXXX")
trap 'rm -rf "$fresh"' EXIT
log="$fresh/log"
{ python3 -m venv "$fresh/venv" &&
  "$fresh/venv/bin/pip" install --disable-pip-version-check -q --no-deps --no-compile --target "$fresh/made" "${wanted[@]}"; } > "$log" 2>&1 || {
  echo "cuda_compiler.sh: cannot fetch ${wanted[*]}: $(tail -n 1 "$log")" >&2
  exit 1
}
# The runtime's libraries are for programs that call it.
rm -rf "$fresh"/made/nvidia/cu13/lib
rm -rf "$folder"
mv "$fresh/made" "$folder"
"$folder/nvidia/cu13/bin/nvcc" --version > /dev/null || { echo "cuda_compiler.sh: the nvcc that was fetched does not run" >&2; exit 1; }
