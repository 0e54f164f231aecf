'use strict';
/* The feed of elections, and the token that the page sends. */

const base = location.pathname.replace(/\/+$/, '');
const door = document.body.dataset.door;
const $ = id => document.getElementById(id);

/* A token in the fragment never reaches a server log. The page removes it from the address immediately. */
const given = /[#&]token=([^&]+)/.exec(location.hash);
let token = given ? decodeURIComponent(given[1]) : recall('tenure-token');
if (given) { remember('tenure-token', token); history.replaceState(null, '', location.pathname); }
function recall(key) { try { return sessionStorage.getItem(key) || ''; } catch { return ''; } }
function remember(key, value) { try { sessionStorage.setItem(key, value); } catch { /* valid until the next load only */ } }

/* Elections by key. */
const rows = new Map();
const keyOf = e => e.namespace + '/' + e.name + '/' + e.lock;
let steer = { able: false, why: 'the page is not connected yet' };
let live = false, ready = false, attempt = 0, heard = 0, abort = null, wake = () => {};

async function follow() {
  for (;;) {
    let refused = false;
    try {
      abort = new AbortController();
      const headers = token ? { authorization: 'Bearer ' + token } : {};
      const answer = await fetch(base + '/feed', { headers, signal: abort.signal, cache: 'no-store' });
      if (answer.status === 401 || answer.status === 403) {
        refused = true;
        const why = await answer.text();
        show('refused', 'signed out', '');
        drawSoon();
        $('token-error').textContent = token ? 'The server rejected this token: ' + why : '';
      } else if (!answer.ok) {
        throw new Error(await answer.text());
      } else {
        await listen(answer.body.getReader());
      }
    } catch {
      if (!refused && attempt > 0 && !live) show('stale', 'out of date', 'The connection to the server is broken. The page shows the last known state and reconnects.');
    }
    if (live) show('stale', 'reconnecting', '');
    live = false;
    document.body.classList.add('stale');
    attempt += 1;
    if (refused) {
      offerSignIn(true);
      openSignIn();
      await new Promise(resolve => { wake = resolve; });
    } else {
      await new Promise(resolve => setTimeout(resolve, Math.min(4000, 250 * 2 ** Math.min(attempt, 5))));
    }
  }
}

async function listen(reader) {
  const decoder = new TextDecoder();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard = performance.now();
    text += decoder.decode(value, { stream: true });
    let end;
    while ((end = text.indexOf('\n\n')) >= 0) {
      const block = text.slice(0, end);
      text = text.slice(end + 2);
      const field = name => block.split('\n').filter(l => l.startsWith(name + ': ')).map(l => l.slice(name.length + 2)).join('');
      const data = field('data');
      if (data) take(field('event'), JSON.parse(data));
    }
  }
}

function take(event, data) {
  if (event === 'hello') {
    steer = data.steer;
    live = true;
    attempt = 0;
    document.body.classList.remove('stale');
    show('live', data.server ? 'live, ' + data.server : 'live', '');
    offerSignIn(data.signIn);
    return;
  }
  if (data.reset) {
    const kept = new Set(data.put.map(keyOf));
    for (const key of [...rows.keys()]) if (!kept.has(key)) rows.delete(key);
  }
  for (const key of data.gone) rows.delete(key);
  for (const election of data.put) {
    const key = keyOf(election), before = rows.get(key);
    election.received = performance.now();
    election.changed = before ? before.changed : 0;
    if (before) election.terms = merge(before.terms, election.terms);
    if (before && before.holder !== election.holder && election.holder) {
      election.changed = performance.now();
      say(election.name + ': ' + election.holder + ' leads now' + (before.holder ? ', after ' + before.holder : ''));
    }
    rows.set(key, election);
  }
  ready = ready || data.ready;
  if (live) notice(data.trouble ? 'The state can be out of date: ' + data.trouble : '');
  drawSoon();
}

/* Keeps terms that this page has seen and that the feed does not contain any more. */
function merge(old, fresh) {
  const first = fresh.length && fresh[0].from ? Date.parse(fresh[0].from) : Infinity;
  const earlier = old.filter(t => t.from && t.to && Date.parse(t.from) < first - 1500 &&
    !fresh.some(f => f.holder === t.holder && f.from && Math.abs(Date.parse(f.from) - Date.parse(t.from)) < 1500));
  return earlier.concat(fresh).slice(-60);
}

/* The server sends a comment every ten seconds, so a silent feed is broken. */
setInterval(() => { if (live && performance.now() - heard > 25000) abort.abort(); }, 2000);

function show(state, words, why) {
  $('state').dataset.state = state;
  text($('state'), words);
  notice(why);
}
function notice(words) { $('notice').hidden = !words; text($('notice'), words); }
function say(words) {
  $('log').append(element('p', '', words));
  while ($('log').childElementCount > 20) $('log').firstChild.remove();
}

/* ---- signing in ---- */
function offerSignIn(useful) {
  $('sign-in').hidden = !useful;
  text($('sign-in'), live && token && door === 'server' ? 'Sign out' : 'Sign in');
}
function openSignIn() {
  if (document.querySelector('dialog[open]')) return;
  for (const part of $('ask-token').querySelectorAll('[data-for]')) part.hidden = part.dataset.for !== door;
  $('token').value = '';
  $('ask-token').showModal();
  $('token').focus();
}
function use(value) {
  token = value;
  remember('tenure-token', value);
  $('token-error').textContent = '';
  attempt = 0;
  if (abort) abort.abort();
  wake();
}
$('sign-in').addEventListener('click', () => {
  if ($('sign-in').textContent === 'Sign out') { rows.clear(); ready = false; use(''); draw(); } else openSignIn();
});
$('token-cancel').addEventListener('click', () => $('ask-token').close());
$('ask-token').querySelector('form').addEventListener('submit', () => use($('token').value.trim()));
