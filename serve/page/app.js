/**
 * Page of `wqcap serve`: timeline, flows and packets of one sensor.
 *
 * Times are BigInt nanoseconds since 1970 in UTC, in variables and fields called `ns`, `from` and `to`. A range
 * `{ from, to }` includes `from` and excludes `to`.
 *
 * The selection is in the hash of the URL, so that a link to it can be sent and an alert can link to it:
 *
 *     #from=TIME&to=TIME&filter=FILTER&name=TEXT&community_id=ID
 *
 * Each key is optional. TIME is RFC 3339, Unix seconds with a fraction, or relative to now (`-10m`). FILTER is a
 * pcap-filter. Values are percent-encoded. Without `from` and `to` the page shows all that is stored.
 */

const SECOND = 1_000_000_000n;
const MINUTE = 60n * SECOND;
const HOUR = 60n * MINUTE;
const DAY = 24n * HOUR;
const POLL_MS = 2000;
const ROWS_AT_ONCE = 200;
const FLOWS_FIRST = 1000;
const FLOWS_MOST = 10_000;

/** Ledger lines in the order of the summary, each with its meaning. */
const LEDGER_LINES = {
  received: 'Frames that the NIC delivered.',
  captured: 'Frames written to files.',
  filtered: 'Frames rejected by the capture filter.',
  sampled_out: 'Frames omitted by sampling.',
  deduplicated: 'Frames omitted as duplicates of earlier frames.',
  cut_off: 'Frames omitted because they came after the cutoff of their flow.',
  dropped_pipeline: 'Lost: the channel of a parser had no room.',
  dropped_storage: 'Lost: no write buffer was free, or the write failed.',
  late: 'Always 0; versions before 0.2 lost frames that arrived too late for a file in time order.',
  errors: 'Lost: the receive completed with an error.',
  bytes: 'Bytes of captured frames, as on the wire.',
};

/**
 * State of the page. `stored` is the range of all that was stored at the last load; `view` is the range of the timeline,
 * null for all of it; `selection` is a part of the view, null for all of it. `width` is the drawing's, in pixels.
 */
const state = {
  stored: null,
  view: null,
  selection: null,
  filter: '',
  name: '',
  communityId: '',
  utc: false,
  metric: 'bytes',
  status: null,
  clockOffset: 0n,
  timeline: null,
  width: 600,
  cursor: null,
  anchor: null,
  flows: null,
  rowsShown: ROWS_AT_ONCE,
  sort: { column: 'bytes', descending: true },
};

// ---- Elements and text ----

const byId = (id) => document.getElementById(id);

/** Returns a new HTML element with properties and children. Children that are strings become text, never markup. */
function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

/** Returns a new SVG element with attributes and children. */
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

/** Returns foreign text with control, format and bidirectional characters written as escapes, such as `\u{202e}`. */
function visible(text) {
  return String(text).replace(INVISIBLE, (it) => `\\u{${it.codePointAt(0).toString(16)}}`);
}

/** Sets the text of a node, and leaves the node alone if it has this text already. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Shows `text` in a note, or hides the note if `text` is empty. */
function setNote(id, text) {
  setText(byId(id), text ?? '');
  byId(id).hidden = !text;
}

/** Reports an event to the person: visible below the header, and read by screen readers. */
function announce(text, isProblem = false) {
  byId('message').classList.toggle('problem', isProblem);
  setText(byId('message'), text);
}

/** Fills a table body with rows of strings and keeps existing cells, so that a selection of text survives. */
function fillTable(body, rows, numberColumns, rowClass = () => '') {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, y) => {
    const row = body.rows[y] ?? body.insertRow();
    row.className = rowClass(cells);
    cells.forEach((text, x) => {
      const cell = row.cells[x] ?? row.insertCell();
      cell.className = numberColumns.includes(x) ? 'number' : '';
      setText(cell, text);
    });
  });
}

// ---- Numbers ----

const integers = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const formatCount = (value) => integers.format(value);

/** Returns three significant digits of `value` with the largest unit whose power of `base` does not exceed it. */
function formatScaled(value, base, units) {
  let power = 0;
  while (value >= base && power < units.length - 1) {
    value /= base;
    power += 1;
  }
  const digits = power === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits).replace(/\.0+$/, '')} ${units[power]}`.trimEnd();
}

const formatBytes = (value) => formatScaled(value, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']);
const formatBits = (value) => formatScaled(value, 1000, ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s']);
const formatShort = (value) => formatScaled(value, 1000, ['', 'k', 'M', 'G', 'T', 'P']);
const formatMetric = (value) => (state.metric === 'bytes' ? formatBytes(value) : `${formatShort(value)} frames`);

/** Returns `1 frame` or `3 frames`. */
const plural = (count, noun) => `${formatCount(count)} ${noun}${count === 1 ? '' : 's'}`;

/** Returns a duration in its two largest units, such as `2 h 24 min`; below a minute with a fraction, such as `1.5 s`. */
function formatDuration(ns) {
  if (ns < MINUTE) return formatScaled(Number(ns), 1000, ['ns', 'µs', 'ms', 's']);
  const units = [['d', DAY], ['h', HOUR], ['min', MINUTE], ['s', SECOND]];
  const first = units.findIndex(([, size]) => ns >= size);
  const [[name, size], [nextName, nextSize]] = units.slice(first);
  const rest = (ns % size) / nextSize;
  return `${ns / size} ${name}${rest > 0n ? ` ${rest} ${nextName}` : ''}`;
}

// ---- Times ----

/** Returns the offset of the shown zone from UTC at a time, in nanoseconds. */
function zoneOffset(ns) {
  return state.utc ? 0n : BigInt(-new Date(Number(ns / 1_000_000n)).getTimezoneOffset()) * MINUTE;
}

/** Returns the wall clock of the shown zone as `YYYY-MM-DDTHH:MM:SS`. */
const wallClock = (ns) => new Date(Number((ns + zoneOffset(ns)) / 1_000_000n)).toISOString().slice(0, 19);

/** Returns the fraction of a second with `digits` digits and its point; without `digits`, with as many as it needs. */
function formatFraction(ns, digits) {
  const all = String(ns % SECOND).padStart(9, '0');
  const kept = digits === undefined ? all.replace(/(000)+$/, '') : all.slice(0, digits);
  return kept && `.${kept}`;
}

const formatTime = (ns, digits) => wallClock(ns).replace('T', ' ') + formatFraction(ns, digits);
const formatRange = ({ from, to }) => `${formatTime(from)} to ${formatTime(to)}`;
const toRfc3339 = (ns) => `${new Date(Number(ns / 1_000_000n)).toISOString().slice(0, 19)}${formatFraction(ns)}Z`;

/** Returns the server's time by the last status, rounded up to a second, which keeps written times short. */
const serverNow = () => ((BigInt(Date.now()) * 1_000_000n + state.clockOffset) / SECOND + 1n) * SECOND;

/** Returns a fraction of a second, as digits, in nanoseconds. */
const fractionToNs = (digits = '') => BigInt(digits.padEnd(9, '0').slice(0, 9));

/** Returns the time of `now` or `-2h30m`, or null if `text` is not relative. */
function parseRelative(text) {
  if (text === 'now') return serverNow();
  if (!/^-(\d+[smhd])+$/.test(text)) return null;
  const sizes = { s: SECOND, m: MINUTE, h: HOUR, d: DAY };
  return [...text.matchAll(/(\d+)([smhd])/g)].reduce((ns, [, count, unit]) => ns - BigInt(count) * sizes[unit], serverNow());
}

/** Returns the time of a date with an optional clock, fraction and zone, or null if `text` is not a valid one. */
function parseDate(text) {
  const parts = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)? ?(Z|[+-]\d\d:\d\d)?$/i.exec(text);
  if (!parts) return null;
  const [, day, minute = '00:00', second = '00', fraction, zone] = parts;
  const clock = `${day}T${minute}:${second}`;
  const ms = Date.parse(clock + (zone?.toUpperCase() ?? (state.utc ? 'Z' : '')));
  if (Number.isNaN(ms)) return null;
  const ns = BigInt(ms) * 1_000_000n;
  const exists = zone !== undefined || wallClock(ns) === clock;
  return exists ? ns + fractionToNs(fraction) : null;
}

/** Returns the time that a person or a link wrote, or null for an empty text. Throws if it is not a time. */
function parseTime(text) {
  const trimmed = text.trim();
  if (trimmed === '') return null;
  const unix = /^(\d{1,11})(?:\.(\d{1,9}))?$/.exec(trimmed);
  const ns = unix ? BigInt(unix[1]) * SECOND + fractionToNs(unix[2]) : parseRelative(trimmed) ?? parseDate(trimmed);
  if (ns === null) throw new Error(`"${visible(trimmed)}" is not a time. Write it like 2026-11-27 04:00:00, with Z or an offset if it is not in the shown zone.`);
  return ns;
}

/** Returns the shown time zone with its offset at `ns`, such as `Europe/Berlin (UTC+01:00)`. */
function zoneName(ns) {
  const { timeZone } = Intl.DateTimeFormat().resolvedOptions();
  if (state.utc || timeZone === 'UTC') return 'UTC';
  const minutes = Number(zoneOffset(ns) / (MINUTE));
  const two = (value) => String(value).padStart(2, '0');
  const offset = `UTC${minutes < 0 ? '-' : '+'}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
  return `local time, ${timeZone} (${offset})`;
}

