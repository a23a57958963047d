"""Write like the documentation: a model of its characters, an LSTM and a small transformer.

The data are the Markdown files of this project: each paragraph is a sequence, of any length. What
was held out is compared with counts of single characters and of pairs; then the model writes.

Run it with `python examples/characters.py --network both`; it takes about a minute and a half.
"""

import argparse
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers
from penstock.handlers import Progress

SIZE = 128
HEADS = 4
MAX_LENGTH = 160
END = 0  # begins and ends a paragraph; 1 is any character that is not printable ASCII


def read_samples(folder):
    """Return the paragraphs of a folder's Markdown as samples, for training and held out."""
    paths = [*sorted(folder.glob("*.md")), *sorted(folder.glob("docs/*.md"))]
    texts = "\n\n".join(path.read_text(encoding="utf-8") for path in paths).split("\n\n")
    pieces = [text[i : i + MAX_LENGTH] for text in texts for i in range(0, len(text), MAX_LENGTH)]
    ids = [[encode(character) for character in piece] for piece in pieces]
    samples = [{"before": [END, *each], "after": [*each, END]} for each in ids]
    return [each for i, each in enumerate(samples) if i % 10], samples[::10]


def encode(character):
    return 2 if character == "\n" else ord(character) - 29 if " " <= character <= "~" else 1


def decode(ids):
    return "".join("\n" if i == 2 else chr(i + 29) if i > 2 else "?" for i in ids if i != END)


NUM_CHARACTERS = encode("~") + 1


@layers.scope("lstm")
def lstm(characters, state):
    """Return logits of the next characters, and the state after them; None begins a text."""
    hidden_state, cell_state = state or (None, None)
    gates = layers.fc(layers.embedding(characters, [NUM_CHARACTERS, SIZE]), 4 * SIZE)
    hidden, cell = layers.dynamic_lstm(gates, 4 * SIZE, hidden_state, cell_state)
    return layers.fc(hidden, NUM_CHARACTERS), (hidden.values[:, -1], cell.values[:, -1])


@layers.scope("transformer")
def transformer(characters, state):
    """Return the same; the state is the keys and values of the characters before."""
    x = layers.embedding(characters, [NUM_CHARACTERS, SIZE])
    options = {"num_layers": 2, "num_heads": HEADS, "ffn_size": 2 * SIZE, "rotary": True}
    if state is None:
        return layers.fc(layers.transformer_decoder(x, **options), NUM_CHARACTERS), None
    x, state = layers.transformer_decoder(x, **options, caches=state)
    return layers.fc(x, NUM_CHARACTERS), state


def begin_lstm(batch_size):
    return jnp.zeros([batch_size, SIZE]), jnp.zeros([batch_size, SIZE])


def begin_transformer(batch_size):
    return (layers.init_cache(batch_size, MAX_LENGTH, HEADS, SIZE // HEADS),) * 2


# A network, the state that it begins to write with, and its learning rate.
NETWORKS = {
    "lstm": (lstm, begin_lstm, 1e-2),
    "transformer": (transformer, begin_transformer, 3e-3),
}


def make_programs(network, begin, buckets):
    def train_program():
        before = layers.data("before", [1], "int32", lod_level=1, buckets=buckets)
        after = layers.data("after", [1], "int32", lod_level=1, buckets=buckets)
        logits, _ = network(before, None)
        return layers.mean(layers.softmax_with_cross_entropy(logits, after))

    def write_program():
        first = layers.data("first", [1], "int32")

        def step(characters, state):
            one_each = ps.Sequence(characters[:, None, None], jnp.ones_like(characters))
            logits, state = network(one_each, state)
            return logits.values[:, 0], state

        options = {"end_id": END, "max_length": MAX_LENGTH, "temperature": 0.7}
        return layers.sample_decode(step, begin(first.shape[0]), first, **options)

    return train_program, write_program


def train(name, samples, held_out, num_epochs):
    """Train a network, print what it writes, and return its held-out bits a character."""
    network, begin, learning_rate = NETWORKS[name]
    buckets = readers.learn_buckets(samples + held_out, field="before", max_buckets=4)
    options = {"field": "before", "batch_size": 16, "boundaries": buckets}
    train_reader = readers.batch_by_length(samples, **options)
    test_reader = readers.batch_by_length(held_out, **options)
    train_program, write_program = make_programs(network, begin, buckets)
    num_steps = num_epochs * len(train_reader)
    schedule = optax.warmup_cosine_decay_schedule(0, learning_rate, num_steps // 10, num_steps)
    trainer = ps.Trainer(train_program, optax.adam(schedule), infer_func=write_program)
    trainer.train(train_reader, Progress(("loss",)), num_epochs=num_epochs)
    bits = trainer.test(test_reader) / np.log(2)
    for text in trainer.infer({"first": np.full([4, 1], END)}):
        print(f"\n{decode(text)}")
    return bits


def count_bits(samples, held_out):
    """Return held-out bits a character by counts in the samples, with one added to each count."""
    counts = np.ones([NUM_CHARACTERS, NUM_CHARACTERS])
    for sample in samples:
        np.add.at(counts, (sample["before"], sample["after"]), 1)
    single = counts.sum(axis=0) / counts.sum()
    pair = counts / counts.sum(axis=1, keepdims=True)
    before, after = (np.concatenate([each[key] for each in held_out]) for key in held_out[0])
    bits = -np.log2(single[after]), -np.log2(pair[before, after])
    return {"single characters": bits[0].mean(), "pairs of characters": bits[1].mean()}


def main(network="both", folder=Path(__file__).parents[1], num_epochs=6):
    samples, held_out = read_samples(Path(folder))
    bits = count_bits(samples, held_out)
    for name in NETWORKS if network == "both" else [network]:
        bits[name] = train(name, samples, held_out, num_epochs)
    print("\nbits a character, held out:")
    for name, each in bits.items():
        print(f"{name:>20} {each:.2f}")
    return bits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=[*NETWORKS, "both"], default="both")
    parser.add_argument("--folder", default=Path(__file__).parents[1])
    parser.add_argument("--num_epochs", type=int, default=6)
    main(**vars(parser.parse_args()))
