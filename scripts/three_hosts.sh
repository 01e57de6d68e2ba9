#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The live run over three hosts in network namespaces: the trainer and the repository on the first, a relay on the second,
# two servers and the load on the third. Packets get lost, a cable is pulled now and then, processes are killed and
# stopped. It is good when no answer was torn, no request failed, no arrival was lost, and everything came back.
# Needs root, iproute2 and iptables.
#
# usage: scripts/three_hosts.sh [--seconds S] [--loss SHARE] [--kill-every S] [--channel KIND] [--report DIR] [ARG…]
#   --seconds S      how long (default: 600)
#   --loss SHARE     of the packets that each host receives (default: 0.01)
#   --kill-every S   seconds between two kills; 0 for none (default: 15)
#   --channel KIND   zmq, ucx or auto (default: auto)
#   --report DIR     as live_run's (default: three_hosts_report)
#   ARG…             further arguments of live_run
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
  echo "three_hosts: $*" >&2
  exit 1
}

seconds=600 loss=0.01 kill_every=15 channel=auto report=three_hosts_report rate=200
arguments=()
given=("$@")
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) seconds=$2; shift 2 ;;
    --loss) loss=$2; shift 2 ;;
    --kill-every) kill_every=$2; shift 2 ;;
    --channel) channel=$2; shift 2 ;;
    --report) report=$2; shift 2 ;;
    --rate) rate=$2; shift 2 ;;
    -h | --help) sed -n 's/^# \{0,1\}//; /^usage/,/^With/p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) arguments+=("$1"); shift ;;
  esac
done

if [ -z "${LAB_TRAINER_NETNS:-}" ]; then
  if [ -z "${FRESHET_BIN:-}" ]; then
    "$root/scripts/build.sh" live_run freshet net_lab >&2
    export FRESHET_BIN="$root/build/bin"
  fi
  cut=()
  # Pulled at an odd rhythm, so that it meets the kills in every order.
  [ "$kill_every" = 0 ] || cut=(--cut relay --cut-every 23 --cut-for 1.5)
  exec "$FRESHET_BIN/lab/net_lab" --host trainer --host relay --host servers --loss "$loss" "${cut[@]}" -- \
    "${BASH_SOURCE[0]}" "${given[@]}"
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/freshet-three-hosts.XXXXXX")
live=
finish() {
  [ -z "$live" ] || kill -TERM "$live" 2> /dev/null || true
  rm -rf "$folder"
}
trap finish EXIT

# Keys: the relay is to its servers what the trainer is to it, and has the trainer's key, so that they may go to either.
for name in trainer server; do "$FRESHET_BIN/freshet" keygen "$folder/$name" > /dev/null; done
cat "$folder/server.pub" > "$folder/servers.allow"
chmod 600 "$folder/servers.allow"
cat "$folder/trainer.pub" >> "$folder/servers.allow"
for host in trainer relay servers; do mkdir -m 700 "$folder/host-$host"; done

trusted=false
[ "$channel" != ucx ] || trusted=true
python3 - "$folder" "$channel" "$trusted" > "$folder/hosts.json" << 'PYTHON'
import json, os, sys
folder, channel, trusted = sys.argv[1], sys.argv[2], sys.argv[3] == "true"
def on(host, **more):
    plan = {"netns": os.environ[f"LAB_{host.upper()}_NETNS"], "directory": f"{folder}/host-{host}"}
    if "keys" in more:
        plan["trusted_fabric"] = trusted
    plan.update(more)
    return plan
def address(host):
    return f"tcp://{os.environ[f'LAB_{host.upper()}_ADDRESS']}:7070"
public, allow = f"{folder}/trainer.pub", f"{folder}/servers.allow"
print(json.dumps({
    "trainer": on("trainer", listen=address("trainer"), keys=f"{folder}/trainer", allow=allow),
    "repository": on("trainer", keys=f"{folder}/server", server_key=public),
    "relay": on("relay", at=address("trainer"), listen=address("relay"), keys=f"{folder}/trainer", allow=allow,
                server_key=public, channel=channel),
    "server": on("servers", at=f"{address('relay')},{address('trainer')}", keys=f"{folder}/server", server_key=public,
                 channel=channel),
    "load": on("servers"),
}))
PYTHON

"$FRESHET_BIN/live_run" --hosts "$folder/hosts.json" --seconds "$seconds" --rate "$rate" --report "$report" --json \
  "${arguments[@]}" > "$folder/summary" &
live=$!

# Prints the processes of a role, oldest first.
roles() {
  local pid
  for pid in $(cat "/proc/$live/task/$live/children" 2> /dev/null); do
    tr '\0' ' ' < "/proc/$pid/cmdline" 2> /dev/null | grep -q -- "--role=$1 " && echo "$pid"
  done
  return 0
}

kills=0
# One after the other, so that there is always a server whose version is some seconds old at most.
victims=(relay server trainer repository server)
hurt() {
  local role=${victims[$((kills % ${#victims[@]}))]} pids=()
  mapfile -t pids < <(roles "$role")
  [ ${#pids[@]} -gt 0 ] || return 0
  local pid=${pids[$((kills % ${#pids[@]}))]}
  if [ $((kills % 4)) -eq 3 ]; then
    kill -STOP "$pid" 2> /dev/null || return 0
    sleep 2
    kill -CONT "$pid" 2> /dev/null || true
  fi
  kill -KILL "$pid" 2> /dev/null || return 0
  kills=$((kills + 1))
}

# The kills stop a while before the end, so that the last one's role is back when the run ends.
last_kill=$((SECONDS + seconds - 5))
next_kill=$((SECONDS + kill_every))
while kill -0 "$live" 2> /dev/null; do
  if [ "$kill_every" != 0 ] && [ $SECONDS -ge $next_kill ] && [ $SECONDS -lt $last_kill ]; then
    hurt
    next_kill=$((SECONDS + kill_every))
  fi
  sleep 0.2
done
code=0
wait "$live" || code=$?
live=

python3 - "$folder/summary" "$code" "$kills" "$seconds" "$rate" << 'PYTHON'
import json, sys
path, code, kills, seconds, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])
lines = open(path).read().splitlines()
if not lines:
    sys.exit("three_hosts: live_run ended without a summary")
summary = json.loads(lines[-1])
arrivals = rate * summary["seconds"]
lost = max(0, round(arrivals - summary["requests"]))
wrong = [text for text, bad in (
    (f"live_run ended with {code}", code != 0),
    (f"{summary['torn_reads']} torn reads", summary["torn_reads"] > 0),
    (f"{summary['failed_requests']} failed requests", summary["failed_requests"] > 0),
    (f"{lost} arrivals lost", lost > max(0.01 * arrivals, rate)),
    (f"{summary['requests'] - summary['checked_answers']} answers unchecked",
     summary["checked_answers"] < summary["requests"]),
    (f"{summary['restarts']} restarts after {kills} kills", summary["restarts"] < kills),
    ("the repository kept nothing", summary["repo_versions"] == 0),
    ("nothing new was served", summary["versions_served"] < 2)) if bad]
summary.update(kills=kills, lost_arrivals=lost)
print(json.dumps(summary))
if wrong:
    sys.exit("three_hosts: " + "; ".join(wrong))
print(f"three_hosts: {summary['seconds']:.0f} s, {kills} kills, {summary['requests']} requests, none failed, none torn; "
      f"{summary['versions_published']} versions, {summary['versions_served']} of them served", file=sys.stderr)
PYTHON
