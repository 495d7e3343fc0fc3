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
