"""The report as a browser shows it: on a phone and wide, light and dark, on paper, and read aloud."""

import itertools
import re

import pytest
from chromium import Chromium

from reported import many_modes, one_mode, two_modes
from whmc.report import write_report

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]  # one browser
MAKE = {"two": two_modes, "one": one_mode, "many": many_modes}


@pytest.fixture(scope="module")
def browser():
    chromium = Chromium()
    yield chromium
    chromium.close()


@pytest.fixture(scope="module", params=list(MAKE))
def page(request, tmp_path_factory):
    return write_report(MAKE[request.param](), tmp_path_factory.mktemp("report") / "report.html")


def test_quiet_and_alone(browser, page):
    browser.open(page)
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.complaints() == []


def test_complaints_and_requests_would_be_seen(browser, tmp_path):
    """The negative control of the test above."""
    bad = tmp_path / "bad.html"
    bad.write_text("<title>bad</title><script>console.error('oh')</script><img src='missing.png' alt=''>")
    browser.events = []
    browser.tell("Page.navigate", url=bad.resolve().as_uri())
    while not any(event["method"] == "Page.loadEventFired" for event in browser.events):
        browser._next()
    assert len(browser.requests()) == 2 and len(browser.complaints()) >= 2


@pytest.mark.parametrize("width", [320, 360, 768, 1600, 2560])
def test_no_sideways_scrolling(browser, page, width):
    browser.open(page, width=width)
    assert browser.run("document.documentElement.scrollWidth") <= browser.run("window.innerWidth") == width


BOXES = """
(selector => [...document.querySelectorAll(selector)].map(one => one.getBoundingClientRect()).map(
  box => [box.top, box.bottom, box.left, box.right].map(Math.round)))"""


@pytest.mark.parametrize("width", [768, 1000, 1400, 1920])
@pytest.mark.parametrize("kind", ["figure", ".alarms li", ".facts div"])
def test_rows_are_full(browser, page, kind, width):
    """What stands side by side fills its row, and has one height: a page has no holes."""
    browser.open(page, width=width)
    boxes = browser.run(f"{BOXES}({kind!r})")
    ((left, right),) = browser.run(f"{BOXES}('#pictures').map(box => [box[2], box[3]])")
    rows = [list(row) for _, row in itertools.groupby(boxes, key=lambda box: box[0])]
    assert rows or kind == ".alarms li"
    for row in rows:
        assert len({bottom for _, bottom, _, _ in row}) == 1
        gaps = [after[2] - before[3] for before, after in itertools.pairwise(row)]
        assert abs(row[0][2] - left) <= 1 and abs(row[-1][3] - right) <= 1 and all(0 < gap < 30 for gap in gaps)
    assert all(0 < after[0][0] - before[0][1] < 30 for before, after in itertools.pairwise(rows))


def test_every_picture_is_drawn_and_has_a_name(browser, page):
    browser.open(page)
    drawn = browser.run("[...document.images].map(image => image.complete && image.naturalWidth > 100)")
    assert all(drawn)
    names = browser.accessible("image")
    assert len(names) == len(drawn) >= 3 and all(len(name) > 20 for name in names)


def test_headings_and_landmarks(browser, page):
    browser.open(page)
    levels = browser.run("[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(heading => +heading.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for role in ("banner", "main", "navigation", "contentinfo"):
        assert len(browser.accessible(role)) == 1, role
    assert all(browser.accessible("table")) and all(browser.accessible("region"))


def test_the_first_tab_leads_to_the_content(browser, page):
    browser.open(page)
    for kind in ("keyDown", "keyUp"):
        browser.tell("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert browser.run("document.activeElement.getAttribute('href')") == "#main"
    assert browser.run("document.activeElement.getBoundingClientRect().left") >= 0


CONTRAST = """
(() => {
  const part = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = numbers(getComputedStyle(element).backgroundColor);
      if (colour.length === 3) return colour;
    }
    return [255, 255, 255];
  };
  let worst = 99;
  for (const element of document.querySelectorAll("h1,h2,h3,p,a,th,td,dt,dd,caption,figcaption,summary,pre")) {
    const pair = [light(numbers(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    worst = Math.min(worst, (pair[0] + 0.05) / (pair[1] + 0.05));
  }
  return worst;
})()
"""


def test_dark_and_light(browser, page):
    seen = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        assert browser.run(CONTRAST) >= 4.5  # WCAG AA
        ground = browser.run("getComputedStyle(document.body).backgroundColor")
        seen.append(sum(map(int, re.findall(r"\d+", ground))))
        assert browser.run("getComputedStyle(document.querySelector('.paper')).backgroundColor") == "rgb(255, 255, 255)"
        assert len(browser.screenshot()) > 20_000
    assert seen[0] > 600 and seen[1] < 150


def test_it_prints(browser, page):
    browser.open(page, width=720)
    browser.tell("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.run("document.documentElement.scrollWidth") <= 720
    # rows that are folded up on the screen are not on paper
    rows = "[...document.querySelectorAll('details tr')].every(row => row.getBoundingClientRect().height > 5)"
    assert browser.run(rows)
    printed = browser.pdf()
    assert printed.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12
