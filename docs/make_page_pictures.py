"""Make the pictures of pages: a report as a phone shows it, and the first page of the site.

Run it from the checkout with `python docs/make_page_pictures.py`, after `make docs`. It needs
`chromium` or `google-chrome` on the PATH.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURES = Path(__file__).parent / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PHONE = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; background: #e8eaed; display: flex; gap: 24px; padding: 24px; }
iframe { width: 390px; height: 780px; border: 0; border-radius: 18px; background: white; }
</style>%s"""
"""Pages of a phone's width side by side: a browser's window is never that narrow."""


def photograph(address: str, name: str, *, width: int, height: int) -> None:
    """Take a picture of a page, `width` by `height` pixels."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"no {' or '.join(BROWSERS)} was found. Install one.")
    path = PICTURES / name
    headless = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    size = [f"--window-size={width},{height}", "--virtual-time-budget=8000"]
    subprocess.run(
        [*headless, *size, f"--screenshot={path}", address], check=True, stderr=subprocess.DEVNULL
    )
    print(f"{path.relative_to(ROOT)} {path.stat().st_size / 1e3:.0f} kB")


def main() -> None:
    """Train on digits, report, and make the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        for words in (["train", "--num_epochs=3"], ["report", "runs/digits_lenet"]):
            command = [sys.executable, "-m", "penstock", *words]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        report = Path(folder, "runs/digits_lenet/report.html")
        parts = ("", "#classes", "#mistakes")
        frames = "".join(f'<iframe src="{report.as_uri()}{part}"></iframe>' for part in parts)
        page = Path(folder, "phone.html")
        page.write_text(PHONE % frames)
        photograph(page.as_uri(), "report_phone.png", width=1266, height=828)
    site = ROOT / "site/index.html"
    if not site.exists():
        sys.exit("no site/index.html. Build it with `make docs`.")
    photograph(site.as_uri(), "site.png", width=1200, height=800)


if __name__ == "__main__":
    main()
