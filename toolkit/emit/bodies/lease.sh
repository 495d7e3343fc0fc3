# ---- One job at a time in the output directory: a second one disturbs nothing, says who is there, and ends. ----
# A job holds .job.G from here to its end, its rank 0 .lease.G while it trains (toolkit/runtime/lease.py). G is one more
# than that of the holder before; the file is made by linking, which fails for all but one of several that try (by
# exclusive creation where the file system has no hard links).
held='' credentials='' beating=''                        # this job's file, what it says, what shows that it is alive

# In which a number means one process.
space() { echo "$(cat /proc/sys/kernel/random/boot_id) $(readlink /proc/self/ns/pid)"; }

is_mine() { [ -n "$held" ] && [ "$(cat -- "$held" 2>/dev/null)" = "$credentials" ]; }

# One value of a holder's JSON.
of_holder() { printf '%s\n' "$holder" | sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p" || true; }

name_holder() {
  local since job
  job=$(of_holder job_id) since=$(of_holder since) who="process $(of_holder pid)"
  who="${job:+job }${job:-$who} on $(of_holder host)${since:+ since $since}"
}

# What Slurm says of the job of a file; nothing where it cannot tell, as of other users' jobs where those are private.
state_of() {
  local said
  said=$(timeout 30 scontrol show job -o "$1" 2>&1) || true
  case $said in *"Invalid job id"*) if [ -O "$2" ]; then echo FORGOTTEN; fi && return ;; esac
  said=$(printf '%s\n' "$said" | grep "^JobId=$1 ") || true  # the other lines are those of its array
  case $said in *" JobState="*) said=${said#* JobState=} && echo "${said%%[!A-Z_]*}" ;; esac
}

# Whether the holder that a file names is there: sets who and why. Slurm's word counts first, then signs of life, whose
# age is the difference of two times of the file server: clocks of nodes may be wrong by hours.
is_held() {
  local file=$1 kind=${1##*/} holder job state age before patience copied=''
  holder=$(cat -- "$file" 2>/dev/null) || return 1       # it has gone in this moment
  name_holder
  job=$(of_holder job_id)
  case $(of_holder folder) in '' | "$(stat -c %i -- "$output_directory")") ;; *) copied=yes ;; esac  # cp -r of a run
  if [ "$job" = "$SLURM_JOB_ID" ]; then                  # of an attempt before, or of this job before its requeue
    case $kind in .lease.*) return 1 ;; esac
    if [ "$(of_holder restart_count)" != "$restart" ]; then return 1; fi
  elif [ -n "$job" ] && [ "$(of_holder cluster)" = "${SLURM_CLUSTER_NAME:-?}" ]; then
    state=$(state_of "$job" "$file") patience=$((SECONDS + 120))
    if [ "$state" = COMPLETING ]; then echo "waiting for the end of $who, to which $output_directory belongs"; fi
    while [ "$state" = COMPLETING ] && [ "$SECONDS" -lt "$patience" ]; do
      sleep 1
      state=$(state_of "$job" "$file")
    done
    case $state in
      SUSPENDED | STOPPED) why="is suspended" ;;
      RUNNING | SIGNALING | RESIZING | STAGE_OUT) why="is running" ;;
      COMPLETING | '') why= ;;
      *) return 1 ;;                                     # it waits to go on, or has ended
    esac
    case $copied$kind$why in .job*running | .job*suspended | .lease*suspended) return ;; esac
  fi
  if [ "$(of_holder host)" = "$(uname -n)" ] && [ ! -e "/proc/$(of_holder pid)" ]; then
    case $(of_holder born) in *" $(space)") return 1 ;; esac
  fi
  touch -- "$mine"
  age=$(stat -c %Y -- "$file" 2>/dev/null) || return 1
  age=$(($(stat -c %Y -- "$mine") - age))
  why="gave a sign of life $((age > 0 ? age : 0)) s ago"
  if [ -z "$copied" ] && [ "$age" -ge -15 ] && [ "$age" -le 120 ]; then return; fi
  before=$(cat -- "$file" && stat -c %y -- "$file") || return 1
  echo "$output_directory belongs to $who, whose last sign is $age s old: waiting whether there is another"
  patience=$((SECONDS + (age >= -15 ? 30 : 120)))        # on the clock of this node
  while [ "$SECONDS" -lt "$patience" ]; do
    sleep 1
    age=$(cat -- "$file" 2>/dev/null && stat -c %y -- "$file" 2>/dev/null) || return 1
    if [ "$age" != "$before" ]; then why="gives signs of life" && return; fi
  done
  return 1
}

