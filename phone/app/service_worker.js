/**
 * Keeps the app on the phone. The server writes into this file which version it is and what belongs to it; all of it is
 * fetched from that version's folder before this worker takes over, so a page never gets files of two versions.
 */

const VERSION = "__VERSION__";
/** @type {Record<string, string>} The sha256 of each file, by its path. */
const FILES = "__FILES__";
/** Where the page is: /phone/, or that below the path of a proxy. */
const PAGE = new URL(".", self.location).pathname;
const FOLDER = `${PAGE}${VERSION}/`;
const SHELL = `gaitway-phone-${VERSION}`;
/** ONNX Runtime, by its bytes: kept over versions, and fetched only when a model is used. */
const RUNTIME = "gaitway-phone-runtime";

const isRuntime = (name) => name.startsWith("vendor/");
const keyOf = (name) => `${PAGE}runtime/${FILES[name]}`;

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
self.addEventListener("message", ({ data }) => data === "take over" && self.skipWaiting());
self.addEventListener("fetch", (event) => {
  const { origin, pathname } = new URL(event.request.url);
  if (event.request.method !== "GET" || origin !== self.location.origin) return;
  if (pathname === PAGE) event.respondWith(answer(SHELL, PAGE, event.request));
  else if (pathname.startsWith(FOLDER)) {
    const name = pathname.slice(FOLDER.length);
    if (!(name in FILES)) return;
    event.respondWith(
      isRuntime(name) ? answer(RUNTIME, keyOf(name), event.request) : answer(SHELL, pathname, event.request),
    );
  }
});

async function install() {
  const shell = await caches.open(SHELL);
  const names = Object.keys(FILES).filter((name) => !isRuntime(name));
  const page = await fetch(PAGE, { cache: "no-store" });
  if (!page.ok || !(await page.clone().text()).includes(`/${VERSION}/main.js`))
    throw new Error("the server has another version by now");
  await shell.addAll(names.map((name) => FOLDER + name));
  await shell.put(PAGE, page);
}

async function activate() {
  for (const name of await caches.keys()) {
    if (name.startsWith("gaitway-phone-") && name !== SHELL && name !== RUNTIME) await caches.delete(name);
  }
  const runtime = await caches.open(RUNTIME);
  const wanted = new Set(Object.keys(FILES).filter(isRuntime).map(keyOf));
  for (const { url } of await runtime.keys()) if (!wanted.has(new URL(url).pathname)) await runtime.delete(url);
  await self.clients.claim();
}

/** Answer from a cache, or from the server, whose good answer is kept. */
async function answer(cache, key, request) {
  const store = await caches.open(cache);
  const kept = await store.match(key);
  if (kept) return kept;
  const found = await fetch(request);
  if (found.ok && found.status === 200) await store.put(key, found.clone());
  return found;
}
