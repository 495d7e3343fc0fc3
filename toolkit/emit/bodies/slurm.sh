# ---- What Slurm gave, and the command that starts one attempt. ------------------------------------
restart=${SLURM_RESTART_COUNT:-0}      # unset in the first run, or that of the job that submitted this one
if [ "$restart" != 0 ]; then
  record=$(scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | grep "^JobId=$SLURM_JOB_ID ") || true
  case $record in *" Restarts="*) restart=${record#* Restarts=} && restart=${restart%% *} ;; esac
fi
max_requeues=${MAX_REQUEUES:-50}       # starts again, of this job
max_no_progress=${MAX_NO_PROGRESS:-2}  # starts again in a row after which no newer checkpoint was there
[ "$SLURM_JOB_NUM_NODES" = "$nodes" ] || fail \
  "the job has $SLURM_JOB_NUM_NODES nodes, the plan needs $nodes" "submit without --nodes, or plan again"
[ "$restart" -le "$max_requeues" ] || fail "the job was started again $restart times (MAX_REQUEUES=$max_requeues)" \
  "look for the reason in $output_directory/restarts.jsonl, then submit it again: it goes on from its checkpoint"

hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")   # no "| head": SIGPIPE under pipefail
first_host=${hosts%%$'\n'*}
meeting=$first_host
if ! getent hosts "$first_host" >/dev/null; then         # a node name that is no host name: Slurm knows the address
  address=$(scontrol show node -o "$first_host" || true)
  case $address in *NodeAddr=*) address=${address#*NodeAddr=} && meeting=${address%%[[:space:]]*} ;; esac
fi

# What a user or a site asked of the whole job, or what the job had that this one was submitted from, and srun would ask
# again of each step: it hides GPUs from their processes, or contradicts the options below.
unset SLURM_GPUS SLURM_GPUS_PER_TASK SLURM_GPUS_PER_SOCKET SLURM_GPU_BIND SLURM_TRES_PER_TASK SLURM_TRES_BIND \
  SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_SOCKET SLURM_NTASKS_PER_CORE SLURM_CPUS_PER_GPU SLURM_GRES SLURM_STEP_GRES \
  SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_DISTRIBUTION SLURM_HOSTFILE SLURM_HINT \
  SLURM_THREADS_PER_CORE SLURM_CORE_SPEC SLURM_THREAD_SPEC SLURM_EXACT SLURM_EXCLUSIVE SLURM_OVERCOMMIT \
  SLURM_OVERLAP SLURM_NO_KILL SLURM_IMMEDIATE SLURM_TIMELIMIT SLURM_WAIT SLURM_TEST_EXEC SLURM_WORKING_DIR \
  SLURM_REMOTE_CWD SLURM_STDINMODE SLURM_STDOUTMODE SLURM_STDERRMODE SLURM_CONSTRAINT SLURM_HET_SIZE
case ${SLURM_CPU_BIND:-}${SLURM_MEM_BIND:-} in *mask_* | *map_*) unset SLURM_CPU_BIND SLURM_MEM_BIND ;; esac  # a step's
# Of a run that has submitted this job: its launcher's place, where rank 0 would wait for itself, and its defaults.
for name in "${!TORCHELASTIC_@}" "${!PET_@}"; do unset "$name"; done
cores=$SLURM_CPUS_ON_NODE                                # of the node that has the fewest
each=${SLURM_JOB_CPUS_PER_NODE:-}                        # 96(x2),64
for count in ${each//,/ }; do
  count=${count%%(*}
  if [ "$count" -lt "$cores" ]; then cores=$count; fi
done
everywhere=(srun --overlap --mem=0 --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --export=ALL
  --cpus-per-task="$cores")                              # a process for each GPU imports torch
step=(srun --nodes="$nodes" --kill-on-bad-exit=1 --mem=0   # all that the job has there
  --export=ALL)                                          # also after sbatch --export=NONE
case $launcher in
  torchrun)                                              # one task per node, torchrun starts the processes of its node
    step+=(--ntasks="$nodes" --ntasks-per-node=1)
    cpus=$cores ;;
  srun)                                                  # one task per process
    step+=(--ntasks="$planned_processes" --ntasks-per-node="$processes_per_node" --distribution=block)
    cpus=$((cores / processes_per_node)) ;;
  *) fail "launcher $launcher is not known" "use torchrun or srun" ;;
esac
if [ "$cpus" -lt 1 ]; then cpus=1; fi
# not SLURM_CPUS_PER_TASK: that of other tasks, where a user asked for those, or of the job that submitted this one
step+=(--cpus-per-task="$cpus")
mounts=("$PWD:$PWD" "${container_mounts[@]}")
in_container=()
container_options=()
case ${container_runtime:?} in
  none) ;;
  pyxis)
    # an image's own value of a variable wins over the job's unless pyxis is told the name
    exported+=(TORCH_DISABLE_SHARE_RDZV_TCP_STORE TOOLKIT_ATTEMPT MASTER_ADDR MASTER_PORT)
    container_options=(--container-image="$container_image" --container-mounts="$(IFS=, && echo "${mounts[*]}")"
      --container-workdir="$PWD" --container-env="$(IFS=, && echo "${exported[*]}")") ;;
  apptainer)
    in_container=(apptainer exec "${container_gpus[@]}" --bind "$(IFS=, && echo "${mounts[*]}")" --pwd "$PWD"
      "${container_image:?}") ;;
  *) fail "container_runtime $container_runtime is not known" "use none, pyxis or apptainer" ;;
esac
if [ "$container_runtime" != none ]; then
  case $PWD in *[:,]*) fail "the directory $PWD has a colon or comma, which container mounts cannot carry" ;; esac
fi

# Jobs that share a node must not share a port, nor may a new attempt meet what is left of the last one.
prepare_attempt() {
  attempt=$1
  export TOOLKIT_ATTEMPT=$SLURM_JOB_ID-$restart-$attempt
  export APPTAINERENV_TOOLKIT_ATTEMPT=$TOOLKIT_ATTEMPT    # also where the site's apptainer passes nothing else on
  attempt_folder=$output_directory/.attempt/$TOOLKIT_ATTEMPT
  keep_folder
  # of this job's earlier attempts, and of jobs that held the directory before
  rm -rf -- "$output_directory/.attempt" "$output_directory/outcome.json" "$output_directory"/stacks/HANG*
  if [ "$stop_requested" = 0 ]; then rm -f -- "$output_directory/STOP"; fi
  mkdir -p -- "$attempt_folder"
  port=$((20000 + (SLURM_JOB_ID + attempt * 4999) % 10000))
  if [ "$launcher" = srun ]; then
    export MASTER_ADDR=$meeting MASTER_PORT=$port
    launch=(python3 -m "$program" "${arguments[@]}")
  else
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    launch=("${torchrun[@]}" --max-restarts=0 --rdzv-backend=c10d --rdzv-endpoint="$meeting:$port"
      --rdzv-id="$TOOLKIT_ATTEMPT" -m "$program" "${arguments[@]}")
  fi
  launch=("${in_container[@]}" "${launch[@]}")
}
