"""BatchNorm over all ranks equals BatchNorm over all samples, however unequally the ranks share them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from recipes.finetune import sync_batch_norm

CUTS = (5,), (3, 5), (1, 2, 5)  # where the 6 samples are cut: unequal shares (pytorch#22192)


def _batch() -> torch.Tensor:
    return torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _norm() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.BatchNorm1d(4, dtype=torch.float64))


def _rank(rank: int, cut: tuple[int, ...], store: str, results: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=len(cut) + 1)
    model = sync_batch_norm.convert(_norm(), on_processors=True)
    part = torch.tensor_split(_batch(), cut)[rank].requires_grad_()
    out = model(part)
    (out**3).sum().backward()
    torch.save((out.detach(), part.grad, model[0].running_mean, model[0].running_var), f"{results}/{rank}")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_ranks_with_unequal_shares_are_one_batch(cut: tuple[int, ...], tmp_path: Path) -> None:
    mp.spawn(_rank, (cut, str(tmp_path / "store"), str(tmp_path)), nprocs=len(cut) + 1)
    whole, model = _batch().requires_grad_(), _norm()
    out = model(whole)
    (out**3).sum().backward()
    found = [torch.load(tmp_path / str(rank)) for rank in range(len(cut) + 1)]
    torch.testing.assert_close(torch.cat([each[0] for each in found]), out.detach())
    torch.testing.assert_close(torch.cat([each[1] for each in found]), whole.grad)
    for each in found:
        torch.testing.assert_close(each[2:], (model[0].running_mean, model[0].running_var))


def test_a_single_process_is_left_as_it_was() -> None:
    model, same = _norm(), sync_batch_norm.convert(_norm(), on_processors=True)
    torch.testing.assert_close(same(_batch()), model(_batch()))
    torch.testing.assert_close(same.eval()(_batch()), model.eval()(_batch()))
