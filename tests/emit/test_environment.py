"""Only the variables that a job needs."""

import msgspec
import pytest

from tests import plans
from toolkit.emit import environment
from toolkit.errors import ToolkitError
from toolkit.plan import Plan


def on(accelerator: object, **strategy: object) -> dict[str, str]:
    cluster = msgspec.structs.replace(plans.DGX, accelerator=accelerator)
    return environment.variables(plans.plan("p", plans.LLAMA_8B, cluster, **strategy))


@pytest.mark.parametrize(
    ("accelerator", "strategy", "value"),
    [
        (plans.H100, {"framework": "megatron", "tp": 2}, "1"),
        (plans.H100, {"framework": "megatron", "cp": 2}, "1"),
        (plans.H100, {"framework": "megatron", "pp": 2}, None),
        (plans.H100, {"framework": "megatron"}, None),
        (plans.H100, {"framework": "fsdp", "zero_stage": 3}, None),
        (plans.H100, {"framework": "deepspeed", "zero_stage": 3}, None),
        (plans.B200, {"framework": "megatron", "tp": 2}, None),
        (plans.MI300X, {"framework": "megatron", "tp": 2}, None),
    ],
)
def test_one_connection_only_where_megatron_insists(accelerator: object, strategy: dict, value: str | None) -> None:
    # Megatron-LM 5105 and 533, torchtitan 1147: FSDP is slowed by it, Blackwell does not need it
    assert on(accelerator, **strategy).get("CUDA_DEVICE_MAX_CONNECTIONS") == value


def test_the_rest() -> None:
    assert on(plans.H100, zero_stage=2) == {
        "OMP_NUM_THREADS": "8",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TOKENIZERS_PARALLELISM": "false",
    }
    assert "PYTORCH_ALLOC_CONF" not in on(plans.MI300X, zero_stage=2)
    assert on(plans.H100, zero_stage=2, offload=1)["OMP_NUM_THREADS"] == "14"  # 112 cores, 8 processes
    tiny = environment.variables(plans.all_plans()["tiny"])
    assert tiny == {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def with_site(**site: object) -> Plan:
    return plans.plan("p", plans.LLAMA_8B, plans.with_site(plans.DGX, **site), zero_stage=2)


def test_interfaces_only_when_the_site_names_one() -> None:
    found = environment.variables(with_site(network_interface="ib0"))
    assert found["NCCL_SOCKET_IFNAME"] == found["GLOO_SOCKET_IFNAME"] == "ib0"


def test_the_sites_own_values_win_and_the_order_is_by_name() -> None:
    found = environment.variables(with_site(environment={"OMP_NUM_THREADS": "3", "AAA": "1"}))
    assert found["OMP_NUM_THREADS"] == "3" and list(found) == sorted(found)


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "my_secret", "DB_PASSWORD"])
def test_secrets_are_not_written_into_scripts(name: str) -> None:
    with pytest.raises(ToolkitError, match="looks like a secret"):
        environment.variables(with_site(environment={name: "x"}))


@pytest.mark.parametrize("name", ["", "1A", "A B", "A=B", "A;touch x", "A\nB", "$(touch x)"])
def test_names_are_names(name: str) -> None:
    with pytest.raises(ToolkitError, match="not the name of an environment variable"):
        environment.variables(with_site(environment={name: "x"}))
