#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves the project's commands on a Debian 12 that has nothing: a debootstrap chroot of bookworm, the committed tree, one run
# with a network and a second one without. Needs root, debootstrap and iproute2. Everything is mounted in a mount namespace of
# its own, so nothing stays mounted whatever happens.
#
# usage: scripts/prove_fresh.sh [--folder DIR] [--as WHO]… [--mirror URL] [--keep] build|demo|test [ARG…]
#   --folder DIR   where the chroots and logs go (default: /tmp/freshet-prove); DIR/base is made once and used again
#   --as root      as root, on a system without sudo
#   --as user      as a user who has sudo and types the command plainly
#   --as sudo      as a user who types sudo in front of the command     (default: all three)
#   --mirror URL   a Debian mirror (default: http://deb.debian.org/debian)
#   --keep         leaves the chroots, which hold the built tree
#   ARG…           arguments of the command
set -euo pipefail

fail() {
  echo "prove_fresh: $*" >&2
  exit 1
}

usage() {
  sed -n 's/^# \{0,1\}//; /^usage/,/^  ARG/p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

arguments=("$@")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=/tmp/freshet-prove
mirror=http://deb.debian.org/debian
people=()
keep=0
while [ $# -gt 0 ]; do
  case "$1" in
    --folder) folder=$2; shift 2 ;;
    --as) people+=("$2"); shift 2 ;;
    --mirror) mirror=$2; shift 2 ;;
    --keep) keep=1; shift ;;
    build | demo | test) break ;;
    *) usage ;;
  esac
done
[ $# -gt 0 ] || usage
command=$1
shift
[ ${#people[@]} -gt 0 ] || people=(root user sudo)

[ "$(id -u)" -eq 0 ] || fail "needs root, for the chroot"
for tool in debootstrap ip unshare git; do
  command -v "$tool" > /dev/null || fail "needs $tool"
done

# A namespace for mounts and one for processes: both end with this script.
if [ -z "${FRESHET_PROVE_INSIDE:-}" ]; then
  FRESHET_PROVE_INSIDE=1 exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
    "${BASH_SOURCE[0]}" "${arguments[@]}"
fi

make_base() {
  [ -f "$folder/base/.complete" ] && return
  rm -rf "$folder/base"
  echo "prove_fresh: debootstrap bookworm into $folder/base"
  debootstrap --variant=minbase bookworm "$folder/base" "$mirror" > "$folder/debootstrap.log" 2>&1 ||
    fail "debootstrap failed, see $folder/debootstrap.log"
  {
    echo "deb $mirror bookworm main"
    echo "deb $mirror bookworm-updates main"
    echo "deb ${mirror%/debian}/debian-security bookworm-security main"
  } > "$folder/base/etc/apt/sources.list"
  # How this machine reaches its mirror (a proxy, a snapshot whose lists are old) holds inside as well.
  apt-config dump | grep -E '^Acquire::(https?::|Check)' > "$folder/base/etc/apt/apt.conf.d/99host" || true
  if [ -f /etc/ssl/certs/ca-certificates.crt ]; then
    install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$folder/base/etc/ssl/certs/ca-certificates.crt"
  fi
  touch "$folder/base/.complete"
}

# make_chroot FOLDER WHO: a copy of the base with the tree in /srv/freshet, and somebody who may use sudo.
make_chroot() {
  local chroot=$1 who=$2
  rm -rf "$chroot"
  cp -a "$folder/base" "$chroot"
  cp -L /etc/resolv.conf "$chroot/etc/resolv.conf"
  mkdir -p "$chroot/srv/freshet"
  git -c safe.directory="$root" -C "$root" archive HEAD | tar -x -C "$chroot/srv/freshet"
  mount -t proc proc "$chroot/proc"
  mount --rbind /sys "$chroot/sys"
  mount --rbind /dev "$chroot/dev"
  if [ "$who" != root ]; then
    chroot "$chroot" env DEBIAN_FRONTEND=noninteractive sh -c \
      'apt-get -q update && apt-get -q -y install --no-install-recommends sudo && useradd -m -s /bin/bash somebody' \
      > "$chroot.prepare.log" 2>&1 || fail "cannot prepare $chroot, see $chroot.prepare.log"
    echo 'somebody ALL=(ALL) NOPASSWD: ALL' > "$chroot/etc/sudoers.d/somebody"
    chroot "$chroot" chown -R somebody: /srv/freshet
  fi
}

# enter CHROOT WHO COMMAND…: with an environment that has nothing of this machine's, from another folder than the tree.
enter() {
  local chroot=$1 who=$2 home=/root
  shift 2
  local before=()
  case "$who" in
    root) ;;
    user) before=(setpriv --reuid somebody --regid somebody --init-groups); home=/home/somebody ;;
    sudo) before=(setpriv --reuid somebody --regid somebody --init-groups sudo); home=/home/somebody ;;
    *) usage ;;
  esac
  env -i "$(command -v chroot)" "$chroot" /usr/bin/env "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" "HOME=$home" \
    LANG=C.UTF-8 "${before[@]}" "$@" < /dev/null
}

# timed LOG COMMAND…: prints the seconds that it took.
timed() {
  local log=$1 start=$SECONDS
  shift
  "$@" > "$log" 2>&1 || return 1
  echo $((SECONDS - start))
}

mkdir -p "$folder/logs"
make_base
failures=0
for who in "${people[@]}"; do
  chroot="$folder/chroot-$who"
  make_chroot "$chroot" "$who"
  program=/srv/freshet/scripts/$command.sh
  log="$folder/logs/$command-$who"
  if ! first=$(timed "$log-1.log" enter "$chroot" "$who" "$program" "$@"); then
    echo "FAILED: $command as $who, first run; last lines of $log-1.log:"
    tail -n 15 "$log-1.log"
    failures=$((failures + 1))
  elif ! second=$(export -f enter; timed "$log-2.log" unshare --net bash -c \
      'ip link set lo up && enter "$@"' bash "$chroot" "$who" "$program" "$@"); then
    echo "FAILED: $command as $who, second run, offline; last lines of $log-2.log:"
    tail -n 15 "$log-2.log"
    failures=$((failures + 1))
  else
    echo "proved: $command as $who: first run $first s, second run, offline, $second s; it ended with:"
    tail -n 1 "$log-2.log"
  fi
  umount -R "$chroot/dev" "$chroot/sys" "$chroot/proc"
  [ "$keep" -eq 1 ] || rm -rf --one-file-system "$chroot"
done
[ "$failures" -eq 0 ]
