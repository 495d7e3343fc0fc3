"""Plan, emit, run and verify distributed training with DeepSpeed, FSDP and Megatron.

Importing this package imports nothing heavy: no numpy, torch or framework.
"""

__version__ = "0.1.0"
