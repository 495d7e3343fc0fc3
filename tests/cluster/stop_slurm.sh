#!/bin/bash
# stop_slurm.sh DIR: stop what start_slurm.sh DIR started, by recorded pid, each checked to be ours. Leaves DIR's logs.
set -u
dir=$(realpath -m "${1:?usage: stop_slurm.sh DIR}")
export SLURM_CONF=$dir/slurm.conf PATH=$PATH:/usr/sbin:/sbin
mode=$(cat "$dir/run/mode" 2>/dev/null) || exit 0           # not started, or stopped before
alive() {                                                   # a dead process that nobody has reaped does not count
  [ -n "$1" ] && kill -0 "$1" 2>/dev/null && [ "$(awk '/^State/ {print $2}' "/proc/$1/status" 2>/dev/null)" != Z ]
}
wait_gone() { for ((i = 0; i < 200; i++)); do alive "$1" || return 0; sleep 0.05; done; return 1; }
named() { tr '\0' '\n' 2>/dev/null <"/proc/$1/cmdline" | grep -qxF -- "$2"; }
ours() { tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | grep -qxF -- "SLURM_CONF=$SLURM_CONF"; }
recorded() { cat "$dir/run/$1.pid" 2>/dev/null; }

watch=$(recorded watch)
if [ -n "$watch" ] && [ "${SLURM_FIX_WATCH:-}" != self ] && named "$watch" "$dir"; then
  read -r child <"/proc/$watch/task/$watch/children" || true
  kill "$watch" ${child:+"$child"} 2>/dev/null
fi
if [ "$mode" = plain ]; then
  timeout 10 scancel -u "$(id -un)" 2>/dev/null             # jobs first: a slurmstepd outlives its slurmd
  for ((i = 0; i < 100; i++)); do [ -n "$(timeout 5 squeue -h -o %i 2>/dev/null)" ] || break; sleep 0.1; done
  pids=()
  for file in "$dir"/run/slurmd-*.pid "$dir/run/slurmctld.pid" "$dir/run/munged.pid"; do
    [ -s "$file" ] || continue
    pid=$(cat "$file")
    if ours "$pid" && kill "$pid" 2>/dev/null; then pids+=("$pid"); fi
  done
  for pid in "${pids[@]}"; do wait_gone "$pid" || kill -9 "$pid"; done
  for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    if [ "$(cat "$process/comm" 2>/dev/null)" = slurmstepd ] && ours "$pid"; then kill -9 "$pid"; fi
  done
else
  for pid in $(recorded init) $(recorded unshare); do       # pid 1 of the namespace: the kernel kills all the rest
    if named "$pid" "$dir"; then kill -9 "$pid" 2>/dev/null; fi
  done
  for pid in $(recorded init) $(recorded unshare); do
    wait_gone "$pid" || { echo "process $pid does not end" >&2; exit 1; }
  done
fi
if [ -s "$dir/run/cgroup" ]; then                           # proctrack/cgroup leaves empty directories
  group=$(cat "$dir/run/cgroup")
  case $group in
    /sys/fs/cgroup/freezer/slurmfix.*)
      for ((i = 0; i < 100; i++)); do
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
        [ -d "$group" ] || break
        sleep 0.05
      done
      [ ! -d "$group" ] || { echo "$group cannot be removed" >&2; exit 1; } ;;
  esac
fi
rm -f "$dir"/run/*.pid "$dir"/run/munge.socket* "$dir/run/mode" "$dir/run/cgroup"
