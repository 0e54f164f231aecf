// The page in a real browser. Prints what the page shows on standard output, and the test reacts to it.
//   node page.mjs SCENARIO URL PLAYWRIGHT [SCREENSHOTS]
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import assert from 'node:assert/strict';

const [scenario, url, library, pictures] = process.argv.slice(2);
const { chromium } = createRequire(import.meta.url)(library);
const axe = readFileSync(join(dirname(library), '../axe-core/axe.min.js'), 'utf8');
const say = text => console.log(text);
const LIMIT = 40_000;

const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
const errors = [];

async function open(address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 800 }, ignoreHTTPSErrors: true, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(LIMIT);
  page.on('console', message => { if (message.type() === 'error') errors.push(message.text()); });
  page.on('pageerror', error => errors.push(String(error)));
  await page.goto(address);
  // A reload would remove this variable.
  await page.evaluate(() => { window.same = true; });
  return page;
}

const card = (page, election) => page.getByRole('article', { name: election });
const holder = (page, election) => card(page, election).locator('.holder b');
const menuButton = (page, election) => page.getByRole('button', { name: `Actions for ${election}` });
const stepDownItem = page => page.getByRole('menuitem', { name: 'Step down' });
const focused = locator => locator.evaluate(element => element === document.activeElement);

/** Waits for a leader other than `before`, and returns its name. */
async function leader(page, election, before = '') {
  await page.waitForFunction(([name, before]) => {
    const own = document.querySelector(`article[aria-label="${name}"] .holder:not(.nobody) b`);
    return own && own.textContent && own.textContent !== before;
  }, [election, before], { timeout: LIMIT });
  return holder(page, election).textContent();
}

async function state(page, wanted) {
  await page.waitForFunction(wanted => document.getElementById('state').dataset.state === wanted, wanted, { timeout: LIMIT });
}

async function picture(page, name) {
  if (pictures) await page.screenshot({ path: `${pictures}/${name}.png` });
}

/** Checks the requirements of users of screen readers and keyboards. */
async function accessible(page, election) {
  assert.equal(await page.getAttribute('html', 'lang'), 'en');
  assert.equal(await page.getByRole('heading', { level: 1 }).count(), 1);
  assert.equal(await page.getByRole('main').count(), 1);
  assert.ok(await page.getByRole('searchbox', { name: /filter/i }).isVisible());
  assert.ok(await page.getByRole('status').count() >= 1);
  assert.equal(await page.getByRole('log', { name: /changes of leaders/i }).getAttribute('aria-live'), 'polite');
  const own = card(page, election);
  assert.ok(await own.getByRole('heading', { level: 2 }).isVisible());
  assert.match(await own.getByRole('img').first().getAttribute('aria-label'), /seconds left|expired/);
  assert.match(await own.getByRole('img').nth(1).getAttribute('aria-label'), /timeline/i);
  for (const button of await page.getByRole('button').all()) {
    const name = await button.evaluate(b => b.getAttribute('aria-label') || b.textContent);
    assert.ok(name.trim(), 'every button has a name');
  }
  await page.evaluate(() => document.activeElement.blur());
  const order = [];
  for (let i = 0; i < 7; i++) {
    await page.keyboard.press('Tab');
    order.push(await page.evaluate(() => document.activeElement.id || document.activeElement.tagName + '.' + document.activeElement.className));
  }
  assert.deepEqual(order, ['A.skip', 'filter', 'range', 'as-cards', 'as-table', 'BUTTON.more', 'BUTTON.link number']);
}

/** Checks that axe-core finds no serious problem. */
async function audited(page, where) {
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { resultTypes: ['violations'] });
    const grave = violations.filter(v => v.impact === 'serious' || v.impact === 'critical');
    return grave.map(v => v.id + ': ' + v.nodes.map(n => n.html.slice(0, 200)).join('\n'));
  });
  assert.deepEqual(found, [], `axe-core, ${where}`);
}

async function fits(page, width) {
  await page.setViewportSize({ width, height: 800 });
  const [wide, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(wide <= window, `scrolls sideways at ${width}: ${wide} > ${window}`);
}

/** Checks the layout in every width and colour scheme. */
async function looks(page, name) {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    for (const width of [1400, 390, 320]) {
      await fits(page, width);
      if (width !== 320) await picture(page, `${name}-${width}-${colorScheme}`);
    }
    await page.setViewportSize({ width: 1400, height: 800 });
    await audited(page, `${name}, ${colorScheme}`);
  }
  await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'reduce' });
}

