# ---- How did an attempt end? -----------------------------------------------------------------------
# Exit codes do not tell: srun returns the highest of all tasks, and ends those that are still there once one failed.

# One value of outcome.json, which has one on each line; nothing of another start's.
outcome_of() {
  local said
  said=$(cat -- "$output_directory/outcome.json" 2>/dev/null) || return 0
  case $said in *"\"attempt\": \"$TOOLKIT_ATTEMPT\""* | *'"attempt": ""'*) ;; *) return 0 ;; esac
  # no here-string: bash before 5.1 makes a file in /tmp of it, which may be full
  printf '%s\n' "$said" | sed -n "s/^  \"$1\": \"\{0,1\}\(.*[^\",]\)\"\{0,1\},\{0,1\}\$/\1/p"
}

saved_step() {                                           # of the newest whole checkpoint; 0 without one
  local name=
  read -r name 2>/dev/null <"$output_directory/latest" || true
  name=${name##*-}
  case $name in '' | *[!0-9]*) echo 0 ;; *) echo "$name" ;; esac
}

# Whether the watchdog has ended this attempt (its code 77 becomes torchrun's 1). Sets cause, and culprits where some
# ranks left no stacks of theirs: those are stopped, or their nodes are.
hung() {
  local mark=("$output_directory"/stacks/HANG*) said file word value node silent='' count=0 came=0
  [ -e "${mark[0]}" ] || return 1                        # removed before each attempt
  said=,$(tr -d ' \n"{}' 2>/dev/null <"${mark[0]}" || true),
  for word in rank section step seconds limit; do
    value=${said#*,"$word":}
    case $value in "$said") value='?' ;; esac
    value=${value%%,*}
    case $word in rank) cause="rank $value hung" ;; section) cause="$cause in $value" ;; step) cause="$cause $value" ;;
      seconds) cause="$cause for ${value%%.*} s" ;; limit) cause="$cause, its limit is ${value%%.*} s" ;; esac
  done
  culprits=''
  for file in "$attempt_folder"/[0-9]*; do
    [ -e "$file" ] || continue
    came=$((came + 1)) node=''
    if [ "$output_directory/stacks/rank-${file##*/}.json" -nt "$file" ]; then continue; fi
    count=$((count + 1)) silent="$silent ${file##*/}"
    while read -r word value; do
      case $word in here) node=$value ;; esac
    done <"$file"
    case " $culprits " in *" $node "*) ;; *) culprits="${culprits:+$culprits }$node" ;; esac
  done
  if [ "$count" = "$came" ]; then culprits=''; fi
  if [ -n "$culprits" ]; then cause="$cause; no stacks of rank$silent on $culprits"; fi
  cause="$cause; stacks are in $output_directory/stacks"
}

# Sets result (finished ended refused stopped failed fault), culprits (nodes, by spaces), cause (a sentence), and code,
# that of the job where it stops: the one that launch.sh ends with.
judge() {
  result='' culprits='' cause='' code=$rc
  local state kind file word value node said killed='' came=0 asked=''
  state=$(outcome_of state) kind=$(outcome_of kind)
  if [ -e "$output_directory/FINISHED" ]; then result=finished; return; fi
  for file in "$attempt_folder"/[0-9]*; do               # the words of each rank: who came and said no more was killed
    [ -e "$file" ] || continue
    came=$((came + 1)) node='' said=''
    while read -r word value; do
      case $word in
        here) node=$value ;;
        refused) result=refused cause=$value ;;          # somebody else trains in this directory
        asked) asked=$value said="$said $word" ;;
        *) said="$said $word" ;;
      esac
    done <"$file"
    if [ "$result" = refused ]; then return; fi
    if [ -z "$said" ]; then
      killed="$killed ${file##*/}"
      case " $culprits " in *" $node "*) ;; *) culprits="${culprits:+$culprits }$node" ;; esac
    fi
  done
  if [ "$state" = failed ]; then
    cause="rank $(outcome_of rank) on $(outcome_of node), after step $(outcome_of step): $(outcome_of reason)"
    case $kind in input) code=2 cause=$(outcome_of reason) ;; hang) code=77 ;; diverged) code=78 ;; *) code=1 ;; esac
    case $kind in
      input | code | memory | storage | diverged) result=failed culprits=''; return ;;
      device) result=fault culprits=$(outcome_of node); return ;;
    esac
  fi
  # before what is seen as it is ended: torchrun goes, ranks are killed
  if hung; then result=fault code=77; return; fi
  if [ "$state $kind" = "failed agent" ]; then result=fault culprits=$(outcome_of node); return; fi
  if [ "$rc" = 0 ] && [ "$state" = ended ]; then result=ended culprits=''; return; fi
  if [ -n "$killed" ] && [ "$stop_requested" = 0 ]; then
    result=fault code=1 cause="rank$killed on $culprits was killed"
    value=$(outcome_of reason)
    if [ " $(outcome_of rank)" = "$killed" ]; then
      case $value in "killed by "*) cause="$cause${value#killed}" ;; esac
    fi
    return
  fi
  culprits=''
  if [ "$stop_requested" = 1 ] || [ "$state" = stopped ]; then
    result=stopped cause=$(outcome_of reason)
    return
  fi
  if [ "$rc$state" = 0 ] && [ -n "$asked" ]; then        # ended before it could tell, say by torchrun's patience
    result=stopped cause="$asked, and ended before it had saved"
    return
  fi
  if [ "$state" = failed ]; then result=fault; return; fi             # all are witnesses: peer, or hang
  if [ "$rc" = 0 ]; then result=ended; return; fi
  if [ "$rc" = 138 ] || [ "$rc" = 75 ]; then result=stopped cause="asked before the program had begun"; return; fi
  result=failed cause="a task ended with code $rc, $came processes had begun"
  if [ "$rc" = 2 ]; then cause="it was refused, see above"; fi
  if [ "$rc" -ge 128 ]; then result=fault; fi
}

# Nodes that do not answer become the culprits. srun gives up on a dead one by itself; a lost one may take longer.
find_silent_nodes() {
  local host silent=''
  # shellcheck disable=SC2016
  timeout "${ANSWER_SECONDS:-90}" "${everywhere[@]}" \
    bash -c ': >"$1/answered.$SLURMD_NODENAME"' answer "$attempt_folder" >/dev/null 2>&1 || true
  for host in $hosts; do
    if [ ! -e "$attempt_folder/answered.$host" ]; then silent="${silent:+$silent }$host"; fi
  done
  if [ -n "$silent" ] && [ "$silent" != "${hosts//$'\n'/ }" ]; then
    culprits=$silent cause="$silent does not answer${cause:+; $cause}"
  fi
}
