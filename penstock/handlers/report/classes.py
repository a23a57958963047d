"""The sections about classes: their table, confusions, worst mistakes, calibration, samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.handlers.report.curves import draw_calibration
from penstock.handlers.report.findings import (
    CLASS_HEAD,
    Example,
    Findings,
    describe_classes,
    format_interval,
    format_share,
)
from penstock.handlers.report.page import (
    Element,
    Page,
    add,
    add_details,
    add_picture,
    add_table,
)
from penstock.handlers.report.questions import Answers

# Of more classes the cells of a table are too many to read, and a picture shows them.
_MAX_CELLS = 30
_MAX_PAIRS = 20
_MAX_ROWS = 50
_NO_PICTURE = "Its images are neither gray nor RGB, so they are not shown."


def make_cards(findings: Findings, images: str) -> dict[str, str]:
    """Return what is looked at first, by name; the number of images is called `images`."""
    hits = int(np.trace(findings.matrix))
    cards = {
        "accuracy": f"{findings.accuracy:.2%}",
        "with 95 % confidence": format_interval(hits, findings.num_images),
    }
    if len(findings.matrix) > 5:
        cards["top-5 accuracy"] = f"{findings.num_top_5 / max(findings.num_images, 1):.2%}"
    cards["cross entropy"] = f"{findings.cross_entropy:.4g}"
    cards[images] = f"{findings.num_images:,}"
    cards["calibration error"] = f"{findings.calibration_error:.1%}"
    return cards


def describe_broken(findings: Findings) -> str:
    """Return a sentence about the images that got no probabilities."""
    why = "that are not finite: the training diverged."
    return f"{findings.num_broken:,} images got probabilities {why}"


def add_answers(page: Page, answers: Answers | str, options: tuple[str, str]) -> None:
    """Add all sections about classes.

    Arguments:
      answers: or why there are none.
      options: what asks for more mistakes, and for more samples, such as `--mistakes=24`.
    """
    if isinstance(answers, str):
        page.leave_out("Classes, mistakes, calibration and samples", answers)
        return
    findings, names = answers.findings, answers.names
    _add_classes(page, findings, names)
    _add_confusion(page, findings, names)
    _add_mistakes(page, findings, names, options[0], answers.files)
    _add_calibration(page, findings)
    _add_samples(page, findings, names, options[1])


def _add_classes(page: Page, findings: Findings, names: Sequence[str]) -> None:
    section = page.add_section("Classes")
    rows = describe_classes(findings.matrix, names)
    # A class without images has no recall: it comes last.
    rows.sort(key=lambda row: 2.0 if row[0] is None else row[0])
    add(section, "p", "The class with the lowest recall comes first.", class_="note")
    _add_class_rows(section, rows[:_MAX_ROWS])
    if len(rows) > _MAX_ROWS:
        _add_class_rows(add_details(section, f"All {len(rows):,} classes"), rows)


def _add_class_rows(parent: Element, rows: Sequence[tuple[float | None, tuple[str, ...]]]) -> None:
    shares = [recall or 0.0 for recall, _ in rows]
    add_table(parent, CLASS_HEAD, [row for _, row in rows], right={1, 2, 3}, bars=(2, shares))


def _add_confusion(page: Page, findings: Findings, names: Sequence[str]) -> None:
    """Add the confusion matrix, and the pairs of classes that are confused most often."""
    section = page.add_section("Confusion matrix")
    add(section, "p", "Rows are the true classes, columns the predicted ones.", class_="note")
    # A class without images is a row of zeros.
    shares = findings.matrix / np.maximum(findings.matrix.sum(axis=1, keepdims=True), 1)
    if len(names) <= _MAX_CELLS:
        _add_matrix(section, findings.matrix, shares, names)
    else:
        picture = np.rint(255 * (1 - shares)).astype(np.uint8)[:, :, np.newaxis]
        # A cell of a thousand classes is less than a pixel; of forty it is a square.
        side = -(-560 // len(names))
        picture = picture.repeat(side, axis=0).repeat(side, axis=1)
        alt = "confusion matrix: the darker, the larger the share of the row"
        image = add_picture(section, picture, alt=alt, max_pixels=1200)
        image.set("class", "picture matrix-picture")
    wrong = findings.matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MAX_PAIRS]
    pairs = [divmod(int(place), len(names)) for place in order if wrong.flat[place]]
    if not pairs:
        return
    add(section, "h3", "Confused most often")
    rows = [
        (
            names[a],
            names[b],
            f"{wrong[a, b]:,}",
            format_share(wrong[a, b], findings.matrix[a].sum()),
        )
        for a, b in pairs
    ]
    add_table(section, ("class", "taken for", "images", "share of the class"), rows, right={2, 3})


def _add_matrix(
    section: Element, matrix: np.ndarray, shares: np.ndarray, names: Sequence[str]
) -> None:
    table = add(add(section, "div", class_="scroll"), "table", class_="matrix")
    line = add(add(table, "thead"), "tr")
    add(line, "th")
    for name in names:
        add(line, "th", name, title=name, scope="col")
    body = add(table, "tbody")
    for row, name in enumerate(names):
        line = add(body, "tr")
        add(line, "th", name, title=name, scope="row")
        for column, share in enumerate(shares[row]):
            count = int(matrix[row, column])
            cell = add(line, "td", f"{count:,}" if count else "")
            # A mistake of one in a hundred is to be seen too.
            cell.set("style", f"--share: {0.12 + 0.53 * share if count else 0:.2f}")
            if row == column:
                cell.set("class", "hit")


def _add_mistakes(
    page: Page,
    findings: Findings,
    names: Sequence[str],
    option: str,
    files: Sequence[str] | None,
) -> None:
    title = "Worst mistakes"
    num_wrong = findings.num_images - int(np.trace(findings.matrix))
    if not num_wrong:
        number = findings.num_images
        some = f"all {number:,} images are" if number > 1 else "the one image is"
        page.leave_out(title, f"There are none: {some} right.")
        return
    if not findings.mistakes:
        page.leave_out(title, f"None were asked for. {option} shows them.")
        return
    if all(example.image is None for example in findings.mistakes):
        page.leave_out(title, _NO_PICTURE)
        return
    section = page.add_section(title)
    add(
        section,
        "p",
        f"{len(findings.mistakes):,} of {num_wrong:,}, starting with the lowest probability of the "
        f"true class.{'' if files else ' The number is the index of the image in the data.'}",
        class_="note",
    )
    figures = add(section, "div", class_="pictures")
    for example in findings.mistakes:
        figure = add(figures, "figure")
        predicted, label = names[example.predicted], names[example.label]
        _add_image(figure, example, alt=f"{label}, taken for {predicted}", max_pixels=160)
        caption = add(figure, "figcaption")
        text = f"predicted: {predicted}, {_format_likelihood(example.sureness)}"
        add(caption, "div", text, class_="said")
        text = f"true: {label}, {_format_likelihood(example.right_share)}"
        add(caption, "div", text, class_="truth")
        part = "" if example.process is None else f" of process {example.process}"
        number = f"#{example.number:,}{part}"
        add(caption, "div", files[example.number] if files else number, class_="note")


def _format_likelihood(share: float) -> str:
    """Return a probability as a percentage of two digits that count.

    >>> [_format_likelihood(share) for share in (0.987, 0.0027, 1e-9)]
    ['99%', '0.27%', 'under 0.001%']
    """
    if share < 1e-5:
        return "under 0.001%"
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def _add_image(parent: Element, example: Example, *, alt: str, max_pixels: int) -> Element | None:
    if example.image is None:
        return None
    return add_picture(parent, example.image, alt=alt, max_pixels=max_pixels)


def _add_calibration(page: Page, findings: Findings) -> None:
    section = page.add_section("Calibration")
    sure = findings.bins[:, 1].sum() / max(findings.num_images, 1)
    add(
        section,
        "p",
        f"The mean confidence is {sure:.1%}, the accuracy {findings.accuracy:.1%}. A bar below the "
        "dashed line shows a network that is too confident there, a bar above it one that is not "
        f"confident enough. The expected calibration error is {findings.calibration_error:.1%}.",
    )
    bins = [
        (int(count), total / count, hits / count) if count else (0, 0.0, 0.0)
        for count, total, hits in findings.bins
    ]
    figures = add(section, "div", class_="figures")
    draw_calibration(figures, bins)
    rows = [
        (
            f"{number / len(bins):.0%} to {(number + 1) / len(bins):.0%}",
            f"{count:,}",
            f"{right:.1%}",
        )
        for number, (count, _, right) in enumerate(bins)
        if count
    ]
    add_table(add(figures, "div"), ("confidence", "images", "accuracy"), rows, right={1, 2})


def _add_samples(page: Page, findings: Findings, names: Sequence[str], option: str) -> None:
    title = "Samples of each class"
    examples = [example for kept in findings.samples.values() for example in kept]
    if not examples:
        page.leave_out(title, f"None were asked for. {option} shows them.")
        return
    if all(example.image is None for example in examples):
        page.leave_out(title, _NO_PICTURE)
        return
    section = page.add_section(title)
    num_classes = int((findings.matrix.sum(axis=1) > 0).sum())
    shown = f" {len(findings.samples)} of {num_classes:,} classes are shown."
    add(
        section,
        "p",
        "As the network gets them. A frame marks a mistake."
        + shown * (num_classes > len(findings.samples)),
        class_="note",
    )
    for label in sorted(findings.samples):
        row = add(section, "div", class_="class-row")
        add(row, "b", names[label])
        pictures = add(row, "div")
        for example in findings.samples[label]:
            text = names[label]
            if example.label != example.predicted:
                text += f", taken for {names[example.predicted]}"
            image = _add_image(pictures, example, alt=text, max_pixels=112)
            if image is not None:
                image.set("title", text)
                if text != names[label]:
                    image.set("class", f"{image.get('class')} wrong")
