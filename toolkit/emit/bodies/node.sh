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
# More GPUs than planned are no trouble, as where --exclusive gives a job all of a node: the first ones are taken.
visible="" lists=""
for list in CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK GPU_DEVICE_ORDINAL; do
  eval "text=\${$list-}"
  if [ -n "$text" ]; then lists="$lists $list"; fi
  if [ -z "$visible" ]; then visible=$text; fi
done
if [ "$planned" -gt 0 ]; then
  given=${SLURM_GPUS_ON_NODE:-$planned}
  case $given in *[!0-9]*) given=$planned ;; esac
  [ "$given" -ge "$planned" ] || stop "Slurm gave $given GPUs, the plan needs $planned"
  case ${CUDA_VISIBLE_DEVICES-unset} in "" | NoDevFiles | -1) stop "no GPU is visible, the plan needs $planned" ;; esac
  for list in $lists; do
    eval "text=\$$list"
    count=0 seen=, first=""
    IFS=,
    for device in $text; do
      case $seen in *,"$device",*) stop "GPU $device is visible twice ($text)" ;; esac
      seen=$seen$device, count=$((count + 1))
      if [ "$count" -le "$planned" ]; then first="${first:+$first,}$device"; fi
    done
    unset IFS
    [ "$count" -ge "$planned" ] ||
      stop "$count GPUs are visible ($text), the plan needs $planned; --gpus-per-task and --gpu-bind hide them"
    if [ "$count" -gt "$planned" ]; then
      export "$list=$first"
      if [ "${SLURM_LOCALID:-0}" = 0 ] && [ "$text" = "$visible" ]; then
        echo "note: node ${SLURM_NODEID:-?} ($(uname -n)) has $count GPUs ($text), the plan takes the first: $first"
      fi
      if [ "$text" = "$visible" ]; then visible=$first; fi
    fi
  done
fi
if [ "${SLURM_LOCALID:-0}" = 0 ]; then
  echo "node ${SLURM_NODEID:-?} is $(uname -n), GPUs ${visible:-none}"
  if [ "$planned" -gt 0 ] && command -v nvidia-smi >/dev/null; then nvidia-smi -L || true; fi
fi
exec "$@"
'
