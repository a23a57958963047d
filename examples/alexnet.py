"""OneFlow's AlexNet tutorial: written for one device, run on many, with the tutorial's own flags.

Where no folder of OFRecord parts is given, one is made of scikit-learn's digits, enlarged.

    -i   iterations                      -e   folder of OFRecord parts to evaluate on
    -g   devices of each machine         -t   folder of OFRecord parts to train on
    -m   several machines                -load   parameters to start from
    -n   their addresses, by commas      -save   the folder for parameters

On several machines the same command runs on each: `-g 8 -m -n 192.168.1.15,192.168.1.16`.

Two defects of the tutorial are mended. Its weights are drawn from 0 to 1, none of them negative, so
that activations explode: here by fan-in. And its images are BGR while the means it subtracts are
those of RGB. What it saves also gets a folder of its own, and the last iteration is saved too.

Run it with `python examples/alexnet.py`; ten iterations of its 62 million parameters take a minute.
"""

import argparse
import itertools
import socket
import sys
from pathlib import Path

import cv2
import jax
import optax
from jax.experimental import multihost_utils

import penstock as ps
from penstock import handlers, layers, models, readers

BATCH_SIZE = 12
DATA_PART_NUM = 8
NUM_CLASSES = 1001
LEARNING_RATE = 0.00001
EXAMPLE = "./dataset/example"
PORT = 12138


def parse_flags():
    parser = argparse.ArgumentParser(description="flags for AlexNet")
    parser.add_argument("-i", "--iter_num", type=int, default=10)
    parser.add_argument("-g", "--gpu_num_per_node", type=int, default=1)
    parser.add_argument("-m", "--multinode", action="store_true")
    parser.add_argument("-n", "--node_list")
    parser.add_argument("--node_id", type=int, help="this machine's place in the list, from 0")
    parser.add_argument("-e", "--eval_dir", default=EXAMPLE)
    parser.add_argument("-t", "--train_dir", default=EXAMPLE)
    parser.add_argument("-load", "--model_load_dir", default="")
    parser.add_argument("-save", "--model_save_dir", default="./checkpoints")
    return parser.parse_args()


def load_data(folder, **options):
    image = readers.BlobConf(
        "encoded",
        shape=(227, 227, 3),
        dtype="float32",
        codec=readers.ImageCodec(
            [readers.ImagePreprocessor("bgr2rgb"), readers.ImageResizePreprocessor(227, 227)]
        ),
        preprocessors=[readers.NormByChannelPreprocessor((123.68, 116.78, 103.94))],
    )
    label = readers.BlobConf("class/label", shape=(), dtype="int32", codec=readers.RawCodec())
    # Each machine reads parts of its own, as in OneFlow.
    shard = readers.Shard(jax.process_index(), jax.process_count(), rule="files_contiguous")
    blobs = {"images": image, "labels": label}
    return readers.ofrecord(folder, blobs, batch_size=BATCH_SIZE, shard=shard, **options)


def alexnet():
    images = layers.data("images", shape=[227, 227, 3])
    labels = layers.data("labels", shape=[1], dtype="int32")
    logits, _ = models.get("oneflow_alexnet")(images, NUM_CLASSES)
    return layers.mean(layers.softmax_with_cross_entropy(logits, labels))


def make_example(folder):
    """Write digits as 8 parts of OFRecords, JPEG images of 64 x 64 pixels."""
    batch = next(iter(readers.dataset("digits", "train", 480)))
    Path(folder).mkdir(parents=True)
    writers = [
        readers.RecordWriter(f"{folder}/part-{number}", framing=readers.OFRECORD)
        for number in range(DATA_PART_NUM)
    ]
    samples = zip(batch["image"], batch["label"], itertools.cycle(writers))
    for image, label, writer in samples:
        gray = cv2.resize((image[:, :, 0] * 255).astype("uint8"), (64, 64))
        jpeg = cv2.imencode(".jpg", cv2.cvtColor(gray, cv2.COLOR_GRAY2BGR))[1].tobytes()
        record = {"encoded": jpeg, "class/label": int(label)}
        writer.write(readers.build_ofrecord(record))
    for writer in writers:
        writer.close()


def join_machines(flags):
    """Connect this process with those on the other machines."""
    nodes = (flags.node_list or "").strip().split(",")
    if len(nodes) < 2:
        sys.exit(f"-m got -n {flags.node_list!r}, expected addresses: -n 192.168.1.15,192.168.1.16")
    places = [number for number, node in enumerate(nodes) if is_here(node)]
    if flags.node_id is None and len(places) != 1:
        sys.exit(f"{len(places)} of {nodes} are addresses of this machine, expected 1: --node_id")
    place = places[0] if flags.node_id is None else flags.node_id
    jax.distributed.initialize(f"{nodes[0]}:{PORT}", len(nodes), place)


def is_here(address):
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def devices_of(flags):
    """Return so many devices of each machine."""
    chosen = []
    for process in range(jax.process_count()):
        there = [device for device in jax.devices() if device.process_index == process]
        if len(there) < flags.gpu_num_per_node:
            sys.exit(f"-g got {flags.gpu_num_per_node}, expected at most {len(there)} devices")
        chosen += there[: flags.gpu_num_per_node]
    return chosen


def main():
    flags = parse_flags()
    if flags.multinode:
        join_machines(flags)
    for folder in {flags.train_dir, flags.eval_dir}:
        if folder == EXAMPLE and not Path(folder).exists() and jax.process_index() == 0:
            print(f"no parts in {folder} yet: making some of digits")
            make_example(folder)
    if flags.multinode:
        multihost_utils.sync_global_devices("the folders are there")

    trainer = ps.Trainer(
        alexnet,
        optax.sgd(LEARNING_RATE),
        place=devices_of(flags),
        param_path=flags.model_load_dir or None,
    )
    train_reader = load_data(flags.train_dir, shuffle=True, data_part_num=DATA_PART_NUM)
    eval_reader = load_data(flags.eval_dir, data_part_num=DATA_PART_NUM)
    eval_batches = itertools.chain.from_iterable(itertools.repeat(eval_reader))

    def save(iteration):
        trainer.save_params(Path(flags.model_save_dir, f"snapshot_{iteration + 1}"))

    def on_event(event):
        if not isinstance(event, ps.EndStep):
            return
        i = event.global_step
        print(f"{i:>12}  {'train loss:':>12}  {event.metrics:>12.10f}", flush=True)
        if (i + 1) % 10 == 0:
            eval_loss = trainer.test([next(eval_batches)])
            print(f"{i:>12}  {'eval loss:':>12}  {eval_loss:>12.10f}", flush=True)
        if (i + 1) % 100 == 0 or i + 1 == flags.iter_num:
            save(i)

    print(f"{'iter':>12}  {'loss type':>12}  {'loss value':>12}")
    stop = handlers.StopAt(step=flags.iter_num)
    trainer.train(train_reader, [on_event, stop], num_epochs=flags.iter_num)


if __name__ == "__main__":
    main()
