"""
Make a tiny language model for a real server to serve: a tokenizer, a configuration, no weights.

Run by `scripts/real-vllm model` with that environment's Python; needs the package `tokenizers` and nothing from a network.
The tokenizer is trained on the standard library's own sources, which every machine has. The server makes the weights up
(`--load-format dummy`), so the answers are noise, but every step from prompt to stream is the real one.
"""

import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_SIZE = 8192
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": None,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "model_max_length": 4096,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}
MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": None,
    "eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
    "pad_token_id": SPECIAL_TOKENS.index("<|endoftext|>"),
}


def train_tokenizer(sources: list[str]) -> Tokenizer:
    """Train a byte-level BPE tokenizer; any text survives it, since every byte has a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(sources, trainer)
    return tokenizer


def main() -> None:
    """Write the model's files into the folder named by the only argument."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenizer = train_tokenizer(sources)
    tokenizer.save(str(folder / "tokenizer.json"))
    generation = {"eos_token_id": MODEL_CONFIG["eos_token_id"], "pad_token_id": MODEL_CONFIG["pad_token_id"]}
    files = {
        "tokenizer_config.json": TOKENIZER_CONFIG,
        "generation_config.json": generation,
        "config.json": MODEL_CONFIG,  # last: its presence says that the rest is there
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(f"made {folder} ({tokenizer.get_vocab_size()} tokens in the vocabulary)", file=sys.stderr)


if __name__ == "__main__":
    main()
