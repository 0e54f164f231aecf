/* The elections, as cards or as a table. */

const SHOWN = 200, MANY = 12, CIRCLE = 2 * Math.PI * 34, NS = 'http://www.w3.org/2000/svg';
const calm = matchMedia('(prefers-reduced-motion: reduce)');

/* What is drawn, by key of the election. */
const views = new Map();
let chosenView = recall('tenure-view');

function shape(tag, attributes) {
  const e = document.createElementNS(NS, tag);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  return e;
}

/* The parts that a card and a row share. */
function parts(key, name) {
  const v = { root: null, name, place: element('p', 'place'), status: element('span', 'status'), badges: element('div', 'badges'), holder: element('p', 'holder') };
  v.swatch = element('span', 'swatch');
  v.who = element('b');
  v.holder.append(v.swatch, v.who);
  v.line = element('div', 'line');
  v.line.setAttribute('role', 'img');
  v.terms = element('button', 'link number');
  v.terms.type = 'button';
  v.terms.addEventListener('click', () => openTerms(key));
  v.menu = element('button', 'more');
  v.menu.type = 'button';
  v.menu.setAttribute('aria-haspopup', 'menu');
  v.menu.setAttribute('aria-expanded', 'false');
  const dots = shape('svg', { viewBox: '0 0 16 16', 'aria-hidden': 'true' });
  dots.append(...[3, 8, 13].map(x => shape('circle', { cx: x, cy: 8, r: 1.5 })));
  v.menu.append(dots);
  v.menu.addEventListener('click', () => openMenu(key, v.menu));
  return v;
}

function card(key) {
  const v = parts(key, element('h2'));
  v.root = element('li');
  v.box = element('article');
  const title = element('div', 'title'), words = element('div'), now = element('div', 'now'), who = element('div'), foot = element('div', 'foot'), time = element('div', 'span');
  words.append(v.name, v.place);
  title.append(words, v.status, v.menu);
  const ring = shape('svg', { class: 'ring', viewBox: '0 0 80 80', role: 'img' });
  const left = shape('circle', { class: 'left', cx: 40, cy: 40, r: 34, 'stroke-dasharray': CIRCLE });
  const number = shape('text', { x: 40, y: 43 }), unit = shape('text', { x: 40, y: 57, class: 'unit' });
  ring.append(shape('circle', { class: 'track', cx: 40, cy: 40, r: 34 }), left, number, unit);
  v.gauge = (share, words, under, label) => {
    left.setAttribute('stroke-dashoffset', CIRCLE * (1 - share));
    text(number, words);
    text(unit, under);
    if (ring.getAttribute('aria-label') !== label) ring.setAttribute('aria-label', label);
  };
  v.facts = element('p', 'facts');
  who.append(v.holder, v.facts);
  now.append(ring, who);
  const scale = element('div', 'scale');
  scale.setAttribute('aria-hidden', 'true');
  v.since = element('span');
  scale.append(v.since, element('span', '', 'now'));
  time.append(v.line, scale);
  v.transitions = element('span', 'number');
  foot.append(v.terms, v.transitions);
  v.box.append(title, now, v.badges, time, foot);
  v.root.append(v.box);
  return v;
}

function line(key) {
  const v = parts(key, element('div', 'name'));
  v.root = v.box = element('tr');
  v.root.setAttribute('role', 'row');
  const cell = (className, ...content) => {
    const td = element(className === 'election' ? 'th' : 'td', className);
    td.setAttribute('role', className === 'election' ? 'rowheader' : 'cell');
    if (className === 'election') td.scope = 'row';
    td.append(...content);
    v.root.append(td);
    return td;
  };
  cell('election', v.name, v.place, v.badges);
  cell('state', v.status);
  cell('who', v.holder);
  const meter = element('div', 'meter'), bar = element('i'), number = element('span', 'number');
  bar.setAttribute('aria-hidden', 'true');
  meter.append(bar, number);
  v.gauge = (share, words, under) => {
    bar.style.setProperty('--share', share * 100 + '%');
    bar.hidden = under !== 's left';
    text(number, under === 's left' ? words + ' s' : '\u2013');
  };
  cell('valid', meter);
  v.held = cell('for right number');
  cell('count right', v.terms);
  cell('time', v.line);
  cell('actions', v.menu);
  return v;
}

/* State of an election: a level for its colour, a word, and a rank. Elections with a higher rank are sorted first. */
function condition(e) {
  const left = remaining(e), share = Math.max(0, Math.min(1, left / (e.leaseDurationSeconds || 1)));
  let level = 'good', word = 'leading', rank = 0;
  if (!live) [level, word] = ['unknown', 'out of date'];
  else if (!e.holder) [level, word] = ['free', 'free'];
  else if (left <= 0) [level, word, rank] = ['none', 'no leader', 4];
  else if (share < .35) level = 'low';
  rank = Math.max(rank, e.flapping ? 3 : e.skewed ? 2 : e.paused ? 1 : 0);
  return { left, share, level, word, rank };
}

