"""Hugging Face checkpoints in and out of megatron-core models: names, configurations, files, and the transfer."""