// ---- Requests ----

/** Error answer of the server; status 0 if the server did not answer. */
class ApiError extends Error {
  constructor({ status, code = '', detail, remedy = '', retryAfter = 0 }) {
    super([detail, remedy].filter(Boolean).map(visible).join(' '));
    Object.assign(this, { status, code, retryAfter });
  }

  /** Builds the error from the JSON body of a response, which proxies may have replaced by something else. */
  static async fromResponse(response) {
    const body = await response.json().catch(() => ({}));
    return new ApiError({
      status: response.status,
      code: body.error,
      detail: body.detail ?? `The server answered with status ${response.status}.`,
      remedy: body.remedy,
      retryAfter: Number(response.headers.get('Retry-After')) || 0,
    });
  }
}

/** Returns `?key=value…` of all values that are not empty. */
function queryString(values) {
  const entries = Object.entries(values).filter(([, value]) => value !== '' && value !== null && value !== undefined);
  return entries.length ? `?${new URLSearchParams(entries)}` : '';
}

/** Sends one request and returns the response. Throws an `ApiError` for a status of 400 and more. */
async function send(path, { method = 'GET', query = {}, body, signal } = {}) {
  const headers = method === 'GET' ? {} : { 'Content-Type': 'application/json' };
  let response;
  try {
    response = await fetch(path + queryString(query), { method, headers, signal, body: body && JSON.stringify(body) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError({ status: 0, detail: 'The server does not answer.', remedy: 'Check the network, and that wqcap serve runs.' });
  }
  if (response.ok) return response;
  const error = await ApiError.fromResponse(response);
  if (error.status === 401 && path !== '/api/v1/session') openLogin(error.message);
  throw error;
}

/** Resolves after some seconds, or rejects when `signal` is aborted. */
function wait(seconds, signal) {
  return new Promise((resolve, reject) => {
    setTimeout(resolve, seconds * 1000);
    signal?.addEventListener('abort', () => reject(signal.reason));
  });
}

/** Reads from the server. A server that is busy is asked again, at most `retries` times. */
async function get(path, query, signal, retries = 3) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await send(path, { query, signal });
    } catch (error) {
      const isBusy = error.status === 429 || error.status === 503;
      if (!isBusy || attempt === retries) throw error;
      const seconds = Math.min(Math.max(error.retryAfter, 1), 60);
      announce(`${error.message} The page tries again in ${seconds} s.`, true);
      await wait(seconds, signal);
      announce('');
    }
  }
}

const running = {};

/**
 * Runs `load(signal)` for a section of the page and shows its error in the note of the section. A later run for the same
 * section aborts the earlier one, so that an old answer never replaces a new one.
 */
async function loadSection(section, load) {
  running[section]?.abort();
  const controller = new AbortController();
  running[section] = controller;
  byId(section).setAttribute('aria-busy', 'true');
  try {
    await load(controller.signal);
  } catch (error) {
    if (controller.signal.aborted) return;
    if (!(error instanceof ApiError)) console.error(error);
    setNote(`${section}-note`, error.message);
  }
  if (running[section] === controller) byId(section).removeAttribute('aria-busy');
}

// ---- Selection ----

const isSame = (a, b) => a?.from === b?.from && a?.to === b?.to;
const overlaps = (a, b) => a.from < b.to && a.to > b.from;
const isInside = (inner, outer) => outer !== null && inner.from >= outer.from && inner.to <= outer.to;

/** Returns the range of all that is stored, rounded to seconds: up to now if the capture runs. Null for an empty store. */
function storedRange() {
  const { store, capture, now_ns: now } = state.status ?? {};
  if (!store?.first_ns || !store.last_ns) return null;
  const last = BigInt(capture?.state === 'running' ? now : store.last_ns);
  return { from: BigInt(store.first_ns) / SECOND * SECOND, to: (last / SECOND + 1n) * SECOND };
}

const viewRange = () => state.view ?? state.stored;
const selectedRange = () => state.selection ?? viewRange();

/** Returns the parameters of requests for the selection. */
function selectionQuery() {
  const range = selectedRange();
  return {
    from: range && toRfc3339(range.from),
    to: range && toRfc3339(range.to),
    filter: state.filter,
    community_id: state.communityId,
  };
}

/** Applies a change of view, selection or search terms. What takes a request waits until the changes pause. */
function choose(change) {
  Object.assign(state, { anchor: null }, change);
  drawCursor();
  showSelection();
  clearTimeout(choose.timer);
  choose.timer = setTimeout(() => {
    writeHash();
    if (!isSame(state.timeline?.view, viewRange())) loadTimeline();
    loadFlows();
  }, 150);
}

/** Selects a range, and moves the view if it does not contain the range. */
function selectRange(range, change = {}) {
  choose({ selection: range, ...(isInside(range, viewRange()) ? {} : { view: range, selection: null }), ...change });
}

/** Writes the selection to the hash of the URL. Each selection is an entry of the browser's history. */
function writeHash() {
  const { from, to, ...terms } = selectionQuery();
  const times = state.view || state.selection ? { from, to } : {};
  const hash = queryString({ ...times, ...terms, name: state.name }).replace('?', '#');
  if (hash !== location.hash) history.pushState(null, '', hash || location.pathname);
}

/** Reads the selection from the hash of the URL. Characters that a person cannot see are left out. */
function readHash() {
  const values = new URLSearchParams(location.hash.slice(1));
  const read = (key) => (values.get(key) ?? '').replace(INVISIBLE, '');
  const change = { view: null, selection: null, filter: read('filter'), name: read('name'), communityId: read('community_id') };
  try {
    change.view = rangeOf(read('from'), read('to'));
    setNote('search-note', '');
  } catch (error) {
    setNote('search-note', error.message);
  }
  return change;
}

