"""Rules of scripts that no published case covers alone; what is right has nothing said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import rules_table
from toolkit.check.directives import directives
from toolkit.check.facts import Facts
from toolkit.check.rules import RULES
from toolkit.check.rules_signals import limit_seconds
from toolkit.check.run import check
from toolkit.errors import ToolkitError
from toolkit.finding import Finding

ROOT = Path(__file__).resolve().parents[2]
HEAD = "#!/bin/bash\n#SBATCH --requeue\n#SBATCH --open-mode=append\n#SBATCH --nodes=2\n"


def told(text: str, name: str = "train.sbatch", facts: Facts | None = None, there: bool | None = None) -> list[Finding]:
    return check({name: text}, facts, lambda _: there)


def codes(text: str, **more: object) -> set[str]:
    return {each.code for each in told(text, **more)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "slurm").glob("*.sbatch")) + [ROOT / "tests" / "golden" / "tiny" / "train.sbatch",
    ROOT / "tests" / "golden" / "tiny" / "launch.sh"], ids=lambda path: path.name
)  # fmt: skip
def test_our_own_scripts_have_no_error(path: Path) -> None:
    found = check({str(path): path.read_text()}, Facts(step_seconds=10.0, save_seconds=60.0), lambda _: None)
    assert [each for each in found if each.severity == "error"] == []
    assert check({str(path): path.read_text()}, None, lambda _: None) == []  # as ``toolkit check`` reads it


def test_our_own_script_is_really_read_and_a_fault_in_it_found() -> None:
    text = (ROOT / "slurm" / "tiny-pretrain__1x8-dgx-h100.sbatch").read_text()
    faults = {
        'step+=(--ntasks="$nodes" --ntasks-per-node=1)': ("step+=(--ntasks-per-node=8)", "tasks-times-workers"),
        "port=$((20000 + (SLURM_JOB_ID + attempt * 4999) % 10000))": ("port=29500", "fixed-port"),
        " USR1 USR2": (" USR2", "signal-unheard"),
        "--signals-to-handle='SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1'": ("--tee 3", "signal-to-steps"),
        "#SBATCH --requeue": ("set -x\n#SBATCH --requeue", "directive-late"),
    }
    assert not faults.keys() - {right for right in faults if right in text}
    for right, (wrong, code) in faults.items():
        assert code not in codes(text)
        assert code in codes(text.replace(right, wrong)), code


TEMPLATE = """#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --time=00:10:00
#SBATCH --signal=B:USR1@130
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=${nodes%%$'\\n'*}
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
srun_pid=
request_stop() {
  if [ -n "$srun_pid" ]; then kill -USR1 "$srun_pid" 2>/dev/null || true; fi
}
trap request_stop USR1
echo "restart=${SLURM_RESTART_COUNT:-0}"
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \\
  torchrun \\
  --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="$SLURM_GPUS_ON_NODE" --max-restarts=1 \\
  --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 \\
  --rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" --rdzv-backend=c10d \\
  --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \\
  train.py --steps 300 &
