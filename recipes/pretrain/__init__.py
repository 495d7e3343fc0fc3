"""Pretraining with megatron-core: ``torchrun ... -m recipes.pretrain.train --plan plan.json --megatron FILE``."""
