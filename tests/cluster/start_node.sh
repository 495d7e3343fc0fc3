#!/bin/bash
# start_node.sh DIR I MODE: node nI with its name, address and slurmd; runs in the name spaces of the cluster, at its
# start and again after the node was killed, when its network name space and cable are gone with it.
set -u
dir=$1 i=$2 mode=$3
export SLURM_CONF=$dir/slurm.conf PATH=$PATH:/usr/sbin:/sbin
if [ "$mode" != netns ]; then
  # shellcheck disable=SC2016  # expanded by the inner shell, on its node
  setsid unshare --uts --mount bash -c 'hostname "n$1"; exec slurmd -D -N "n$1"' "$dir" "$i" \
    </dev/null >>"$dir/log/slurmd-n$i.out" 2>&1 &
  exit 0
fi
rm -f "$dir/run/node-n$i.pid"
# shellcheck disable=SC2016
setsid unshare --uts --net --mount bash -c '
  hostname "n$1"
  echo $$ >"$0/run/node-n$1.pid"
  ip link set lo up
  until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
  ip addr add "10.77.0.$1/16" dev eth0
  ip link set eth0 up
  exec slurmd -D -N "n$1"' "$dir" "$i" </dev/null >>"$dir/log/slurmd-n$i.out" 2>&1 &
until [ -s "$dir/run/node-n$i.pid" ]; do sleep 0.02; done
for ((k = 0; k < 100; k++)); do                             # the cable of a node that was killed goes a moment later
  ip link add "veth$i" type veth peer name eth0 netns "$(cat "$dir/run/node-n$i.pid")" 2>/dev/null && break
  sleep 0.05
done
ip link set "veth$i" master br0 up
