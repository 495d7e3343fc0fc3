"""Fine-tuning with the Hugging Face Trainer: ``torchrun ... -m recipes.finetune.train --plan plan.json``."""
