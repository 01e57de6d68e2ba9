#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a Python environment with the libraries that update_latency measures against. A second run does nothing.
#
# usage: make_venv.sh FOLDER
set -euo pipefail
folder=${1:?"usage: make_venv.sh FOLDER"}
if "$folder/bin/python" -c 'import h5py, numpy, safetensors' 2> /dev/null; then exit 0; fi
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check numpy h5py safetensors
