import json
import re
import shutil
import subprocess
from html import escape, unescape

import pytest
from support import nights_fixture, study_fixture

from tuner.report import history, historypage, html

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium; `make system-deps` installs it"),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

#: Says how wide the page is, which elements outside a scrolling box stick out, and how small the smallest text is.
PROBE = """
<script>addEventListener('load', () => {
  const all = [...document.body.querySelectorAll('*')];
  const wide = document.documentElement.clientWidth;
  const out = all.filter(e => !e.closest('.scroll, pre, svg') && e.getBoundingClientRect().right > wide + 1);
  const svg = [...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect());
  const tick = document.querySelector('svg .tick');
  const scale = svg.length ? svg[0].width / 520 : 1;
  const found = {
    inner: innerWidth, width: document.documentElement.scrollWidth, out: out.map(e => e.tagName + '.' + e.className),
    charts: svg.map(e => e.width), text: tick ? parseFloat(getComputedStyle(tick).fontSize) * scale : 0,
    dark: matchMedia('(prefers-color-scheme: dark)').matches, paper: getComputedStyle(document.body).backgroundColor,
    labels: labels(),
  };
  parent.document.body.dataset.found = JSON.stringify(found);
});
function labels() {
  const cut = [];
  for (const chart of document.querySelectorAll('svg')) {
    const frame = chart.getBoundingClientRect();
    for (const text of chart.querySelectorAll('text')) {
      const box = text.getBoundingClientRect();
      if (box.left < frame.left - 8 || box.right > frame.right + 8) cut.push(text.textContent);
    }
  }
  return cut;
}
</script></body>
"""


@pytest.fixture(scope="module", params=["winner", "no_feasible", "long names", "nights"])
def source(request, tmp_path_factory):
    """The page of a study, or of many nights, with a probe in place of its ban on scripts."""
    runs = tmp_path_factory.mktemp("runs")
    if request.param == "nights":
        nights_fixture.fortnight(runs)
        return probed(historypage.page(history.read(runs, None)))
    status = "winner" if request.param == "long names" else request.param
    study = study_fixture.build(runs, name="s", status=status)
    if request.param == "long names":
        found = json.loads((study / "result.json").read_text())
        long = "/models/" + "x" * 300
        found.update(model=long, warnings=[long], engine={"vllm": long})
        found["winner"]["configuration"] = {"model": long, "y" * 120: long}
        (study / "result.json").write_text(json.dumps(found))
    return probed(html.write(study).read_text())


def probed(page: str) -> str:
    banned = re.sub(r"<meta http-equiv[^>]*>", "", page)
    return banned.replace("</body>", PROBE)


def look(source: str, width: int, tmp_path, *more: str) -> dict:
    """What the probe says in a frame of this width: a headless window cannot be narrower than 500 px."""
    page = tmp_path / "frame.html"
    frame = (
        f'<iframe style="border: 0; width: {width}px; height: 2000px" srcdoc="{escape(source, quote=True)}"></iframe>'
    )
    page.write_text(f'<!doctype html><meta charset="utf-8"><body>{frame}</body>')
    command = [BROWSER, *FLAGS, *more, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1600,2400"]
    command += ["--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r'data-found="([^"]*)"', done.stdout)
    assert found is not None, done.stderr
    return json.loads(unescape(found.group(1)))


@pytest.mark.parametrize("width", [390, 768, 1400])
def test_nothing_sticks_out_of_the_page(source, width, tmp_path):
    """On a phone, a tablet and a desk: no sideways scrolling of the page, no element beyond its edge."""
    found = look(source, width, tmp_path)
    assert found["inner"] == width
    assert found["width"] <= width
    assert found["out"] == []
    assert all(chart <= width for chart in found["charts"])


@pytest.mark.parametrize("width", [390, 1400])
def test_chart_labels_are_readable_and_whole(source, width, tmp_path):
    """At least 10 px, and inside their chart."""
    found = look(source, width, tmp_path)
    assert found["charts"]
    assert found["text"] >= 10
    assert found["labels"] == []


def test_the_page_turns_dark_with_the_system(source, tmp_path):
    """Light paper by default, dark paper where the reader prefers it."""
    light = look(source, 1400, tmp_path)
    dark = look(source, 1400, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert (light["dark"], dark["dark"]) == (False, True)
    assert light["paper"] != dark["paper"]