/** Returns the range of two written times. Null if both are empty; one that is empty is the end of the store. */
function rangeOf(fromText, toText) {
  const from = parseTime(fromText);
  const to = parseTime(toText);
  if (from === null && to === null) return null;
  const stored = state.stored ?? { from: 0n, to: serverNow() };
  const range = { from: from ?? stored.from, to: to ?? stored.to };
  if (range.from >= range.to) throw new Error(`The selection ends at ${formatTime(range.to)}, not after its start ${formatTime(range.from)}. Set a later end.`);
  return range;
}

/** Sets a field whose value has changed. Other fields keep what the person is writing. */
function setField(id, value) {
  const field = byId(id);
  if (field.dataset.shown === value) return;
  field.dataset.shown = value;
  field.value = value;
}

/** Shows the selection in the form, the link to the packets and the commands. */
function showSelection() {
  const range = selectedRange();
  setField('from', range ? formatTime(range.from) : '');
  setField('to', range ? formatTime(range.to) : '');
  setField('filter', state.filter);
  setField('name', state.name);
  setField('community-id', state.communityId);
  setText(byId('zone'), zoneName(range?.from ?? serverNow()));
  setText(byId('zoom-in'), state.selection ? 'Zoom to selection' : 'Zoom in');
  byId('download').href = `/api/v1/packets${queryString(selectionQuery())}`;
  setText(byId('estimate'), estimate());
  setText(byId('curl'), curlCommand());
  setText(byId('extract'), extractCommand());
}

/** Applies the form. A range that was not edited keeps view and selection as they are. */
function applySearch(event) {
  event.preventDefault();
  const [from, to] = [byId('from').value, byId('to').value];
  const terms = { filter: byId('filter').value.trim(), name: byId('name').value.trim(), communityId: byId('community-id').value.trim() };
  const shown = selectedRange();
  setNote('search-note', '');
  try {
    const range = rangeOf(from, to);
    if (shown && from === formatTime(shown.from) && to === formatTime(shown.to)) choose(terms);
    else if (range) selectRange(range, terms);
    else choose({ view: null, selection: null, ...terms });
  } catch (error) {
    setNote('search-note', error.message);
  }
}

/** Clears the form and shows all that is stored. */
function clearSearch() {
  for (const field of byId('search').elements) delete field.dataset.shown;
  setNote('search-note', '');
  choose({ view: null, selection: null, filter: '', name: '', communityId: '' });
}

// ---- Timeline: data ----

/** Steps of the timeline and of its axis. */
const STEPS = [
  ...[1n, 10n, 100n, 1000n, 10_000n, 100_000n].flatMap((power) => [1n, 2n, 5n].map((it) => it * power * 1000n)),
  ...[1n, 2n, 5n, 10n, 15n, 30n, 60n, 120n, 300n, 600n, 900n, 1800n, 3600n, 7200n, 10_800n, 21_600n, 43_200n].map((it) => it * SECOND),
  ...[1n, 2n, 7n, 14n, 28n, 91n, 182n, 364n].map((it) => it * DAY),
];

/** Returns the smallest round step that divides `span` into at most `parts` parts. */
const roundStep = (span, parts) => STEPS.find((it) => it * BigInt(parts) >= span) ?? span / BigInt(parts) + 1n;

/** Returns the last multiple of `step` in the shown zone at or before `ns`. */
const floorTo = (ns, step) => ns - (ns + zoneOffset(ns)) % step;

/** Loads the timeline of the view in buckets of a round length. */
function loadTimeline() {
  return loadSection('timeline', async (signal) => {
    const view = viewRange();
    if (!view) {
      Object.assign(state, { timeline: null, cursor: null });
      setNote('timeline-note', state.status ? 'Nothing is stored yet. The timeline appears with the first finished block of a capture file.' : '');
      return showTimeline();
    }
    const step = roundStep(view.to - view.from, Math.min(Math.max(Math.floor(state.width / 3), 60), 600));
    const from = floorTo(view.from, step);
    const buckets = (view.to - from + step - 1n) / step;
    const query = { from: toRfc3339(from), to: toRfc3339(from + buckets * step), buckets };
    const timeline = readTimeline(await (await get('/api/v1/timeline', query, signal)).json(), view);
    setNote('timeline-note', timeline.notes.map(visible).join(' '));
    Object.assign(state, { timeline, cursor: isSame(view, state.timeline?.view) ? state.cursor : null });
    showTimeline();
  });
}

/** Returns the answer of the server with its times as BigInt, and only with the events of the view. */
function readTimeline(answer, view) {
  const times = (it) => ({ ...it, from: BigInt(it.from_ns), to: BigInt(it.to_ns) });
  const notes = [...(answer.notes ?? [])];
  if (answer.unindexed_files > 0) notes.push(`${plural(answer.unindexed_files, 'file')} shown without detail, because there is no index.`);
  return {
    ...times(answer),
    view,
    step: BigInt(answer.step_ns),
    buckets: answer.buckets,
    gaps: answer.gaps.map(times).filter((it) => overlaps(it, view)),
    marks: answer.marks.map((it) => ({ ...it, ns: BigInt(it.ns) })).filter(({ ns }) => ns >= view.from && ns < view.to),
    pins: answer.pins.map(times).filter((it) => overlaps(it, view)),
    notes,
  };
}

/** Returns the range of a bucket. */
function bucketRange(index) {
  const from = state.timeline.from + BigInt(index) * state.timeline.step;
  return { from, to: from + state.timeline.step };
}

/** Returns the bucket of a time; times outside of the timeline are in its first or last bucket. */
function bucketAt(ns) {
  const { from, step, buckets } = state.timeline;
  return Math.min(Math.max(Number((ns - from) / step), 0), buckets.length - 1);
}

/** Returns the sums of the buckets in `range`. Buckets that are partly in the range count in full. */
function sumBuckets(range) {
  const sum = { bytes: 0, frames: 0, lost: 0 };
  for (let i = bucketAt(range.from); i <= bucketAt(range.to - 1n); i += 1) {
    for (const key of Object.keys(sum)) sum[key] += state.timeline.buckets[i][key];
  }
  return sum;
}

/** Returns the gaps, marks and pins of a range in words. */
function eventsOf(range) {
  const { gaps, marks, pins } = state.timeline;
  return [
    ...(gaps.some((it) => overlaps(it, range)) ? ['gap'] : []),
    ...marks.filter(({ ns }) => ns >= range.from && ns < range.to).map((it) => `mark "${visible(it.text)}"`),
    ...pins.filter((it) => overlaps(it, range)).map((it) => `pinned "${visible(it.reason)}"`),
  ];
}

/** Returns one bucket in words. */
function describeBucket(index) {
  const range = bucketRange(index);
  const { bytes, frames, lost } = state.timeline.buckets[index];
  const sums = `${formatBytes(bytes)}, ${plural(frames, 'frame')}, ${lost > 0 ? plural(lost, 'lost frame') : 'none lost'}`;
  return [`${formatRange(range)}: ${sums}`, ...eventsOf(range).slice(0, 4)].join(', ');
}

