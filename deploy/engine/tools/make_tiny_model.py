"""Write the tiny deterministic model of CWM's tests: ``make_tiny_model.py OUT``.

A two-layer random Llama of 1.7 M parameters and a byte-level BPE of 2048 ids, trained on a text that this
file generates, so that ids and weights are the same on every machine and every Python. Runs inside the
engine environment.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 2048
BEGIN, TURN_END = "<s>", "<|im_end|>"
SPECIAL = (BEGIN, "</s>", "<|im_start|>", TURN_END)
STEM_TEXT = (
    "read write build freeze thaw clone cache token chunk window session engine prefix store load serve start stop "
    "check count send print fetch parse render open close find match sort group map call return raise plan note "
    "report answer question explain compare measure record restore verify protect share branch merge commit test "
    "deploy watch trace index list name value table column query search page line word letter number"
)
ENDINGS = ["", "s", "ed", "er", "ers", "ing", "able", "less", "ful", "ness", "ment", "ly"]
SMALL_TEXT = (
    "the a of to and in that it is was for on with as at by this from or an be are not but they which one you all "
    "we can has had what when your there each how do if will up other about out many then them these so some would "
    "make like into time two more no way could my than first been who its now people down day did get come may"
)
STEMS, SMALL = STEM_TEXT.split(), SMALL_TEXT.split()
SHAPES = (
    "{small} {word} {small} {word}.",
    "The {word} {small} {small} {word}, {small} {word}?",
    "def {stem}_{word}(self, {stem}): return self.{word}",
    "{word} = {stem}[{number}] + {number}\n",
    "- {word} {small} {word}: {number} {small} {stem}\n",
    '{{"{stem}": {number}, "{word}": "{small}"}}',
)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def draws(seed: int) -> Iterator[int]:
    """An endless stream of 31-bit numbers by a fixed linear congruence; no library decides their order."""
    state = seed
    while True:
        state = (state * 1103515245 + 12345) % 2**31
        yield state >> 8


def corpus(lines: int = 6000) -> Iterator[str]:
    numbers = draws(7)

    def pick(choices: list[str] | tuple[str, ...]) -> str:
        return choices[next(numbers) % len(choices)]

    for _ in range(lines):
        yield pick(SHAPES).format(
            small=pick(SMALL),
            stem=pick(STEMS),
            word=pick(STEMS) + pick(ENDINGS),
            number=next(numbers) % 10000,
        )


def tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(), trainer)
    if bpe.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the corpus gives {bpe.get_vocab_size()} token ids instead of {VOCABULARY}")
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=BEGIN, eos_token=TURN_END, chat_template=TEMPLATE
    )


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=32768,
        bos_token_id=SPECIAL.index(BEGIN),
        eos_token_id=SPECIAL.index(TURN_END),
        tie_word_embeddings=True,
        # At the usual 0.02 all logits are nearly equal and greedy output tells nothing apart.
        initializer_range=0.1,
    )
    return LlamaForCausalLM(config).to(torch.float32)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    print("training the tokenizer", flush=True)
    tokenizer().save_pretrained(out)
    print("drawing the weights", flush=True)
    model().save_pretrained(out)
