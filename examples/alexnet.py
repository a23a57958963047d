"""OneFlow's AlexNet tutorial: written for one device, run on many, with the tutorial's own flags.

On several machines, run the same command on each: `-g 8 -m -n 192.168.1.15,192.168.1.16`. Without a
folder of OFRecord parts, the example makes one from scikit-learn's digits, enlarged.

Two defects are fixed: the tutorial draws weights from 0 to 1, so activations explode; and it
subtracts RGB means from BGR images. Here each save also goes to its own folder, and the last
iteration is saved too.

Run it with `python examples/alexnet.py`; ten iterations of its 62 million parameters take a minute.
"""

import argparse
import itertools
import sys
from pathlib import Path

import cv2
import jax
import optax
from jax.experimental import multihost_utils

import penstock as ps
from penstock import handlers, layers, models, readers

EXAMPLE = "./dataset/example"

parser = argparse.ArgumentParser(description="AlexNet, as in OneFlow's tutorial")
parser.add_argument("-i", "--iter_num", type=int, default=10)
parser.add_argument("-g", "--gpu_num_per_node", type=int, default=1)
parser.add_argument("-m", "--multinode", action="store_true")
parser.add_argument("-n", "--node_list", default="", help="addresses, separated by commas")
parser.add_argument("--node_id", type=int, help="this machine's place in the list, from 0")
parser.add_argument("-e", "--eval_dir", default=EXAMPLE)
parser.add_argument("-t", "--train_dir", default=EXAMPLE)
parser.add_argument("-load", "--model_load_dir")
parser.add_argument("-save", "--model_save_dir", default="./checkpoints")


def load_data(folder, **options):
    decoded = [readers.ImagePreprocessor("bgr2rgb"), readers.ImageResizePreprocessor(227, 227)]
    normalised = [readers.NormByChannelPreprocessor((123.68, 116.78, 103.94))]
    image = readers.BlobConf(
        "encoded", (227, 227, 3), "float32", readers.ImageCodec(decoded), normalised
    )
    label = readers.BlobConf("class/label", (), "int32", readers.RawCodec())
    blobs = {"images": image, "labels": label}
    # Each machine reads parts of its own, as in OneFlow.
    shard = readers.Shard(jax.process_index(), jax.process_count(), rule="files_contiguous")
    return readers.ofrecord(folder, blobs, batch_size=12, data_part_num=8, shard=shard, **options)


def alexnet():
    images = layers.data("images", shape=[227, 227, 3])
    labels = layers.data("labels", shape=[1], dtype="int32")
    logits, _ = models.get("oneflow_alexnet")(images, 1001)
    return layers.mean(layers.softmax_with_cross_entropy(logits, labels))


def make_example(folder):
    print(f"no parts in {folder} yet: making some of digits")
    Path(folder).mkdir(parents=True)
    digits = next(iter(readers.dataset("digits", "train", 480, shard=readers.Shard())))
    for part in range(8):
        with readers.RecordWriter(f"{folder}/part-{part}", framing=readers.OFRECORD) as writer:
            for image, label in list(zip(*digits.values(), strict=True))[part::8]:
                gray = cv2.resize((image * 255).astype("uint8"), (64, 64))
                jpeg = cv2.imencode(".jpg", cv2.cvtColor(gray, cv2.COLOR_GRAY2BGR))[1].tobytes()
                record = {"encoded": jpeg, "class/label": int(label)}
                writer.write(readers.build_ofrecord(record))


def main():
    flags = parser.parse_args()
    if flags.multinode:
        # OneFlow's list of machines and its control port: each finds itself by its address.
        machines = [f"{node}:12138" for node in flags.node_list.split(",")]
        try:
            ps.distributed.initialize(hosts=machines, process_id=flags.node_id)
        except ValueError as error:
            sys.exit(f"-n and --node_id: {error}")
    is_needed = EXAMPLE in (flags.train_dir, flags.eval_dir) and not Path(EXAMPLE).exists()
    if is_needed and jax.process_index() == 0:
        make_example(EXAMPLE)
    if flags.multinode:
        multihost_utils.sync_global_devices("the folders are there")
    by_machine = itertools.groupby(jax.devices(), key=lambda device: device.process_index)
    devices = [d for _, own in by_machine for d in itertools.islice(own, flags.gpu_num_per_node)]
    if len(devices) < flags.gpu_num_per_node * jax.process_count():
        sys.exit(f"-g got {flags.gpu_num_per_node}, expected the number of devices or less")

    source = flags.model_load_dir
    trainer = ps.Trainer(alexnet, optax.sgd(0.00001), place=devices, param_path=source)
    eval_reader = load_data(flags.eval_dir)
    eval_batches = itertools.chain.from_iterable(itertools.repeat(eval_reader))

    def on_event(event):
        if not isinstance(event, ps.EndStep):
            return
        i = event.global_step
        print(f"{i:>12}  {'train loss:':>12}  {event.metrics:>12.10f}", flush=True)
        if (i + 1) % 10 == 0:
            eval_loss = trainer.test([next(eval_batches)])
            print(f"{i:>12}  {'eval loss:':>12}  {eval_loss:>12.10f}", flush=True)
        if (i + 1) % 100 == 0 or i + 1 == flags.iter_num:
            trainer.save_params(Path(flags.model_save_dir, f"snapshot_{i + 1}"))

    print(f"{'iter':>12}  {'loss type':>12}  {'loss value':>12}")
    stop = handlers.StopAt(step=flags.iter_num)
    reader = load_data(flags.train_dir, shuffle=True)
    trainer.train(reader, [on_event, stop], num_epochs=flags.iter_num)


if __name__ == "__main__":
    main()
