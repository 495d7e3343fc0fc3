# ---- What each task does before it becomes torchrun, or the program. --------------------------------
# Runs on every node, where its own number and GPUs are known. $1: the launcher, $2: GPUs of the plan, then the command.
# shellcheck disable=SC2016
on_each_node='
set -euf
launcher=$1 planned=$2
shift 2
stop() { printf "error: node %s (%s): %s\n" "${SLURM_NODEID:-?}" "$(uname -n)" "$1" >&2; exit 2; }
if [ "$launcher" = torchrun ]; then
  [ "${SLURM_LOCALID:-0}" = 0 ] || stop "two tasks were started on one node; torchrun needs one"
else
  export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" WORLD_SIZE="$SLURM_NTASKS"
  export LOCAL_WORLD_SIZE=$((SLURM_NTASKS / SLURM_JOB_NUM_NODES))
fi
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
if [ "${SLURM_LOCALID:-0}" = 0 ]; then
  echo "node ${SLURM_NODEID:-?} is $(uname -n), GPUs ${visible:-none}"
  if [ "$planned" -gt 0 ] && command -v nvidia-smi >/dev/null; then nvidia-smi -L || true; fi
fi
exec "$@"
'
