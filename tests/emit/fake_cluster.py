"""A PATH on which srun, torchrun, scontrol and apptainer are small recorders, to run emitted scripts for real.

The recorders are test doubles of the commands around the script; bash and everything inside the script are real.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

FAKES = {
    "torchrun": r"""
        node=${SLURM_NODEID:-local}
        printf '%s\0' "$@" > "$RECORD/torchrun.$node"
        env -0 > "$RECORD/environment.$node"
        case ${FAKE_TORCHRUN:-} in
          finish) touch "$FAKE_OUTPUT/FINISHED" ;;
          finish-and-fail) touch "$FAKE_OUTPUT/FINISHED"; exit 137 ;;
          wait | wait-finish)
            asked() {
              touch "$RECORD/usr1.$node"
              [ "$FAKE_TORCHRUN" = wait ] || touch "$FAKE_OUTPUT/FINISHED"
              exit 1
            }
            trap asked USR1
            touch "$RECORD/ready.$node"
            for _ in {1..3000}; do sleep 0.02; done
            exit 9 ;;
          [0-9]*) exit "$FAKE_TORCHRUN" ;;
          script) . "$RECORD/../script" ;;
        esac""",
    "python3": r"""
        if [ "$1 $2" = "-m toolkit.runtime.torchrun" ]; then
          printf '%s\0' "$3" > "$RECORD/told_of"
          shift 3
          exec torchrun "$@"
        fi
        if [ "$1 $2" = "-m toolkit.runtime.lease" ]; then exit "${FAKE_HELD:-0}"; fi
        if [ "$1 $2 $3" != "-m toolkit preflight" ]; then exec /usr/bin/python3 "$@"; fi
        printf '%s\0' "$@" > "$RECORD/preflight.${SLURM_NODEID:-local}"
        env -0 > "$RECORD/environment.preflight"
        if [ -e "$RECORD/../check" ]; then . "$RECORD/../check"; fi""",
    "srun": r"""
        case $* in
          *" -m toolkit preflight "*) printf '%s\0' "$@" > "$RECORD/srun.preflight" ;;
          *) printf '%s\0' "$@" > "$RECORD/srun" ;;
        esac
        while [[ $1 == --* ]]; do shift; done
        pids=()
        trap 'kill -USR1 "${pids[@]}"' USR1
        for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
          SLURM_NODEID=$node SLURMD_NODENAME=n$((node + 1)) SLURM_LOCALID=${FAKE_LOCALID:-0} "$@" &
          pids+=($!)
        done
        highest=0
        for pid in "${pids[@]}"; do
          while :; do code=0; wait "$pid" || code=$?; kill -0 "$pid" 2>/dev/null || break; done
          ((code > highest)) && highest=$code
        done
        exit "$highest" """,
    "scontrol": r"""
        if [ "${1-}-${2-}" != show-hostnames ] && [ -e "$RECORD/../away" ]; then
          rm "$RECORD/../away"
          echo "scontrol: error: Unable to contact slurm controller (connect failure)" >&2
          exit 1
        fi
        case $1-$2 in
          show-job)
            state=$(sed -n "s/^$4 //p" "$RECORD/../states" 2>/dev/null)
            case $state in
              FORGOTTEN) echo "slurm_load_jobs error: Invalid job id specified" >&2 && exit 1 ;;
              ?*) echo "JobId=1 JobName=x JobState=RUNNING" && echo "JobId=$4 JobName=x JobState=$state Reason=None" ;;
            esac
            echo "JobId=$4 ReqNodeList=(null) ExcNodeList=${FAKE_EXCLUDED:-(null)} Nice=0" ;;
          show-node) echo "NodeName=$4 NodeAddr=10.1.2.3 NodeHostName=$4" ;;
          show-*) for ((i = 1; i <= ${FAKE_HOSTS:-2}; i++)); do echo "n$i"; done ;;
          requeue-*) echo "$2" >> "$RECORD/requeue" ;;
          update-*) echo "$*" >> "$RECORD/update" ;;
        esac""",
    "apptainer": r"""
        case $* in *" -m toolkit preflight "*) name=apptainer.preflight ;; *) name=apptainer ;; esac
        printf '%s\0' "$@" > "$RECORD/$name"
        while [ "$1" != torchrun ] && [ "$1" != python3 ]; do shift; done
        exec "$@" """,
    "getent": '[ -z "${FAKE_UNRESOLVED:-}" ]',
    "nvidia-smi": 'for ((i = 0; i < ${FAKE_GPUS:-8}; i++)); do echo "GPU $i: test (UUID: GPU-$i)"; done',
    "module": 'printf "%s\\0" "$@" > "$RECORD/module"',
}


@dataclass
class FakeCluster:
    """Runs scripts in ``directory`` and keeps what the recorders saw in ``record``."""

    directory: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.record = self.directory / "record"
        self.submit = self.directory / "submit"
        binaries = self.directory / "bin"
        for folder in (self.record, self.submit, binaries):
            folder.mkdir(parents=True)
        for name, text in FAKES.items():
            (binaries / name).write_text(f"#!/bin/bash\n{text}\n")
            (binaries / name).chmod(0o755)
        self.environment = {
            "PATH": f"{binaries}:/usr/bin:/bin",
            "HOME": str(self.directory),
            "RECORD": str(self.record),
            "SLURM_SUBMIT_DIR": str(self.submit),
            "SLURM_JOB_ID": "1234567",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_GPUS_ON_NODE": "8",
            "SLURM_CPUS_ON_NODE": "96",
        } | self.environment

    def start(self, script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """The script as slurmd starts it: a copy somewhere else, with the arguments of sbatch."""
        path = self.directory / "spooled_script"
        if not path.exists() or path.read_text() != script:  # bash reads it while it runs
            path.write_text(script)
        return subprocess.Popen(
            ["/bin/bash", str(path), *arguments],
            cwd=self.submit,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Start and wait."""
        process = self.start(script, *arguments, **environment)
        out, err = process.communicate(timeout=240)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def words(self, name: str) -> list[str]:
        """The argv that a recorder saw."""
        return (self.record / name).read_bytes().decode().split("\0")[:-1]

    def seen_environment(self, node: str = "0") -> dict[str, str]:
        """The environment that torchrun had on a node."""
        return dict(line.split("=", 1) for line in self.words(f"environment.{node}"))

    def wait_for(self, name: str) -> None:
        """Until a recorder has written a file."""
        deadline = time.monotonic() + 120
        while not (self.record / name).exists():
            assert time.monotonic() < deadline, f"{name} was never written"
            time.sleep(0.01)
