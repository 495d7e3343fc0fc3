# ---- One srun task per node, torchrun starts the processes of its node. ---------------------------
restart=${SLURM_RESTART_COUNT:-0}      # unset in the first run
max_requeues=${MAX_REQUEUES:-50}
[ "$SLURM_JOB_NUM_NODES" = "$nodes" ] || fail \
  "the job has $SLURM_JOB_NUM_NODES nodes, the plan needs $nodes" "submit without --nodes, or plan again"

hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")   # no "| head": SIGPIPE under pipefail
first_host=${hosts%%$'\n'*}
meeting=$first_host
if ! getent hosts "$first_host" >/dev/null; then         # a node name that is no host name: Slurm knows the address
  address=$(scontrol show node -o "$first_host" || true)
  case $address in *NodeAddr=*) address=${address#*NodeAddr=} && meeting=${address%%[[:space:]]*} ;; esac
fi
port=$((20000 + SLURM_JOB_ID % 10000))                   # jobs that share a node must not share a port
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1              # with --max-restarts: stale addresses otherwise
exported+=(TORCH_DISABLE_SHARE_RDZV_TCP_STORE)
launch+=(
  --max-restarts=1
  --rdzv-backend=c10d
  --rdzv-endpoint="$meeting:$port"
  --rdzv-id="$SLURM_JOB_ID-$restart"
  -m "$program" "${arguments[@]}")

step=(srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --kill-on-bad-exit=1
  --export=ALL                                           # also after sbatch --export=NONE
  --cpus-per-task="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}")   # srun does not inherit it (22.05)
mounts=("$PWD:$PWD" "${container_mounts[@]}")
case ${container_runtime:?} in
  none) ;;
  pyxis)
    step+=(--container-image="$container_image" --container-mounts="$(IFS=, && echo "${mounts[*]}")"
      --container-workdir="$PWD" --container-env="$(IFS=, && echo "${exported[*]}")") ;;
  apptainer)
    launch=(apptainer exec "${container_gpus[@]}" --bind "$(IFS=, && echo "${mounts[*]}")" --pwd "$PWD"
      "${container_image:?}" "${launch[@]}") ;;
  *) fail "container_runtime $container_runtime is not known" "use none, pyxis or apptainer" ;;
esac
if [ "$container_runtime" != none ]; then
  case $PWD in *[:,]*) fail "the directory $PWD has a colon or comma, which container mounts cannot carry" ;; esac
fi

# Runs on every node, where its own node number and GPUs are known; $1 is the number of GPUs of the plan.
# shellcheck disable=SC2016
on_each_node='
set -euf
planned=$1
shift
stop() { printf "error: node %s (%s): %s\n" "${SLURM_NODEID:-?}" "$(uname -n)" "$1" >&2; exit 2; }
[ "${SLURM_LOCALID:-0}" = 0 ] || stop "two tasks were started on one node; torchrun needs one"
visible=${CUDA_VISIBLE_DEVICES:-${ROCR_VISIBLE_DEVICES:-}}
if [ "$planned" -gt 0 ]; then
  [ "${SLURM_GPUS_ON_NODE:-$planned}" = "$planned" ] ||
    stop "Slurm gave $SLURM_GPUS_ON_NODE GPUs, the plan needs $planned"
  if [ -n "$visible" ]; then
    IFS=,
    count=0 seen=,
    for device in $visible; do
      case $seen in *,"$device",*) stop "GPU $device is visible twice ($visible)" ;; esac
      seen=$seen$device, count=$((count + 1))
    done
    unset IFS
    [ "$count" = "$planned" ] || stop "$count GPUs are visible ($visible), the plan needs $planned"
  fi
fi
echo "node ${SLURM_NODEID:-?} is $(uname -n), GPUs ${visible:-none}"
if [ "$planned" -gt 0 ] && command -v nvidia-smi >/dev/null; then nvidia-smi -L || true; fi
exec "$@"
'

# --- stop when asked: the time limit is near, or the job is preempted -------------------------------
# No trap on CONT: with one, some signals at the time limit were lost.
stop_requested=0
srun_pid=
# shellcheck disable=SC2317,SC2329  # called by trap
request_stop() {
  stop_requested=1
  : 2>/dev/null >"$output_directory/STOP" || true        # seen by rank 0 where the signal does not get through
  if [ -n "$srun_pid" ]; then kill -USR1 "$srun_pid" 2>/dev/null || true; fi
}
trap request_stop USR1

echo "start: job $SLURM_JOB_ID restart $restart, $nodes x $processes_per_node = $planned_processes processes of $program"
echo "nodes: ${hosts//$'\n'/ } rendezvous: $meeting:$port output: $output_directory"
rc=0
if [ "$stop_requested" = 0 ]; then
  # in the background: the shell runs no trap while it waits for a command in the foreground
  "${step[@]}" bash -c "$on_each_node" on_each_node "$gpus_per_node" "${launch[@]}" &
  srun_pid=$!
  if [ "$stop_requested" = 1 ]; then kill -USR1 "$srun_pid" 2>/dev/null || true; fi
  while :; do
    rc=0
    wait "$srun_pid" || rc=$?
    kill -0 "$srun_pid" 2>/dev/null || break             # interrupted by the trap: wait again
  done
fi
echo "end: srun returned $rc, stop requested: $stop_requested"

# srun returns the highest code of all tasks, so a finished run is known by its marker.
if [ -e "$output_directory/FINISHED" ]; then
  echo "finished: $output_directory/FINISHED"
  exit 0
fi
if [ "$stop_requested" = 1 ]; then
  if [ "$restart" -lt "$max_requeues" ]; then
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
  fi
  echo "error: stopped, and not requeued after $restart restarts (MAX_REQUEUES=$max_requeues)" >&2
  exit 1
fi
exit "$rc"
