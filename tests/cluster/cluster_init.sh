#!/bin/bash
# cluster_init.sh DIR NODES MODE MUNGED...: pid 1 of the cluster's PID namespace; start_slurm.sh starts it.
# It never ends by itself: killing it is how the cluster is stopped, the kernel then kills all the rest.
set -u
dir=$1 nodes=$2 mode=$3
shift 3
mount --bind "$dir/hosts" /etc/hosts
if [ -s "$dir/run/cgroup" ]; then mount --bind "$(cat "$dir/run/cgroup")" /sys/fs/cgroup/freezer; fi
if [ "$mode" = netns ]; then
  hostname ctl
  ip link set lo up
  ip link add br0 type bridge
  ip addr add 10.77.255.254/16 dev br0
  ip link set br0 up
fi
"$@" --foreground >"$dir/log/munged.out" 2>&1 &
for ((i = 0; i < 200; i++)); do [ ! -S "$dir/run/munge.socket" ] || break; sleep 0.02; done
slurmctld -D >"$dir/log/slurmctld.out" 2>&1 &
for ((i = 1; i <= nodes; i++)); do
  if [ "$mode" = netns ]; then
    # shellcheck disable=SC2016  # expanded by the inner shell, on its node
    unshare --uts --net --mount bash -c '
      hostname "n$1"
      echo $$ >"$0/run/node-n$1.pid"
      ip link set lo up
      until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
      ip addr add "10.77.0.$1/16" dev eth0
      ip link set eth0 up
      exec slurmd -D -N "n$1"' "$dir" "$i" >"$dir/log/slurmd-n$i.out" 2>&1 &
    until [ -s "$dir/run/node-n$i.pid" ]; do sleep 0.02; done
    ip link add "veth$i" type veth peer name eth0 netns "$(cat "$dir/run/node-n$i.pid")"
    ip link set "veth$i" master br0 up
  else
    # shellcheck disable=SC2016
    unshare --uts --mount bash -c 'hostname "n$1"; exec slurmd -D -N "n$1"' "$dir" "$i" >"$dir/log/slurmd-n$i.out" 2>&1 &
  fi
done
while :; do wait -n 2>/dev/null || sleep 0.2; done          # reap orphans
