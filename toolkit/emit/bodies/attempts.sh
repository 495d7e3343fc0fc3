# ---- Attempts: again in this allocation after a fault, requeued after a request or without a bad node, ----
# ---- stopped where trying again cannot help.                                                           ----

# One line for each end of an attempt that was not the end of the run.
remember() {
  local form='{"job": "%s", "restart": %s, "attempt": %s, "at": %s, "step": %s, '
  form+='"result": "%s", "nodes": "%s", "then": "%s"}\n'
  # shellcheck disable=SC2059
  printf "$form" "$SLURM_JOB_ID" "$restart" "$attempt" "${EPOCHSECONDS:-0}" "$step_saved" "$result" "$culprits" "$1" \
    >>"$output_directory/restarts.jsonl" || true
}

remembered() {
  local count
  count=$(grep -c -F -- "$1" "$output_directory/restarts.jsonl" 2>/dev/null) || true
  echo "${count:-0}"                                     # nothing where there is no such file yet
}

# How often in a row this job has failed at the checkpoint that is the newest now. A request to stop, as by preemption
# or the time limit, is no failure, however early; nor is another bad node that is found before the start.
# $1: preflight, to count only how often that has named the same nodes.
without_progress() {
  local line count=0 only=${1:-}
  while IFS= read -r line; do
    case $line in
      *"\"job\": \"$SLURM_JOB_ID\""*'"result": "stopped"'*) ;;
      *"\"job\": \"$SLURM_JOB_ID\""*'"result": "preflight"'*)
        case $line in *"\"nodes\": \"$culprits\""*) count=$((count + 1)) ;; esac ;;
      *"\"job\": \"$SLURM_JOB_ID\""*"\"step\": $step_saved,"*) if [ -z "$only" ]; then count=$((count + 1)); fi ;;
      *) count=0 ;;
    esac
  done < <(cat "$output_directory/restarts.jsonl" 2>/dev/null)
  echo "$count"
}

# How often in a row this job has been asked to stop before it had done a step. Preemption on a busy cluster is no fault
# and may go on; a time limit that leaves no room for a step is one that only the owner of the job can mend.
tell_early_stops() {
  local line count=1
  while IFS= read -r line; do
    case $line in
      *"\"job\": \"$SLURM_JOB_ID\""*"\"step\": $step_saved,"*'"result": "stopped"'*) count=$((count + 1)) ;;
      *) count=1 ;;
    esac
  done < <(cat "$output_directory/restarts.jsonl" 2>/dev/null)
  if [ "$count" -lt 3 ]; then return; fi
  printf 'note: asked to stop %s times in a row before a step was done; %s: %s\n' "$count" \
    "where the time limit asks, give the job more" \
    "scontrol update JobId=$SLURM_JOB_ID TimeLimit=..., or sbatch --time=..." >&2
}

give_up() {
  remember stop
  printf 'error: not started again: %s\n' "$1" >&2
  if [ "$code" = 0 ]; then exit 1; fi
  exit "$code"
}

# scontrol, again while the controller does not answer, as when it is restarted or another one takes over.
ask_slurm() {
  local said patience=$((SECONDS + ${CONTROLLER_SECONDS:-900})) told=''
  until said=$(scontrol "$@" 2>&1); do
    case $said in
      *"Unable to contact"* | *"imed out"* | *"standby mode"* | *"Zero Bytes"* | *"onnection re"*) ;;
      *) patience=0 ;;
    esac
    if [ "$SECONDS" -ge "$patience" ]; then printf '%s\n' "$said" >&2 && return 1; fi
    if [ -z "$told" ]; then printf 'waiting for the controller of Slurm: %s\n' "$said" >&2; fi
    told=yes
    sleep 5
  done
  if [ -n "$said" ]; then printf '%s\n' "$said"; fi
}

# srun gives up at once where it does not answer.
await_controller() { ask_slurm show job -o "$SLURM_JOB_ID" >/dev/null || true; }

# Whether Slurm has nodes enough for this job without some ($2): if not, it would hold the job (BadConstraints), and not
# let it go when they are repaired. $1: what it says of the job. Left out: GPUs, features and memory, reservations.
enough_without() {
  local asked partition without list left
  asked=${1##* ReqNodeList=} partition=${1##* Partition=}
  asked=${asked%% *} partition=${partition%% *}
  without=$(scontrol show hostnames "$2") || return 0
  case $asked in
    '(null)' | *=*) ;;
    *) if scontrol show hostnames "$asked" | grep -cxF -- "$without" >/dev/null; then return 1; fi ;;
  esac
  list=$(sinfo -h -p "$partition" -o %N 2>/dev/null) || return 0
  left=$(for list in $list; do scontrol show hostnames "$list"; done | sort -u | grep -vcxF -- "$without") || true
  [ "${left:-0}" -ge "$nodes" ]
}

