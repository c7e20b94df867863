"""Drives the page of `wqcap serve` in headless Chromium and checks it.

    serve_page.py URL FOLDER [TOKEN]

URL is the server's address without a path. Pictures of the page are written to FOLDER.
TOKEN is needed if the server authenticates; its role must be `mark`. The store must have frames in several intervals,
and flow records, at least one of them with a name that contains `<`.

Prints one line for each check. Exit status 1 after the first check that fails. Requires `chromium` and `chromedriver`;
both are controlled over HTTP with Python's standard library alone.
"""

import base64
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
NULL, BACKSPACE, ENTER, SHIFT, ESCAPE = "\ue000", "\ue003", "\ue007", "\ue008", "\ue00c"
HOME, LEFT, RIGHT = "\ue011", "\ue012", "\ue014"
TIMEOUT_S = 30

# Resolves with the first true value of a condition, or with null after the time-out.
WAIT = """
const [condition, milliseconds, done] = arguments;
const check = new Function(`return (${condition})`);
const end = performance.now() + milliseconds;
const attempt = () => {
  const value = check();
  if (value || performance.now() > end) done(value || null);
  else setTimeout(attempt, 50);
};
attempt();
"""


class CheckFailed(Exception):
    """A check of the page failed."""


class Browser:
    """A session of headless Chromium."""

    def __init__(self, driver_port, profile):
        self.base = f"http://127.0.0.1:{driver_port}/session"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        arguments += ["--no-first-run", "--disable-background-networking", "--lang=en", f"--user-data-dir={profile}"]
        capabilities = {
            "browserName": "chrome",
            "acceptInsecureCerts": True,
            "timeouts": {"script": 2 * TIMEOUT_S * 1000},
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        answer = self.call("POST", "", {"capabilities": {"alwaysMatch": capabilities}})
        self.base += "/" + answer["sessionId"]

    def call(self, method, path, body=None):
        """Sends one WebDriver command and returns its value."""
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=3 * TIMEOUT_S) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            problem = json.load(error)["value"]
            raise CheckFailed(f"{path}: {problem['error']}: {problem['message'].splitlines()[0]}") from None

    def run(self, script, *arguments):
        """Runs a script in the page and returns its result."""
        return self.call("POST", "/execute/sync", {"script": script, "args": arguments})

    def wait(self, what, condition, seconds=TIMEOUT_S):
        """Waits for a JavaScript condition, prints `what`, and returns the value of the condition."""
        value = self.call("POST", "/execute/async", {"script": WAIT, "args": [condition, seconds * 1000]})
        if not value:
            raise CheckFailed(f"{what}: not true within {seconds} s: {condition}")
        print(f"ok: {what}", flush=True)
        return value

    def find(self, selector):
        """Returns the path of the first element that matches a CSS selector."""
        found = self.call("POST", "/element", {"using": "css selector", "value": selector})
        return f"/element/{found[ELEMENT]}"

    def click(self, selector):
        self.call("POST", self.find(selector) + "/click")

    def keys(self, selector, keys):
        self.call("POST", self.find(selector) + "/value", {"text": keys})

    def fill(self, selector, text):
        """Replaces the text of a field."""
        self.call("POST", self.find(selector) + "/clear")
        self.keys(selector, text)

    def drag(self, selector, start, end):
        """Drags over an element with the mouse, between two offsets from its middle, in pixels."""
        origin = {ELEMENT: self.find(selector).rpartition("/")[2]}
        steps = [{"type": "pointerMove", "origin": origin, "x": start, "y": 0}, {"type": "pointerDown", "button": 0}]
        steps += [{"type": "pointerMove", "origin": origin, "x": end, "y": 0, "duration": 100}, {"type": "pointerUp", "button": 0}]
        self.call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": steps}]})

    def devtools(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def log(self, kind):
        """Returns the entries of a log since the last call."""
        return self.call("POST", "/se/log", {"type": kind})

    def resize(self, width, height):
        mobile = width < 600
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def picture(self, path):
        """Writes a picture of the page, at most its first 6000 pixels."""
        width, height = self.run("return [innerWidth, Math.min(document.documentElement.scrollHeight, 6000)]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        picture = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(picture["data"]))


@contextlib.contextmanager
def start_browser():
    """Starts chromedriver on a free port and a browser, and ends both."""
    driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        try:
            started = next(line for line in driver.stdout if "started successfully on port" in line)
            browser = Browser(int(started.split()[-1].rstrip(".")), profile)
            try:
                yield browser
            finally:
                browser.call("DELETE", "")
        finally:
            driver.terminate()
            driver.wait()


def check(what, holds, detail=""):
    """Prints a check that holds, or fails."""
    if not holds:
        raise CheckFailed(f"{what}: {detail}")
    print(f"ok: {what}", flush=True)


def open_page(browser, url, token):
    """Opens the page and logs in."""
    browser.resize(1280, 900)
    browser.call("POST", "/url", {"url": f"{url}/"})
    if token:
        browser.wait("the page asks for a token", "document.getElementById('login-dialog').open")
        browser.fill("#token", "not-" + token)
        browser.keys("#token", ENTER)
        browser.wait("a wrong token is refused with a reason", "document.getElementById('login-note').textContent")
        browser.fill("#token", token)
        browser.keys("#token", ENTER)
    browser.wait("the title has the sensor", "/^wqcap: ./.test(document.title)")
    browser.wait("the state of the capture is shown", "document.getElementById('state').textContent !== 'connecting'")


def check_timeline(browser):
    """Checks the bars, and the zoom with keys and mouse."""
    bars = "(document.querySelector('#drawing .kept[d]')?.getAttribute('d').length ?? 0) > 20"
    busy = "document.getElementById('timeline').hasAttribute('aria-busy')"
    summary = "document.getElementById('timeline-summary').textContent"
    browser.wait("the timeline has bars", f"document.querySelector('#layer-data .kept') && {bars}")
    browser.wait("the timeline has a summary", summary)
    before = browser.run(f"return {summary}")

    browser.keys("#chart", HOME + RIGHT + RIGHT + SHIFT + RIGHT * 3 + NULL)
    browser.wait("Shift and arrows select", "document.querySelector('#layer-cursor .selection')")
    browser.wait("the cursor has a text for screen readers", "document.getElementById('chart').getAttribute('aria-valuetext').includes('frame')")
    browser.keys("#chart", ENTER)
    browser.wait("Enter zooms to the selection", f"{summary} !== {json.dumps(before)} && !{busy}")
    browser.wait("the link of the page has the selection", "/^#from=.+&to=/.test(location.hash)")
    browser.keys("#chart", ESCAPE)
    browser.wait("Escape shows all that is stored", f"location.hash === '' && !{busy} && {bars}")

    browser.drag("#chart", -100, 100)
    browser.wait("dragging selects", "document.querySelector('#layer-cursor .selection') && location.hash !== ''")
    browser.click("#zoom-in")
    browser.wait("the button zooms to the selection", f"!document.querySelector('#layer-cursor .selection') && !{busy}")
    browser.call("POST", "/back")
    browser.call("POST", "/url", {"url": browser.run("return location.origin + '/'")})
    browser.wait("the timeline is shown again", f"document.querySelector('#layer-data .kept') && {bars}")
    browser.click("#table-details summary")
    browser.wait("the timeline is also a table", "document.querySelectorAll('#timeline-rows tr').length > 0")
    browser.click("#table-details summary")


def check_flows(browser):
    """Checks the flow table, hostile names, and that a row sets the filter."""
    rows = "document.querySelectorAll('#flow-rows tr').length"
    idle = "!document.getElementById('flows').hasAttribute('aria-busy')"
    browser.wait("the flow table has rows", f"{rows} > 0 && {idle}")
    browser.click("#sort-frames")
    browser.wait("a column button sorts", "document.querySelector('th[aria-sort=descending] #sort-frames')")
    browser.click("#sort-frames")
    browser.wait("a second click reverses the order", "document.querySelector('th[aria-sort=ascending] #sort-frames')")

    browser.fill("#name", "<")
    browser.click("#search [type=submit]")
    browser.wait(
        "a hostile name is shown as text",
        f"{idle} && {rows} > 0 && [...document.querySelectorAll('#flow-rows tr')].every((row) => row.textContent.includes('<'))",
    )
    markup = "return document.querySelectorAll('img, iframe, object, embed, body script, [onerror], [onload], main svg svg').length"
    check("a hostile name is not markup", browser.run(markup) == 0)
    hidden = r"return /[\u0000-\u0008\u000e-\u001f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText)"
    check("no invisible character is shown", browser.run(hidden) is False)
    browser.click("#clear")
    browser.wait("Clear shows all flows", f"{idle} && document.getElementById('name').value === '' && location.hash === ''")

    browser.keys("#flow-rows tr", ENTER)
    browser.wait("a row sets the filter to its flow", "/host /.test(document.getElementById('filter').value) && /filter=/.test(location.hash)")
    browser.wait("the flow is found by its filter and times", f"{idle} && {rows} > 0")
    link = browser.run("return location.href")
    browser.call("POST", "/url", {"url": "about:blank"})
    browser.call("POST", "/url", {"url": link})
    browser.wait("a link restores the selection", f"/host /.test(document.getElementById('filter').value) && {idle} && {rows} > 0")


def check_packets(browser):
    """Checks the commands and the download of the selection."""
    browser.wait("the curl command has the filter", "/filter=.*host /.test(document.getElementById('curl').textContent)")
    browser.wait("the extract command has the filter", "/--filter=.*host /.test(document.getElementById('extract').textContent)")
    with tempfile.TemporaryDirectory() as folder:
        browser.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
        browser.click("#download")
        browser.wait("the download starts", "document.getElementById('message').textContent === 'The download started.'")
        for _ in range(10 * TIMEOUT_S):
            found = list(pathlib.Path(folder).glob("*.pcapng"))
            if found:
                break
            browser.call("POST", "/execute/async", {"script": "setTimeout(arguments[0], 100)", "args": []})
        check("the download is a pcapng file", found and found[0].read_bytes()[:4] == b"\x0a\x0d\x0d\x0a", found)


def check_marks(browser):
    """Checks that a selection can be pinned."""
    browser.wait("the role allows marks and pins", "!document.getElementById('pin-reason').disabled")
    browser.fill("#pin-reason", "test <b>pin</b>")
    browser.keys("#pin-reason", ENTER)
    browser.wait("a pin is made and listed", "[...document.querySelectorAll('#pins li')].some((it) => it.textContent.includes('test <b>pin</b>'))")


def check_pictures(browser, folder):
    """Writes pictures and checks the width of the page on a telephone."""
    browser.click("#clear")
    browser.wait("all is shown again", "location.hash === '' && !document.querySelector('[aria-busy]')")
    for width, height in ((1920, 1080), (390, 844)):
        browser.resize(width, height)
        browser.wait(f"the drawing has the width of {width} pixels", f"innerWidth === {width} && document.getElementById('chart').clientWidth > {width} / 2")
        overflow = browser.run("return document.documentElement.scrollWidth - innerWidth")
        check(f"no horizontal scroll at {width} pixels", overflow <= 0, f"{overflow} pixels too wide")
        for scheme in ("light", "dark"):
            browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            browser.wait(f"the {scheme} colors apply", f"matchMedia('(prefers-color-scheme: {scheme})').matches")
            path = folder / f"serve-{width}-{scheme}.png"
            browser.picture(path)
            check(f"picture {path.name}", path.stat().st_size > 10_000)
    browser.resize(1280, 900)


def check_logs(browser, url, token):
    """Checks the console, and the hosts of all requests."""
    problems = [it for it in browser.log("browser") if it["level"] in ("SEVERE", "WARNING")]
    if token:
        problems = [it for it in problems if "status of 401" not in it["message"]]
    check("no error in the console", not problems, json.dumps(problems, indent=1))
    events = [json.loads(it["message"])["message"] for it in browser.log("performance")]
    requests = {it["params"]["request"]["url"] for it in events if it["method"] == "Network.requestWillBeSent"}
    requests = {it for it in requests if not it.startswith(("about:", "chrome:", "data:"))}  # the browser's own pages
    foreign = [it for it in requests if not it.startswith(f"{url}/")]
    check(f"{len(requests)} requests, none to another host", requests and not foreign, foreign)


def check_bad_filter(browser):
    """Checks that the server's message about a bad filter is shown. The browser logs the status as an error."""
    browser.fill("#filter", "port port")
    browser.keys("#filter", ENTER)
    browser.wait("a bad filter is reported", "document.getElementById('flows-note').textContent.includes('port port')")


def main(url, folder, token=None):
    url, folder = url.rstrip("/"), pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with start_browser() as browser:
        try:
            open_page(browser, url, token)
            check_timeline(browser)
            check_flows(browser)
            check_packets(browser)
            check_marks(browser)
            check_pictures(browser, folder)
            check_logs(browser, url, token)
            check_bad_filter(browser)
        except CheckFailed as error:
            browser.picture(folder / "serve-failed.png")
            print(f"FAILED: {error}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