srun_pid=$!
wait "$srun_pid"
"""


def test_a_script_as_it_should_be_has_nothing_said_about_it() -> None:
    assert told(TEMPLATE, facts=Facts(step_seconds=20.0, save_seconds=90.0, gpus_per_node=8, gpus=16)) == []


@pytest.mark.parametrize(
    ("right", "wrong", "code"),
    [
        ("#!/bin/bash\n", "", "shebang"),
        ("#SBATCH --nodes=2", "# SBATCH --nodes=2", "directive-almost"),
        ("#SBATCH --time=00:10:00", "module load cuda\n#SBATCH --time=00:10:00", "directive-late"),
        ("#SBATCH --gpus-per-node=8", "#SBATCH --gpu-per-node=8", "directive-unknown"),
        ("--job-name=demo", "--job-name=$USER", "directive-variable"),
        ("--output=%x-%j.out", "--output=$HOME/%x.out", "directive-variable"),
        ("--output=%x-%j.out", "--output=logs/%x-%j.out", "output-folder"),
        ("--output=%x-%j.out", "--output=logs/%x/%j.out", "output-folder"),
        ("#SBATCH --requeue\n", "#SBATCH --no-requeue\n#SBATCH --export=NONE\n", "export-none"),
        ("#SBATCH --requeue\n", "", "no-requeue"),
        ("#SBATCH --open-mode=append\n", "", "open-mode"),
        ("#SBATCH --signal=B:USR1@130\n", "", "no-signal"),
        ("--kill-on-bad-exit=1 ", "", "kill-on-bad-exit"),
        (' --cpus-per-task="$SLURM_CPUS_PER_TASK"', "", "step-cpus"),
        ("#SBATCH --cpus-per-task=96\n", "", "variable-not-set"),
        ("$SLURM_GPUS_ON_NODE", "$SLURM_GPUS", "variable-not-set"),
        ('nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
         'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', "head-pipe"),
        ("MASTER_ADDR=${nodes%%$'\\n'*}", "MASTER_ADDR=${SLURM_NODELIST%%,*}", "node-list"),
        ("MASTER_ADDR=${nodes%%$'\\n'*}", "MASTER_ADDR=$(echo $SLURM_NODELIST | cut -d, -f1)", "node-list"),
        ("MASTER_ADDR=${nodes%%$'\\n'*}", "MASTER_ADDR=$SLURM_JOB_NODELIST", "node-list"),
        ("MASTER_ADDR=${nodes%%$'\\n'*}", "MASTER_ADDR=localhost", "master-address"),
        ("srun --kill-on-bad-exit=1", "torchrun --nnodes=2 t.py; srun --kill-on-bad-exit=1", "head-node-only"),
        ("  train.py --steps 300 &", "  train.py --steps 300 | tee log &", ""),
        ("set -euo pipefail", "set -eu", ""),
        ("${SLURM_RESTART_COUNT:-0}\"\nsrun", "$SLURM_RESTART_COUNT\"\nsrun", "restart-count"),
        ("--nproc-per-node=\"$SLURM_GPUS_ON_NODE\" --max-restarts=1 \\\n",
         "--nproc-per-node=\"$SLURM_GPUS_ON_NODE\" --max-restarts=1\n", "continuation"),
        ("  torchrun \\\n", "  torchrun \\ \n", "continuation"),
        ("  torchrun \\\n", "  torchrun \\\n  # flags\n", "continuation"),
        ("train.py --steps", "train.py --local_rank $SLURM_LOCALID --steps", "expanded-early"),
        ("export MASTER_ADDR", "export NCCL_SOCKET_IFNAME=lo\nexport MASTER_ADDR", "interface"),
        ("export MASTER_ADDR", "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\nexport MASTER_ADDR",
         "secret"),
    ],
)  # fmt: skip
def test_one_fault_in_it_is_found_where_it_is(right: str, wrong: str, code: str) -> None:
    assert right in TEMPLATE
    changed = TEMPLATE.replace(right, wrong, 1)
    found = [each for each in told(changed) if each.code == code]
    if not code:
        assert not [each for each in told(changed) if each.severity == "error"]
        return
    assert found, [each.code for each in told(changed)]
    assert all(each.why and each.remedy and each.source and each.where for each in found)


@pytest.mark.parametrize(
    ("body", "code", "there"),
    [
        ("export NCCL_TIMEOUT=180000", "environment", True),
        ("export NCCL_IB_TIMEOUT=120", "environment", True),
        ("export NCCL_IB_TIMEOUT=22", "environment", False),
        ("export SLURM_NTASKS=16", "environment", True),
        ("srun --ntasks=1 monitor &\nsrun --ntasks-per-node=8 python t.py", "steps-wait", True),
        ("srun --overlap --ntasks=1 monitor &\nsrun --ntasks-per-node=8 python t.py", "steps-wait", False),
        ("srun -w n1 ray start &\nsrun -w n2 ray start &\nwait", "steps-wait", False),
        ("srun accelerate launch --num_machines 2 --num_processes 16 t.py", "rendezvous-missing", True),
        ("srun accelerate launch --num_machines 2 --main_process_ip $H t.py", "rendezvous-missing", True),
        ("srun accelerate launch --num_machines 2 --main_process_ip $H --rdzv_backend c10d t.py", "rendezvous-missing",
         False),
        ("srun bash -c 'torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$H:$P --rdzv_id=$RANDOM t.py'",
         "random-port", True),
        ("srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$H:$P --rdzv_id=$RANDOM t.py", "random-port",
         False),
        ("MASTER_ADDR=$(hostname)\nsrun bash -c \"torchrun --nnodes=2 --node_rank=\\$SLURM_NODEID"
         " --master_addr=$MASTER_ADDR t.py\"", "master-address", False),
        ("MASTER_ADDR=$(hostname)\nsrun bash -c \"torchrun --nnodes=2 --node_rank=\\$SLURM_NODEID"
         " --master_addr=$MASTER_ADDR t.py\"", "expanded-early", False),
        ("IFS=',' read -ra hosts <<< \"$SLURM_JOB_NODELIST\"", "node-list", True),
        ("hosts=(${SLURM_JOB_NODELIST//,/ })", "node-list", True),
        ("hosts=($(scontrol show hostnames $SLURM_JOB_NODELIST))", "node-list", False),
        ("echo $SLURM_JOB_NODELIST | tee nodes.txt", "node-list", False),
        ("#SBATCH --signal=B:USR1@300\ntrap '' USR1\nsrun --ntasks-per-node=8 python t.py", "signal-unheard", True),
        ("#SBATCH --signal=B:USR1@300\ntrap - USR1\nsrun --ntasks-per-node=8 python t.py", "signal-unheard", True),
        ("#SBATCH --signal=B:USR1@300\ntrap save USR1\nsrun --ntasks-per-node=8 python t.py", "signal-unheard", False),
        ("unset SLURM_GPUS_PER_TASK \\\n  SLURM_GPUS", "variable-not-set", False),
        ("echo $SLURM_GPUS_PER_TASK", "variable-not-set", True),
        ("srun --ntasks-per-node=8 -m cyclic python t.py", "rank-order", True),
        ("srun --ntasks-per-node=8 --distribution=plane=4 python t.py", "rank-order", True),
        ("srun --ntasks-per-node=8 --distribution=block:cyclic python t.py", "rank-order", False),
        ("srun --ntasks-per-node=1 -m cyclic torchrun t.py", "rank-order", False),
    ],
)  # fmt: skip
def test_lines_of_a_job_of_two_nodes(body: str, code: str, there: bool) -> None:
    assert (code in codes(f"{HEAD}#SBATCH --ntasks-per-node=1\n{body}\n")) == there, codes(HEAD + body)


def test_what_a_shell_put_in_is_not_expanded_again_by_the_next() -> None:
    text = (
        HEAD
        + """#SBATCH --ntasks-per-node=1
