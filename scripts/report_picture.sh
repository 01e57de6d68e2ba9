#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# report_picture.sh FILE.png: a screenshot of a report, for the documentation. Stores, publishes and serves versions of a
# made-up loss. Needs build/bin/freshet, python3 and chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
picture=$(realpath -m "${1:?report_picture.sh FILE.png}")
freshet=$PWD/build/bin/freshet
work=$(mktemp -d)
export FRESHET_RUN_DIR=$work/run XDG_STATE_HOME=$work/state
served=()
trap 'for pid in "${served[@]}"; do kill "$pid" || true; wait "$pid" || true; done; rm -rf "$work"' EXIT

cd "$work"
python3 - << 'PYTHON'
import json
import math
import os
import random
import struct

random.seed(1)
os.mkdir("versions")
with open("batch.jsonl", "w") as batch:
    for i in range(1, 201):
        loss = 2 * math.exp(-i / 45) + 0.3 + random.random() * 0.06 + max(0, i - 170) * 0.004
        tensors, data = {}, b""
        for name in ("encoder.kernel", "encoder.bias", "head.kernel", "head.bias"):
            changes = name.startswith("head") or i % 10 == 1
            values = struct.pack("<64f", *[i if changes else i - (i - 1) % 10] * 64)
            tensors[name] = {"dtype": "F32", "shape": [64], "data_offsets": [len(data), len(data) + len(values)]}
            data += values
        tensors["__metadata__"] = {"step": str(100 * i), "loss": f"{loss:.4f}", "accuracy": f"{1 / (1 + loss):.4f}"}
        header = json.dumps(tensors).encode()
        with open(f"versions/{i}.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + data)
        line = {"model": "demo", "weights": f"versions/{i}.safetensors"}
        batch.write(json.dumps(line if i == 1 else line | {"ancestor": f"demo@{i - 1}"}) + "\n")
PYTHON
"$freshet" repo put --batch batch.jsonl --repo runs > put.log
"$freshet" publish demo $(printf 'versions/%d.safetensors ' $(seq 1 168)) --json > published.log 2> publish.log &
served+=($!)
until grep -qs '"version":168,' published.log; do sleep 0.1; done
for host in blue green; do
  "$freshet" subscribe demo --out "$host" --json > "$host.log" &
  served+=($!)
  until [ -e "$host/latest" ]; do sleep 0.1; done
done
"$freshet" report demo --repo runs -o report.html
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1160,1500 \
  --screenshot="$picture" "file://$work/report.html" 2> chromium.log || { cat chromium.log >&2; exit 1; }
ls -l "$picture"
