#!/bin/bash
# start_slurm.sh DIR: a private Slurm on this machine (munged, slurmctld and N slurmd), all of it under DIR.
#
# SLURM_FIX_MODE   netns   a PID, mount, UTS and network namespace for the cluster and one for each node:
#                          own host names, addresses and ports, as on real machines; one pid to kill
#                  ns      the same without network namespaces
#                  plain   no namespaces, no privileges; host names do not resolve
#                  auto    the first of these that works here (default)
# SLURM_FIX_NODES (2), SLURM_FIX_CPUS (96), SLURM_FIX_MEM_MB (1000000): what every node claims to have
# SLURM_FIX_GRES (gpu:h100:8), SLURM_FIX_PARTITIONS (main): fake GPUs by type; partitions besides urgent
# SLURM_FIX_SMALL (4m): size of DIR/small, a file system of its own
# SLURM_FIX_SELECT (CR_Core): what jobs share out; SLURM_FIX_CONF: further lines of slurm.conf
# SLURM_FIX_WATCH  a pid: the cluster is stopped when that process ends, however it ends
#
# Written for Slurm 22.05 (Debian 12). Commands run inside with DIR/in-cluster; stop_slurm.sh DIR stops it.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
dir=$(realpath -m "${1:?usage: start_slurm.sh DIR}")
nodes=${SLURM_FIX_NODES:-2}
cpus=${SLURM_FIX_CPUS:-96}
memory=${SLURM_FIX_MEM_MB:-1000000}
gres=${SLURM_FIX_GRES-gpu:h100:8}
partitions=${SLURM_FIX_PARTITIONS:-main}
mode=${SLURM_FIX_MODE:-auto}
PATH=$PATH:/usr/sbin:/sbin
umask 022

[ ! -e "$dir/run/mode" ] || { echo "already started in $dir: stop it first" >&2; exit 1; }
missing=
for program in munged slurmctld slurmd sbatch ip; do command -v "$program" >/dev/null || missing="$missing $program"; done
[ -z "$missing" ] || { echo "not installed:$missing" >&2; exit 3; }

# ---- which isolation this machine allows ---------------------------------------------------------------------
as_user=()
# --map-root-user would make Slurm call setgroups(), which an unprivileged user namespace denies
[ "$(id -u)" = 0 ] || as_user=(--user --map-current-user --keep-caps)
spaces=(--pid --fork --kill-child --mount --mount-proc --propagation private --uts)
bridge='ip link add br0 type bridge && ip link add veth0 type veth peer name veth1'
if [ "$mode" = auto ]; then
  if unshare "${as_user[@]}" "${spaces[@]}" --net sh -c "hostname n && $bridge" >/dev/null 2>&1; then mode=netns
  elif unshare "${as_user[@]}" "${spaces[@]}" hostname n >/dev/null 2>&1; then mode=ns
  else mode=plain; fi
fi
case $mode in
  netns) spaces+=(--net); enter=(-m -u -p -n) ;;
  ns) enter=(-m -u -p) ;;
  plain) as_user=(); enter=() ;;
  *) echo "SLURM_FIX_MODE $mode is none of auto, netns, ns, plain" >&2; exit 2 ;;
esac
port=17000                                                  # netns: its own ports
[ "$mode" = netns ] || port=$((17000 + $$ % 700 * 20))      # otherwise two clusters may run side by side

rm -rf "$dir/state" "$dir/spool"                            # else jobs of an earlier cluster come back as running
mkdir -p "$dir"/{run,log,state,spool,gpus,small}
chmod 755 "$dir" "$dir/run"                                 # munged insists
echo "$mode" >"$dir/run/mode"
(umask 077; head -c 128 /dev/urandom >"$dir/run/munge.key")

# Only proctrack/cgroup finds orphans that called setsid(), as torchrun's workers do. It needs a writable v1
# freezer; the cluster gets a subtree of its own, bind-mounted inside its mount namespace.
tracking=linuxproc
if [ "$(id -u)" = 0 ] && [ "$mode" != plain ] && [ -w /sys/fs/cgroup/freezer/tasks ]; then
  tracking=cgroup
  mkdir "/sys/fs/cgroup/freezer/slurmfix.$$"
  echo "/sys/fs/cgroup/freezer/slurmfix.$$" >"$dir/run/cgroup"
fi

# ---- configuration -------------------------------------------------------------------------------------------
machine=$(uname -n)
machine=${machine%%.*}
names="n[1-$nodes]"
ports="[$((port + 1))-$((port + nodes))]"
if [ "$nodes" = 1 ]; then names=n1; ports=$((port + 1)); fi
communication=
case $mode in
  netns) controller="ctl(10.77.255.254)"; where="NodeHostname=$names Port=$((port + 1))" ;;
  ns) controller="$machine(127.0.0.1)"; where="NodeHostname=$names NodeAddr=127.0.0.1 Port=$ports" ;;
  plain) controller="$machine(127.0.0.1)"; where="NodeHostname=$machine NodeAddr=127.0.0.1 Port=$ports"
    communication="CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" ;;  # in ns mode srun in a job would hang
