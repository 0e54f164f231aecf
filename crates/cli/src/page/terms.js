/* Terms: their colours, their timelines, the legend, and the list of terms. */

const RANGES = [60, 300, 900, 3600], LONGEST = 3600, COLOURS = 8;

function element(tag, className, words) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (words !== undefined) e.textContent = words;
  return e;
}
function text(node, words) { if (node.textContent !== words) node.textContent = words; }
function span(seconds) {
  const s = Math.max(0, seconds), two = (big, unit, small, sub) => big + ' ' + unit + (small ? ' ' + small + ' ' + sub : '');
  if (s < 10) return s.toFixed(1) + ' s';
  if (s < 60) return Math.floor(s) + ' s';
  if (s < 3600) return two(Math.floor(s / 60), 'min', Math.floor(s % 60), 's');
  if (s < 86400) return two(Math.floor(s / 3600), 'h', Math.floor(s % 3600 / 60), 'min');
  return two(Math.floor(s / 86400), 'd', Math.floor(s % 86400 / 3600), 'h');
}
const clock = time => time === null ? 'unknown' : new Date(time).toLocaleTimeString([], { hour12: false });

/* A holder keeps its colour. Holders of one election get different colours as long as there are enough. */
const colours = new Map();
function colour(holder, election) {
  if (!colours.has(holder)) {
    const uses = new Array(COLOURS).fill(0);
    for (const other of colours.values()) uses[other] += 1;
    for (const t of election.terms) if (colours.has(t.holder)) uses[colours.get(t.holder)] += 1000;
    colours.set(holder, uses.indexOf(Math.min(...uses)));
  }
  return 'var(--h' + colours.get(holder) + ')';
}

/* Whether a term ended without a word of its holder. The feed gives the reason as text. */
const isAbrupt = term => /crashed|cut off|lease (ran out|expired)/.test(term.ended || '');

/* Seconds until other candidates may take the lock, counted since the last message of the feed. */
function remaining(e) {
  return e.validForSeconds === null ? 0 : e.validForSeconds - (performance.now() - e.received) / 1000;
}

/* Returns terms and leaderless gaps, oldest first, with times in milliseconds. An open term of an expired lease ended with
   the lease, even if nobody has said so yet. Nothing is known about the time after the last message of a broken feed. */
function periods(e, now) {
  const result = [], known = live ? now : now - (performance.now() - heard);
  let end = null;
  e.terms.forEach((t, i) => {
    const from = t.from ? Date.parse(t.from) : null;
    let to = t.to ? Date.parse(t.to) : null, ended = t.ended || '', abrupt = isAbrupt(t);
    if (to === null && i < e.terms.length - 1) to = Date.parse(e.terms[i + 1].from || e.terms[i + 1].to) || now;
    if (to === null && !live) to = known;
    if (to === null && remaining(e) <= 0) {
      to = Math.max(from || 0, now + remaining(e) * 1000);
      ended = 'its lease expired, and no candidate has taken over';
      abrupt = true;
    }
    if (end !== null && from !== null && from - end >= 1000) result.push({ gap: true, from: end, to: from });
    result.push({ holder: t.holder, from, to, ended, abrupt });
    if (to !== null) end = Math.max(end || 0, to);
  });
  const last = result[result.length - 1];
  if (last && last.to !== null && known - end >= 1000) result.push({ gap: true, from: end, to: live ? null : known });
  return result;
}

/* The range of all timelines: as chosen, or the shortest one that shows the start of every term of the last hour. */
function range(elections, now) {
  const chosen = Number($('range').value);
  if (chosen) return chosen;
  let oldest = 0;
  for (const e of elections) for (const t of e.terms) {
    const age = (now - Date.parse(t.from || t.to)) / 1000;
    if (age <= LONGEST) oldest = Math.max(oldest, age);
    else if (t.to && now - Date.parse(t.to) < LONGEST * 1000) oldest = LONGEST;
  }
  return RANGES.find(seconds => oldest <= seconds * .98) || LONGEST;
}
const rangeWords = seconds => seconds >= 3600 ? seconds / 3600 + ' h' : seconds / 60 + ' min';