/* Many renewals within a short time are drawn together. */
let pending = 0;
function drawSoon() { pending = pending || setTimeout(() => { pending = 0; draw(); }, 100); }

const asTable = () => chosenView ? chosenView === 'table' : rows.size > MANY;

function draw() {
  const words = $('filter').value.trim().toLowerCase();
  const wanted = [...rows].filter(([, e]) => !words || [e.name, e.namespace, e.holder].some(t => t.toLowerCase().includes(words)));
  const ranks = new Map(wanted.map(([key, e]) => [key, condition(e).rank]));
  wanted.sort(([a], [b]) => ranks.get(b) - ranks.get(a) || (a < b ? -1 : 1));
  const shown = wanted.slice(0, SHOWN), table = asTable(), parent = $(table ? 'lines' : 'grid');
  if (draw.table !== table) {
    for (const v of views.values()) v.root.remove();
    views.clear();
    draw.table = table;
  }
  $('grid').hidden = table;
  $('frame').hidden = !table || !shown.length;
  $('as-cards').setAttribute('aria-pressed', String(!table));
  $('as-table').setAttribute('aria-pressed', String(table));
  const keys = new Set(shown.map(([key]) => key));
  for (const [key, v] of views) if (!keys.has(key)) { v.root.remove(); views.delete(key); }
  for (const [key] of shown) if (!views.has(key)) {
    const v = table ? line(key) : card(key);
    views.set(key, v);
    parent.append(v.root);
  }
  if (live && !busy()) order(parent, shown.map(([key]) => views.get(key).root));
  for (const [key, e] of shown) paint(views.get(key), e);
  const empty = $('empty');
  empty.hidden = shown.length > 0 && wanted.length === shown.length;
  text(empty, shown.length ? wanted.length - shown.length + ' more elections; filter to see them.'
    : rows.size ? 'No election matches the filter.'
    : $('state').dataset.state === 'refused' ? 'Sign in to see the elections.'
    : ready ? 'No elections yet. Start one: tenure run --election hello -- sleep 60'
    : 'Looking for elections.');
  $('overview').hidden = !rows.size;
  summarize();
  const elections = shown.map(([, e]) => e);
  drawLegend(elections);
  seconds = range(elections, Date.now());
  tick();
}

/* Nothing moves while a menu or a dialog is open, or while the feed is broken. A move of an element drops its focus, so the focus is restored. */
const busy = () => document.querySelector('dialog[open]') !== null || $('menu').matches(':popover-open');
function order(parent, wanted) {
  const focus = document.activeElement;
  let place = parent.firstElementChild;
  for (const root of wanted) if (root === place) place = place.nextElementSibling; else parent.insertBefore(root, place);
  if (focus !== document.activeElement && parent.contains(focus)) focus.focus({ preventScroll: true });
}

function summarize() {
  const all = [...rows.values()], states = all.map(condition);
  const count = { none: 0, flapping: all.filter(e => e.flapping).length, paused: all.filter(e => e.paused).length, free: 0 };
  for (const { level } of states) if (level in count) count[level] += 1;
  const parts = [[count.none, 'without a leader', 'bad'], [count.flapping, 'flapping', 'low'], [count.paused, 'paused', 'low'], [count.free, 'free', '']].filter(([n]) => n);
  const words = all.length + (all.length === 1 ? ' election' : ' elections');
  const whole = [words, ...parts.map(([n, word]) => n + ' ' + word)].join(' \u00b7 ');
  if ($('summary').textContent !== whole) {
    $('summary').replaceChildren(words);
    for (const [n, word, className] of parts) $('summary').append(element('span', '', ' \u00b7 '), element('span', className, n + ' ' + word));
  }
  const title = (count.none ? '(' + count.none + ') ' : '') + 'Tenure';
  if (document.title !== title) document.title = title;
}