/** Returns the timeline in one sentence. */
function summarize() {
  const { view, gaps } = state.timeline;
  const { bytes, frames, lost } = sumBuckets(view);
  const parts = [formatBytes(bytes), plural(frames, 'frame'), lost > 0 ? plural(lost, 'lost frame') : 'no lost frames', gaps.length ? plural(gaps.length, 'gap') : 'no gaps'];
  return `${formatRange(view)} (${formatDuration(view.to - view.from)}): ${parts.join(', ')}.`;
}

/** Returns the stored bytes of the selection in words, if the timeline has them. Buckets are counted in proportion. */
function estimate() {
  const range = selectedRange();
  if (!state.timeline || !range || !isInside(range, state.timeline)) return '';
  const covered = bucketRange(bucketAt(range.to - 1n)).to - bucketRange(bucketAt(range.from)).from;
  const bytes = sumBuckets(range).bytes * Number(range.to - range.from) / Number(covered);
  const before = state.filter || state.communityId ? ' before the filter' : '';
  return `About ${formatBytes(bytes)} in ${formatDuration(range.to - range.from)}${before}.`;
}

// ---- Timeline: drawing ----

/** Rows of the drawing, in pixels from its top. */
const PLOT_TOP = 16;
const PLOT_BOTTOM = 176;
const LOST_BOTTOM = 193;
const PIN_MIDDLE = 203;
const AXIS_TEXT = 226;

/** Returns the horizontal position of a time in the drawing. */
function xOf(ns) {
  const { view } = state.timeline;
  return Number(ns - view.from) / Number(view.to - view.from) * state.width;
}

/** Returns the left edge and the width of a range in the drawing, clipped, with a minimum width. */
function spanOf(range, minimum) {
  const { width } = state;
  const left = Math.max(xOf(range.from), 0);
  const right = Math.min(xOf(range.to), width);
  return { left: Math.min(left, width - minimum), width: Math.max(right - left, minimum) };
}

/** Returns the top of the scale: a round number of at least `value`. */
function roundUp(value, base) {
  const power = base ** Math.floor(Math.log(Math.max(value, 1)) / Math.log(base));
  return [1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 800, base].find((it) => it * power >= value) * power;
}

/** Draws the bars of kept bytes or frames as one path, which is fast for thousands of bars. */
function drawBars(top) {
  const { buckets } = state.timeline;
  const bars = buckets.map((bucket, i) => {
    const value = bucket[state.metric];
    if (value <= 0) return '';
    const height = Math.max(value / top * (PLOT_BOTTOM - PLOT_TOP), 1);
    const { left, width } = spanOf(bucketRange(i), 1);
    return `M${left.toFixed(1)} ${PLOT_BOTTOM}v${-height.toFixed(1)}h${Math.max(width - (width > 4 ? 1 : 0), 1).toFixed(1)}V${PLOT_BOTTOM}z`;
  });
  return svg('path', { class: 'kept', d: bars.join('') });
}

/** Draws a triangle for each bucket with lost frames in a row below the bars, so that one lost frame is seen. */
function drawLost() {
  const { buckets } = state.timeline;
  const triangles = buckets.map((bucket, i) => {
    if (bucket.lost <= 0) return '';
    const { left, width } = spanOf(bucketRange(i), 0);
    const height = Math.min(8 + Math.log10(bucket.lost), 14);
    const half = Math.max(width / 2, 4);
    return `M${(left + width / 2 - half).toFixed(1)} ${LOST_BOTTOM}h${(2 * half).toFixed(1)}l${-half.toFixed(1)} ${-height.toFixed(1)}z`;
  });
  return svg('path', { class: 'lost', d: triangles.join('') });
}

/** Draws the gaps as hatched areas. */
function drawGaps() {
  return state.timeline.gaps.map((gap) => {
    const { left, width } = spanOf(gap, 2);
    const title = svg('title', {}, `Gap: ${formatRange(gap)}`);
    return svg('rect', { class: 'gap', x: left, y: PLOT_TOP, width, height: PLOT_BOTTOM - PLOT_TOP, fill: 'url(#hatch)' }, title);
  });
}

/** Draws the marks as lines with a diamond, and the pins as brackets below the bars. */
function drawEvents() {
  const marks = state.timeline.marks.map(({ ns, text }) => {
    const title = svg('title', {}, `Mark: ${visible(text)}`);
    return svg('path', { class: 'mark', d: `M${xOf(ns)} 2l5 6-5 6-5-6zM${xOf(ns)} 14V${PLOT_BOTTOM}` }, title);
  });
  const pins = state.timeline.pins.map((pin) => {
    const { left, width } = spanOf(pin, 3);
    const title = svg('title', {}, `Pin: ${visible(pin.reason)}`);
    return svg('path', { class: 'pin', d: `M${left} ${PIN_MIDDLE - 5}v10M${left} ${PIN_MIDDLE}h${width}m0 -5v10` }, title);
  });
  return [...pins, ...marks];
}

/** Draws two lines of the vertical scale with their values. */
function drawScale(top) {
  const per = ` per ${formatDuration(state.timeline.step)}`;
  return [1, 0.5].flatMap((part) => {
    const y = PLOT_BOTTOM - part * (PLOT_BOTTOM - PLOT_TOP);
    const text = formatMetric(part * top) + (part === 1 ? per : '');
    return [svg('line', { class: 'grid', x1: 0, x2: state.width, y1: y, y2: y }), svg('text', { x: 4, y: y + 13 }, text)];
  });
}

/** Returns the text of a tick of the time axis: a date at midnight, otherwise the clock. */
function tickText(ns, step) {
  const [date, clock] = wallClock(ns).split('T');
  if (step >= DAY || (clock === '00:00:00' && ns % SECOND === 0n)) return date.slice(5);
  if (step >= MINUTE) return clock.slice(0, 5);
  const digits = step >= SECOND ? 0 : step >= 1_000_000n ? 3 : 6;
  return clock + formatFraction(ns, digits);
}

/** Draws the time axis with about one tick per 90 pixels. */
function drawAxis() {
  const { view } = state.timeline;
  const { width } = state;
  const step = roundStep(view.to - view.from, Math.max(Math.floor(width / 90), 2));
  const ticks = [];
  for (let ns = floorTo(view.from, step) + step; ns < view.to; ns += step) {
    const x = xOf(ns);
    ticks.push(svg('line', { class: 'grid', x1: x, x2: x, y1: PLOT_BOTTOM, y2: AXIS_TEXT - 14 }));
    if (x > 30 && x < width - 30) ticks.push(svg('text', { class: 'tick', x, y: AXIS_TEXT }, tickText(ns, step)));
  }
  return [svg('line', { class: 'base', x1: 0, x2: width, y1: PLOT_BOTTOM, y2: PLOT_BOTTOM }), ...ticks];
}

/** Draws the timeline with its summary, and what depends on it. */
function showTimeline() {
  const { timeline } = state;
  state.width = byId('timeline-summary').clientWidth;
  byId('timeline-body').hidden = !timeline;
  setText(byId('timeline-summary'), timeline ? summarize() : '');
  if (timeline) {
    const largest = timeline.buckets.reduce((most, it) => Math.max(most, it[state.metric]), 0);
    const top = roundUp(largest, state.metric === 'bytes' ? 1024 : 1000);
    byId('layer-data').replaceChildren(...drawGaps(), drawBars(top), ...drawScale(top), ...drawAxis(), drawLost(), ...drawEvents());
    byId('chart').setAttribute('aria-valuemax', timeline.buckets.length - 1);
  }
  drawCursor();
  showTimelineTable();
  showMarks();
  setText(byId('estimate'), estimate());
}

