"""Every flag of FastNN's tables is taken, and changes what it says."""

import json
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest

from penstock import readers
from penstock.commands import train
from penstock.commands._argument_parser import parse
from penstock.commands._failures import UsageError
from penstock.commands._flags import (
    TRAIN_FLAGS,
    import_plugins,
    make_train_flags,
    read_run_config,
    to_json,
)
from penstock.commands._run.plan import make_length
from penstock.commands._run_folder.folder import RunFolder, find_differences
from penstock.commands.convert import ConvertFlags
from penstock.commands.predict import PredictFlags
from penstock.commands.train import BASIC_FLAGS, EXAMPLES
from tests.commands.flag_cases import CASES, Asked, Case
from tests.commands.running import run, succeed, write_images
from tests.readers.published import write_examples
from tests.source_tree import ROOT

# Sections 4.1 to 4.7 of FastNN's page.
FASTNN_FLAGS = """
dataset_name dataset_dir num_sample_per_epoch num_classes train_files
preprocessing_name shuffle_buffer_size num_parallel_batches prefetch_buffer_size
num_preprocessing_threads datasets_use_caching
task_type model_name num_epochs weight_decay max_gradient_norm batch_size model_dir ckpt_file_name
warmup_steps warmup_scheme decay_scheme learning_rate_decay_factor learning_rate_decay_type
learning_rate end_learning_rate
optimizer adadelta_rho adagrad_initial_accumulator_value adam_beta1 adam_beta2 opt_epsilon
ftrl_learning_rate_power ftrl_initial_accumulator_value ftrl_l1 ftrl_l2 momentum rmsprop_momentum
rmsprop_decay
stop_at_step log_loss_every_n_iters profile_every_n_iters profile_at_task log_device_placement
print_model_statistics hooks
use_fp16 loss_scale enable_paisoar protocol
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make what the flags name: photos, records, weights."""
    root = tmp_path_factory.mktemp("flags")
    write_images(root / "photos", "cat", "dog", count=10)
    write_images(root / "others", "cat", "dog", count=3)
    (root / "records").mkdir()
    write_records(root / "records/a.tfrecord", range(8, 2, -1))
    write_records(root / "records/b.tfrecord", range(4))
    write_records(root / "records/mine_train.tfrecord", [8, 7, 6])
    write_records(root / "records/mine_test.tfrecord", [1, 2])
    for name in ("weights", "weights/inner"):
        (root / name).mkdir()
        (root / name / "params.safetensors").touch()
    return root


def write_records(path, labels):
    """Write a TFRecord file of TF-Slim's keys, an image for each label."""
    images = {label: np.full((12, 12, 3), 9 * label, np.uint8) for label in labels}
    pngs = {label: readers.records.encode_png(image) for label, image in images.items()}
    examples = [{"image/encoded": png, "image/class/label": n} for n, png in pngs.items()]
    write_examples(path, examples)


def value_of(effect):
    return effect.__name__ if isinstance(effect, type) else effect


@pytest.mark.quick("max_gradient_norm", "seed", "polynomial", "adadelta", "warmup", "weight_decay")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.flag[2:])
def test_flag_changes_what_it_says(case: Case, folder):
    asked = Asked(folder, *case.beside, case.flag)
    expected = case.expected(asked) if callable(case.expected) else case.expected
    assert value_of(case.effect(asked)) == pytest.approx(expected)
    try:
        without = value_of(case.effect(Asked(folder, *case.beside)))
    except (FileNotFoundError, UsageError):
        return  # the flag is what makes it work
    assert without != pytest.approx(expected)


def test_every_flag_of_fastnn_has_a_case():
    assert set(FASTNN_FLAGS.split()) <= {case.name for case in CASES}


def test_defaults_are_digits_and_lenet_here_and_fastnns_in_compatibility():
    ours, theirs = train.read_flags([]), train.read_flags(["--fastnn_compat=True"])
    assert (ours.dataset.dataset_name, ours.model.model_name) == ("digits", "lenet")
    assert (theirs.dataset.dataset_name, theirs.model.model_name) == ("mock", "inception_resnet_v2")
    assert (theirs.dataset.num_classes, theirs.dataset.num_sample_per_epoch) == (100, 1_000_000)
    assert theirs.performance.loss_scale == 1.0
    assert (theirs.model.num_epochs, theirs.logging.stop_at_step) == (100, 100)


@pytest.mark.parametrize(
    ("words", "num_steps", "text"),
    [
        ((), 100, "at step 100; --num_epochs or --stop_at_step make it longer"),
        (("--num_epochs=50",), 300, "after --num_epochs (300 steps)"),
        (("--stop_at_step=900",), 900, "at step 900 by --stop_at_step, after 150 epochs"),
        (("--stop_at_step=0",), 600, "after --num_epochs (600 steps)"),
        (("--num_epochs=50", "--fastnn_compat=True"), 100, "at step 100 by --stop_at_step, aft"),
        (("--num_epochs=2", "--stop_at_step=100"), 12, "before --stop_at_step=100"),
    ],
)
def test_limit_that_is_not_given_does_not_cut_one_that_is(words, num_steps, text):
    length = make_length(train.read_flags(list(words)), steps_per_epoch=6)
    assert length.num_steps == min(length.num_epochs * 6, length.stop_at or 10**9) == num_steps
    assert text in str(length)


