"""Three steps of Hugging Face's Trainer on a small Llama: trainer.py FOLDER [fsdp | fsdp2]."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

LAYERS, WIDTH, TOKENS, BATCH = 2, 64, 16, 4
FSDP = {
    "fsdp": {"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 1}},
    "fsdp2": {"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 2}},
}


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, at):
        tokens = torch.arange(TOKENS) + at % 7
        return {"input_ids": tokens, "labels": tokens}


if __name__ == "__main__":
    way = FSDP.get(sys.argv[2], {}) if len(sys.argv) > 2 else {}
    for options in way.values():
        if isinstance(options, dict):
            options["transformer_layer_cls_to_wrap"] = ["LlamaDecoderLayer"]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
    )
    arguments = TrainingArguments(
        output_dir=sys.argv[1],
        per_device_train_batch_size=BATCH,
        max_steps=3,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        **way,
    )
    Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
