#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a training set, trains an unchanged program on it for three epochs without Freshet and with it, kills the second half-way and
# goes on, and prints losses, times and where the bytes came from side by side. Fails unless the losses are equal to the last bit.
#
# The set lies on this machine's own disk, so the times say what tiering costs, not what it saves.
#
# usage: scripts/prove_tiering.sh [FILES]     (default 400, of about 110 KB)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
count=${1:-400}
[[ "$count" =~ ^[1-9][0-9]*$ ]] || { echo "usage: $0 [FILES]" >&2; exit 2; }

"$root/scripts/build.sh" freshet >&2
freshet="$root/build/bin/freshet"
folder=$(mktemp -d "${TMPDIR:-/tmp}/freshet-tiering.XXXXXX")
export FRESHET_TIER="$folder/tiers.toml"
trap '"$freshet" tier stop; rm -rf "$folder"' EXIT

cat > "$FRESHET_TIER" << EOF
source = ["$folder/set"]
[[tier]]
path = "$folder/tier"
quota = "10 GiB"
EOF

python3 - "$folder/set" "$count" << 'EOF'
import os, random, sys
folder, count = sys.argv[1], int(sys.argv[2])
os.makedirs(folder)
chance = random.Random(17)
for number in range(count):
    with open(f"{folder}/{number:06}", "wb") as file:
        file.write(chance.randbytes(max(64, int(chance.lognormvariate(11.6, 0.5)))))
EOF

# The trainer: a linear model of what the files hold, whose loss depends on every byte read. It knows nothing of tiers. It writes a
# checkpoint after each epoch and goes on from it.
cat > "$folder/train.py" << 'EOF'
import json, os, random, sys, zlib
folder, checkpoint, die_in = sys.argv[1], sys.argv[2], int(sys.argv[3])
names = sorted(os.listdir(folder))
state = {"epoch": 0, "weight": 0.5, "losses": []}
if os.path.exists(checkpoint):
    with open(checkpoint) as file: state = json.load(file)
for epoch in range(state["epoch"], 3):
    order = names[:]
    random.Random(epoch).shuffle(order)
    loss = 0.0
    for position, name in enumerate(order):
        with open(os.path.join(folder, name), "rb") as file: data = file.read()
        target = zlib.crc32(data) / 2**32
        error = state["weight"] - target
        state["weight"] -= 0.01 * error
        loss += error * error
        if epoch == die_in and position == len(order) // 2: os.kill(os.getpid(), 9)
    state["losses"].append((loss / len(order)).hex())
    state["epoch"] = epoch + 1
    with open(checkpoint + ".new", "w") as file: json.dump(state, file)
    os.replace(checkpoint + ".new", checkpoint)
EOF

seconds_of() { awk -v from="$1" -v to="$(date +%s.%N)" 'BEGIN { printf "%.2f", to - from }'; }
begin=$(date +%s.%N)
python3 "$folder/train.py" "$folder/set" "$folder/plain.json" -1
plain_s=$(seconds_of "$begin")

begin=$(date +%s.%N)
code=0
"$freshet" tier run -- python3 "$folder/train.py" "$folder/set" "$folder/tiered.json" 1 || code=$?
[ "$code" -eq 137 ] || { echo "prove_tiering: the program was to be killed, and ended with $code" >&2; exit 1; }
"$freshet" tier run -- python3 "$folder/train.py" "$folder/set" "$folder/tiered.json" -1
tiered_s=$(seconds_of "$begin")
"$freshet" tier settle
"$freshet" tier verify > "$folder/verified.txt"

python3 - "$folder" "$plain_s" "$tiered_s" <("$freshet" tier stat --json) << 'EOF'
import json, sys
folder, plain_s, tiered_s, stat = sys.argv[1:]
plain = json.load(open(f"{folder}/plain.json"))["losses"]
tiered = json.load(open(f"{folder}/tiered.json"))["losses"]
total = json.loads(open(stat).read().splitlines()[-1])
print(f"{'':24}{'without':>26}{'with, killed in epoch 2':>26}")
for epoch, losses in enumerate(zip(plain, tiered), 1): print(f"loss of epoch {epoch:<10}{losses[0]:>26}{losses[1]:>26}")
print(f"{'seconds':24}{plain_s:>26}{tiered_s:>26}")
for row in total["epochs"]:
    print(f"open {row['epoch']} of each file: {row['hits']} of {row['opens']} from the tier, "
          f"{row['hit_bytes'] / 1e6:.1f} MB there, {row['miss_bytes'] / 1e6:.1f} MB from the source")
print(f"copied: {total['copied_files']} files, {total['copied_bytes'] / 1e6:.1f} MB, "
      f"for {total['source_read_bytes'] / 1e6:.1f} MB read at the source")
if plain != tiered: sys.exit("prove_tiering: the losses differ")
print("losses are equal to the last bit")
EOF
cat "$folder/verified.txt"