def test_help_of_all_groups_flags_as_fastnns_tables_do(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text, _ = succeed(capsys, "train", "--help-all")
    assert "usage: penstock train" in text
    assert max(map(len, text.splitlines())) <= 80
    titles = re.findall(r"^(\w+) options:$", text, re.M)
    expected = ["dataset", "preprocessing", "model", "learning_rate", "optimizer", "logging"]
    assert [title for title in titles if title in expected] == expected
    assert "performance" in titles
    missing = [name for name in TRAIN_FLAGS if f"--{name}" not in text]
    assert not missing
    assert "examples:" in text
    # FastNN's without effect are named, without a line each.
    assert re.search(r"^without effect here:\n  --protocol, --tensor_fusion_policy, ", text, re.M)
    assert "TensorFlow's servers" not in text


@pytest.mark.parametrize("columns", [80, 120])
def test_short_help_is_one_screen_with_the_flags_of_a_beginner(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for word in ("--help", "-h"):
        status, text, err = run(capsys, "train", "--model_name=lenet", word)
        assert (status, err) == (0, "")
        lines = text.splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= columns
    # Wider where there is more room.
    assert (max(map(len, lines)) > 80) == (columns > 80)
    assert re.findall(r"^  --(\w+=\w+)  ", text, re.M) == list(BASIC_FLAGS)
    assert text.count("\n  penstock train") == 3
    assert "--help_all" in text


def test_short_help_has_the_defaults_and_examples_that_work():
    for name, text in BASIC_FLAGS.items():
        default = re.search(r"\(default: (.*?)(;.*)?\)$", text)
        flag = TRAIN_FLAGS[name.partition("=")[0]]
        assert default is None or str(flag.default) == default[1]
    commands = re.sub(r" +#.*", "", EXAMPLES).replace("\\\n", " ").splitlines()[1:]
    assert len(commands) == 3
    # The first is of a folder that is not there.
    for command in commands[1:]:
        assert train.read_flags(shlex.split(command)[2:])


@pytest.mark.parametrize("text", ["False", "false", "0"])
def test_booleans_are_written_as_in_fastnn(text):
    assert train.read_flags([f"--use_fp16={text}"]).performance.use_fp16 is False
    assert train.read_flags(["--use_fp16", text]).performance.use_fp16 is False
    assert train.read_flags(["--log_device_placement"]).logging.log_device_placement is True


def test_last_of_two_values_wins_and_hyphens_are_underscores():
    assert train.read_flags(["--batch_size=3", "--batch-size", "5"]).model.batch_size == 5


def test_configuration_file_gives_flags_by_section_or_without(tmp_path):
    flat = tmp_path / "flat.yaml"
    flat.write_text("model_name: vgg_16\nuse_fp16: false\nlearning_rate: 1e-3\nmodel_dir: null\n")
    flags = train.read_flags([f"--config={flat}", "--batch_size=8"])
    assert (flags.model.model_name, flags.model.batch_size) == ("vgg_16", 8)
    assert (flags.performance.use_fp16, flags.learning_rate.learning_rate) == (False, 0.001)
    nested = tmp_path / "nested.json"
    nested.write_text(json.dumps({"model": {"model_name": "vgg_16"}, "plugin": None}))
    flags = train.read_flags([f"--config={nested}", "--model_name=lenet"])
    assert flags.model.model_name == "lenet"


def test_configuration_of_a_run_means_what_its_flags_meant(tmp_path):
    words = ("--optimizer=lamb", "--optax_options=b1=1e-1,weight_decay=1", "--loss_scale=128")
    flags = train.read_flags([*words, "--exclude_from_weight_decay=bias, norm"])
    assert flags.optimizer.optax_options == {"b1": 0.1, "weight_decay": 1.0}
    assert flags.optimizer.exclude_from_weight_decay == ("bias", "norm")
    folder = RunFolder(tmp_path)
    folder.config.write_text(json.dumps(to_json(flags)))
    assert train.read_flags([f"--config={folder.config}"]) == replace(
        flags, config=str(folder.config)
    )
    # As files of earlier versions have it: the text of the command line, and no such flag.
    sections = json.loads(folder.config.read_text())
    sections["optimizer"] |= {"optax_options": "b1=0.1,weight_decay=1"}
    del sections["optimizer"]["exclude_from_weight_decay"]
    folder.config.write_text(json.dumps(sections))
    assert find_differences(folder, to_json(flags)) == {}
    other = train.read_flags(["--optimizer=lamb", "--loss_scale=128"])
    assert find_differences(folder, to_json(other)) == {
        "optax_options": ({"b1": 0.1, "weight_decay": 1.0}, {})
    }


def test_paths_and_flags_may_be_in_any_order():
    kinds = (("a", "--json", "b", "--top-k", "2"), ("--top_k=2", "--json=1", "a", "b"))
    parsed = [parse(PredictFlags, words)[0] for words in kinds]
    assert parsed[0] == parsed[1] == PredictFlags(run="a", images=("b",), top_k=2, json=True)


def test_run_of_an_earlier_release_has_flags_that_training_refuses_now(tmp_path):
    config = tmp_path / "config.json"
    words = {"dataset_name": "cifar10", "dataset_dir": "", "ckpt_file_name": "x.ckpt"}
    scopes = {"checkpoint_include_scopes": "*/b", "checkpoint_exclude_scopes": "logits"}
    config.write_text(json.dumps(words | scopes))
    flags = make_train_flags(read_run_config(config))
    assert (flags.dataset.dataset_dir, flags.model.ckpt_file_name) == (".", None)
    words = {"task_type": "finetune", "model_dir": "a", "ckpt_file_name": "x.ckpt"}
    config.write_text(json.dumps(words))
    assert read_run_config(config) == words


@pytest.mark.parametrize("name", ["include", "exclude"])
def test_scopes_of_weights_need_weights(name):
    flag = f"--checkpoint_{name}_scopes"
    with pytest.raises(UsageError, match=f"{flag} got 'logits' without --task_type=finetune"):
        train.read_flags([f"{flag}=logits"])


def test_words_behind_two_dashes_are_as_they_are():
    words = ["run", "--json", "--", "--my-scan.png", "--json"]
    parsed, _ = parse(PredictFlags, words)
    assert parsed == PredictFlags(run="run", images=("--my-scan.png", "--json"), json=True)


@pytest.mark.parametrize("name", ["checkpointDir", "summaryDir", "dataset_dir"])
def test_empty_folder_is_not_the_current_folder(name):
    with pytest.raises(UsageError, match=f"--{name} got '', expected a name. Is a shell variable"):
        train.read_flags([f"--{name}="])


def test_page_has_the_help_and_default_of_every_flag():
    page = (ROOT / "docs/train_command.md").read_text(encoding="utf-8")
    rows = [
        f"| `{name}` | {default_in_page(flag)} | {flag.help} |"
        for name, flag in TRAIN_FLAGS.items()
    ]
    assert not [row for row in rows if row not in page]


def default_in_page(flag):
    """Return a flag's default as the page's tables have it."""
    if flag.name == "hooks":
        return "all four"
    if flag.name == "exclude_from_weight_decay":
        return "as BERT"
    return (
        "" if flag.default in (None, {}) else f"`{flag.default}`" if flag.default != "" else "empty"
    )


@pytest.mark.parametrize(
    ("words", "rate", "epsilon"),
    [
        (["--optimizer=adam"], 0.001, 1e-8),
        (["--optimizer=adamweightdecay"], 0.001, 1e-8),
        (["--optimizer=optax.nadamw"], 0.001, 1e-8),
        (["--optimizer=rmsprop"], 0.01, 1.0),
        ([], 0.01, 1.0),
        (["--optimizer=adam", "--opt_epsilon=1.0"], 0.001, 1.0),
        (["--optimizer=adam", "--learning_rate=0.01"], 0.01, 1e-8),
        (["--optimizer=adam", "--fastnn_compat=True"], 0.01, 1.0),
        (["--optimizer=adam", "--fastnn_compat=True", "--opt_epsilon=1e-8"], 0.01, 1e-8),
    ],
)
def test_adam_has_a_rate_and_an_epsilon_of_its_own(words, rate, epsilon):
    flags = train.read_flags(words)
    assert (flags.learning_rate.learning_rate, flags.optimizer.opt_epsilon) == (rate, epsilon)


def test_damage_in_records_of_a_folder_stays_an_error(folder):
    flags = train.read_flags([f"{folder}/records", "--num_classes=10"])
    assert (flags.dataset.dataset_name, flags.preprocessing.skip_damaged) == ("mine", False)


def test_plugins_of_one_stem_are_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "twice_plugin.py").write_text("")
    first, second = (str(tmp_path / name / "twice_plugin.py") for name in ("a", "b"))
    with pytest.raises(UsageError, match=f"{second}' has the module's name of '{first}'"):
        import_plugins(f"{first},{second}")
    import_plugins(f"{first},{first}")


def test_plugin_that_failed_fails_again(tmp_path):
    (tmp_path / "broken_plugin.py").write_text("raise ValueError('broken')")
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            import_plugins(str(tmp_path / "broken_plugin.py"))


def test_home_folder_begins_a_path_in_any_flag(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    flags = train.read_flags(["--output_dir=~/runs", "--model_dir=~/w", "--task_type=finetune"])
    assert (flags.logging.output_dir, flags.model.model_dir) == ("/home/ada/runs", "/home/ada/w")
    words = ["--dataset_name=image_folder", "--dataset_dir=a", "--source=~/photos"]
    assert parse(ConvertFlags, words)[0].source == "/home/ada/photos"
    assert parse(PredictFlags, ["run", "a", "--output=~/a.csv"])[0].output == ("/home/ada/a.csv")
