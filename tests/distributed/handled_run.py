"""A run with every stock handler: `handled_run.py FOLDER`, alone or as one of several processes."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax

import penstock as ps
from penstock import handlers, layers, readers

NUM_EXAMPLES, BATCH_SIZE = 90, 24  # the last batch is short


def program():
    """Return loss and accuracy."""
    logits = layers.fc(layers.data("x", shape=[5]), size=3)
    label = layers.data("label", shape=[1], dtype="int32")
    loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
    return loss, layers.accuracy(logits, label)


def infer_program():
    """Return logits."""
    return layers.fc(layers.data("x", shape=[5]), size=3)


def make_data():
    x = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 5)).astype(np.float32)
    return {"x": x, "label": np.argmax(x[:, :3], axis=1).astype(np.int32)}


def make_reader():
    return readers.arrays(make_data(), BATCH_SIZE, shuffle=True, seed=1)


def make_uneven_parts():
    """Return batches of this process's part: of two the first has more of them, and longer ones."""
    data, index = make_data(), jax.process_index()
    ends = (0, 60, NUM_EXAMPLES) if jax.process_count() > 1 else (0, NUM_EXAMPLES)
    starts = range(ends[index], ends[index + 1], 40)
    rows = [slice(start, min(start + 40, ends[index + 1])) for start in starts]
    return [tuple(data[name][part] for name in ("label", "x")) for part in rows]


def main(folder):
    """Train, and print as JSON what the handlers have come to."""
    names = ("loss", "accuracy")
    test = make_reader()
    evaluate = handlers.Evaluate(test, best_path=folder / "best", names=names, every_steps=5)
    watching = [
        handlers.Progress(),
        handlers.Log(every_steps=3),
        handlers.CSVLog(folder / "log.csv", every_steps=2, names=names, test=evaluate),
        handlers.JSONLog(folder / "log.jsonl", every_steps=2, names=names, test=evaluate),
        handlers.TensorBoard(folder / "tensorboard", every_steps=2, names=names),
        handlers.Summary(),
        handlers.Plot(folder / "curves.png", every_steps=2, names=names),
        handlers.Report(
            folder / "report.html",
            every_steps=2,
            names=names,
            test=evaluate,
            reader=make_uneven_parts(),
            feed_order=["label", "x"],
            image=None,
        ),
        handlers.Profile(folder / "profile", first_step=2, num_steps=2),
        handlers.ReduceOnPlateau(patience=1, min_delta=10.0, factor=0.5, reader=test, names=names),
        handlers.EarlyStopping(patience=4, min_delta=10.0, reader=test, names=names),
        evaluate,
    ]
    # Asked for by one process alone: all measure.
    if jax.process_index() == jax.process_count() - 1:
        watching.append(handlers.Gradients(every_steps=4))
    counts = []

    def count(event):
        if isinstance(event, ps.EndStep):
            counts.append(event.num_examples)
        elif isinstance(event, ps.EndEpoch):
            counts.append(-event.num_examples)

    trainer = ps.Trainer(program, optax.sgd(0.5), infer_func=infer_program)
    trainer.train(make_reader(), [*watching, count], num_epochs=20)
    finder = handlers.LearningRateFinder(num_steps=10, path=folder / "rates.png", names=names)
    fresh = ps.Trainer(program, optax.sgd(1.0))
    fresh.train(make_reader(), finder, num_epochs=5)
    result = {
        "step": trainer.global_step,
        "counts": counts,
        "scale": trainer.update_scale,
        "results": evaluate.results,
        "suggestion": finder.suggestion,
        "losses": finder.losses,
        "parameters": {name: value.tolist() for name, value in trainer.parameters.items()},
    }
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    ps.distributed.initialize()
    main(Path(sys.argv[1]) / str(jax.process_index()) if "--own" in sys.argv else Path(sys.argv[1]))
