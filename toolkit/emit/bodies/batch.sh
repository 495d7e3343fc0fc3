# ---- From here on the script is the same for every plan. First: has Slurm started it? ----------------
for name in SLURM_JOB_ID SLURM_JOB_NUM_NODES SLURM_JOB_NODELIST SLURM_CPUS_ON_NODE SLURM_SUBMIT_DIR; do
  if [ -z "${!name:-}" ]; then
    printf 'error: this script is for sbatch, which has not started it: %s is not set\n  submit it: sbatch %s\n' \
      "$name" "$0" >&2
    exit 2
  fi
done
cd -- "$SLURM_SUBMIT_DIR"
stop_requested=0
trap stop_requested=1 USR1 USR2                          # by preemption while modules load, say