const scenarios = {
  // `tenure ui`, opened with its secret: kill the leader, step the next one down.
  async ui() {
    const page = await open(url), web = 'default/web';
    assert.ok(!page.url().includes('token'), 'the secret leaves the address');
    await state(page, 'live');
    const first = await leader(page, web);
    say('shown ' + first);
    const second = await leader(page, web, first);
    assert.ok(await page.evaluate(() => window.same), 'no reload');
    assert.match(await page.getByRole('log').textContent(), new RegExp(`web: ${second} leads now`));
    // The election comes first, then its holder.
    assert.match(await card(page, web).innerText(), new RegExp(`^web\\s+default[^]*\\b${second}\\b`));
    say('shown ' + second);
    await accessible(page, web);
    assert.ok(await page.getByRole('button', { name: 'Sign in' }).isHidden());
    // With the keyboard: opens the menu and the question, and closes both.
    const button = menuButton(page, web);
    await button.press('Enter');
    assert.ok(await focused(page.getByRole('menuitem', { name: 'Show terms' })));
    assert.equal(await button.getAttribute('aria-expanded'), 'true');
    await page.keyboard.press('ArrowDown');
    assert.ok(await focused(stepDownItem(page)));
    await page.keyboard.press('Escape');
    assert.ok(await page.getByRole('menu').isHidden());
    assert.ok(await focused(button), 'the focus returns from the menu');
    await button.press('Enter');
    await page.keyboard.press('End');
    await page.keyboard.press('Enter');
    const dialog = page.getByRole('dialog', { name: `Step down ${second}?` });
    assert.ok(await dialog.isVisible());
    await audited(page, 'the question');
    await picture(page, 'step-down');
    await page.keyboard.press('Escape');
    assert.ok(await dialog.isHidden());
    assert.ok(await focused(button), 'the focus returns from the question');
    await button.click();
    await stepDownItem(page).click();
    // The killed holder is a known candidate; the third one has never led.
    const names = await dialog.getByLabel('Hand over to').locator('option').allTextContents();
    assert.equal(names.length, 3);
    assert.equal(names[0], 'Any other candidate');
    assert.match(names[1], new RegExp(`^${first} \\(led until .*, crashed or cut off\\)$`));
    await dialog.getByLabel('Hand over to').selectOption('Another candidate\u2026');
    await dialog.getByRole('button', { name: 'Step down' }).click();
    await dialog.getByText('Enter the identity of a candidate.').waitFor();
    const third = ['a', 'b', 'c'].find(id => id !== first && id !== second);
    await dialog.getByLabel('Identity of the candidate').fill(third);
    await dialog.getByRole('button', { name: 'Step down' }).click();
    assert.equal(await leader(page, web, second), third);
    assert.ok(await page.evaluate(() => window.same), 'no reload');
    say('shown ' + third);
    await card(page, web).getByRole('button', { name: /terms of/ }).click();
    const terms = page.getByRole('dialog', { name: `Terms of ${web}` });
    await terms.getByText('an operator ordered it to step down').waitFor();
    const killed = terms.getByRole('listitem').filter({ has: page.locator('strong', { hasText: new RegExp(`^${first}$`) }) });
    assert.match(await killed.innerText(), /crashed or cut off/);
    await audited(page, 'the terms');
    await picture(page, 'terms');
    await terms.getByRole('button', { name: 'Close' }).click();
    assert.ok(await card(page, web).locator('.line .cut').count() >= 1, 'the timeline marks the killed holder');
    await looks(page, 'ui');
    await page.getByRole('searchbox').fill('nothing like it');
    await page.getByText('No election matches the filter.').waitFor();
    assert.deepEqual(errors, []);
    // A user without the secret sees only the request to sign in.
    const stranger = await open(url.split('#')[0]);
    await state(stranger, 'refused');
    assert.equal(await stranger.getByRole('article').count(), 0);
    const signIn = stranger.getByRole('dialog', { name: 'Sign in' });
    assert.ok(await signIn.getByText('tenure ui', { exact: true }).isVisible());
    assert.ok(await signIn.getByText('tenure server token').isHidden());
  },

  // Many elections: a table, with problems first.
  async many() {
    const page = await open(url);
    await state(page, 'live');
    const row = name => page.getByRole('row').filter({ has: page.getByRole('rowheader', { name }) });
    await row('z-expired').waitFor();
    assert.equal(await page.getByRole('article').count(), 0, 'a table for more than twelve');
    const names = await page.locator('tbody th .name').allTextContents();
    assert.deepEqual(names.slice(0, 4), ['z-expired', 'y-flapping', 'x-paused', 'e00'], 'problems first');
    assert.match(await page.locator('#summary').textContent(), /^17 elections · 1 without a leader · 1 flapping · 1 paused · 1 free$/);
    assert.equal(await page.title(), '(1) Tenure');
    // A free election is not an alarm.
    const colour = name => row(name).locator('.status').evaluate(e => getComputedStyle(e).color);
    assert.equal(await row('w-free').locator('.status').textContent(), 'free');
    assert.equal(await colour('w-free'), await colour('e00'));
    assert.notEqual(await colour('w-free'), await colour('z-expired'));
    // Terms without a release, and gaps without a leader.
    const line = row('y-flapping').locator('.line');
    // Five terms of the Events, and one before them, because the lock says that it was acquired ten minutes ago.
    assert.equal(await line.locator('.term').count(), 6);
    assert.ok(await line.locator('.gap').count() >= 2);
    assert.ok(await line.locator('.cut').count() >= 1);
    assert.match(await line.getAttribute('aria-label'), /last 15 min: 6 terms, \d leaderless gaps, \d crash/);
    const [gap, before] = await line.evaluate(e => {
      const gap = e.querySelector('.gap').getBoundingClientRect(), terms = [...e.querySelectorAll('.term')].map(t => t.getBoundingClientRect());
      return [gap.width, Math.max(...terms.filter(t => t.left < gap.left).map(t => t.right - gap.left))];
    });
    assert.ok(gap >= 4 && before < 1, `a gap is free of terms: ${gap} px, ${before} px`);
    // One range and one legend for all.
    assert.equal(await page.getByRole('list', { name: 'Legend of the timelines' }).count(), 1);
    assert.match(await page.getByRole('list', { name: 'Legend of the timelines' }).textContent(), /no leader.*crashed or cut off.*no record/);
    assert.equal(await page.locator('#since').textContent(), '15 min ago');
    const width = name => row(name).locator('.line').evaluate(e => e.querySelector('.term').getBoundingClientRect().width / e.getBoundingClientRect().width);
    const wide = await width('e00');
    await page.getByLabel('Timelines', { exact: true }).selectOption('last hour');
    assert.equal(await page.locator('#since').textContent(), '1 h ago');
    assert.ok(Math.abs(wide / 4 - await width('e00')) < .03, 'the same term is a quarter as wide');
    await looks(page, 'table');
    // The user switches to cards and back. The choice survives a reload.
    await page.getByRole('button', { name: 'Cards' }).click();
    await card(page, 'default/z-expired').waitFor();
    assert.equal(await page.getByRole('article').count(), 17);
    assert.equal(await page.getByRole('button', { name: 'Cards' }).getAttribute('aria-pressed'), 'true');
    assert.deepEqual(new Set(await page.locator('article .scale span:first-child').allTextContents()), new Set(['1 h ago']));
    await looks(page, 'cards');
    await page.reload();
    await card(page, 'default/e00').waitFor();
    await page.getByRole('button', { name: 'Table' }).click();
    await row('e00').waitFor();
    // A filter does not change the view.
    const fresh = await open(url);
    await fresh.getByRole('rowheader', { name: 'e00' }).waitFor();
    await fresh.getByRole('searchbox').fill('e00');
    await fresh.waitForFunction(() => document.querySelectorAll('tbody tr').length === 1);
    await fresh.getByRole('searchbox').fill('');
    say('table');
    // The test has deleted some elections. A small number of elections is shown as cards.
    await fresh.getByRole('article').first().waitFor();
    assert.deepEqual(errors, []);
  },

  // `tenure elect --http`: all users can read and none can give orders. The feed breaks and reconnects.
  async sidecar() {
    const page = await open(url), web = 'default/web';
    await state(page, 'live');
    const first = await leader(page, web);
    await menuButton(page, web).click();
    assert.equal(await stepDownItem(page).getAttribute('aria-disabled'), 'true');
    assert.match(await stepDownItem(page).textContent(), /This sidecar runs without --step-down-token-file/);
    await stepDownItem(page).click({ force: true });
    assert.equal(await page.getByRole('dialog').count(), 0);
    await page.keyboard.press('Escape');
    assert.ok(await page.getByRole('button', { name: 'Sign in' }).isHidden(), 'no token helps here');
    assert.deepEqual(errors, []);
    say('shown ' + first);
    await state(page, 'stale');
    assert.equal(await holder(page, web).textContent(), first, 'what was known stays');
    assert.ok(await page.evaluate(() => document.body.classList.contains('stale')));
    say('stale');
    await state(page, 'live');
    say('shown ' + await leader(page, web, first));
    assert.ok(await page.evaluate(() => window.same), 'no reload');
  },

  // `tenure server`: the permissions of the signed-in user apply.
  async server() {
    const page = await open(url), web = 'default/web';
    await state(page, 'refused');
    const signIn = page.getByRole('dialog', { name: 'Sign in' });
    assert.ok(await signIn.getByText('tenure server token', { exact: true }).isVisible());
    assert.ok(await signIn.getByText('kubectl create token NAME', { exact: true }).isVisible());
    await audited(page, 'signing in');
    await picture(page, 'sign-in');
    await page.getByLabel('Token').fill('wrong');
    await signIn.getByRole('button', { name: 'Sign in' }).click();
    await signIn.getByText('The server rejected this token').waitFor();
    await page.getByLabel('Token').fill('s3cret');
    await page.keyboard.press('Enter');
    await state(page, 'live');
    say('shown ' + await leader(page, web));
    await menuButton(page, web).click();
    assert.equal(await stepDownItem(page).getAttribute('aria-disabled'), 'false');
    await page.keyboard.press('Escape');
    await page.getByRole('button', { name: 'Sign out' }).click();
    await state(page, 'refused');
    assert.equal(await page.getByRole('article').count(), 0);
  },
};

try {
  await scenarios[scenario]();
  say('done');
} catch (error) {
  console.error(error, errors);
  process.exitCode = 1;
}
await browser.close();
