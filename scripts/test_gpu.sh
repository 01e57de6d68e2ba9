#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of the path through GPUs (label gpu), on the real device where there is one and on the host device, and the
# benchmark of this path. Prints each case as it ends, the benchmark's table, and last what ran where. Exit code 0 when nothing
# failed.
#
# usage: scripts/test_gpu.sh              builds the release's test programs, and runs them here
#        scripts/test_gpu.sh --kit FILE   packs them into FILE (.tar.xz), for a machine that has only a driver:
#                                           tar xf FILE && freshet-gpu/run.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kit_bytes_max=$((48 << 20))

usage() {
  echo "usage: $0 [--kit FILE.tar.xz]" >&2
  exit 2
}

kit=
case "${1:-}" in
  "") [ $# -eq 0 ] || usage ;;
  --kit) { [ $# -eq 2 ] && [[ "$2" == *.tar.xz ]]; } || usage; kit=$2 ;;
  *) usage ;;
esac

# A test program of this path, and what it starts, has a name that begins with gpu_.
configure release > /dev/null
mapfile -t programs < <(ninja -C "$root/build" -t targets all | sed -n 's/^\(gpu_[a-z_]*\): phony$/\1/p' | sort -u)
[ ${#programs[@]} -gt 0 ] || { echo "test_gpu.sh: the build has no program gpu_*" >&2; exit 1; }
benchmarks=bin/benchmarks  # In the build folder, and in the kit.
build_preset release "${programs[@]}" gpu

# pack FOLDER: the programs where they are in the build folder, since they look for each other, and their libraries in lib/, but
# for those of the C library: they must be the machine's own, as its driver wants them. Those of a machine as new as this one, or
# newer, will do.
pack() {
  local folder=$1 program library
  mkdir -p "$folder/tests" "$folder/$benchmarks/common" "$folder/lib"
  cp "$root/build/$benchmarks/gpu_torch" "$folder/$benchmarks/"
  cp "$root/build/$benchmarks/common/tables.py" "$folder/$benchmarks/common/"
  for program in "${programs[@]/#/tests/}" "$benchmarks/gpu"; do
    [ -x "$root/build/$program" ] || continue
    strip -o "$folder/$program" "$root/build/$program"
    ldd "$root/build/$program" | sed -n 's|.* => \(/[^ ]*\) (0x.*|\1|p' >> "$folder/libraries"
  done
  sort -u "$folder/libraries" | while read -r library; do
    case "${library##*/}" in
      libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | ld-linux*) ;;
      *) cp -L "$library" "$folder/lib/" ;;
    esac
  done
  rm "$folder/libraries"
  cp "$root/scripts/run_gpu_kit.sh" "$folder/run.sh"
}

work=$(mktemp -d "${TMPDIR:-/tmp}/freshet-gpu.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ -z "$kit" ]; then
  "$root/scripts/run_gpu_kit.sh" "$root/build" "${programs[@]}"
  exit
fi

pack "$work/freshet-gpu"
tar -C "$work" -c freshet-gpu | xz -9 -T "$jobs" > "$work/kit.tar.xz"
bytes=$(stat -c %s "$work/kit.tar.xz")
if [ "$bytes" -gt "$kit_bytes_max" ]; then
  echo "test_gpu.sh: the kit has $bytes bytes; $kit_bytes_max are allowed" >&2
  exit 1
fi
mv "$work/kit.tar.xz" "$kit"
echo "$kit: $bytes bytes, of ${programs[*]}"
echo "run it by: tar xf $(basename "$kit") && freshet-gpu/run.sh"