esac
{
  cat <<CONF
ClusterName=fixture
SlurmctldHost=$controller
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthType=auth/munge
# cred_expire is also how long a requeued job waits; 5 is the least that is allowed
AuthInfo=socket=$dir/run/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
PlugStackConfig=$dir/plugstack.conf
ProctrackType=proctrack/$tracking
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/log/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=${SLURM_FIX_SELECT:-CR_Core}
${SLURM_FIX_CONF:-}
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
EnforcePartLimits=ALL
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
ReturnToService=2
KillWait=5
SlurmdTimeout=10
MessageTimeout=5
$communication
TCPTimeout=2
UnkillableStepTimeout=20
MinJobAge=3600
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=$names $where CPUs=$cpus RealMemory=$memory ${gres:+Gres=$gres }State=UNKNOWN
CONF
  default=YES
  for partition in $partitions; do
    echo "PartitionName=$partition Nodes=$names Default=$default MaxTime=INFINITE DefaultTime=10 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=10"
    default=NO
  done
  echo "PartitionName=urgent Nodes=$names MaxTime=INFINITE DefaultTime=10 State=UP PriorityTier=10 PreemptMode=OFF"
} >"$dir/slurm.conf"

# A fake GPU is a character device with a name of its own; then Slurm sets CUDA_VISIBLE_DEVICES as for a real one.
{
  echo "AutoDetect=off"
  for one in ${gres//,/ }; do
    IFS=: read -r _ kind count <<<"$one"
    for ((i = 0; i < count; i++)); do ln -sfn /dev/null "$dir/gpus/$kind$i"; done
    echo "NodeName=$names Name=gpu Type=$kind File=$dir/gpus/${kind}[0-$((count - 1))] Flags=nvidia_gpu_env"
  done
} >"$dir/gres.conf"
: >"$dir/plugstack.conf"
echo "CgroupPlugin=cgroup/v1" >"$dir/cgroup.conf"           # an empty file makes slurmd warn
{
  echo "127.0.0.1 localhost"
  if [ "$mode" = netns ]; then echo "10.77.255.254 ctl"; else echo "127.0.0.1 $machine"; fi
  for ((i = 1; i <= nodes; i++)); do
    if [ "$mode" = netns ]; then echo "10.77.0.$i n$i"; else echo "127.0.1.$i n$i"; fi
  done
} >"$dir/hosts"

# ---- daemons -------------------------------------------------------------------------------------------------
export SLURM_CONF=$dir/slurm.conf
munge=(munged --key-file="$dir/run/munge.key" --socket="$dir/run/munge.socket" --pid-file="$dir/run/munged.pid"
  --log-file="$dir/log/munged.log" --seed-file="$dir/run/munged.seed" --num-threads=2)
if [ "$mode" = plain ]; then
  "${munge[@]}"
  for ((i = 0; i < 200; i++)); do [ ! -S "$dir/run/munge.socket" ] || break; sleep 0.02; done
  slurmctld
  for ((i = 1; i <= nodes; i++)); do slurmd -N "n$i" 2>>"$dir/log/slurmd-n$i.out"; done
  printf '#!/bin/sh\nexport SLURM_CONF=%q\nexec "$@"\n' "$dir/slurm.conf" >"$dir/in-cluster"
else
  [ "${#as_user[@]}" = 0 ] || munge+=(--force)
  setsid unshare "${as_user[@]}" "${spaces[@]}" \
    bash "$here/cluster_init.sh" "$dir" "$nodes" "$mode" "${munge[@]}" </dev/null >"$dir/log/init.out" 2>&1 &
  outer=$!
  inner=
  for ((i = 0; i < 200; i++)); do                           # its only child is pid 1 of the new PID namespace
    read -r inner <"/proc/$outer/task/$outer/children" 2>/dev/null || true
    inner=${inner%% *}
    if [ -n "$inner" ] && grep -q cluster_init.sh "/proc/$inner/cmdline" 2>/dev/null; then break; fi
    sleep 0.02
  done
  [ -n "$inner" ] || { echo "the namespaces were not made:" >&2; cat "$dir/log/init.out" >&2; exit 1; }
  printf '%s\n' "$outer" >"$dir/run/unshare.pid"
  printf '%s\n' "$inner" >"$dir/run/init.pid"
  [ "${#as_user[@]}" = 0 ] || enter=(-U --preserve-credentials "${enter[@]}")
  {
    echo '#!/bin/sh'
    printf 'grep -q -F -- %q /proc/%s/cmdline 2>/dev/null || { echo "the cluster is not running" >&2; exit 1; }\n' "$dir" "$inner"
    printf 'export SLURM_CONF=%q\n' "$dir/slurm.conf"
    # shellcheck disable=SC2016  # for the script that is written
    printf 'exec nsenter -t %s %s --wdns="$PWD" -- "$@"\n' "$inner" "${enter[*]}"
  } >"$dir/in-cluster"
fi
chmod 755 "$dir/in-cluster"
if [ -n "${SLURM_FIX_WATCH:-}" ]; then
  # shellcheck disable=SC2016  # expanded by the inner shell
  setsid bash -c 'tail --pid="$1" -s 0.5 -f /dev/null; SLURM_FIX_WATCH=self "$2/stop_slurm.sh" "$3" && rm -rf "$3"' \
    watch "$SLURM_FIX_WATCH" "$here" "$dir" </dev/null >/dev/null 2>&1 &
  printf '%s\n' "$!" >"$dir/run/watch.pid"
fi

SECONDS=0
while [ "$SECONDS" -lt 30 ]; do
  state=$(timeout 5 "$dir/in-cluster" sinfo -h -p urgent -o "%D %T" 2>/dev/null || true)
  case $state in
    "$nodes idle") echo "slurm is up: mode=$mode nodes=$nodes SLURM_CONF=$SLURM_CONF"; exit 0 ;;
    *inval* | *drain*) break ;;
  esac
  sleep 0.05
done
echo "the nodes did not become idle:" >&2
timeout 10 "$dir/in-cluster" scontrol show node 2>&1 | grep -E "NodeName|State|Reason" >&2 || true
tail -n 5 "$dir"/log/* >&2
"$here/stop_slurm.sh" "$dir"
exit 1