/** Draws the selection and the cursor, and shows the bucket at the cursor in words. */
function drawCursor() {
  const { timeline, selection, cursor } = state;
  if (!timeline) return byId('layer-cursor').replaceChildren();
  const height = PLOT_BOTTOM - PLOT_TOP;
  const nodes = [];
  if (selection) {
    const { left, width } = spanOf(selection, 2);
    nodes.push(svg('rect', { class: 'selection', x: left, y: PLOT_TOP, width, height }));
  }
  if (cursor !== null) {
    const { left, width } = spanOf(bucketRange(cursor), 1);
    nodes.push(svg('line', { class: 'cursor', x1: left + width / 2, x2: left + width / 2, y1: PLOT_TOP, y2: PLOT_BOTTOM }));
  }
  byId('layer-cursor').replaceChildren(...nodes);
  const selected = selection ? `Selected ${formatRange(selection)}. ` : '';
  const text = cursor === null ? '' : describeBucket(cursor);
  setText(byId('readout'), selected + text || 'Point at the timeline, or tap it, for the values of one interval.');
  byId('chart').setAttribute('aria-valuenow', cursor ?? 0);
  byId('chart').setAttribute('aria-valuetext', selected + text || 'No interval');
}

/** Fills the table of the timeline, if it is open, with at most 24 rows. */
function showTimelineTable() {
  if (!byId('table-details').open || !state.timeline) return;
  const { buckets } = state.timeline;
  const perRow = Math.ceil(buckets.length / 24);
  const rows = [];
  for (let i = 0; i < buckets.length; i += perRow) {
    const range = { from: bucketRange(i).from, to: bucketRange(Math.min(i + perRow, buckets.length) - 1).to };
    const { bytes, frames, lost } = sumBuckets(range);
    rows.push([formatTime(range.from), formatBytes(bytes), formatCount(frames), formatCount(lost), eventsOf(range).join(', ')]);
  }
  setText(byId('timeline-caption'), `Each row covers ${formatDuration(state.timeline.step * BigInt(perRow))}.`);
  fillTable(byId('timeline-rows'), rows, [1, 2, 3]);
}

// ---- Timeline: zoom, pointer and keys ----

/** Zooms to the selection. Without a selection, zooms to the half of the view around the cursor. */
function zoomIn() {
  const view = viewRange();
  if (!view || !state.timeline) return;
  const quarter = (view.to - view.from) / 4n;
  const middle = state.cursor === null ? view.from + 2n * quarter : bucketRange(state.cursor).from;
  const range = state.selection ?? { from: middle - quarter, to: middle + quarter };
  if (range.to - range.from >= 1000n) choose({ view: range, selection: null });
}

/** Doubles the view, at most to all that is stored. */
function zoomOut() {
  const view = viewRange();
  const { stored } = state;
  if (!view || !stored) return;
  const half = (view.to - view.from) / 2n;
  const range = { from: view.from - half, to: view.to + half };
  choose({ view: isInside(stored, range) ? null : range });
}

const zoomAll = () => choose({ stored: storedRange(), view: null, selection: null });

/** Shows the last seconds before now. */
function zoomLast(seconds) {
  const now = serverNow();
  choose({ view: { from: now - BigInt(seconds) * SECOND, to: now }, selection: null });
}

/** Selects the buckets from `first` to `last`, in either order. Parts outside of the view are left out. */
function selectBuckets(first, last) {
  const { view } = state.timeline;
  const { from } = bucketRange(Math.min(first, last));
  const { to } = bucketRange(Math.max(first, last));
  const selection = { from: from > view.from ? from : view.from, to: to < view.to ? to : view.to };
  choose({ selection, cursor: last, anchor: state.anchor });
}

/** Moves the cursor to a bucket; with `extendsSelection`, selects from where the cursor was. */
function moveCursor(index, extendsSelection) {
  const last = state.timeline.buckets.length - 1;
  const target = Math.min(Math.max(index, 0), last);
  if (!extendsSelection) {
    Object.assign(state, { cursor: target, anchor: null });
    return drawCursor();
  }
  state.anchor ??= state.cursor ?? target;
  selectBuckets(state.anchor, target);
}

/** Clears the selection; without one, shows all that is stored. */
function resetSelection() {
  if (state.selection) choose({ selection: null });
  else zoomAll();
}

/** Handles the keys of the timeline. */
function onChartKey(event) {
  if (!state.timeline || event.ctrlKey || event.altKey || event.metaKey) return;
  const last = state.timeline.buckets.length - 1;
  const at = state.cursor ?? Math.floor(last / 2);
  const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowDown: at - 1, ArrowUp: at + 1, PageDown: at - 10, PageUp: at + 10, Home: 0, End: last };
  const actions = { Enter: zoomIn, '+': zoomIn, '-': zoomOut, Escape: resetSelection };
  if (event.key in moves) moveCursor(moves[event.key], event.shiftKey);
  else if (event.key in actions) actions[event.key]();
  else return;
  event.preventDefault();
}

/** Returns the bucket under the pointer. */
function bucketUnder(event) {
  const { left, width } = byId('chart').getBoundingClientRect();
  const part = Math.min(Math.max((event.clientX - left) / width, 0), 1);
  const { view } = state.timeline;
  return bucketAt(view.from + BigInt(Math.floor(part * Number(view.to - view.from))));
}

/** Connects the pointer: moving shows a bucket, dragging selects, a double click zooms in. */
function connectPointer(chart) {
  let pressedAt = null;
  chart.addEventListener('pointerdown', (event) => {
    if (!state.timeline || event.button !== 0) return;
    chart.setPointerCapture(event.pointerId);
    pressedAt = { x: event.clientX, bucket: bucketUnder(event), isDrag: false };
  });
  chart.addEventListener('pointermove', (event) => {
    if (!state.timeline) return;
    if (!pressedAt) return moveCursor(bucketUnder(event), false);
    pressedAt.isDrag ||= Math.abs(event.clientX - pressedAt.x) > 4;
    if (pressedAt.isDrag) selectBuckets(pressedAt.bucket, bucketUnder(event));
  });
  chart.addEventListener('pointerup', (event) => {
    if (pressedAt && !pressedAt.isDrag) moveCursor(bucketUnder(event), event.shiftKey);
    pressedAt = null;
  });
  chart.addEventListener('pointercancel', () => { pressedAt = null; });
  chart.addEventListener('dblclick', zoomIn);
}

// ---- Flows ----

const PROTOCOLS = { 1: 'icmp', 6: 'tcp', 17: 'udp', 58: 'icmp6', 132: 'sctp' };
const NAMES = { tls_sni: 'SNI', http_host: 'HTTP', dns: 'DNS', ja4: 'JA4' };