# Ends this script, at the latest when Slurm kills it. Slurm lets the owner of a job exclude nodes only while
# the job waits, which it does from the requeue on, when this script still has some seconds.
requeue_without() {
  local nodes_excluded record before this=$SLURM_JOB_ID
  if [ "$restart" -ge "$max_requeues" ]; then
    give_up "$restart restarts are enough (MAX_REQUEUES=$max_requeues)${cause:+; $cause}"
  fi
  record=$(ask_slurm show job -o "$SLURM_JOB_ID") || give_up "Slurm does not tell of this job"
  # the other lines are those of its array, which has the number of one of its jobs
  record=$(printf '%s\n' "$record" | grep "^JobId=$SLURM_JOB_ID ") || true
  case $record in *" ArrayTaskId="*)
    this=${record#* ArrayJobId=} record=${record#* ArrayTaskId=}
    this=${this%% *}_${record%% *} ;;
  esac
  before=${record##* ExcNodeList=} before=${before%% *}
  case $before in '(null)' | '' | *=*) before= ;; esac
  nodes_excluded=${before:+$before,}${1// /,}
  if [ -n "$1" ] && ! enough_without "$record" "$nodes_excluded"; then
    echo "note: $1 cannot be left out: Slurm has no other nodes for this job; drain and repair it, or submit the job" \
      "for others" >&2
    set -- ''
  fi
  remember "requeue${1:+ without $1}"
  trap '' TERM
  if [ -n "$1" ]; then echo "requeue without $1: $cause"; else echo "requeue${cause:+: $cause}"; fi
  ask_slurm requeue "$this" || give_up "Slurm refuses to requeue this job"
  if [ -n "$1" ]; then
    ask_slurm update JobId="$this" ExcNodeList="$nodes_excluded" ||
      echo "note: Slurm refuses to exclude $nodes_excluded; the job may land there again" >&2
  fi
  exit 0
}

# No trap on CONT: with one, some signals at the time limit were lost.
srun_pid=
# shellcheck disable=SC2317,SC2329  # called by trap
request_stop() {
  stop_requested=1
  # seen by rank 0 where the signal does not get through; of a directory that another job holds it would stop that one
  if is_mine; then { : >"$output_directory/STOP"; } 2>/dev/null || true; fi
  if [ -n "$srun_pid" ]; then kill -USR1 "$srun_pid" 2>/dev/null || true; fi
}
trap request_stop USR1 USR2

# With --signal=B:TERM a request too; else it comes at the end of a job, which Slurm no longer calls running.
# shellcheck disable=SC2317,SC2329  # called by trap
end_or_stop() {
  if [ "$(state_of "$SLURM_JOB_ID" /)" = RUNNING ]; then
    request_stop
  else
    trap '' TERM                                         # it may come again, while the directory is let go
    exit 143
  fi
}
trap end_or_stop TERM

# For a step in the background, the one that was started last: the shell runs no trap while it waits in the foreground.
await_step() {
  srun_pid=${1:-$!}
  if [ "$stop_requested" = 1 ]; then kill -USR1 "$srun_pid" 2>/dev/null || true; fi
  while :; do
    rc=0
    wait "$srun_pid" || rc=$?
    kill -0 "$srun_pid" 2>/dev/null || break             # interrupted by the trap: wait again
  done
  srun_pid=
}

# What the check named $1 has found, without spaces and quotes; nothing of an earlier one.
verdict_of() {
  local said
  said=$(tr -d ' \n"' 2>/dev/null <"$output_directory/preflight.json") || return 0
  case $said in *"run_id:$1,"*) printf '%s\n' "$said" ;; esac
}

# In 22.05 srun waits for ever for a node whose slurmstepd was killed, though no process of the step is there any more:
# it is ended so many seconds after its end was told, in outcome.json, or for the check named $2 in preflight.json, and
# a check also where it has told nothing for far longer than it takes. Ages are differences of the file server's times.
end_stuck_step() (
  local patience since=$SECONDS word said limit told pause=''
  trap '' USR1 USR2
  trap 'kill "$pause"; exit' TERM
  patience=${STEP_END_SECONDS:-$((2 * stop_seconds + 60))}
  while kill -0 "$1"; do
    sleep $((patience < 15 ? patience : 15)) &
    pause=$!
    wait "$pause"
    word=outcome.json said=$(outcome_of state) limit=''
    if [ -n "${2:-}" ]; then word=preflight.json said=$(verdict_of "$2") limit=${CHECK_SECONDS:-3000}; fi
    if [ -n "$said" ]; then
      if ! { touch -- "$attempt_folder/now" && told=$(stat -c %Y -- "$output_directory/$word"); }; then continue; fi
      if [ $(($(stat -c %Y -- "$attempt_folder/now") - told)) -lt "$patience" ]; then continue; fi
    elif [ -z "$limit" ] || [ $((SECONDS - since)) -lt "$limit" ]; then
      continue
    fi
    : >"$attempt_folder/stuck"
    kill -KILL "$1"
  done
)

