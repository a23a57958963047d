"""Write like the documentation: a model of its characters, an LSTM and a small transformer.

The data are the Markdown files of this project; each paragraph is a sequence, of any length. On
held-out ones it is compared with counts of characters and of pairs; then the model writes.

Run it with `python examples/characters.py --network both`: under two minutes on two cores.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers
from penstock.handlers import Progress

SIZE, HEADS, MAX_LENGTH = 128, 4, 160
NUM_CHARACTERS, END = 128, 0  # those of ASCII; 0 begins and ends a paragraph


def read_samples(folder):
    """Return the paragraphs of a folder's Markdown files: training samples and held-out ones."""
    paths = [*sorted(folder.glob("*.md")), *sorted(folder.glob("docs/*.md"))]
    texts = "\n\n".join(path.read_text(encoding="utf-8") for path in paths).split("\n\n")
    pieces = [text[i : i + MAX_LENGTH] for text in texts for i in range(0, len(text), MAX_LENGTH)]
    ids = [piece.encode("ascii", "replace") for piece in pieces]
    samples = [{"before": [END, *each], "after": [*each, END]} for each in ids]
    return [each for i, each in enumerate(samples) if i % 10], samples[::10]


@layers.scope("lstm")
def lstm(characters, state):
    """Return logits of the next characters and the new state; the state None begins a text."""
    hidden_state, cell_state = state or (None, None)
    gates = layers.fc(layers.embedding(characters, [NUM_CHARACTERS, SIZE]), 4 * SIZE)
    hidden, cell = layers.dynamic_lstm(gates, 4 * SIZE, hidden_state, cell_state)
    return layers.fc(hidden, NUM_CHARACTERS), (hidden.values[:, -1], cell.values[:, -1])


@layers.scope("transformer")
def transformer(characters, state):
    """Return the same; the state is the keys and values of the previous characters."""
    x = layers.embedding(characters, [NUM_CHARACTERS, SIZE])
    options = {"num_layers": 2, "num_heads": HEADS, "ffn_size": 2 * SIZE, "rotary": True}
    if state is None:
        return layers.fc(layers.transformer_decoder(x, **options), NUM_CHARACTERS), None
    x, state = layers.transformer_decoder(x, **options, caches=state)
    return layers.fc(x, NUM_CHARACTERS), state


def init_transformer(num_texts):
    return (layers.init_cache(num_texts, MAX_LENGTH, HEADS, SIZE // HEADS),) * 2


NETWORKS: dict[str, tuple[Callable, Callable, float]] = {
    "lstm": (lstm, lambda num_texts: (jnp.zeros([num_texts, SIZE]),) * 2, 1e-2),
    "transformer": (transformer, init_transformer, 3e-3),
}


def train(network, init_state, learning_rate, samples, held_out, num_epochs):
    """Train a network, print what it writes, and return its held-out bits per character."""
    buckets = readers.learn_buckets(samples + held_out, field="before", max_buckets=4)

    def train_program():
        before = layers.data("before", [1], "int32", lod_level=1, buckets=buckets)
        after = layers.data("after", [1], "int32", lod_level=1, buckets=buckets)
        return layers.mean(layers.softmax_with_cross_entropy(network(before, None)[0], after))

    def step(characters, state):
        one_each = ps.Sequence(characters[:, None, None], jnp.ones_like(characters))
        logits, state = network(one_each, state)
        return logits.values[:, 0], state

    def write_program():
        first, options = layers.data("first", [1], "int32"), {"end_id": END, "temperature": 0.7}
        state = init_state(first.shape[0])
        return layers.sample_decode(step, state, first, max_length=MAX_LENGTH, **options)

    options = {"field": "before", "batch_size": 16, "boundaries": buckets}
    reader = readers.batch_by_length(samples, **options)
    num_steps = num_epochs * len(reader)
    schedule = optax.warmup_cosine_decay_schedule(0, learning_rate, num_steps // 10, num_steps)
    trainer = ps.Trainer(train_program, optax.adam(schedule), infer_func=write_program)
    trainer.train(reader, Progress(("loss",)), num_epochs=num_epochs)
    for text in trainer.infer({"first": np.full([4, 1], END)}):
        print(f"\n{bytes(text.tolist()).decode().rstrip(chr(END))}")
    return trainer.test(readers.batch_by_length(held_out, **options)) / np.log(2)


def count_bits(samples, held_out):
    """Return held-out bits per character from counts in the samples, with one added to each."""
    pairs = np.ones([NUM_CHARACTERS, NUM_CHARACTERS])
    for each in samples:
        np.add.at(pairs, (each["before"], each["after"]), 1)
    before, after = (np.concatenate([each[key] for each in held_out]) for key in held_out[0])
    single = -np.log2(pairs.sum(axis=0) / pairs.sum())[after]
    pair = -np.log2(pairs / pairs.sum(axis=1, keepdims=True))[before, after]
    return {"single characters": single.mean(), "pairs of characters": pair.mean()}


def main(network="both", folder=Path(__file__).parents[1], num_epochs=4):
    samples, held_out = read_samples(Path(folder))
    bits = count_bits(samples, held_out)
    for name in NETWORKS if network == "both" else [network]:
        bits[name] = train(*NETWORKS[name], samples, held_out, num_epochs)
    lines = [f"{name}: {each:.2f} bits a character, held out" for name, each in bits.items()]
    print("", *lines, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=[*NETWORKS, "both"], default="both")
    parser.add_argument("--folder", default=Path(__file__).parents[1])
    parser.add_argument("--num_epochs", type=int, default=4)
    main(**vars(parser.parse_args()))
