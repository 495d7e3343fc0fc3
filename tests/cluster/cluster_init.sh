#!/bin/bash
# cluster_init.sh DIR NODES MODE MUNGED...: pid 1 of the cluster's PID namespace; start_slurm.sh starts it.
# It never ends by itself: killing it is how the cluster is stopped, the kernel then kills all the rest.
set -u
dir=$1 nodes=$2 mode=$3
shift 3
mount --bind "$dir/hosts" /etc/hosts
if [ -s "$dir/run/cgroup" ]; then mount --bind "$(cat "$dir/run/cgroup")" /sys/fs/cgroup/freezer; fi
mount -t tmpfs -o size="${SLURM_FIX_SMALL:-4m}" tmpfs "$dir/small"     # a disk that is full soon, the same on all nodes
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
for ((i = 1; i <= nodes; i++)); do bash "$(dirname "$0")/start_node.sh" "$dir" "$i" "$mode"; done
while :; do wait -n 2>/dev/null || sleep 0.2; done          # reap orphans
