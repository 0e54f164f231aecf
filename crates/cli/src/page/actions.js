/* The menu of an election, and the order to step down. */

let opened = null, asked = null;
const items = [$('menu-terms'), $('menu-step-down')];

function focusMenu(key) { const v = views.get(key); if (v) v.menu.focus(); }

function openMenu(key, button) {
  if (opened === key && $('menu').matches(':popover-open')) { $('menu').hidePopover(); return; }
  const e = rows.get(key);
  const why = !live ? 'The page is not connected.' : !e.holder ? 'Nobody holds it.' : !steer.able ? steer.why : '';
  items[1].setAttribute('aria-disabled', String(why !== ''));
  text($('menu-why'), why);
  $('menu').setAttribute('aria-label', 'Actions for ' + e.namespace + '/' + e.name);
  opened = key;
  $('menu').showPopover();
  const at = button.getBoundingClientRect(), size = $('menu').getBoundingClientRect();
  const below = at.bottom + 4 + size.height <= innerHeight;
  $('menu').style.top = Math.max(8, below ? at.bottom + 4 : at.top - 4 - size.height) + 'px';
  $('menu').style.left = Math.max(8, Math.min(at.right, innerWidth - 8) - size.width) + 'px';
  button.setAttribute('aria-expanded', 'true');
  items[0].focus();
}
$('menu').addEventListener('toggle', event => {
  if (event.newState !== 'closed') return;
  const v = views.get(opened);
  if (v) v.menu.setAttribute('aria-expanded', 'false');
  draw();
});
$('menu').addEventListener('keydown', event => {
  const at = items.indexOf(document.activeElement), last = items.length - 1;
  const next = { ArrowDown: at === last ? 0 : at + 1, ArrowUp: at <= 0 ? last : at - 1, Home: 0, End: last }[event.key];
  if (next !== undefined) { event.preventDefault(); items[next].focus(); }
  if (event.key === 'Tab') { event.preventDefault(); closeMenu(); }
  if (event.key === 'Escape') { event.preventDefault(); closeMenu(); }
});
function closeMenu() { $('menu').hidePopover(); focusMenu(opened); }
addEventListener('scroll', () => { if ($('menu').matches(':popover-open')) closeMenu(); }, { passive: true });
addEventListener('resize', () => { if ($('menu').matches(':popover-open')) closeMenu(); });
$('menu-terms').addEventListener('click', () => { closeMenu(); openTerms(opened); });
$('menu-step-down').addEventListener('click', () => {
  if ($('menu-step-down').getAttribute('aria-disabled') === 'true') return;
  closeMenu();
  ask(opened);
});

/* Other holders of the known terms, the latest first. */
function candidates(e) {
  const seen = new Map();
  for (const t of e.terms) if (t.holder !== e.holder) { seen.delete(t.holder); seen.set(t.holder, t); }
  return [...seen.values()].reverse();
}

function ask(key) {
  const e = rows.get(key);
  if (!e || !e.holder) return;
  /* The order is for the term that the question names, even if another term begins before the answer. */
  asked = { key, namespace: e.namespace, name: e.name, lock: e.lock, holder: e.holder, transitions: e.transitions };
  text($('step-down-title'), 'Step down ' + e.holder + '?');
  text($('step-down-text'), e.holder + ' stops its work for ' + e.namespace + '/' + e.name + ' and releases the lease. It does not lead again for 30 seconds.');
  const option = (value, words) => { const o = element('option', '', words); o.value = value; return o; };
  const announced = (e.candidates || []).filter(c => c.identity !== e.holder);
  const ready = announced.map(c => {
    const o = option('=' + c.identity, c.identity + (c.ready ? ' (ready' + (c.zone ? ', ' + c.zone : '') + ')' : ' (not ready' + (c.reason ? ': ' + c.reason : '') + ')'));
    o.disabled = !c.ready;
    return o;
  });
  /* If candidates announce themselves, the others cannot take over. */
  const known = ready.length ? ready : candidates(e).map(t => option('=' + t.holder, t.holder + ' (led until ' + (t.to ? clock(Date.parse(t.to)) : 'now') + (isAbrupt(t) ? ', crashed or cut off)' : ')')));
  $('to').replaceChildren(option('', 'Any other candidate'), ...known, option('?', 'Another candidate\u2026'));
  $('other').hidden = true;
  $('other-name').value = '';
  $('step-down-error').textContent = '';
  $('step-down-go').disabled = false;
  $('step-down').showModal();
  $('step-down-cancel').focus();
}
$('to').addEventListener('change', () => {
  $('other').hidden = $('to').value !== '?';
  if (!$('other').hidden) $('other-name').focus();
});
$('step-down-cancel').addEventListener('click', () => $('step-down').close());
$('step-down').addEventListener('close', () => focusMenu(asked.key));
$('step-down').querySelector('form').addEventListener('submit', async event => {
  event.preventDefault();
  const { namespace, name, lock, holder, transitions } = asked;
  const query = new URLSearchParams({ namespace, name, lock, transitions });
  const choice = $('to').value, to = choice === '?' ? $('other-name').value.trim() : choice.slice(1);
  if (choice === '?' && !to) {
    $('step-down-error').textContent = 'Enter the identity of a candidate.';
    $('other-name').focus();
    return;
  }
  if (to) query.set('to', to);
  $('step-down-go').disabled = true;
  try {
    const answer = await fetch(base + '/step-down?' + query, { method: 'POST', headers: { authorization: 'Bearer ' + token } });
    const words = await answer.text();
    if (answer.ok) { say(holder + ' was asked to step down from ' + name); $('step-down').close(); }
    else $('step-down-error').textContent = words;
  } catch { $('step-down-error').textContent = 'The server does not respond. Try again.'; }
  $('step-down-go').disabled = false;
});

follow();
