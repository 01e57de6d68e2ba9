# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What build.sh, test.sh, python.sh, python_asan.sh and prove_pip_install.sh share.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# More than two compilers at a time take more memory than a small machine has.
jobs=$(nproc)
[ "$jobs" -le 2 ] || jobs=2

# ccache wants a home that can be written; without one it only passes compiler calls on.
if [ ! -w "${HOME:-/nonexistent}" ] && [ -z "${CCACHE_DIR:-}" ]; then
  export CCACHE_DISABLE=1
fi
# What one clone has compiled serves the next, wherever that lies.
export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1

folder_of() {
  case "$1" in
    release) echo "$root/build" ;;
    *) echo "$root/build-${1%%-*}" ;;
  esac
}

# Compilers of this age place their sanitizers' shadow memory where a kernel with much address randomisation may put a
# library, so what is built with a sanitizer is run without randomisation, where the machine lets us.
run_in() {
  local preset=$1
  shift
  if [ "$preset" != release ] && setarch -R true 2> /dev/null; then
    setarch -R "$@"
  else
    "$@"
  fi
}

# configure PRESET FLAG…: a folder that was configured for a tree elsewhere (moved, or copied) starts anew.
configure() {
  local preset=$1 folder fresh=()
  shift
  folder=$(folder_of "$preset")
  if [ -f "$folder/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$folder/CMakeCache.txt"; then
    fresh=(--fresh)
  fi
  (cd "$root" && cmake --preset "$preset" "${fresh[@]}" "$@")
}

# build_preset PRESET TARGET…: configures where needed, and builds.
build_preset() {
  local preset=$1 folder
  shift
  folder=$(folder_of "$preset")
  mkdir -p "$folder" 2> /dev/null || true
  if [ ! -w "$folder" ] || [ -n "$(find "$folder" -maxdepth 1 ! -writable -print -quit)" ]; then
    echo "build: $folder belongs to another user; remove it, or build as that user" >&2
    return 1
  fi

  local log="$folder/configure.log"
  if ! configure "$preset" > "$log" 2>&1; then
    cat "$log" >&2
    return 1
  fi
  run_in "$preset" cmake --build "$folder" --parallel "$jobs" --target "$@"
}
