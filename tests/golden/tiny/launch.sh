#!/bin/bash
# tiny: deepspeed zero2 dp2 mb2x2
# for 1 x 2 cpu (local-cpu)
# Written by toolkit 0.1.0 with calibration assumed:
# change the plan, not this file.
[ -n "${BASH_VERSION:-}" ] || { printf "error: this script is for bash\n  bash %s\n" "$0" >&2; exit 2; }
set -euo pipefail
export OMP_NUM_THREADS=1
export TOKENIZERS_PARALLELISM=false
deepspeed_file=ds_config.json
gpus_per_node=0
megatron_file=''
modules=()
nodes=1
plan_file=plan.json
planned_processes=2
processes_per_node=2
program=recipes.finetune.train
save_steps=0
setup_command=''
stop_seconds=120
case ${BASH_SOURCE[0]} in
  -*/*) directory=./${BASH_SOURCE[0]%/*} ;;
  */*) directory=${BASH_SOURCE[0]%/*} ;;
  *) directory=. ;;
esac
directory=${directory:-/}
output_directory=$directory/run

# ---- From here on the script is the same for every plan. ---------------------------------------------
fail() {
  printf 'error: %s\n' "$1" >&2
  if [ -n "${2:-}" ]; then printf '  %s\n' "$2" >&2; fi
  exit 2
}

# Bash before 4.4, as of CentOS 7, takes an empty list for an unset variable.
unset_variables=-u
case $BASH_VERSION in [0-3].* | 4.[0-3].*) unset_variables=+u ;; esac
set "$unset_variables"

: "${directory:?}" "${plan_file:?}" "${program:?}" "${output_directory:?}"
: "${nodes:?}" "${processes_per_node:?}" "${stop_seconds:?}" "${planned_processes:?}"

# The program's own arguments; what the script was given comes last and wins.
arguments=(--plan "$directory/$plan_file")
if [ -n "${deepspeed_file:-}" ]; then arguments+=(--deepspeed "$directory/$deepspeed_file"); fi
if [ -n "${megatron_file:-}" ]; then arguments+=(--megatron "$directory/$megatron_file"); fi
if [ "${save_steps:-0}" -gt 0 ]; then arguments+=(--save-steps "$save_steps"); fi   # loses least to failures
arguments+=(--output-dir "$output_directory" "$@")
previous='' keep=''
for word in "${arguments[@]}"; do
  case $previous in --output-dir) output_directory=$word ;; --keep) keep=$word ;; esac
  case $word in --output-dir=*) output_directory=${word#*=} ;; --keep=*) keep=${word#*=} ;; esac
  previous=$word
done
# what is no such number the program refuses, together with all else that is wrong
case $keep in *[!0-9]* | '' | 0* | ???????*) keep=2 ;; esac

[ -r "$directory/$plan_file" ] || fail "there is no $directory/$plan_file on $(uname -n)" \
  "write the files where every node sees them: toolkit emit plan.json --out DIR"
[ $((nodes * processes_per_node)) = "$planned_processes" ] || fail \
  "$nodes nodes x $processes_per_node processes is not the $planned_processes processes of the plan" "plan again"

# The site's own way to the software. Its scripts may use unset variables.
set +u
if [ "${#modules[@]}" -gt 0 ]; then
  for script in /etc/profile.d/lmod.sh /etc/profile.d/modules.sh; do
    # shellcheck disable=SC1090
    if ! type module >/dev/null 2>&1 && [ -r "$script" ]; then . "$script"; fi
  done
  type module >/dev/null 2>&1 || fail "there is no module command on $(uname -n), and the plan loads ${modules[*]}" \
    "correct modules under [site] in the cluster's TOML, and plan again"
  module load "${modules[@]}"
fi
if [ -n "${setup_command:-}" ]; then eval "$setup_command"; fi
set "$unset_variables"

python=python3
if [ "${container_runtime:-none}" = none ]; then
  for starter in "${launcher:=torchrun}" python3; do
    command -v "$starter" >/dev/null || fail "$starter is not on PATH" \
      "activate the environment first, or name the command that does as setup_command of the site"
  done
  if [ "$launcher" = torchrun ]; then                    # the interpreter that it belongs to
    python=$(command -v torchrun)
    python=${python%/*}/python3
    if [ ! -x "$python" ]; then python=python3; fi
  fi
fi
if [ -e "$output_directory/FINISHED" ]; then
  echo "already finished: $output_directory/FINISHED; to train again, or for more steps, give another --output-dir"
  exit 0
fi
if ! said=$(LC_ALL=C mkdir -p -- "$output_directory" 2>&1); then
  said=${said##*: } remedy='give another --output-dir'
  if [ "$said" = "File exists" ] || [ "$said" = "Not a directory" ]; then
    if [ -L "$output_directory" ]; then said="it is a link to $(readlink -- "$output_directory"), which is no directory"
    else said="a file is in the way" remedy="move it away, or $remedy"; fi
  fi
  said="cannot make the output directory $output_directory: $said"
  case $said in
    *"No space left"* | *"quota exceeded"*) printf 'error: %s\n  make room, or %s\n' "$said" "$remedy" >&2 && exit 1 ;;
  esac
  fail "$said" "$remedy"
fi
if [ ! -w "$output_directory" ] || [ ! -x "$output_directory" ]; then
  owner=$(stat -c '%U, mode %A' -- "$output_directory" 2>/dev/null) || owner='another user'
  fail "$(id -un) may not write to the output directory $output_directory: it belongs to $owner, or is read-only" \
    "ask for the right to write there, or give another --output-dir"
fi

# A check of the nodes before each start: PREFLIGHT=0 leaves it out, PREFLIGHT_OPTIONS adds options ("--skip gpus").
preflight=()
if [ "${PREFLIGHT:-1}" != 0 ]; then
  read -r -a preflight < <(printf '%s\n' "${PREFLIGHT_OPTIONS:-}")
  patience=240                                           # seconds: Python and torch come from a busy file system
  if [ "${container_runtime:-none}" != none ] ||          # nodes fetch the image one sooner than another
    [ -z "${SLURM_JOB_ID:-}" ]; then patience=1200; fi   # nor does anybody start all of them at one time
  preflight=("$python" -m toolkit preflight "$directory/$plan_file" --output-dir "$output_directory" --keep "$keep"
    --time-limit "$patience" "${preflight[@]}")
fi

# torchrun, that says what became of the run, and nothing where the program has; it comes with the program
torchrun=("$python" -m toolkit.runtime.torchrun "$output_directory"
  --nnodes="$nodes"
  --nproc-per-node="$processes_per_node"
  # without SIGUSR1 in this list the signal kills torchrun, and nothing is saved
  --signals-to-handle='SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1'
  # time for the workers to save before torchrun kills them (its own default is 30 s)
  --shutdown-timeout="$stop_seconds")

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
