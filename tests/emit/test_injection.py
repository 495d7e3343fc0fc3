"""Hostile names in every text of a plan that reaches a script: refused, or carried as they are and never run."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import plans
from tests.emit.fake_cluster import FakeCluster
from toolkit.emit import script, shell, slurm, torchrun
from toolkit.emit.bundle import bundle
from toolkit.errors import ToolkitError
from toolkit.plan import Plan

SHELLCHECK = shutil.which("shellcheck", path=str(Path(__import__("sys").executable).parent)) or "shellcheck"

# each tries to make a file named canary in whatever directory it is run
ATTACKS = [
    "$(touch canary)",
    "`touch canary`",
    "'; touch canary; '",
    '"; touch canary; "',
    "x\ntouch canary\n",
    "x\n#SBATCH --wrap=touch canary",
    "\\'; touch canary #",
    "${IFS}touch${IFS}canary",
    "a || touch canary",
    "a & touch canary",
    "> canary",
    "--wrap=touch canary",
    "-c",
    "a b",
    "*",
    "~",
    "!!",
    "$HOME",
    "é ü 中 𝄞",
    "\x1b[31m",
    "\r\ntouch canary",
    "a\x00b",
    "%x",
    "{{x}}",
    "$'\\n'",
    "",
]
hostile = st.one_of(
    st.sampled_from(ATTACKS),
    st.text(st.sampled_from("ab \"'`$(){}[];&|<>*?~!#\\\n\t\r=,:-_/%^é\x00\x7f"), max_size=12),
    st.text(max_size=8),
)
TEXTS = (
    "name",
    "recipe",
    "model",
    "cluster",
    "accelerator",
    "directory",
    "plan_file",
    "output",
    "partition",
    "account",
    "qos",
    "constraint",
    "reservation",
    "time_limit",
    "gpu_type",
    "memory_per_node",
    "container_image",
    "container_mount",
    "module",
    "environment_value",
    "network_interface",
    "framework",
    "precision",
    "program",
)


def poisoned(where: str, value: str, runtime: str = "none") -> tuple[Plan, script.Files]:
    """The zero3 plan with ``value`` in one place."""
    plan = plans.all_plans()["zero3"]
    replace = msgspec.structs.replace
    cluster, files = plan.cluster, script.Files(directory="plan", deepspeed="ds_config.json")
    if runtime != "none":
        cluster = plans.with_site(cluster, container_runtime=runtime, container_image="image.sif")
    if where in ("name", "recipe", "program"):
        plan = replace(plan, **{where: value})
    elif where == "model":
        plan = replace(plan, model=replace(plan.model, name=value))
    elif where == "framework":
        plan = replace(plan, strategy=replace(plan.strategy, framework=value))
    elif where == "precision":
        plan = replace(
            plan,
            workload=replace(plan.workload, precision=value),
            contract=replace(plan.contract, precision=value),
        )
    elif where == "cluster":
        cluster = replace(cluster, name=value)
    elif where == "accelerator":
        cluster = replace(cluster, accelerator=replace(cluster.accelerator, name=value))
    elif where == "directory":
        files = replace(files, directory=value or "plan")
    elif where == "plan_file":
        files = replace(files, plan=value.replace("/", "") or "plan.json")
    elif where == "output":
        files = replace(files, output_directory=value)
    elif where == "container_mount":
        cluster = plans.with_site(cluster, container_mounts=(value,))
    elif where == "module":
        cluster = plans.with_site(cluster, modules=(value,))
    elif where == "environment_value":
        cluster = plans.with_site(cluster, environment={"SITE_VALUE": value})
    else:
        cluster = plans.with_site(cluster, **{where: value})
    return replace(plan, cluster=cluster), files


def check(where: str, value: str, runtime: str = "none") -> None:
    plan, files = poisoned(where, value, runtime)
    try:
        text = slurm.batch_script(plan, files)
    except ToolkitError:
        return
    with tempfile.TemporaryDirectory() as folder:
        cluster = FakeCluster(Path(folder) / "cluster")
        directory = cluster.submit / shell.path(files.directory)
        if Path(files.directory).is_absolute() or ".." in Path(files.directory).parts or "/" in files.plan:
            return
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / files.plan).write_text("{}")
        except (OSError, ValueError):  # no file system can hold this name
            return
        done = cluster.run(text, value.replace("\0", ""))
        assert not [path for path in Path(folder).rglob("canary") if path.is_file()], text
        assert not [line for line in text.splitlines() if line.startswith("#SBATCH --wrap")]
        words = cluster.words("torchrun.0")
        assert done.returncode == 0, done.stderr
        path = shell.path(files.directory)
        expected = [
            *("--plan", f"{path}/{files.plan}", "--deepspeed", f"{path}/ds_config.json", "--output-dir"),
            shell.path(files.output_directory or f"{files.directory.rstrip('/')}/run"),
            value.replace("\0", ""),
        ]
        assert words[words.index("-m") + 2 :] == expected
        seen = cluster.seen_environment()
        if where == "environment_value":
            assert seen["SITE_VALUE"] == value
        if where == "network_interface" and value:
            assert seen["NCCL_SOCKET_IFNAME"] == value
        if where == "module":
            assert cluster.words("module") == ["load", value]
        if where == "container_image" and runtime == "pyxis":
            assert f"--container-image={value}" in cluster.words("srun")
        if where == "container_image" and runtime == "apptainer":
            assert cluster.words("apptainer")[6] == value


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_in_every_directive_and_comment(attack: str) -> None:
    """No new line of a script, whatever a text holds: read without running."""
    for where in TEXTS:
        plan, files = poisoned(where, attack)
        try:
            text = slurm.batch_script(plan, files)
        except ToolkitError as error:
            assert str(error)
            continue
        head = text.partition("# ---- From here on")[0].splitlines()
        assert head.pop(head.index("set -euo pipefail") - 1) == script.BASH
        assert all(re.match(r"#|set -euo pipefail$|export [A-Z_]+=|[a-z_]+=|$", line) for line in head), head
        directives = [line for line in head if line.startswith("#SBATCH")]
        assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=[A-Za-z0-9._,@+:/=%&|*\[\]()!-]+)?", line) for line in directives)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(TEXTS), hostile)
def test_hostile_texts_are_carried_and_never_run(where: str, value: str) -> None:
    check(where, value)


@pytest.mark.slow
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(TEXTS), hostile, st.sampled_from(["none", "apptainer", "pyxis"]))
def test_hostile_texts_at_length(where: str, value: str, runtime: str) -> None:
    check(where, value, "none" if where in ("container_mount",) and runtime == "none" else runtime)


@given(hostile)
def test_quoting_is_one_word_on_one_line(value: str) -> None:
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        return
    quoted = shell.quote(value)
    assert "\n" not in quoted and "\r" not in quoted
    if len(value) <= 12:
        done = subprocess.run(["/bin/bash", "-c", f"printf %s {quoted}"], capture_output=True, check=True)
        assert done.stdout.decode() == value


@given(st.text())
def test_labels_are_job_names(value: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", shell.label(value))


@given(st.text())
def test_comments_stay_on_their_line(value: str) -> None:
    assert re.fullmatch(r"# [ -~]*", shell.comment(value))


# --- every emitted script, under the tools that read scripts ----------------------------------------


def scripts() -> dict[str, str]:
    made = {}
    for name, plan in plans.all_plans().items():
        for file, text in bundle(plan, "/shared/a b/$(x)").items():
            if file.endswith((".sh", ".sbatch")):
                made[f"{name}.{file}"] = text
        made[f"{name}.srun.sbatch"] = bundle(plan, "/shared/a b/$(x)", "srun")["train.sbatch"]
    plan = plans.all_plans()["zero3"]
    for runtime in ("pyxis", "apptainer"):
        site = {
            "container_runtime": runtime,
            "container_image": "docker://nvcr.io#nvidia/pytorch:25.01-py3",
            "container_mounts": ("/data:/data", "/a b:/c"),
            "modules": ("cuda/12", "gcc"),
            "setup_command": 'source "$HOME/venv/bin/activate"',
            "network_interface": "ib0",
            "gpu_request": "gres",
        }
        changed = msgspec.structs.replace(plan, cluster=plans.with_site(plan.cluster, **site))
        made[f"{runtime}.sbatch"] = slurm.batch_script(changed, script.Files(directory="x"))
    for attack in ATTACKS:
        try:
            made[f"attack{len(made)}.sbatch"] = slurm.batch_script(*poisoned("directory", attack))
            made[f"attack{len(made)}.sh"] = torchrun.launch_script(*poisoned("environment_value", attack))
        except ToolkitError:
            continue
    return made


@pytest.mark.parametrize("which", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_bash_and_shellcheck_find_nothing(which: str, tmp_path: Path) -> None:
    paths, heads, bodies = [], [], set()
    few = ("tiny.launch.sh", "zero3-offload.train.sbatch", "apptainer.sbatch")
    for name, text in scripts().items():
        if which == "some" and name not in few:
            continue
        paths.append(tmp_path / name)
        paths[-1].write_text(text)
        head, mark, body = text.partition("# ---- From here on the script is the same for every plan.")
        assert mark, name
        if body in bodies:  # shellcheck takes a second for each, and has seen it: the rest is what the plan wrote
            heads.append(tmp_path / f"head.{name}")
            heads[-1].write_text(head)
        bodies.add(body)
    assert len(paths) >= len(few)
    for path in paths:
        assert subprocess.run(["/bin/bash", "-n", str(path)], capture_output=True).returncode == 0, path.name
    whole = [path for path in paths if tmp_path / f"head.{path.name}" not in heads]
    for options, files in (([], whole), (["--exclude=SC2034"], heads)):  # variables that the body reads
        if files:
            done = subprocess.run([SHELLCHECK, *options, *map(str, files)], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[:3000]


def test_shellcheck_would_find_something(tmp_path: Path) -> None:
    bad = tmp_path / "bad.sh"
    bad.write_text("#!/bin/bash\nnodes=$(scontrol show hostnames $SLURM_JOB_NODELIST)\necho $nodes\n")
    assert subprocess.run([SHELLCHECK, str(bad)], capture_output=True).returncode == 1


def test_rules_that_hold_in_every_text() -> None:
    for name, text in scripts().items():
        code = "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines())
        # a global rank of one task per process, never the number of a node
        code = code.replace('RANK="$SLURM_PROCID"', "")
        assert "SLURM_PROCID" not in code and "SLURM_JOB_NUMNODES" not in code, name
        assert "| head" not in code and "node-rank" not in code and "master-addr" not in code, name
        assert not re.search(r"trap .* (SIG)?CONT", code), name
        assert not [line for line in text.splitlines() if line.startswith("#SBATCH") and "$" in line], name
        if name.endswith(".sbatch"):
            assert text.index("#SBATCH --open-mode=append") < text.index("set -euo pipefail")
            assert "29500" not in code and "$SLURM_NODEID" not in code.partition("on_each_node='")[0], name