function drawLine(line, e, seconds, now) {
  const start = now - seconds * 1000, place = time => Math.max(0, Math.min(100, (time - start) / seconds / 10));
  const parts = [];
  let gaps = 0, cuts = 0, before = start;
  for (const p of periods(e, now)) {
    const from = p.from === null ? Math.max(start, Math.min(before, p.to)) : p.from, to = p.to === null ? now : p.to;
    before = to;
    if (to < start) continue;
    const part = element('div', p.gap ? 'gap' : p.from === null ? 'term unclear' : 'term');
    part.style.left = place(from) + '%';
    part.style.width = place(to) - place(from) + '%';
    if (p.gap) gaps += 1; else part.style.background = colour(p.holder, e);
    part.title = (p.gap ? 'no leader' : p.holder) + ', ' + clock(p.from) + ' to ' + (p.to === null ? 'now' : clock(p.to)) + (p.ended ? ': ' + p.ended : '');
    parts.push(part);
    if (p.abrupt) {
      const cut = element('div', 'cut');
      cut.style.left = Math.max(place(to), .8) + '%';
      cut.title = p.holder + ' crashed or was cut off';
      parts.push(cut);
      cuts += 1;
    }
  }
  /* Gaps and cuts are drawn last, so that a short one is not hidden by the minimum width of a term. */
  parts.sort((a, b) => a.classList.contains('term') === b.classList.contains('term') ? 0 : a.classList.contains('term') ? -1 : 1);
  line.replaceChildren(...parts);
  const count = (n, word) => n ? ', ' + n + ' ' + word + (n === 1 ? '' : 's') : '';
  line.setAttribute('aria-label', 'Timeline of the last ' + rangeWords(seconds) + ': ' + termCount(e) + count(gaps, 'leaderless gap') + count(cuts, 'crash'.concat(cuts === 1 ? '' : 'e')));
}
const termCount = e => e.terms.length === 1 ? '1 term' : e.terms.length + ' terms';

/* One legend explains all timelines. It names the holders as long as every one has a different colour. */
function drawLegend(elections) {
  const holders = new Map();
  for (const e of elections) for (const t of e.terms) holders.set(t.holder, colour(t.holder, e));
  const item = (words, ...classes) => {
    const li = element('li'), sample = element('span', 'sample ' + (classes.length ? '' : 'unknown'));
    sample.append(...classes.map(c => element('span', c)));
    li.append(sample, words);
    return li;
  };
  const items = [];
  if (holders.size <= COLOURS && new Set(holders.values()).size === holders.size) {
    for (const [holder, paint] of [...holders].sort(([a], [b]) => a < b ? -1 : 1)) {
      const li = item(holder, 'term');
      li.querySelector('.term').style.background = paint;
      items.push(li);
    }
  } else {
    const li = item('one colour per holder', 'term');
    li.querySelector('.term').style.background = 'linear-gradient(90deg, var(--h0) 33%, var(--h1) 33% 66%, var(--h2) 66%)';
    items.push(li);
  }
  const cut = item('crashed or cut off', 'term', 'cut');
  cut.querySelector('.term').style.background = 'var(--edge)';
  items.push(item('no leader', 'gap'), cut, item('no record'));
  const words = items.map(i => i.textContent).join('\n');
  if (words !== drawLegend.words) { drawLegend.words = words; $('legend').replaceChildren(...items); }
}

/* ---- the list of terms ---- */
let listed = null;
function openTerms(key) {
  listed = key;
  $('terms-list').replaceChildren();
  fillTerms();
  $('terms').showModal();
}
function fillTerms() {
  const e = rows.get(listed);
  if (!e) return;
  text($('terms-title'), 'Terms of ' + e.namespace + '/' + e.name);
  text($('terms-text'), e.transitions + (e.transitions === 1 ? ' transition' : ' transitions') + ' since the lock was created. Terms come from Events, which API servers keep for about an hour.');
  const now = Date.now();
  const items = periods(e, now).reverse().map(p => {
    const li = element('li', p.gap ? 'leaderless' : ''), swatch = element('span', 'swatch');
    if (!p.gap) swatch.style.background = colour(p.holder, e);
    const length = p.from === null ? '' : span(((p.to === null ? now : p.to) - p.from) / 1000);
    li.append(swatch, element(p.gap ? 'span' : 'strong', '', p.gap ? 'no leader' : p.holder), element('span', 'number when', length));
    li.append(element('div', 'when', clock(p.from) + ' to ' + (p.to === null ? 'now' : clock(p.to))));
    if (p.abrupt) { const badges = element('div', 'badges'); badges.append(element('span', 'badge bad', 'crashed or cut off')); li.append(badges); }
    if (p.ended && p.ended !== 'crashed or cut off') li.append(element('div', 'when', p.ended));
    return li;
  });
  const list = $('terms-list'), top = list.scrollTop;
  list.replaceChildren(...items);
  list.scrollTop = top;
}
$('terms-close').addEventListener('click', () => $('terms').close());
$('terms').addEventListener('close', () => focusMenu(listed));
