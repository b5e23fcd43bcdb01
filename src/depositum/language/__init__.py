"""Fine-tuning language models: instruction datasets, LoRA adapters on a frozen pretrained model, and the token loss.

This package is a leaf: no other part imports it. `data`, `models` and `problem` register its datasets, its model and
its loss by import path, and the rest of the package uses them through the hooks of `depositum.models.hooks` and the
properties that registered factories declare. `transformers` and `peft` are imported when a model is read.
"""

from depositum.language.instruction_datasets import Dolly, InstructionFiles
from depositum.language.lora import LoraModel
from depositum.language.tokens import IGNORED, TokenSamples, token_loss

__all__ = ["IGNORED", "Dolly", "InstructionFiles", "LoraModel", "TokenSamples", "token_loss"]
