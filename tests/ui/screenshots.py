"""Take the pictures of docs/pages.md: `python -m tests.ui.screenshots docs/pages`.

They show the example shop, whose runs a worker drives while they are taken.
"""

from __future__ import annotations

import base64
import shutil
import struct
import sys
import zlib
from collections import Counter
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, sync_playwright

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from tests.ui.serving import served
from tests.ui.shop_runs import APPROVAL, CLAIM, FAILED, fill, shop_app

SCREENS = {
    "runs": "/",
    "run": f"/run?id={FAILED}",
    "answer": f"/run/act/signal?id={APPROVAL}",
    "fork": f"/run/act/fork?id={FAILED}&change=reserve",
    "history": f"/run/history?id={CLAIM}&at=9",
    "drawing": f"/run/drawing?id={CLAIM}",
    "service": "/service",
    "store": "/store?newest=50",
    "start": "/start?workflow=fulfil",
}
"""The address of each screen, by the name of its picture."""

WIDTH, HEIGHT = 1200, 860

MOST_BYTES = 100_000

PIXELS = """async picture => {
    const image = await createImageBitmap(await (await fetch(picture)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const data = context.getImageData(0, 0, image.width, image.height).data;
    let text = "";
    for (let at = 0; at < data.length; at += 30000)
        text += String.fromCharCode(...data.subarray(at, at + 30000));
    return btoa(text);
}"""


def take(folder: Path) -> None:
    """Write a picture of each screen into a folder."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as data, chdir(data), sync_playwright() as playwright:
        app = shop_app(Path("orders.db"))
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        window = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        blank = browser.new_page()
        with served(app, by="ann") as pages:
            pages.do(fill, app)
            for name, address in SCREENS.items():
                window.goto(f"{pages.url}{address}")
                # No more than the page has, and no more than the screen.
                bottom = window.evaluate("document.querySelector('main').scrollHeight + 60")
                height = min(HEIGHT, bottom)
                window.set_viewport_size({"width": WIDTH, "height": height})
                picture = small(blank, window.screenshot(), height)
                assert len(picture) < MOST_BYTES, name
                (folder / f"{name}.png").write_bytes(picture)
            browser.close()


def small(blank: Page, picture: bytes, height: int) -> bytes:
    """Return a picture with a palette: its frequent colours as they are, and the others about so."""
    source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    data = base64.b64decode(blank.evaluate(PIXELS, source))
    pixels = list(zip(data[0::4], data[1::4], data[2::4], strict=True))
    counted = Counter(pixels)
    exact = {colour for colour, _ in counted.most_common(64)}

    def about(colour: tuple[int, int, int]) -> tuple[int, int, int]:
        red, green, blue = ((part + 25) // 51 * 51 for part in colour)
        return colour if colour in exact else (red, green, blue)

    near = {colour: about(colour) for colour in counted}
    palette = {colour: number for number, colour in enumerate(sorted({*near.values()})[:256])}
    body = bytes(palette[near[one]] for one in pixels)
    rows = b"".join(b"\0" + body[at : at + WIDTH] for at in range(0, len(body), WIDTH))
    colours = b"".join(map(bytes, palette))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in (
            (b"IHDR", struct.pack(">IIBBBBB", WIDTH, height, 8, 3, 0, 0, 0)),
            (b"PLTE", colours),
            (b"IDAT", zlib.compress(rows, 9)),
            (b"IEND", b""),
        )
    )


if __name__ == "__main__":
    take(Path(sys.argv[1]))