# For the step in the background that was started last. $1: the name of the check, where it is one.
await_watched_step() {
  local started=$! watcher
  end_stuck_step "$started" "$@" </dev/null >/dev/null 2>&1 &
  watcher=$!
  disown "$watcher"                                      # older bash tells of its end, as of a fault
  await_step "$started"
  kill "$watcher" 2>/dev/null || true
}

run_attempt() {
  echo "start: job $SLURM_JOB_ID restart $restart attempt $attempt, $nodes x $processes_per_node =" \
    "$planned_processes processes of $program with $launcher"
  echo "nodes: ${hosts//$'\n'/ } rendezvous: $meeting:$port output: $output_directory"
  rc=0
  await_controller
  if [ "$stop_requested" = 1 ]; then return; fi
  "${step[@]}" "${container_options[@]}" \
    bash -c "$on_each_node" on_each_node "$launcher" "$gpus_per_node" "${launch[@]}" &
  await_watched_step
}

# Before each attempt: what ended the last one may be a node that has gone bad. Exit code 76: preflight.json names bad
# nodes, and the job starts again without them. 1 and 2: it would be the same on any nodes. From 128 on it was ended: by
# a request to stop, or by a fault. Further options of it may be given.
check_nodes() {
  local text id=$SLURM_JOB_ID-$restart check=("${preflight[@]}" "$@")
  if [ "${#preflight[@]}" = 0 ]; then return; fi
  await_controller
  if [ "$stop_requested" = 1 ]; then return; fi
  if [ "$attempt" -gt 0 ]; then id=$id-$attempt; fi
  check+=(--run-id "$id" --rendezvous "$meeting:$port")
  if [ "${#hosts}" -lt 100000 ]; then check+=(--hosts "${hosts//$'\n'/,}"); fi        # one word has at most 128 KiB
  "${everywhere[@]}" "${container_options[@]}" "${in_container[@]}" "${check[@]}" &
  await_watched_step "$id"
  keep_folder
  if [ "$rc" = 0 ] || [ "$stop_requested" = 1 ]; then return; fi
  step_saved=$(saved_step) code=$rc result=preflight culprits='' cause="toolkit preflight returned $rc, see above"
  if [ -e "$attempt_folder/stuck" ]; then cause="srun did not end after the nodes had been checked"; fi
  case $rc in
    76)
      text=$(verdict_of "$id")
      if [[ $text =~ bad_nodes:\[([^]]+)\] ]]; then culprits=${BASH_REMATCH[1]//,/ }; fi
      if [ -z "$culprits" ]; then give_up "$cause, and does not name a node"; fi
      cause="toolkit preflight names $culprits, see above" ;;
    138 | 143) result=stopped cause="asked to stop while the nodes were checked" ;;
    *)
      if [ "$rc" -lt 128 ]; then give_up "$cause"; fi
      find_silent_nodes ;;
  esac
  if [ "$result" = preflight ] && [ "$(without_progress preflight)" -ge "$max_no_progress" ]; then
    give_up "the same in $max_no_progress more starts (MAX_NO_PROGRESS); $cause"
  fi
  requeue_without "$culprits"
}

take_folder
prepare_attempt 0
check_nodes
while :; do
  run_attempt
  keep_folder
  judge
  step_saved=$(saved_step)
  echo "end: srun returned $rc, stop requested: $stop_requested, result: $result, saved: step $step_saved"
  if [ -n "$cause" ]; then echo "  $cause"; fi
  case $result in
    refused) fail "$cause" "wait for its end, stop it, or give another --output-dir" ;;
    finished) echo "finished: $output_directory/FINISHED" && rm -rf -- "$output_directory/.attempt" && exit 0 ;;
    ended) exit 0 ;;
    failed) give_up "it would fail again; $cause" ;;
  esac
  if [ "$result" = stopped ]; then
    tell_early_stops
    requeue_without ""
  fi
  if [ "$(without_progress)" -ge "$max_no_progress" ]; then
    cause="no checkpoint after step $step_saved in $max_no_progress more starts (MAX_NO_PROGRESS)${cause:+; $cause}"
    give_up "$cause"
  fi
  find_silent_nodes
  if [ -e "$attempt_folder/stuck" ]; then
    cause="srun did not end after the attempt had${cause:+; $cause}"   # and no other would begin in this allocation
    requeue_without ""
  fi
  if [ "$stop_requested" = 1 ]; then requeue_without ""; fi
  case $cause in *" does not answer"*) requeue_without "$culprits" ;; esac
  if [ "$(outcome_of kind)" = device ]; then requeue_without "$culprits"; fi
  if [ -n "$culprits" ] && [ "$(remembered "\"nodes\": \"$culprits\"")" -gt 0 ]; then requeue_without "$culprits"; fi
  if [ "$attempt" -ge "${MAX_ATTEMPTS:-3}" ]; then requeue_without ""; fi
  remember again
  links=()
  if [ -n "$culprits" ]; then links=(--skip collective); fi        # a known culprit: no link between nodes is suspected
  prepare_attempt $((attempt + 1))
  check_nodes "${links[@]}"
done
