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

# Of more classes the cells of a table are too many to read, and a picture shows them.
_MAX_CELLS = 30
_MAX_PAIRS = 20
_MAX_ROWS = 50
_NO_PICTURE = "Its images are neither gray nor RGB, so they are not shown."


def make_cards(found: Findings, images: str) -> dict[str, str]:
    """Return what is looked at first, by name.

    Arguments:
      images: the name of their number.
    """
    hits = int(np.trace(found.matrix))
    cards = {
        "accuracy": f"{found.accuracy:.2%}",
        "with 95 % confidence": format_interval(hits, found.num_images),
    }
    if len(found.matrix) > 5:
        cards["top-5 accuracy"] = f"{found.num_top_5 / max(found.num_images, 1):.2%}"
    cards["cross entropy"] = f"{found.cross_entropy:.4g}"
    cards[images] = f"{found.num_images:,}"
    cards["calibration error"] = f"{found.calibration_error:.1%}"
    return cards


def describe_broken(found: Findings) -> str:
    """Return a sentence about the images that got no probabilities."""
    return (
        f"{found.num_broken:,} images got probabilities that are not finite: the training diverged."
    )


def add_findings(
    page: Page,
    found: Findings,
    names: Sequence[str],
    options: tuple[str, str],
    files: Sequence[str] | None = None,
) -> None:
    """Add all sections about classes.

    Arguments:
      options: what asks for more mistakes, and for more samples, such as `--mistakes=24`.
      files: the name of each image, where each is a file.
    """
    add_classes(page, found, names)
    add_confusion(page, found, names)
    add_mistakes(page, found, names, options[0], files)
    add_calibration(page, found)
    add_samples(page, found, names, options[1])


def add_classes(page: Page, found: Findings, names: Sequence[str]) -> None:
    """Add the table of classes, the worst by recall first."""
    section = page.add_section("Classes")
    rows = describe_classes(found.matrix, names)
    # A class without images has no recall: it comes last.
    rows.sort(key=lambda row: 2.0 if row[0] is None else row[0])
    add(section, "p", "The class with the lowest recall comes first.", class_="note")
    _add_class_rows(section, rows[:_MAX_ROWS])
    if len(rows) > _MAX_ROWS:
        _add_class_rows(add_details(section, f"All {len(rows):,} classes"), rows)


def _add_class_rows(parent: Element, rows: Sequence[tuple[float | None, tuple[str, ...]]]) -> None:
    shares = [recall or 0.0 for recall, _ in rows]
    add_table(parent, CLASS_HEAD, [row for _, row in rows], right={1, 2, 3}, bars=(2, shares))


