#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of the path through GPUs (label gpu), on the real device where there is one and on the host device, and the
# benchmarks of this path. Prints each case as it ends, the benchmarks' tables, and last what ran where. Exit code 0 when nothing
# failed.
#
# usage: scripts/test_gpu.sh [PIECE…]     builds the release's test programs, and runs them here (scripts/run_gpu_kit.sh)
#        scripts/test_gpu.sh --kit FILE   packs them into FILE (.tar.xz), with the Python package, for a machine that has only a
#                                         driver, of any Python from 3.10 on: tar xf FILE && freshet-gpu/run.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kit_bytes_max=$((48 << 20))

usage() {
  echo "usage: $0 [--kit FILE.tar.xz | PIECE…]" >&2
  exit 2
}

kit=
case "${1:-}" in
  --kit) { [ $# -eq 2 ] && [[ "$2" == *.tar.xz ]]; } || usage; kit=$2 ;;
  -*) usage ;;
esac

# A test program of this path, and what it starts, has a name that begins with gpu_.
configure release > /dev/null
mapfile -t programs < <(ninja -C "$root/build" -t targets all | sed -n 's/^\(gpu_[a-z_]*\): phony$/\1/p' | sort -u)
[ ${#programs[@]} -gt 0 ] || { echo "test_gpu.sh: the build has no program gpu_*" >&2; exit 1; }
benchmarks=bin/benchmarks  # In the build folder, and in the kit.
build_preset release "${programs[@]}" gpu

fail() {
  echo "test_gpu.sh: $*" >&2
  exit 1
}

has_target() { ninja -C "$root/build" -t targets all | grep -q "^$1: phony"; }

# pack_python FOLDER: the package, its extension for each Python from 3.10 on, and nanobind's part of it for each of these.
pack_python() {
  local folder=$1/python python version
  if ! has_target _core_any; then
    "$root/scripts/python.sh" --only-venv
    python="$root/build/venv/bin/python"
    configure release -DFRESHET_PYTHON=ON -DPython_EXECUTABLE="$python" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" > /dev/null
  fi
  python=$(sed -n 's/^Python_EXECUTABLE:[A-Z]*=//p' "$root/build/CMakeCache.txt")
  build_preset release _core_any
  mkdir -p "$folder/freshet"
  tar -C "$root/bindings/python/freshet" -c --exclude __pycache__ --exclude '*.so' . | tar -C "$folder/freshet" -x
  strip -o "$folder/freshet/_core.abi3.so" "$root/build/bindings/python/any/_core.abi3.so"
  libraries_of "$root/build/bindings/python/any/_core.abi3.so" >> "$1/libraries"
  for version in 3.10 3.11 3.12 3.13 3.14; do
    "$python" -m pip download --disable-pip-version-check -q --no-deps --only-binary=:all: --python-version "$version" \
      --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -d "$work/backend" "nanobind-backend==1.*" ||
      fail "cannot fetch nanobind-backend for Python $version, which the package for the other machine's Python needs"
    "$python" -m zipfile -e "$work"/backend/*-cp"${version/./}"-*.whl "$folder"
  done
  mkdir -p "$1/tests/python"
  cp "$root"/tests/bindings/python/{conftest,test_real_gpus}.py "$1/tests/python/"
}

libraries_of() { ldd "$1" | sed -n 's|.* => \(/[^ ]*\) (0x.*|\1|p'; }

# pack FOLDER: the programs where they are in the build folder, since they look for each other, and their libraries in lib/, but
# for those of the C library: they must be the machine's own, as its driver wants them. Those of a machine as new as this one, or
# newer, will do.
pack() {
  local folder=$1 program library
  mkdir -p "$folder/tests" "$folder/$benchmarks/common" "$folder/lib/cxx"
  cp "$root/build/$benchmarks/gpu_torch" "$folder/$benchmarks/"
  cp "$root/build/$benchmarks/common/tables.py" "$folder/$benchmarks/common/"
  for program in "${programs[@]/#/tests/}" "$benchmarks/gpu"; do
    [ -x "$root/build/$program" ] || continue
    strip -o "$folder/$program" "$root/build/$program"
    libraries_of "$root/build/$program" >> "$folder/libraries"
  done
  pack_python "$folder"
  sort -u "$folder/libraries" | while read -r library; do
    case "${library##*/}" in
      libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | ld-linux*) ;;
      libstdc++.so.* | libgcc_s.so.*) cp -L "$library" "$folder/lib/cxx/" ;;  # Python's frameworks bring their machine's own.
      *) cp -L "$library" "$folder/lib/" ;;
    esac
  done
  rm "$folder/libraries"
  cp "$root/scripts/run_gpu_kit.sh" "$folder/run.sh"
}

work=$(mktemp -d "${TMPDIR:-/tmp}/freshet-gpu.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ -z "$kit" ]; then
  "$root/scripts/run_gpu_kit.sh" --folder "$root/build" "$@"
  exit
fi

pack "$work/freshet-gpu"
tar -C "$work" -c freshet-gpu | xz -9 -T "$jobs" > "$work/kit.tar.xz"
bytes=$(stat -c %s "$work/kit.tar.xz")
if [ "$bytes" -gt "$kit_bytes_max" ]; then
  fail "the kit has $bytes bytes; $kit_bytes_max are allowed"
fi
mv "$work/kit.tar.xz" "$kit"
echo "$kit: $bytes bytes, of ${programs[*]}"
echo "run it by: tar xf $(basename "$kit") && freshet-gpu/run.sh"
