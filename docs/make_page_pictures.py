"""Make the pictures of pages: a run's report, on a desk and on a phone, and the site's first page.

Run it from the checkout with `python docs/make_page_pictures.py`, after `make docs`. It needs
`chromium` or `google-chrome` on the PATH. With `nbconvert` installed, it also makes the picture of
the notebook.
"""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# What README's picture shows of the report: the first curves of these two parts.
SHOWN = ("curves", "worst-mistakes")
STYLE = "<style>#curves figure:nth-of-type(n + 3), main > p { display: none }</style>"
# No window of a browser is as narrow as a phone: the page is in a frame.
PHONE = """<body style="margin: 0; background: #888">
<iframe src="{page}" style="width: 390px; height: 1500px; border: 0; background: #fff"></iframe>
"""


def photograph(page: Path, name: str, width: int, height: int) -> None:
    """Take a picture of a page, in light mode."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"make_page_pictures.py needs {' or '.join(BROWSERS)} on the PATH")
    path = PICTURES / name
    headless = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    # Pages in a frame are files too.
    options = ["--allow-file-access-from-files", "--virtual-time-budget=5000"]
    size = [f"--window-size={width},{height}", f"--screenshot={path}"]
    subprocess.run(
        [*headless, *options, *size, page.as_uri()], check=True, stderr=subprocess.DEVNULL
    )
    print(f"{path} {path.stat().st_size / 1e3:.0f} kB")


def photograph_report(folder: Path) -> None:
    """Train on digits, and take pictures of the run's report."""
    for words in (["train"], ["report", "runs/digits_lenet"]):
        command = [sys.executable, "-m", "penstock", *words]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    report = folder / "runs" / "digits_lenet" / "report.html"
    phone = folder / "phone.html"
    phone.write_text(PHONE.format(page=report.as_uri()), encoding="utf-8")
    photograph(phone, "report_phone.png", 390, 1500)
    text = report.read_text(encoding="utf-8")
    for section in re.findall(r"<section id=\"([\w-]+)\">.*?</section>", text, re.DOTALL):
        if section not in SHOWN:
            pattern = rf"<section id=\"{section}\">.*?</section>"
            text = re.sub(pattern, "", text, count=1, flags=re.DOTALL)
    parts = folder / "parts.html"
    parts.write_text(text.replace("</head>", f"{STYLE}</head>"), encoding="utf-8")
    photograph(parts, "report.png", 1200, 1080)


def photograph_notebook(folder: Path) -> None:
    """Take a picture of a notebook with its outputs: the cells of its network and of training."""
    if importlib.util.find_spec("nbconvert") is None:
        print("no nbconvert: the picture of the notebook stays as it is")
        return
    notebook = json.loads((ROOT / "notebooks" / "digits.ipynb").read_text(encoding="utf-8"))
    titles = ["".join(cell["source"]).partition("\n")[0] for cell in notebook["cells"]]
    begin, end = titles.index("## The network"), titles.index("## The mistakes")
    notebook["cells"] = notebook["cells"][begin:end]
    part = folder / "part.ipynb"
    part.write_text(json.dumps(notebook), encoding="utf-8")
    convert = [sys.executable, "-m", "nbconvert", "--log-level=ERROR", "--to", "html"]
    subprocess.run([*convert, str(part)], check=True)
    photograph(folder / "part.html", "notebook.png", 900, 1440)


def main() -> None:
    """Make the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        photograph_report(Path(folder))
        photograph_notebook(Path(folder))
    first = ROOT / "site" / "index.html"
    if first.exists():
        photograph(first, "site.png", 1280, 900)
    else:
        print("no site/: `make docs` makes it; its picture stays as it is")


if __name__ == "__main__":
    main()
