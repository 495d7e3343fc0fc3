# ---- torchrun on this machine, or on each of several (c10d, so no node needs a rank). -------------
if [ "$nodes" = 1 ]; then
  torchrun+=(--standalone)
else
  [ -n "${RDZV_ENDPOINT:-}" ] || fail "this plan is for $nodes nodes" \
    "start this script on each of them with RDZV_ENDPOINT=HOST:PORT and RDZV_ID=NAME (and NODE_RANK=0, 1, ..., from HOST
  on, to check them together before the start), or use: sbatch train.sbatch"
  torchrun+=(--rdzv-backend=c10d --rdzv-endpoint="$RDZV_ENDPOINT" --rdzv-id="${RDZV_ID:?the same name on every node}")
fi
if [ "${gpus_per_node:?}" -gt 0 ]; then
  found=''
  if command -v nvidia-smi >/dev/null; then
    found=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | wc -l) || found=0  # no driver, no device
  elif ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && ! compgen -G '/dev/dri/renderD*' >/dev/null &&
    [ ! -e /dev/dxg ] && [ ! -e /dev/kfd ]; then         # no driver of any vendor
    found=0
  fi
  [ "$found" != 0 ] || fail "the plan needs $gpus_per_node GPUs per node, this machine has none" \
    "start it where they are; to try it on this machine's processors, plan again with --cluster local-cpu"
  [ "${found:-$gpus_per_node}" -ge "$gpus_per_node" ] || fail \
    "this machine has $found GPUs, the plan needs $gpus_per_node per node" \
    "plan again for this machine with toolkit plan --gpus $found"
fi
rc=0
"$python" -m toolkit.runtime.lease "$output_directory" || rc=$?      # whether another run is there
if [ "$rc" = 130 ]; then exit 75; fi
if [ "$rc" != 0 ]; then exit "$rc"; fi
if [ "${#preflight[@]}" -gt 0 ]; then                     # of this machine, or of all where their numbers are given
  rc=0 there=(--nodes 1 --node 0)
  if [ "$nodes" != 1 ] && [ -n "${NODE_RANK:-}" ]; then
    case $RDZV_ENDPOINT in *:*) place=$RDZV_ENDPOINT ;; *) place=$RDZV_ENDPOINT:29400 ;; esac       # torchrun's own
    there=(--nodes "$nodes" --node "$NODE_RANK" --rendezvous "$place" --run-id "$RDZV_ID")
  fi
  "${preflight[@]}" "${there[@]}" || rc=$?
  if [ "$rc" = 130 ]; then exit 75; fi                    # Ctrl-C: stopped before the start
  if [ "$rc" != 0 ]; then
    remedy=' (PREFLIGHT=0 starts all the same)'
    if [ "$rc" = 2 ]; then remedy=; fi                    # wrong input is so for the program too
    echo "error: not started: toolkit preflight returned $rc, see above$remedy" >&2
    exit "$rc"
  fi
fi
echo "start: $nodes x $processes_per_node processes of $program, output in $output_directory"
exec "${torchrun[@]}" --max-restarts=0 -m "$program" "${arguments[@]}"
