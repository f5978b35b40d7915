"""transformers' Trainer with a small model of its own making, as in its course; nothing is fetched."""

import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
config = BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
)
data = [
    {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words.sum() % 2}
    for words in torch.randint(0, 64, (64, 8))
]
# Without the last two the Trainer does not train together on CPUs, with torchrun neither.
on_cpu = {} if torch.cuda.is_available() else {"use_cpu": True, "ddp_backend": "gloo"}
arguments = TrainingArguments(sys.argv[1], max_steps=6, per_device_train_batch_size=4, report_to=[], **on_cpu)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=data)
result = trainer.train()
if trainer.is_world_process_zero():
    assert result.global_step == 6
    print("world", arguments.world_size, "parallel", arguments.parallel_mode.value)
