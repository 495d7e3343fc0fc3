"""Rules of the rendezvous: addresses, ports, node lists, flags that contradict one another."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.check.commands import Script
from toolkit.check.facts import Facts
from toolkit.check.launchers import Launch
from toolkit.check.rules import ERROR, finding
from toolkit.check.slurm_names import NODE_LISTS
from toolkit.check.tasks import gpus_per_node, number
from toolkit.check.text import NODE, only_variable, shown, unknown, variables, whole
from toolkit.finding import Finding

PORT_OPTIONS = ("master_port", "main_process_port")
ADDRESS_OPTIONS = ("master_addr", "main_process_ip")
HERE = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}
_CUTTERS = ("cut", "sed", "awk", "tr", "head", "grep", "python", "python3", "rev", "perl")
_SLICE = re.compile(r"\$\{(\w+)(?:%|#|:\d|/|\[)")
MODULO = "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))"


def meeting_findings(script: Script, found: list[Launch], facts: Facts) -> Iterator[Finding]:
    """Everything that keeps ranks from finding one another."""
    nodes = number(script.head.get("nodes") or "1", script)
    several = nodes is None or nodes > 1
    for launch in found:
        yield from _flags(script, launch, several)
        yield from _accelerate(script, launch)
    yield from _ports(script, found, facts, several)
    yield from _addresses(script, found, several)
    yield from _node_lists(script)
    yield from _pipes(script)
    for each in script.assignments:
        if each.name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") and each.text.strip() == "lo" and several:
            yield finding(
                "interface", f"{each.name}=lo", "leave it out, or name the network's interface", line=each.line
            )


def _flags(script: Script, launch: Launch, several: bool) -> Iterator[Finding]:
    given = launch.options
    masters = [name for name in ("master_addr", "master_port") if name in given]
    rendezvous = [name for name in ("rdzv_backend", "rdzv_endpoint", "rdzv_id") if name in given]
    backend = given.get("rdzv_backend", "static")
    if launch.kind == "torchrun" and masters and (set(rendezvous) - {"rdzv_id"}) and backend != "static":
        flags = ", ".join(f"--{name}" for name in (*masters, *rendezvous))
        yield finding(
            "rendezvous-mixed",
            f"both kinds of flags: {flags}",
            "either --rdzv_backend=c10d --rdzv_endpoint=HOST:PORT --rdzv_id=JOB, or --node_rank --master_addr"
            " --master_port; never count on rank 0 being on the first host",
            line=launch.line,
        )
    nodes_text = given.get("nnodes", "1")
    count = number(nodes_text.split(":")[-1], script)
    many = (count is None and bool(nodes_text)) or (count or 1) > 1
    if launch.kind != "torchrun" or not many:
        return
    if backend == "c10d" and "node_rank" in given:
        yield finding(
            "rendezvous-mixed",
            "--node_rank with --rdzv_backend=c10d, which gives ranks itself",
            "leave --node_rank out, or use static flags",
            line=launch.line,
        )
    if "standalone" in given:
        yield finding(
            "rendezvous-missing",
            f"--standalone with --nnodes={shown(nodes_text)}",
            "--rdzv_backend=c10d --rdzv_endpoint=HOST:PORT",
            line=launch.line,
        )
        return
    address = any(a.name == "PET_RDZV_ENDPOINT" or a.name == "PET_MASTER_ADDR" for a in script.assignments)
    if "rdzv_endpoint" not in given and "master_addr" not in given and not address:
        yield finding(
            "rendezvous-missing",
            f"--nnodes={shown(nodes_text)} without an address: torchrun takes 127.0.0.1",
            '--rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT"',
            line=launch.line,
        )
    elif backend == "static" and "node_rank" not in given and several:
        ranked = any(a.name in ("PET_NODE_RANK", "GROUP_RANK") for a in script.assignments)
        if not ranked:
            yield finding(
                "rendezvous-missing",
                "a static rendezvous without --node_rank: every node is 0",
                "--rdzv_backend=c10d, or --node_rank=$SLURM_NODEID in the srun'd shell",
                line=launch.line,
            )
    if backend == "c10d" and whole(given.get("max_restarts", "0")) not in (None, 0):
        cured = any(a.name == "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" and a.text == "1" for a in script.assignments)
        if not cured:
            yield finding(
                "elastic-restart",
                f"--max_restarts={given['max_restarts']} with the shared store",
                "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
                line=launch.line,
            )


def _accelerate(script: Script, launch: Launch) -> Iterator[Finding]:
    """Several machines want an address and, without c10d, a rank of each; a configuration file may give both."""
    machines = launch.options.get("num_machines", "1")
    if launch.kind != "accelerate" or machines.strip() == "1" or "config_file" in launch.options:
        return
    told = f"--num_machines={shown(machines)}"
    if "main_process_ip" not in launch.options:
        yield finding(
            "rendezvous-missing",
            f"{told} without --main_process_ip",
            '--main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT"',
            line=launch.line,
        )
    elif "machine_rank" not in launch.options and "c10d" not in launch.options.get("rdzv_backend", ""):
        yield finding(
            "rendezvous-missing",
            f"{told} without --machine_rank: every machine is 0",
            "--rdzv_backend=c10d, or --machine_rank=$SLURM_NODEID in the srun'd shell",
            line=launch.line,
        )


def _ports(script: Script, found: list[Launch], facts: Facts, several: bool) -> Iterator[Finding]:
    told: set[str] = set()
    shared = script.is_batch and not _whole_nodes(script, facts)
    severity = ERROR if shared else ""
    texts = [(f"{each.name}={shown(each.text)}", each.text, each.line, each.place) for each in script.assignments
             if each.name in ("MASTER_PORT", "PORT", "RDZV_PORT", "MAIN_PROCESS_PORT", "PET_MASTER_PORT")]  # fmt: skip
    for launch in found:
        place = NODE if launch.call.place == NODE else 0
        for option in PORT_OPTIONS:
            if option in launch.options:
                texts.append(
                    (f"--{option}={shown(launch.options[option])}", launch.options[option], launch.line, place)
                )
        endpoint = launch.options.get("rdzv_endpoint", "")
        if ":" in endpoint:
            port = endpoint.rpartition(":")[2]
            texts.append((f"--rdzv_endpoint={shown(endpoint)}", port, launch.line, place))
        if launch.kind == "torchrun" and not {"rdzv_endpoint", "master_port", "standalone"} & launch.options.keys():
            named = any(each.name == "PET_MASTER_PORT" for each in script.assignments)
            named = named or (several and launch.options.get("nnodes", "1") != "1")  # told as having no address
            if script.is_batch and not named:
                message, remedy = "torchrun without a port takes 29500", f"{MODULO}; --standalone on one node"
                yield finding("fixed-port", message, remedy, line=launch.line, severity=severity)
    for what, text, line, place in texts:
        fixed = whole(text)
        if fixed and text not in told:
            told.add(text)
            yield finding("fixed-port", f"{what} is the same in every job", MODULO, line=line, severity=severity)
        if any("RANDOM" in part and where == NODE for where, part in unknown(text)) or place == NODE and "shuf" in text:
            yield finding(
                "random-port", f"{what} is drawn on each node", f"once, in the batch shell: {MODULO}", line=line
            )
    for launch in found:
        name = launch.options.get("rdzv_id", "")
        if any("RANDOM" in part and where == NODE for where, part in unknown(name)):
            message, remedy = f"--rdzv_id={shown(name)} is drawn on each node", "--rdzv_id=$SLURM_JOB_ID"
            yield finding("random-port", message, remedy, line=launch.line)
        if whole(name) is not None and script.is_batch and "c10d" in launch.options.get("rdzv_backend", ""):
            yield finding(
                "rendezvous-id",
                f"--rdzv_id={name} is the same in every job",
                "--rdzv_id=$SLURM_JOB_ID",
                line=launch.line,
            )


def _whole_nodes(script: Script, facts: Facts) -> bool:
    if "exclusive" in script.head.options:
        return True
    gpus = gpus_per_node(dict(script.head.options), number(script.head.get("nodes") or "1", script))
    return bool(gpus and facts.gpus_per_node and gpus >= facts.gpus_per_node)


def _addresses(script: Script, found: list[Launch], several: bool) -> Iterator[Finding]:
    texts = [(f"{each.name}={shown(each.text)}", each.text, each.line) for each in script.assignments
             if each.name in ("MASTER_ADDR", "MAIN_PROCESS_IP", "HEAD_NODE_IP", "PET_MASTER_ADDR")]  # fmt: skip
    for launch in found:
        for option in (*ADDRESS_OPTIONS, "rdzv_endpoint"):
            if option in launch.options:
                text = launch.options[option].partition(":")[0] if option == "rdzv_endpoint" else launch.options[option]
                text = launch.options[option] if "\ue000" in launch.options[option] else text
                texts.append((f"--{option}={shown(launch.options[option])}", text, launch.line))
    first = "nodes=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\"); MASTER_ADDR=${nodes%%$'\\n'*}"
    told: set[tuple[str, int]] = set()
    for what, text, line in texts:
        if not several or (what, line) in told:
            continue
        told.add((what, line))
        if text.strip() in HERE:
            yield finding("master-address", f"{what} in a job of several nodes", first, line=line)
        inside = [part for where, part in unknown(text) if where == NODE]
        if any(re.search(r"\bhostname\b|HOSTNAME|SLURMD_NODENAME", part) and "scontrol" not in part for part in inside):
            yield finding(
                "master-address", f"{what} is expanded on each node", f"in the batch shell: {first}", line=line
            )


def _node_lists(script: Script) -> Iterator[Finding]:
    remedy = 'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST"), one host a line'
    told: set[int] = set()
    lists = {each.name for each in script.assignments if only_variable(each.text) in NODE_LISTS} | set(NODE_LISTS)
    for each in script.assignments:
        cut = [part for _, part in unknown(each.text) if (m := _SLICE.search(part)) and m[1] in lists
               and "scontrol" not in part]  # fmt: skip
        cut += [part for _, part in unknown(each.text) if part.startswith("$(") and _cuts(part, lists)]
        if each.name in ("MASTER_ADDR", "HEAD_NODE", "MASTER_NODE") and only_variable(each.text) in NODE_LISTS:
            cut.append(each.text)
        if cut and each.line not in told:
            told.add(each.line)
            yield finding("node-list", f"{each.name}={shown(cut[0])} cuts a node list as text", remedy, line=each.line)
    for call in script.calls:
        if call.line in told or call.captured:
            continue
        fed = call.name in ("read", "readarray", "mapfile", *_CUTTERS) and re.search(r"<<<\s*\"?\$\{?(\w+)", call.raw)
        if fed and fed[1] in lists and not (call.name == "read" and "IFS" not in call.raw):
            told.add(call.line)
            yield finding("node-list", f"{call.raw[:60]} cuts a node list as text", remedy, line=call.line)
            continue
        told_of = call.name in ("echo", "printf") and set(variables(" ".join(call.words))) & lists
        if told_of and any(name in _CUTTERS for name in call.pipe):
            told.add(call.line)
            yield finding("node-list", f"{call.raw[:60]} cuts a node list as text", remedy, line=call.line)


def _cuts(part: str, lists: set[str]) -> bool:
    """``$(echo $SLURM_NODELIST | cut ...)``, ``$(cut ... <<< $SLURM_NODELIST)``."""
    used = any(re.search(rf"\$\{{?{name}\b", part) for name in lists)
    cutting = any(re.search(rf"(?:\||\$\(|^)\s*{name}\b", part) for name in _CUTTERS)
    return used and cutting and "scontrol" not in part


def _pipes(script: Script) -> Iterator[Finding]:
    if not {"pipefail", "errexit"} <= script.shell:
        return
    for call in script.calls:
        short = [name for name in call.pipe if name == "head"]
        if call.name == "scontrol" and {"hostnames", "hostname"} & set(call.words) and short:
            yield finding(
                "head-pipe",
                "scontrol show hostnames | head under set -eo pipefail",
                "nodes=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\"); first=${nodes%%$'\\n'*}",
                line=call.line,
            )
