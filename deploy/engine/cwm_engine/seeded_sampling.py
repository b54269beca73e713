"""Lets a CPU engine sample with a seed although a prompt takes several steps.

In each step vLLM also samples for prompts that are computed in part, discards that token and takes the generator back by an
offset. A generator on the CPU has no offset: the call raises and ends the engine, for everybody. Here the generator's
state from before the step is put back instead.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def sample_with_seeds() -> None:
    """Change this process from now on. The runner of CPU engines inherits from the changed class."""
    sample, keep_books = GPUModelRunner._sample, GPUModelRunner._bookkeeping_sync  # noqa: SLF001 - nothing is public here

    def sample_and_rewind(runner: Any, *arguments: Any, **options: Any) -> Any:
        states = [(generator, generator.get_state()) for generator in _of_discarded(runner).values()]
        sampled = sample(runner, *arguments, **options)
        for generator, state in states:
            generator.set_state(state)
        return sampled

    def keep_books_without_rewinding(runner: Any, *arguments: Any, **options: Any) -> Any:
        generators, discarded = runner.input_batch.generators, _of_discarded(runner)
        for row in discarded:
            del generators[row]
        try:
            return keep_books(runner, *arguments, **options)
        finally:
            generators.update(discarded)

    GPUModelRunner._sample = sample_and_rewind  # noqa: SLF001
    GPUModelRunner._bookkeeping_sync = keep_books_without_rewinding  # noqa: SLF001


def _of_discarded(runner: Any) -> dict[int, Any]:
    """The generators of requests whose token of this step is discarded, by their rows of the batch."""
    batch = runner.input_batch
    discards = runner.discard_request_mask.np[: batch.num_reqs]
    return {row: generator for row, generator in batch.generators.items() if discards[row]}
