// The page in a real browser. Says on standard output what it sees; the test acts on that.
//   node page.mjs SCENARIO URL PLAYWRIGHT [SCREENSHOTS]
import { createRequire } from 'node:module';
import assert from 'node:assert/strict';

const [scenario, url, library, pictures] = process.argv.slice(2);
const { chromium } = createRequire(import.meta.url)(library);
const say = text => console.log(text);
const LIMIT = 40_000;

const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
const errors = [];

async function open(address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 760 }, ignoreHTTPSErrors: true, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(LIMIT);
  page.on('console', message => { if (message.type() === 'error') errors.push(message.text()); });
  page.on('pageerror', error => errors.push(String(error)));
  await page.goto(address);
  // Gone after a reload.
  await page.evaluate(() => { window.same = true; });
  return page;
}

const card = (page, election) => page.getByRole('article', { name: election });
const holder = (page, election) => card(page, election).locator('.holder');

/** Waits for somebody else than `before`, and returns who it is. */
async function leader(page, election, before = '') {
  await page.waitForFunction(([name, before]) => {
    const cards = [...document.querySelectorAll('article')];
    const own = cards.find(card => card.querySelector('h2').textContent === name);
    const holder = own && own.querySelector('.holder').textContent;
    return holder && holder !== 'nobody' && holder !== before;
  }, [election, before], { timeout: LIMIT });
  return holder(page, election).textContent();
}

async function state(page, wanted) {
  await page.waitForFunction(wanted => document.getElementById('state').dataset.state === wanted, wanted, { timeout: LIMIT });
}

async function picture(page, name) {
  if (pictures) await page.screenshot({ path: `${pictures}/${name}.png` });
}

/** What everybody needs who does not see, or has no mouse. */
async function accessible(page, election) {
  assert.equal(await page.getAttribute('html', 'lang'), 'en');
  assert.equal(await page.getByRole('heading', { level: 1 }).count(), 1);
  assert.equal(await page.getByRole('main').count(), 1);
  assert.ok(await page.getByRole('searchbox', { name: /filter/i }).isVisible());
  assert.ok(await page.getByRole('status').count() >= 1);
  assert.equal(await page.getByRole('log', { name: /changes of leaders/i }).getAttribute('aria-live'), 'polite');
  const own = card(page, election);
  assert.ok(await own.getByRole('heading', { level: 2 }).isVisible());
  assert.match(await own.getByRole('img').first().getAttribute('aria-label'), /seconds left|run out/);
  assert.match(await own.getByRole('img').nth(1).getAttribute('aria-label'), /timeline/i);
  for (const button of await page.getByRole('button').all()) {
    const name = await button.evaluate(b => b.getAttribute('aria-label') || b.textContent);
    assert.ok(name.trim(), 'every button has a name');
  }
  await page.evaluate(() => document.activeElement.blur());
  const order = [];
  for (let i = 0; i < 5; i++) {
    await page.keyboard.press('Tab');
    order.push(await page.evaluate(() => document.activeElement.id || document.activeElement.tagName + '.' + document.activeElement.className));
  }
  assert.deepEqual(order, ['A.skip', 'filter', 'credential', 'SUMMARY.', 'BUTTON.button']);
}

async function narrow(page, width) {
  await page.setViewportSize({ width, height: 720 });
  const [wide, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(wide <= window, `scrolls sideways at ${width}: ${wide} > ${window}`);
}

const scenarios = {
  // `tenure ui`, opened with its secret: kill the leader, step the next one down.
  async ui() {
    const page = await open(url);
    assert.ok(!page.url().includes('token'), 'the secret leaves the address');
    await state(page, 'live');
    const first = await leader(page, 'default/web');
    say('shown ' + first);
    const second = await leader(page, 'default/web', first);
    assert.ok(await page.evaluate(() => window.same), 'no reload');
    assert.match(await page.getByRole('log').textContent(), new RegExp(`web: ${second} leads now`));
    say('shown ' + second);
    await accessible(page, 'default/web');
    const button = card(page, 'default/web').getByRole('button', { name: `Step down ${second} from web` });
    await button.press('Enter');
    const dialog = page.getByRole('dialog', { name: `Ask ${second} to step down?` });
    assert.ok(await dialog.isVisible());
    await picture(page, 'dialog');
    await page.keyboard.press('Escape');
    assert.ok(await button.evaluate(b => b === document.activeElement), 'the focus comes back');
    await button.click();
    await dialog.getByRole('button', { name: 'Step down' }).click();
    const third = await leader(page, 'default/web', second);
    assert.ok(await page.evaluate(() => window.same), 'no reload');
    say('shown ' + third);
    await card(page, 'default/web').locator('summary').click();
    await page.locator('.terms').getByText('an operator ordered it to step down').waitFor();
    await picture(page, 'desktop');
    await narrow(page, 375);
    await picture(page, 'phone');
    await narrow(page, 320);
    await page.setViewportSize({ width: 1200, height: 760 });
    await page.emulateMedia({ colorScheme: 'dark', reducedMotion: 'reduce' });
    await picture(page, 'dark');
    await page.getByRole('searchbox').fill('nothing like it');
    await page.getByText('No election matches the filter.').waitFor();
    assert.deepEqual(errors, []);
    // A stranger sees nothing but the question for a credential.
    const stranger = await open(url.split('#')[0]);
    await state(stranger, 'refused');
    assert.equal(await stranger.getByRole('article').count(), 0);
    assert.ok(await stranger.getByRole('dialog', { name: 'Credential' }).isVisible());
  },

  // `tenure elect --http`: everybody may look, nobody may steer; the feed breaks and comes back.
  async sidecar() {
    const page = await open(url);
    await state(page, 'live');
    const first = await leader(page, 'default/web');
    const button = card(page, 'default/web').getByRole('button');
    assert.ok(await button.isDisabled());
    assert.match(await button.getAttribute('aria-label'), /not possible: this sidecar runs without --step-down-token-file/);
    assert.deepEqual(errors, []);
    say('shown ' + first);
    await state(page, 'stale');
    assert.equal(await holder(page, 'default/web').textContent(), first, 'what was known stays');
    assert.ok(await page.evaluate(() => document.body.classList.contains('stale')));
    say('stale');
    await state(page, 'live');
    say('shown ' + await leader(page, 'default/web', first));
    assert.ok(await page.evaluate(() => window.same), 'no reload');
  },

  // `tenure server`: who you are decides.
  async server() {
    const stranger = await open(url);
    await state(stranger, 'refused');
    await stranger.getByLabel('Token').fill('wrong');
    await stranger.getByRole('button', { name: 'Use it' }).click();
    await stranger.waitForTimeout(300);
    await state(stranger, 'refused');
    await stranger.getByLabel('Token').fill('s3cret');
    await stranger.keyboard.press('Enter');
    await state(stranger, 'live');
    say('shown ' + await leader(stranger, 'default/web'));
    const button = card(stranger, 'default/web').getByRole('button', { name: /^Step down me from web$/ });
    assert.ok(await button.isEnabled());
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