refuse() {
  local remedy='give another --output-dir' job
  job=${who#job } job=${job%% *}
  rm -f -- "$mine"
  case $who in
    "job "*) remedy="wait for its end (squeue -j $job), or end it (scancel $job), or $remedy" ;;
    *) remedy="stop it, or $remedy" ;;
  esac
  fail "$output_directory belongs to $who, which $why; this job, $SLURM_JOB_ID, ends" "$remedy"
}

# Numbers of the files .job.G or .lease.G, the newest first.
numbers() {
  local file
  for file in "$output_directory/$1".[0-9]*; do
    case ${file##*.} in *[!0-9]*) ;; *) if [ -e "$file" ]; then echo "${file##*.}"; fi ;; esac
  done | sort -rn
}

newest() { numbers .job | sed -n 1p; }

refuse_if_held() {
  local number
  for number in $(numbers "$1"); do
    if is_held "$output_directory/$1.$number"; then
      if is_mine; then rm -f -- "$held"; fi
      held=
      refuse
    fi
  done
}

# Takes the output directory, or ends this script with a sentence and exit code 2. No file is changed before.
take_folder() {
  local number tried form
  form='{"host":"%s","pid":%s,"born":"%s","job_id":"%s","restart_count":%s,"cluster":"%s","folder":%s,"since":"%s"}'
  mine=$output_directory/.job-of-$SLURM_JOB_ID-$$
  # shellcheck disable=SC2059
  printf -v credentials "$form" "$(uname -n)" "$$" "$(cut -d ' ' -f 22 "/proc/$$/stat") $(space)" "$SLURM_JOB_ID" \
    "$restart" "${SLURM_CLUSTER_NAME:-}" "$(stat -c %i -- "$output_directory")" "$(date -u '+%F %T UTC')"
  { echo "$credentials" >"$mine"; } 2>/dev/null ||
    fail "cannot write in $output_directory" "ask for the right to, make room there, or give another --output-dir"
  trap let_go EXIT
  for tried in 1 2 3 4 5; do
    number=$(newest)                                     # before the look: who comes after it has this number
    number=$((${number:-0} + 1)) held=
    refuse_if_held .job
    refuse_if_held .lease
    held=$output_directory/.job.$number
    # another one was faster; or the file server has answered a second time to what it had done at the first
    if ! ln -- "$mine" "$held" 2>/dev/null && ! [ "$mine" -ef "$held" ]; then
      if [ -e "$held" ] || ! (set -C && cat -- "$mine" >"$held") 2>/dev/null; then held='' && continue; fi
    fi
    if [ "$(newest)" = "$number" ]; then break; fi
    rm -f -- "$held" && held=                            # several came and went meanwhile
  done
  [ -n "$held" ] || fail "cannot take $output_directory in $tried tries" "give another --output-dir"
  refuse_if_held .lease                                  # who takes that looks at .job.G afterwards, in turn
  rm -f -- "$mine"
  for number in $(numbers .job); do
    if [ "$number" -lt "${held##*.}" ]; then rm -f -- "$output_directory/.job.$number" || true; fi
  done
  (
    trap '' USR1 USR2
    trap 'kill "$nap"; exit' TERM
    while kill -0 $$; do
      touch -c -- "$held"
      sleep 15 &
      nap=$!
      wait "$nap"
    done
  ) </dev/null >/dev/null 2>&1 &
  beating=$!
}

# shellcheck disable=SC2317,SC2329  # called by trap
let_go() {
  if [ -n "$beating" ]; then kill "$beating" 2>/dev/null || true; fi
  if is_mine; then rm -f -- "$held"; fi
  rm -f -- "$mine"
}

# Nobody has taken the directory over, as this very job does elsewhere once Slurm has given its node up for lost.
keep_folder() {
  local holder number
  if is_mine; then return; fi
  number=$(newest) held=
  if [ -n "$beating" ]; then kill "$beating" 2>/dev/null || true; fi
  if [ -z "$number" ]; then take_folder && return; fi    # somebody has emptied the directory
  who="another job" why="took it over"
  if holder=$(cat -- "$output_directory/.job.$number" 2>/dev/null); then name_holder; fi
  refuse
}
