"""The report as a page: it parses, asks for nothing, shows hostile names as text, and a browser clicks through it."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import redfuser
from redfuser.report import Report
from redfuser.reported import CascadeReport, Modelled, Note, Opaque, OpRef, Reason, Step, Traffic

HOSTILE = "</script><img src=x onerror=\"document.title='broken'\"><!-- <script> ]]> \u2028 & ' \" {{x}} /* style */"


class Page(HTMLParser):
    """Its tags with their attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.get_starttag_text() and self.tags[-1][0] == "script":
            self.scripts[-1] += data


def sample(name: str = "attn.0") -> Report:
    """One of every kind, each named ``name`` where it has a name of its own."""
    ops = (OpRef(f"aten.softmax {name}", f"m.py:3 {name}"),)
    fused = CascadeReport(name, ops, True, strategy="single", kernel="k0", config="cost model", traffic=Traffic(9000, 3000), cascade=name,
                          fused_form=name, roundings=(name,), certificate="re-checked now", checks=("scalar program re-checked now",),
                          modelled=(Modelled("k0", 3e-6, "bytes"),))
    kept = CascadeReport("norm.0", ops, False, Reason("RF203", name, name, name, name, name))
    maps = CascadeReport("map.0", ops, True, strategy="map", kernel="k1")
    steps = (Step("a.0", "aten.softmax", "m.py:3", "y = softmax(x)", "fused", name), Step("a.0", name, name, name, "torch", "norm.0", 4000, 2e-6),
             Step("a.1", "aten.add", "m.py:4", "", "map", "map.0"), Step("b", "aten.linear", "m.py:5", "", "library", "", 1 << 20, 9e-6),
             Step("", "my::op", "m.py:7", "", "opaque", "", 128, 3e-6), Step(name, "aten.cat", "", "", "torch", "", 64, None))
    return Report(name, "sm_90a", (fused, kept), (Opaque("my::op", "m.py:7", 1, name),), (Note(f"about aten.linear (m.py:5) {name}", "RF305"),),
                  versions={"torch": "2"}, built=False, maps=(maps,), steps=steps,
                  texts={"k0": {"passes": f"# k0, first\n-a\n+b\n{name}", "source": name, "odd stage": name}})


@pytest.mark.parametrize("name", ["attn.0", HOSTILE], ids=["plain", "hostile"])
def test_names_are_text(name: str) -> None:
    report = sample(name)
    text = report.to_html()
    page = Page(text)
    assert [t for t, _ in page.tags].count("script") == 2 and not {"img", "iframe", "link", "object"} & {t for t, _ in page.tags}
    data = json.loads(page.scripts[0])
    assert data["report"] == json.loads(json.dumps(report.to_json())) and data["texts"] == report.texts
    assert Report.from_json(data["report"]) == report
    if name == HOSTILE:
        assert text.count(HOSTILE) == 0 and "innerHTML" not in page.scripts[1]


def test_asks_for_nothing() -> None:
    text = sample().to_html()
    assert not re.search(r"https?:|//\w|@import|url\(|src=|href=|fetch\(|XMLHttp|import\(", text.replace("// -", ""))
    assert "default-src 'none'" in text


def test_of_a_model() -> None:
    """Every operation of a model is there once, in its module, with what became of it; stages are those of the kernels."""
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.project = torch.nn.LayerNorm(32), torch.nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.project(self.norm(x)), -1).median(-1).values

    compiled = redfuser.compile(torch.nn.Sequential(Block()).eval(), (torch.randn(4, 32),), target="cpu", fallback="allow")
    report = compiled.report
    found = {(s.module, s.op.partition(".")[2].partition(".")[0], s.kind) for s in report.steps}
    assert {("0.norm", "layer_norm", "fused"), ("0", "median", "opaque")} <= found
    assert any(module == "0.project" and kind in ("library", "fused") for module, _, kind in found)
    assert all(s.code and s.source.startswith("test_page.py:") for s in report.steps)
    assert all(s.seconds is None for s in report.steps)
    data = json.loads(Page(report.to_html()).scripts[0])
    kernel = next(c.kernel for c in report.cascades if c.fused)
    assert "T.prim_func" in data["texts"][kernel]["tir"]


def browser() -> str | None:
    names = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
    found = next((path for n in names if (path := shutil.which(n))), None)
    if found is None and importlib.util.find_spec("playwright"):
        from playwright.sync_api import sync_playwright

        with sync_playwright() as p:
            found = p.chromium.executable_path if Path(p.chromium.executable_path).exists() else None
    return found


CLICKS = """<script>
const told = [], say = x => told.push(x);
addEventListener("error", e => say("error " + e.message));
for (const s of document.querySelectorAll("#tree .step")) { s.click(); say("shown " + document.querySelector("#detail h2").textContent); }
document.querySelector("#tree .step.fused").click();
for (const d of document.querySelectorAll("#detail details.stage")) { d.querySelector("summary").click(); say("stage " + d.open); }
say("plus " + document.querySelectorAll("#detail .plus").length + " minus " + document.querySelectorAll("#detail .minus").length);
document.getElementById("close").click(); say("open " + document.querySelectorAll("#tree details[open]").length);
document.getElementById("open").click(); say("closed " + document.querySelectorAll("#tree details:not([open])").length);
const filter = document.getElementById("filter"); filter.value = "linear"; filter.dispatchEvent(new Event("input"));
say("filtered " + document.querySelectorAll("#tree .step:not([hidden])").length);
document.getElementById("theme").click(); say("theme " + document.documentElement.dataset.theme);
say("costs " + [...document.querySelectorAll("#left tr[data-seconds]")].map(r => r.dataset.seconds).join(" "));
document.querySelector("#left .link").click(); say("left " + document.querySelector("#detail h2").textContent);
say("images " + document.querySelectorAll("img").length + " title " + document.title.includes("RedFuser"));
document.body.append(Object.assign(document.createElement("pre"), { id: "told", textContent: told.join("\\n") }));
</script></body>"""


@pytest.mark.parametrize("name", ["attn.0", HOSTILE], ids=["plain", "hostile"])
def test_a_browser_clicks_through_it(name: str, tmp_path: Path) -> None:
    program = browser()
    if program is None:
        pytest.skip("no headless Chromium: neither one of its names is on the PATH nor has playwright one")
    path = tmp_path / "report.html"
    path.write_text(sample(name).to_html().replace("</body>", CLICKS), encoding="utf-8")
    done = subprocess.run([program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'user'}", "--dump-dom",
                           path.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr[-2000:]
    lines = html.unescape(found[1]).split("\n")
    assert not [x for x in lines if x.startswith("error")]
    assert len([x for x in lines if x.startswith("shown ")]) == len(sample().steps)
    assert {"stage true", "plus 1 minus 1", "open 0", "closed 0", "filtered 1", "images 0 title true"} <= set(lines)
    assert {"theme dark", "theme light"} & set(lines)
    costs = [float(x) for x in next(x for x in lines if x.startswith("costs ")).split()[1:]]
    assert costs == sorted(costs, reverse=True) and len(costs) == 4
    assert "left ■aten.linear" in lines