const isMac = (address) => /^([0-9a-f]{2}:){5}[0-9a-f]{2}$/i.test(address);
const endpoint = (address, port) => visible(port === null ? address : address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`);
const protocolText = (flow) => (flow.protocol === null ? 'no IP' : PROTOCOLS[flow.protocol]?.toUpperCase() ?? `IP ${flow.protocol}`);
const portsText = (flow) => [...new Set([flow.port_fwd, flow.port_rev])].filter(Boolean).map(visible).join(' / ');
const namesOf = (flow) => Object.entries(NAMES).filter(([key]) => flow[key]).map(([key, label]) => [label, visible(flow[key])]);

/**
 * Columns of the flow table: title, text of a cell, value to sort by, and the order of the server if it has one. A column
 * with a `cell` builds its content itself.
 */
const COLUMNS = [
  { id: 'first', title: 'Start', value: (it) => it.first, text: (it) => formatTime(it.first, 3), server: 'first' },
  { id: 'duration', title: 'Duration', value: (it) => it.last - it.first, text: (it) => formatDuration(it.last - it.first), server: 'duration', number: true },
  { id: 'src', title: 'Source', value: (it) => it.src, text: (it) => endpoint(it.src, it.src_port) },
  { id: 'dst', title: 'Destination', value: (it) => it.dst, text: (it) => endpoint(it.dst, it.dst_port) },
  { id: 'protocol', title: 'Protocol', value: (it) => it.protocol ?? -1, text: (it) => [protocolText(it), portsText(it)].filter(Boolean).join(' ') },
  { id: 'frames', title: 'Frames', value: (it) => it.frames_fwd + it.frames_rev, text: (it) => formatCount(it.frames_fwd + it.frames_rev), server: 'frames', number: true },
  { id: 'bytes', title: 'Bytes', value: (it) => it.bytes_fwd + it.bytes_rev, text: (it) => formatBytes(it.bytes_fwd + it.bytes_rev), server: 'bytes', number: true },
  { id: 'names', title: 'Names', value: (it) => it.names.join(), text: () => '', cell: namesCell },
];

/** Returns the names of a flow, each with its kind. */
function namesCell(flow) {
  return flow.names.map(([label, name]) => element('span', { className: 'name', title: name }, element('b', {}, label), ' ', element('bdi', { className: 'foreign' }, name)));
}

/** Loads the flows of the selection. */
function loadFlows(limit = FLOWS_FIRST) {
  return loadSection('flows', async (signal) => {
    if (!selectedRange()) return showNoFlows(state.status ? 'No flows: nothing is stored yet.' : '');
    const column = COLUMNS.find((it) => it.id === state.sort.column);
    try {
      const query = { ...selectionQuery(), name: state.name, sort: column.server ?? 'bytes', limit };
      const answer = await (await get('/api/v1/flows', query, signal)).json();
      for (const it of answer.flows) Object.assign(it, { first: BigInt(it.first_ns), last: BigInt(it.last_ns), names: namesOf(it) });
      state.flows = answer;
      if (limit === FLOWS_FIRST) state.rowsShown = ROWS_AT_ONCE;
      showFlows();
    } catch (error) {
      if (signal.aborted) throw error;
      showNoFlows(error.code === 'no_flows' ? 'This capture writes no flow records. Add a [flows] section to its configuration to see flows here. The packets of the selection are available all the same.' : error.message);
    }
  });
}

/** Shows a reason instead of the flow table. */
function showNoFlows(reason) {
  state.flows = null;
  setNote('flows-note', reason);
  setText(byId('flows-summary'), '');
  byId('flow-table').hidden = true;
  byId('flows-help').hidden = true;
  byId('more').hidden = true;
}

/** Returns what a person should know about the flows that are listed. */
function flowNotes({ flows, truncated, exact, notes }) {
  const all = (notes ?? []).map(visible);
  if (!exact) all.push('Flow records cannot decide every part of this filter: some flows may have no matching frames, and some frames no flow here.');
  const column = COLUMNS.find((it) => it.id === state.sort.column);
  const isServerOrder = column.server && state.sort.descending === Boolean(column.number);
  if (truncated && !isServerOrder) all.push(`Only the ${formatCount(flows.length)} loaded flows are in this order.`);
  return all.join(' ');
}

/** Sorts the loaded flows and shows the first of them. */
function showFlows() {
  if (!state.flows) return;
  const { flows } = state.flows;
  const { value } = COLUMNS.find((it) => it.id === state.sort.column);
  const sign = state.sort.descending ? -1 : 1;
  const keyed = flows.map((flow) => [value(flow), flow]).sort(([a], [b]) => (a < b ? -sign : a > b ? sign : 0));
  state.flows.flows = keyed.map(([, flow]) => flow);
  const hadFocus = byId('flow-rows').contains(document.activeElement);
  byId('flow-rows').replaceChildren();
  addFlowRows();
  if (hadFocus) byId('flow-rows').rows[0]?.focus();
  showSortOrder();
  byId('flow-table').hidden = flows.length === 0;
  byId('flows-help').hidden = flows.length === 0;
  setNote('flows-note', flows.length ? flowNotes(state.flows) : 'No flow matches the selection. Choose other times or another filter.');
}

/** Adds rows for the flows that are to be shown and are not yet in the table. */
function addFlowRows() {
  const { flows, matched, truncated } = state.flows;
  const body = byId('flow-rows');
  body.append(...flows.slice(body.rows.length, state.rowsShown).map(flowRow));
  body.rows[0]?.setAttribute('tabindex', 0);
  byId('more').hidden = body.rows.length === flows.length && !(truncated && flows.length < FLOWS_MOST);
  const part = body.rows.length < matched ? `, ${formatCount(body.rows.length)} shown` : '';
  setText(byId('flows-summary'), flows.length ? `${plural(matched, 'flow')}${part}.` : '');
}

/** Returns the header cell of a column, with a button that sorts by it. */
function columnHead(column) {
  const button = element('button', { type: 'button', id: `sort-${column.id}` }, column.title);
  button.addEventListener('click', () => sortBy(column));
  return element('th', { scope: 'col', role: 'columnheader', className: column.number ? 'number' : '' }, button);
}

/** Shows which column the flows are sorted by. */
function showSortOrder() {
  for (const { id } of COLUMNS) {
    const order = state.sort.descending ? 'descending' : 'ascending';
    byId(`sort-${id}`).parentElement.ariaSort = state.sort.column === id ? order : 'none';
  }
}

/** Sorts by a column; a second call reverses the order. An order that needs all flows is made by the server. */
function sortBy(column) {
  const isAgain = state.sort.column === column.id;
  state.rowsShown = ROWS_AT_ONCE;
  state.sort = { column: column.id, descending: isAgain ? !state.sort.descending : Boolean(column.number) };
  if (state.flows?.truncated && column.server && !isAgain) loadFlows(state.flows.flows.length > FLOWS_FIRST ? FLOWS_MOST : FLOWS_FIRST);
  else showFlows();
}

/** Returns the row of a flow. */
function flowRow(flow) {
  const cells = COLUMNS.map((column) => {
    const cell = element('td', { role: 'cell', className: column.number ? 'number' : 'foreign' });
    cell.dataset.label = column.title;
    cell.append(...(column.cell?.(flow) ?? [column.text(flow)]));
    return cell;
  });
  return element('tr', { role: 'row', tabIndex: -1 }, ...cells);
}

/** Selects the flow of a row on a click, unless the person selects text. */
function onRowClick(event) {
  const row = event.target.closest('tr');
  if (row && getSelection().isCollapsed) selectFlow(state.flows.flows[row.sectionRowIndex]);
}

/** Handles the keys of the rows. One row can be reached by Tab, the others by the up and down keys. */
function onRowKey(event) {
  const row = event.target;
  const neighbour = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
  if (event.key === 'Enter' || event.key === ' ') selectFlow(state.flows.flows[row.sectionRowIndex]);
  else if (!neighbour) return;
  event.preventDefault();
  if (!neighbour) return;
  row.tabIndex = -1;
  neighbour.tabIndex = 0;
  neighbour.focus();
}

/** Returns a pcap-filter for both directions of a flow. */
function filterOf({ protocol, src, dst, src_port: srcPort, dst_port: dstPort }) {
  if (isMac(src)) return `ether host ${src} and ether host ${dst}`;
  const name = PROTOCOLS[protocol] ?? (protocol === null ? '' : `${src.includes(':') ? 'ip6' : 'ip'} proto ${protocol}`);
  const ports = [srcPort, dstPort].filter(Boolean).map((port) => `port ${port}`);
  return [name, `host ${src}`, `host ${dst}`, ...ports].filter(Boolean).join(' and ');
}

/** Selects the 5-tuple and the times of a flow. Records have microseconds, frames may have nanoseconds. */
function selectFlow(flow) {
  selectRange({ from: flow.first - 1000n, to: flow.last + 2000n }, { filter: filterOf(flow), name: '', communityId: '' });
  announce(`Selected the flow from ${endpoint(flow.src, flow.src_port)} to ${endpoint(flow.dst, flow.dst_port)}.`);
}

/** Shows more of the loaded flows, and loads more if all of them are shown. */
function showMore() {
  const firstNew = state.rowsShown;
  state.rowsShown += ROWS_AT_ONCE;
  const needsMore = state.rowsShown > state.flows.flows.length && state.flows.truncated && state.flows.flows.length < FLOWS_MOST;
  const shown = needsMore ? loadFlows(FLOWS_MOST) : Promise.resolve(addFlowRows());
  shown.then(() => byId('flow-rows').rows[firstNew]?.focus());
}

// ---- Packets ----

/** Returns the name of the file for the selection. */
function fileName() {
  const sensor = (state.status?.sensor ?? 'sensor').replace(/[^\w.-]/g, '_');
  const range = selectedRange();
  return `${sensor}-${range ? toRfc3339(range.from).replace(/[-:]/g, '').replace(/\.\d+/, '') : 'all'}.pcapng`;
}

/** Returns `text` as one word of a POSIX shell. */
const shellWord = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** Returns the curl command that downloads the selection. */
function curlCommand() {
  const token = state.status?.authenticates ? ' -H "Authorization: Bearer $WQCAP_TOKEN"' : '';
  const values = Object.entries(selectionQuery()).filter(([, value]) => value);
  const data = values.map(([key, value]) => ` \\\n  --data-urlencode ${shellWord(`${key}=${value}`)}`).join('');
  return `curl -fsS -G${token} ${location.origin}/api/v1/packets${data} \\\n  -o ${shellWord(fileName())}`;
}

/** Returns the `wqcap extract` command that downloads the selection. */
function extractCommand() {
  const values = Object.entries(selectionQuery()).filter(([, value]) => value);
  const options = values.map(([key, value]) => ` \\\n  --${key.replace('_', '-')}=${shellWord(value)}`).join('');
  return `wqcap extract ${location.origin}${options} \\\n  -o ${shellWord(fileName())}`;
}

/**
 * Downloads the selection. The browser cannot show an error of a download in the page, so the page asks for one frame
 * first, which is cheap.
 */
async function download(event) {
  event.preventDefault();
  const href = byId('download').href;
  announce('Searching for the first frame of the selection.');
  try {
    const response = await get('/api/v1/packets', { ...selectionQuery(), limit_packets: 1 });
    await response.body?.cancel();
    if (response.status === 204) return announce('No frame matches the selection.', true);
    element('a', { href, download: fileName() }).click();
    announce('The download started.');
  } catch (error) {
    announce(error.message, true);
  }
}

/** Copies a command. Browsers offer the clipboard only to secure pages; elsewhere the command is selected instead. */
async function copyCommand(id) {
  const node = byId(id);
  try {
    await navigator.clipboard.writeText(node.textContent);
    announce('Copied.');
  } catch {
    getSelection().selectAllChildren(node);
    announce('The browser does not allow the page to copy. The command is selected: copy it with the keyboard.', true);
  }
}

// ---- Marks and pins ----

/** Returns a list item with a button for an event, and further text. */
function eventItem(time, text, onSelect, ...more) {
  const button = element('button', { type: 'button', className: 'link' }, time);
  button.addEventListener('click', onSelect);
  return element('li', {}, button, ' ', element('bdi', { className: 'foreign' }, visible(text)), ...more);
}

/** Fills a list, or shows that it is empty. */
function fillList(id, items, empty) {
  byId(id).replaceChildren(...(items.length ? items : [element('li', { className: 'muted' }, empty)]));
}

/** Lists the marks of the timeline; selecting one selects the minute before and after it. */
function showMarks() {
  const items = (state.timeline?.marks ?? []).map(({ ns, text }) => eventItem(formatTime(ns, 0), text, () => selectRange({ from: ns - MINUTE, to: ns + MINUTE })));
  fillList('marks', items.slice(0, ROWS_AT_ONCE), 'No marks.');
}

/** Returns the list item of a pin. */
function pinItem(pin) {
  const range = { from: BigInt(pin.from_ns), to: BigInt(pin.to_ns) };
  const filter = pin.filter ? [' ', element('code', { className: 'foreign' }, visible(pin.filter))] : [];
  return eventItem(`${formatTime(range.from, 0)} to ${formatTime(range.to, 0)}`, pin.reason, () => selectRange(range, { filter: pin.filter.replace(INVISIBLE, '') }), ...filter);
}

/** Loads and lists all pins, and the pin files that are not valid. */
function loadPins() {
  return loadSection('pins', async (signal) => {
    const { pins, unsound } = await (await get('/api/v1/pins', {}, signal)).json();
    fillList('pins', pins.map(pinItem), 'No pins.');
    setNote('pins-note', unsound.map((it) => visible(`${it.path}: ${it.problem}`)).join(' '));
  });
}

/** Sends a mark or a pin, and reports the result. */
async function keep(event, path, body, done) {
  event.preventDefault();
  try {
    const answer = await (await send(path, { method: 'POST', body })).json();
    announce(visible([done, answer.detail].filter(Boolean).join(' ')));
    event.target.reset();
    await poll();
    loadAll();
  } catch (error) {
    announce(error.message, true);
  }
}

const markNow = (event) => keep(event, '/api/v1/marks', { text: byId('mark-text').value, before: '60s', after: '60s', filter: '' }, 'Marked.');

/** Pins the files of the selection. */
function pinSelection(event) {
  const { from, to, filter } = selectionQuery();
  return keep(event, '/api/v1/pins', { from, to, filter, reason: byId('pin-reason').value }, 'Pinned the selection.');
}

/** Disables the forms that need the role `mark`, and shows the reason. */
function showRole({ role }) {
  const mayMark = role === 'mark';
  for (const node of document.querySelectorAll('#keep form :is(input, button)')) node.disabled = !mayMark;
  setNote('role-note', mayMark ? '' : `Marks and pins need the role "mark". This login has the role "${visible(role)}".`);
}

// ---- Live state ----

/** Sets the text of a fact. */
function setFact(name, text, isBad = false) {
  const node = document.querySelector(`[data-fact="${name}"]`);
  setText(node, text);
  node.classList.toggle('bad', isBad);
}

const known = (value, format) => (value === null || value === undefined ? '–' : format(value));

/** Shows what is stored. */
function showStore({ files, bytes, open_files: openFiles, first_ns: first, free_bytes: free, disk_hours: hours }) {
  setFact('stored', formatBytes(bytes));
  setFact('free', known(free, formatBytes));
  setFact('files', `${formatCount(files)}, ${formatCount(openFiles)} open`);
  setFact('oldest', known(first, (it) => formatTime(BigInt(it), 0)));
  setFact('disk-hours', known(hours, (it) => (it < 72 ? `${it.toFixed(1)} h` : `${(it / 24).toFixed(1)} d`)));
}

/** Returns the rows of the ledger, the meaning in the second line of a cell: the known lines in their order, then others. */
function ledgerRows(ledger) {
  const lines = [...Object.keys(LEDGER_LINES).filter((it) => it in ledger), ...Object.keys(ledger).filter((it) => !(it in LEDGER_LINES))];
  return lines.map((line) => [`${visible(line)}\n${LEDGER_LINES[line] ?? ''}`, line === 'bytes' ? formatBytes(ledger[line]) : formatCount(ledger[line])]);
}

/** Shows the state of the capture in one word, or why it is unknown. */
function showState(name, text = name === 'unknown' ? 'state unknown' : name) {
  byId('state').dataset.state = name;
  setText(byId('state'), visible(text));
}

/** Shows the capture, or that its state is unknown. */
function showCapture(capture, problem) {
  showState(capture?.state ?? 'unknown');
  setNote('capture-problem', capture ? problem && visible(problem) : `The state of the capture is unknown. ${visible(problem ?? '')}`);
  setFact('frame-rate', known(capture?.frames_per_s, (it) => `${formatShort(it)}/s`));
  setFact('bit-rate', known(capture?.bits_per_s, formatBits));
  setFact('loss-rate', known(capture?.lost_per_s, (it) => (it > 0 ? `▲ ${formatShort(it)}/s` : 'none')), capture?.lost_per_s > 0);
  setFact('device', known(capture?.device, visible));
  setFact('elapsed', known(capture?.elapsed_s, (it) => formatDuration(BigInt(Math.floor(it)) * SECOND)));
  setText(byId('capture-filter'), capture?.filter ? `Capture filter: ${visible(capture.filter)}` : '');
  byId('ledger').hidden = !capture;
  byId('queues').hidden = !capture?.queues?.length;
  const isLoss = ([line, count]) => (count !== '0' && line.includes('\nLost:') ? 'bad' : '');
  fillTable(byId('ledger-rows'), ledgerRows(capture?.ledger ?? {}), [1], isLoss);
  const queues = (capture?.queues ?? []).map((it) => [visible(it.port ?? ''), String(it.queue), ...[it.received, it.captured, it.lost].map(formatCount)]);
  fillTable(byId('queue-rows'), queues, [1, 2, 3, 4], (cells) => (cells[4] === '0' ? '' : 'bad'));
}

/** Shows a status. The first status after a login or after the first stored frames loads all sections. */
function showStatus(status) {
  const isFirst = state.status === null || (state.stored === null && status.store.first_ns !== null);
  state.status = status;
  state.clockOffset = BigInt(status.now_ns) - BigInt(Date.now()) * 1_000_000n;
  setText(byId('sensor'), visible(status.sensor));
  document.title = `wqcap: ${visible(status.sensor)}`;
  setText(byId('version'), `wqcap ${visible(status.version)}`);
  setText(byId('who'), status.who ? `${visible(status.who)} (${visible(status.role)})` : '');
  byId('login').hidden = !status.authenticates || Boolean(status.who);
  byId('logout').hidden = !status.authenticates || !status.who;
  showStore(status.store);
  showCapture(status.capture, status.capture_problem);
  showRole(status);
  if (isFirst) loadHash();
}

/** Loads all sections again. Without a status, the first status does. */
function loadAll() {
  if (!state.status) return;
  state.stored = storedRange();
  showSelection();
  loadTimeline();
  loadFlows();
  loadPins();
}

/** Loads all sections with the selection of the URL. */
function loadHash() {
  state.stored = storedRange();
  Object.assign(state, readHash());
  loadAll();
}

/** Reads the status every two seconds while the page is visible. */
async function poll() {
  let delay = POLL_MS;
  try {
    showStatus(await (await get('/api/v1/status', {}, undefined, 0)).json());
    if (poll.failed) announce('The server answers again.');
    poll.failed = false;
  } catch (error) {
    poll.failed = true;
    if (error.status === 401) return;
    if (error instanceof ApiError) delay = Math.max(error.retryAfter * 1000, POLL_MS);
    else console.error(error);
    showState('unknown');
    announce(`${error.message} The page tries again every ${Math.round(delay / 1000)} s.`, true);
  }
  clearTimeout(poll.timer);
  if (document.visibilityState === 'visible') poll.timer = setTimeout(poll, delay);
}

// ---- Session ----

/** Asks for a token after the server refused a request, or when the person wants to log in. */
function openLogin(reason) {
  state.status = null;
  showState('unknown', 'not logged in');
  byId('login').hidden = false;
  byId('logout').hidden = true;
  if (byId('login-dialog').open) return;
  setNote('login-note', reason);
  byId('login-dialog').showModal();
}

/** Exchanges the token for a cookie. */
async function logIn(event) {
  event.preventDefault();
  try {
    await send('/api/v1/session', { method: 'POST', body: { token: byId('token').value.trim() } });
    byId('login-form').reset();
    byId('login-dialog').close();
    announce('Logged in.');
    poll();
  } catch (error) {
    setNote('login-note', error.message);
  }
}

/** Removes the cookie, and what the page shows of the sensor. */
async function logOut() {
  try {
    await send('/api/v1/session', { method: 'DELETE' });
    location.reload();
  } catch (error) {
    announce(error.message, true);
  }
}

// ---- Start ----

/** Shows all times again after a change of the zone. */
function changeZone() {
  state.utc = byId('utc').checked;
  loadTimeline();
  showSelection();
  showFlows();
  loadPins();
}

const onClick = (id, action) => byId(id).addEventListener('click', () => action());

/** Connects the controls of the page. */
function connect() {
  byId('chart').addEventListener('keydown', onChartKey);
  connectPointer(byId('chart'));
  byId('flow-head').append(...COLUMNS.map(columnHead));
  new ResizeObserver(showTimeline).observe(byId('timeline-summary'));
  onClick('zoom-in', zoomIn);
  onClick('zoom-out', zoomOut);
  onClick('zoom-all', zoomAll);
  onClick('refresh', loadAll);
  for (const button of document.querySelectorAll('[data-last]')) button.addEventListener('click', () => zoomLast(button.dataset.last));
  for (const input of document.querySelectorAll('[name=metric]')) {
    input.addEventListener('change', () => { state.metric = input.value; showTimeline(); });
  }
  byId('table-details').addEventListener('toggle', showTimelineTable);
  byId('utc').addEventListener('change', changeZone);
  byId('search').addEventListener('submit', applySearch);
  onClick('clear', clearSearch);
  byId('download').addEventListener('click', download);
  for (const button of document.querySelectorAll('[data-copy]')) button.addEventListener('click', () => copyCommand(button.dataset.copy));
  onClick('more', showMore);
  byId('flow-rows').addEventListener('click', onRowClick);
  byId('flow-rows').addEventListener('keydown', onRowKey);
  byId('mark-form').addEventListener('submit', markNow);
  byId('pin-form').addEventListener('submit', pinSelection);
  byId('login-form').addEventListener('submit', logIn);
  onClick('login', () => openLogin(''));
  onClick('login-cancel', () => byId('login-dialog').close());
  onClick('logout', logOut);
  window.addEventListener('hashchange', loadHash);
  document.addEventListener('visibilitychange', () => { if (document.visibilityState === 'visible') poll(); });
}

connect();
showSelection();
poll();