set -eo pipefail
L="torchrun --rdzv_endpoint $(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):$PORT --nnodes 2"
srun bash -c "$L t.py"
"""
    )
    assert len([each for each in told(text) if each.code == "head-pipe"]) == 1


def test_dos_lines_and_a_byte_order_mark() -> None:
    assert "line-ends" in codes(TEMPLATE.replace("\n", "\r\n"))
    assert "shebang" in codes("\ufeff" + TEMPLATE)


def test_a_folder_for_the_output_that_is_there_or_made_too_late() -> None:
    changed = TEMPLATE.replace("--output=%x-%j.out", "--output=logs/%j.out")
    assert "output-folder" not in codes(changed, there=True)
    (missing,) = [each for each in told(changed, there=False) if each.code == "output-folder"]
    assert missing.severity == "error"
    late = changed.replace("set -euo pipefail", "set -euo pipefail\nmkdir -p logs")
    (missing,) = [each for each in told(late, there=False) if each.code == "output-folder"]
    assert "too late" in missing.message


def test_export_none_with_an_srun_that_exports_again() -> None:
    changed = TEMPLATE.replace("#SBATCH --requeue", "#SBATCH --requeue\n#SBATCH --export=NONE")
    assert "export-none" in codes(changed)
    assert "export-none" not in codes(changed.replace("srun --kill", "srun --export=ALL --kill"))


@pytest.mark.parametrize(
    ("lines", "there"),
    [
        ("#SBATCH --exclusive", True),
        ("#SBATCH --exclusive=user", True),
        ("#SBATCH --exclusive\n#SBATCH --mem=0", False),
        ("#SBATCH --exclusive\n#SBATCH --mem-per-cpu=8G", False),
        ("#SBATCH --exclusive\n#SBATCH --mem-per-gpu=200G", False),
        ("#SBATCH --gpus-per-node=8", False),
    ],
)
def test_a_whole_node_is_not_all_of_its_memory(lines: str, there: bool) -> None:
    found = [each.code for each in told(f"#!/bin/bash\n{lines}\nsrun --ntasks-per-node=8 python t.py\n")]
    assert ("memory-default" in found) == there


def test_only_lines_before_the_first_command_are_directives() -> None:
    text = "#!/bin/bash\n\n# a comment\n#SBATCH -N2 -n 16 --mem 0\n##SBATCH --qos=x\necho\n#SBATCH --time=1\n"
    found = directives(text)
    assert found.options == {"nodes": "2", "ntasks": "16", "mem": "0"}
    assert (found.late, found.almost, found.lines["nodes"]) == ([7], [], 4)


def test_the_beginning_of_an_option_is_that_option_where_no_other_begins_so() -> None:
    found = directives("#!/bin/bash\n#SBATCH --err=e.txt --tasks-per-node=4\n#SBATCH --gpu=1\n")
    assert found.options == {"error": "e.txt", "ntasks-per-node": "4", "gpu": "1"}
    assert found.strange == [(3, "gpu")]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("30:15", 1815), ("24:00:00", 86400), ("1-0", 86400), ("1-12:30", 131400), ("2-00:00:01", 172801),
     ("UNLIMITED", 0)],
)  # fmt: skip
def test_time_limits(text: str, seconds: int) -> None:
    assert limit_seconds(text) == seconds


def test_the_page_of_rules_is_theirs() -> None:
    assert rules_table.PAGE.read_text() == rules_table.rendered(), "python -m tests.rules_table"


def test_every_rule_says_why_and_where_it_was_seen() -> None:
    for code, rule in RULES.items():
        assert rule.severity in ("error", "warning", "info"), code
        assert rule.why and rule.source, code


@pytest.mark.parametrize(
    "text", ["", "\n", "#!/bin/bash", "if then fi ((", "srun", "srun srun srun", "\\", "a=(", "$(", "'"]
)
def test_nothing_that_can_be_read_is_too_odd(text: str) -> None:
    for name in ("a.sh", "hostfile", "b.sbatch"):
        told(text, name=name)
        told("#SBATCH --nodes=2\n" + text, name=name)


def test_a_script_that_doubles_its_text_and_one_nested_without_end() -> None:
    assert told("#!/bin/bash\na=xxxxxxxx\n" + "a=$a$a\n" * 200 + "echo $a\n", name="run.sh") == []
    with pytest.raises(ToolkitError, match="nested too deeply"):
        told("#!/bin/bash\necho " + "$(" * 3000 + ")" * 3000, name="run.sh")


def test_letters_that_are_no_ascii_and_quotes_that_do_not_close() -> None:
    for text in ("echo '\u00e9", 'echo "\u00e9', "echo \ue000x\ue001", "[ ] && x", "if [ ]; then x; fi"):
        told(text, name="run.sh")


def test_a_script_that_starts_itself_ends() -> None:
    assert told("#!/bin/bash\nbash run.sh\n./run.sh\n", name="run.sh") == []
    both = {"a.sh": "#!/bin/bash\nbash b.sh\n", "b.sh": "#!/bin/bash\nbash a.sh\n"}
    assert check(both) == []


@pytest.mark.parametrize(
    "prefix", ["timeout -k 10 60", "timeout --signal=TERM 60", "nice -n 5", "env -u A B=1", "nohup", "stdbuf -o L exec"]
)
def test_a_command_is_found_behind_what_starts_it(prefix: str) -> None:
    for word in ("srun --kill-on-bad-exit=1", "torchrun \\\n"):
        changed = TEMPLATE.replace(word, f"{prefix} {word}", 1)
        assert changed != TEMPLATE
        assert told(changed, facts=Facts(step_seconds=20.0, save_seconds=90.0, gpus_per_node=8, gpus=16)) == []
        assert "tasks-times-workers" in codes(changed.replace("--ntasks-per-node=1", "--ntasks-per-node=8"))
