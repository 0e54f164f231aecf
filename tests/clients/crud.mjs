// The JavaScript client as its users use it: typed calls, generic objects, a watch, an informer, errors.
//
// Usage: node crud.mjs KUBECONFIG CLIENT, where CLIENT is the file of @kubernetes/client-node to import.
// Exits with 0 if everything is as on a real cluster.

import assert from 'node:assert/strict';
import { pathToFileURL } from 'node:url';

const [kubeconfig, library] = process.argv.slice(2);
const k8s = await import(pathToFileURL(library));
const namespace = 'node';

const config = new k8s.KubeConfig();
config.loadFromFile(kubeconfig);
const core = config.makeApiClient(k8s.CoreV1Api);
const coordination = config.makeApiClient(k8s.CoordinationV1Api);
const objects = k8s.KubernetesObjectApi.makeApiClient(config);

async function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} took too long`)), 20_000);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function crud() {
  await core.createNamespace({ body: { metadata: { name: namespace } } });
  const body = { metadata: { name: 'a', labels: { app: 'x' } }, data: { k: '1' } };
  const made = await core.createNamespacedConfigMap({ namespace, body });
  assert.ok(made.metadata.uid);
  made.data.k = '2';
  const replaced = await core.replaceNamespacedConfigMap({ name: 'a', namespace, body: made });
  assert.equal(replaced.data.k, '2');
  const list = await core.listNamespacedConfigMap({ namespace, labelSelector: 'app=x' });
  assert.deepEqual(list.items.map((item) => item.metadata.name), ['a']);
  await core.deleteNamespacedConfigMap({ name: 'a', namespace });
}

async function genericObjects() {
  const lease = {
    apiVersion: 'coordination.k8s.io/v1',
    kind: 'Lease',
    metadata: { name: 'l', namespace },
    spec: { holderIdentity: 'me', leaseDurationSeconds: 15 },
  };
  await objects.create(lease);
  await objects.patch({ ...lease, spec: { holderIdentity: 'you' } });
  const read = await coordination.readNamespacedLease({ name: 'l', namespace });
  assert.deepEqual([read.spec.holderIdentity, read.spec.leaseDurationSeconds], ['you', 15]);
  await objects.delete(lease);
}

async function informer() {
  const list = () => core.listNamespacedConfigMap({ namespace });
  const path = `/api/v1/namespaces/${namespace}/configmaps`;
  const watched = k8s.makeInformer(config, path, list);
  const seen = [];
  const deleted = new Promise((resolve, reject) => {
    watched.on('add', (object) => seen.push(['add', object.metadata.name]));
    watched.on('update', (object) => seen.push(['update', object.data.x]));
    watched.on('delete', (object) => resolve(seen.push(['delete', object.metadata.name])));
    watched.on('error', reject);
  });
  await core.createNamespacedConfigMap({ namespace, body: { metadata: { name: 'before' } } });
  await watched.start();
  const body = { metadata: { name: 'w' } };
  const made = await core.createNamespacedConfigMap({ namespace, body });
  await core.replaceNamespacedConfigMap({ name: 'w', namespace, body: { ...made, data: { x: 'y' } } });
  await core.deleteNamespacedConfigMap({ name: 'w', namespace });
  await within(deleted, 'the informer');
  await watched.stop();
  const own = seen.filter(([, name]) => name !== 'kube-root-ca.crt');
  assert.deepEqual(own, [['add', 'before'], ['add', 'w'], ['update', 'y'], ['delete', 'w']]);
}

async function errors() {
  await assert.rejects(core.readNamespacedConfigMap({ name: 'none', namespace }), { code: 404 });
  const body = { metadata: { name: 'before' } };
  await assert.rejects(core.createNamespacedConfigMap({ namespace, body }), { code: 409 });
}

await crud();
await genericObjects();
await informer();
await errors();
await core.deleteNamespace({ name: namespace });
// The client keeps its connections open.
process.exit(0);