def add_confusion(page: Page, found: Findings, names: Sequence[str]) -> None:
    """Add the confusion matrix, and the pairs of classes that are confused most often."""
    section = page.add_section("Confusion matrix")
    add(section, "p", "Rows are the true classes, columns the predicted ones.", class_="note")
    # A class without images is a row of zeros.
    shares = found.matrix / np.maximum(found.matrix.sum(axis=1, keepdims=True), 1)
    if len(names) <= _MAX_CELLS:
        _add_matrix(section, found.matrix, shares, names)
    else:
        picture = np.rint(255 * (1 - shares)).astype(np.uint8)[:, :, np.newaxis]
        # A cell of a thousand classes is less than a pixel; of forty it is a square.
        side = -(-560 // len(names))
        picture = picture.repeat(side, axis=0).repeat(side, axis=1)
        alt = "confusion matrix: the darker, the larger the share of the row"
        image = add_picture(section, picture, alt=alt, max_pixels=1200)
        image.set("class", "picture matrix-picture")
    wrong = found.matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MAX_PAIRS]
    pairs = [divmod(int(place), len(names)) for place in order if wrong.flat[place]]
    if not pairs:
        return
    add(section, "h3", "Confused most often")
    rows = [
        (names[a], names[b], f"{wrong[a, b]:,}", format_share(wrong[a, b], found.matrix[a].sum()))
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


def add_mistakes(
    page: Page,
    found: Findings,
    names: Sequence[str],
    option: str,
    files: Sequence[str] | None = None,
) -> None:
    """Add the worst mistakes as pictures, with what was said and what is right.

    Arguments:
      option: what asks for more of them, such as `--mistakes=24`.
      files: the name of each image, where each is a file.
    """
    title = "Worst mistakes"
    num_wrong = found.num_images - int(np.trace(found.matrix))
    if not num_wrong:
        number = found.num_images
        some = f"all {number:,} images are" if number > 1 else "the one image is"
        page.leave_out(title, f"There are none: {some} right.")
        return
    if not found.mistakes:
        page.leave_out(title, f"None were asked for. {option} shows them.")
        return
    if all(each.image is None for each in found.mistakes):
        page.leave_out(title, _NO_PICTURE)
        return
    section = page.add_section(title)
    add(
        section,
        "p",
        f"{len(found.mistakes):,} of {num_wrong:,}, starting with the lowest probability of the "
        f"true class.{'' if files else ' The number is the index of the image in the data.'}",
        class_="note",
    )
    figures = add(section, "div", class_="pictures")
    for each in found.mistakes:
        figure = add(figures, "figure")
        said, right = names[each.predicted], names[each.label]
        _add_image(figure, each, alt=f"{right}, taken for {said}", max_pixels=160)
        caption = add(figure, "figcaption")
        add(caption, "div", f"predicted: {said}, {format_likelihood(each.sureness)}", class_="said")
        add(caption, "div", f"true: {right}, {format_likelihood(each.right_share)}", class_="truth")
        part = "" if each.process is None else f" of process {each.process}"
        number = f"#{each.number:,}{part}"
        add(caption, "div", files[each.number] if files else number, class_="note")


def format_likelihood(share: float) -> str:
    """Return a probability as a percentage of two digits that count.

    >>> format_likelihood(0.987), format_likelihood(0.0027), format_likelihood(1e-9)
    ('99%', '0.27%', 'under 0.001%')
    """
    if share < 1e-5:
        return "under 0.001%"
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def _add_image(parent: Element, example: Example, *, alt: str, max_pixels: int) -> Element | None:
    if example.image is None:
        return None
    return add_picture(parent, example.image, alt=alt, max_pixels=max_pixels)


def add_calibration(page: Page, found: Findings) -> None:
    """Add the calibration curve, its error and the counts of its bins."""
    section = page.add_section("Calibration")
    sure = found.bins[:, 1].sum() / max(found.num_images, 1)
    add(
        section,
        "p",
        f"The mean confidence is {sure:.1%}, the accuracy {found.accuracy:.1%}. A bar below the "
        "dashed line shows a network that is too confident there, a bar above it one that is not "
        f"confident enough. The expected calibration error is {found.calibration_error:.1%}.",
    )
    bins = [
        (int(count), total / count, hits / count) if count else (0, 0.0, 0.0)
        for count, total, hits in found.bins
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


def add_samples(page: Page, found: Findings, names: Sequence[str], option: str) -> None:
    """Add the first images of each class; those that the network is wrong about are framed.

    Arguments:
      option: what asks for more of them, such as `--samples=6`.
    """
    title = "Samples of each class"
    examples = [each for kept in found.samples.values() for each in kept]
    if not examples:
        page.leave_out(title, f"None were asked for. {option} shows them.")
        return
    if all(each.image is None for each in examples):
        page.leave_out(title, _NO_PICTURE)
        return
    section = page.add_section(title)
    num_classes = int((found.matrix.sum(axis=1) > 0).sum())
    shown = f" {len(found.samples)} of {num_classes:,} classes are shown."
    add(
        section,
        "p",
        "As the network gets them. A frame marks a mistake."
        + shown * (num_classes > len(found.samples)),
        class_="note",
    )
    for label in sorted(found.samples):
        row = add(section, "div", class_="class-row")
        add(row, "b", names[label])
        pictures = add(row, "div")
        for each in found.samples[label]:
            said = "" if each.is_right else f", taken for {names[each.predicted]}"
            image = _add_image(pictures, each, alt=f"{names[label]}{said}", max_pixels=112)
            if image is not None:
                image.set("title", f"{names[label]}{said}")
            if image is not None and not each.is_right:
                image.set("class", f"{image.get('class')} wrong")