function paint(v, e) {
  const whole = e.namespace + '/' + e.name;
  text(v.name, e.name);
  text(v.place, e.namespace);
  if (v.box.tagName === 'ARTICLE') v.box.setAttribute('aria-label', whole);
  v.menu.setAttribute('aria-label', 'Actions for ' + whole);
  const badges = [];
  if (e.paused) badges.push(['low', 'paused']);
  if (e.flapping) badges.push(['low', 'flapping: ' + e.recentTerms + ' terms in 10 min']);
  if (e.skewed) badges.push(['low', 'clock skew?']);
  if (e.candidates && e.candidates.length) {
    const standby = e.candidates.filter(c => c.ready && c.identity !== e.holder).length;
    badges.push(standby ? ['', standby + ' standby'] : ['low', 'no standby']);
  }
  if (e.lock !== 'leases') badges.push(['', e.lock]);
  if (v.badges.textContent !== badges.map(([, words]) => words).join('')) v.badges.replaceChildren(...badges.map(([className, words]) => element('span', 'badge ' + className, words)));
  text(v.terms, v.held ? String(e.terms.length) : termCount(e));
  v.terms.setAttribute('aria-label', 'Show ' + termCount(e) + ' of ' + whole);
  if (v.transitions) text(v.transitions, e.transitions + (e.transitions === 1 ? ' transition' : ' transitions'));
  if (e.changed && e.changed !== v.flashed) {
    v.flashed = e.changed;
    v.box.classList.remove('flash');
    void v.box.offsetWidth;
    v.box.classList.add('flash');
  }
}

/* The holder of an expired lease is named as the last one, because it does not lead. */
function paintHolder(v, e, level) {
  const last = e.terms[e.terms.length - 1], holder = e.holder || (last ? last.holder : ''), nobody = level === 'none' || !e.holder;
  text(v.who, nobody ? holder ? 'nobody, last ' + holder : 'nobody' : holder);
  v.holder.title = holder;
  v.holder.classList.toggle('nobody', nobody);
  v.swatch.hidden = nobody;
  if (holder) v.swatch.style.background = colour(holder, e);
}

/* Moves what moves with time. Words and timelines move every two seconds, and whenever a term begins or ends. */
let ticks = 0, seconds = RANGES[0];
function tick() {
  const now = performance.now(), often = ticks++ % 8 !== 0, wall = Date.now();
  if (!often) seconds = range([...views.keys()].map(key => rows.get(key)).filter(Boolean), wall);
  let changed = false;
  for (const [key, v] of views) {
    const e = rows.get(key);
    if (!e) continue;
    const { left, share, level, word, rank } = condition(e), lease = e.leaseDurationSeconds || 1;
    const last = e.terms[e.terms.length - 1], stamp = [e.holder, e.transitions, e.terms.length, last && last.ended, level === 'low' ? 'good' : level, seconds].join('|');
    const slow = !often || v.stamp !== stamp;
    v.stamp = stamp;
    if (v.box.dataset.level !== level) v.box.dataset.level = level;
    if (v.rank !== undefined && v.rank !== rank) changed = true;
    v.rank = rank;
    text(v.status, word);
    const counts = level === 'good' || level === 'low';
    v.gauge(share, counts ? left.toFixed(left < 10 ? 1 : 0) : '\u2013', counts ? 's left' : level === 'none' ? 'expired' : word,
      level === 'unknown' ? 'The state is out of date' : !e.holder ? 'Nobody holds it' : left <= 0 ? 'The lease has expired' : slow ? v.label = Math.round(left) + ' of ' + lease + ' seconds left' : v.label);
    if (!slow) continue;
    paintHolder(v, e, level);
    const passed = (now - e.received) / 1000, held = counts && e.heldForSeconds !== null ? span(e.heldForSeconds + passed) : '';
    if (v.held) text(v.held, held || '\u2013');
    if (v.facts) {
      const facts = [];
      if (held) facts.push('leading for ' + held);
      if (e.holder && e.renewedAgoSeconds !== null) facts.push((level === 'none' ? 'last renewed ' : 'renewed ') + span(e.renewedAgoSeconds + passed) + ' ago');
      if (level === 'free' && last && last.to) facts.push('free for ' + span((wall - Date.parse(last.to)) / 1000));
      if (v.facts.textContent !== facts.join('')) v.facts.replaceChildren(...facts.map(f => element('span', '', f)));
    }
    drawLine(v.line, e, seconds, wall);
    if (v.since) text(v.since, rangeWords(seconds) + ' ago');
  }
  text($('since'), rangeWords(seconds) + ' ago');
  text($('range').options[0], $('range').value === '0' ? 'auto: ' + rangeWords(seconds) : 'auto');
  if (changed && !tick.again) { tick.again = true; draw(); tick.again = false; }
  if (!often && $('terms').open) fillTerms();
}
setInterval(() => { if (!document.hidden && (!calm.matches || ticks % 4 === 0)) tick(); else ticks++; }, 250);

function choose(view) { chosenView = view; remember('tenure-view', view); draw(); }
$('as-cards').addEventListener('click', () => choose('cards'));
$('as-table').addEventListener('click', () => choose('table'));
$('range').addEventListener('change', draw);
$('filter').addEventListener('input', draw);
document.addEventListener('keydown', event => {
  if (event.key === '/' && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName) && !busy()) {
    event.preventDefault();
    $('filter').focus();
  }
});
