/**
 * What the phone keeps, in IndexedDB: small state by keys, and windows. A window's marks (when, label, session) and its
 * samples lie apart, so that counting and labelling a day reads kilobytes. Each call is one transaction.
 */

import { asCounted, PERSONAL } from "../teaching/personal_activities.js";
import { WINDOW_MS } from "./motion.js";

const NAME = "gaitway-phone";
/** Windows that are kept: about seven hours, 65 MB. The oldest without a label make room, then the oldest. */
export const MAX_WINDOWS = 20_000;

/** What each version of the database adds to the one before; a step is never changed once it was released. */
const MIGRATIONS = [
  (/** @type {IDBDatabase} */ database) => {
    database.createObjectStore("state");
    database.createObjectStore("marks", { keyPath: "id", autoIncrement: true }).createIndex("startMs", "startMs");
    database.createObjectStore("samples");
  },
];

/** What the person reads. */
export class StoreError extends Error {}

/**
 * @typedef {import("../types.js").StoredWindow} StoredWindow
 * @typedef {{id: number, startMs: number, label: string | null, session: string}} Mark
 * @typedef {"added" | "labelled" | "deleted" | "replaced"} Change of windows; replaced: some came, the oldest had to go
 */

export class Store {
  /** @param {IDBDatabase} database @param {number} [maxWindows] */
  constructor(database, maxWindows = MAX_WINDOWS) {
    this.database = database;
    this.maxWindows = maxWindows;
    /** @type {Set<(change: Change) => void>} Called after windows or labels have changed, here or in another tab. */
    this.watchers = new Set();
    /** What was read before: while it is recorded, what is new alone is read. */
    this.known = { marks: /** @type {Mark[]} */ ([]), samples: /** @type {Map<number, Float32Array>} */ (new Map()) };
    this.newest = { mark: 0, sample: 0 };
    this.stale = false; // labels have changed since, or windows have gone
    /** @type {Promise<unknown>} */ this.reading = Promise.resolve();
    database.onversionchange = () => database.close();
    this.tabs = new BroadcastChannel(database.name);
    this.tabs.onmessage = ({ data }) => this.notifyWatchers(data);
  }

  /**
   * Open the database, and bring it to this version.
   * @param {string} [name] @param {number} [maxWindows] @returns {Promise<Store>}
   */
  static open(name = NAME, maxWindows = MAX_WINDOWS) {
    if (!globalThis.indexedDB) throw new StoreError("This browser keeps nothing for pages; leave private browsing.");
    return new Promise((resolve, reject) => {
      const request = indexedDB.open(name, MIGRATIONS.length);
      request.onupgradeneeded = ({ oldVersion }) => MIGRATIONS.slice(oldVersion).forEach((step) => step(request.result));
      request.onsuccess = () => resolve(new Store(request.result, maxWindows));
      request.onblocked = () =>
        reject(new StoreError("Another tab holds an older version of this app: close it, and reload."));
      request.onerror = () => reject(storeErrorOf(request.error));
    });
  }

  /** @param {string} key @returns {Promise<any>} undefined where nothing is kept */
  get(key) {
    return this.run(["state"], "readonly", ({ state }) => state.get(key));
  }

  /** @param {string} key @param {unknown} value structured-cloneable */
  set(key, value) {
    return this.setAll({ [key]: value });
  }

  /** All or none of them. @param {Record<string, unknown>} values */
  setAll(values) {
    return this.run(["state"], "readwrite", ({ state }) => {
      for (const [key, value] of Object.entries(values)) state.put(value, key);
    });
  }

  /** @param {string} key */
  remove(key) {
    return this.run(["state"], "readwrite", ({ state }) => void state.delete(key));
  }

  /** @param {StoredWindow[]} windows */
  async addWindows(windows) {
    if (!windows.length) return;
    await this.run(["marks", "samples"], "readwrite", ({ marks, samples }) => {
      for (const { x, startMs, label, session } of windows) {
        const put = marks.add({ startMs, label, session });
        put.onsuccess = () => samples.put(x, put.result);
      }
    });
    const hasMadeRoom = await this.makeRoom();
    this.changed(hasMadeRoom ? "replaced" : "added");
  }

  /**
   * All windows with their samples, by time, as they count for a federation; nobody writes into them.
   * @returns {Promise<StoredWindow[]>}
   */
  async windows() {
    const { marks, samples } = await this.inTurn(() => this.readOn(true));
    const windows = marks.flatMap((mark) => {
      const x = samples.get(mark.id);
      return x ? [{ ...mark, x }] : [];
    });
    return asCounted(windows, (await this.get(PERSONAL)) ?? []);
  }

  /** All windows without their samples, by time; nobody writes into them. @returns {Promise<Mark[]>} */
  async marks() {
    return (await this.inTurn(() => this.readOn(false))).marks;
  }

  /** Whether all of some windows are there still, on the disk. @param {Iterable<number>} ids */
  async has(ids) {
    const there = new Set(await this.run(["marks"], "readonly", ({ marks }) => marks.getAllKeys()));
    for (const id of ids) if (!there.has(id)) return false;
    return true;
  }

  /** One reading after the other. @template T @param {() => Promise<T>} work @returns {Promise<T>} */
  inTurn(work) {
    const done = this.reading.then(work);
    this.reading = done.catch(() => {});
    return done;
  }

  /** Read what is not known yet; ids only ever rise. @param {boolean} withSamples */
  async readOn(withSamples) {
    const { stale, newest } = this;
    this.stale = false;
    try {
      const after = (/** @type {number} */ id) => IDBKeyRange.lowerBound(id, true);
      const [marks, keys, samples] = await this.run(["marks", "samples"], "readonly", (stores) => [
        stores.marks.getAll(stale ? null : after(newest.mark)),
        ...(withSamples ? [stores.samples.getAllKeys(after(newest.sample)), stores.samples.getAll(after(newest.sample))] : []),
      ]);
      this.newest = { mark: marks[marks.length - 1]?.id ?? newest.mark, sample: keys?.[keys.length - 1] ?? newest.sample };
      if (stale || marks.length) this.known.marks = byTime([...(stale ? [] : this.known.marks), ...marks]);
      keys?.forEach((/** @type {number} */ id, /** @type {number} */ i) => this.known.samples.set(id, samples[i]));
      if (stale) this.forget();
    } catch (error) {
      this.stale ||= stale;
      throw error;
    }
    return this.known;
  }

  /** Samples of windows that have gone go too. */
  forget() {
    const there = new Set(this.known.marks.map(({ id }) => id));
    for (const id of this.known.samples.keys()) if (!there.has(id)) this.known.samples.delete(id);
  }

  /**
   * Say what was done in a stretch; a window counts by its middle, as har_pipeline takes the label of most samples.
   * @param {number} fromMs @param {number} toMs @param {string | null} label @returns {Promise<number>} windows
   */
  async label(fromMs, toMs, label) {
    const begins = [fromMs - WINDOW_MS / 2, toMs - WINDOW_MS / 2];
    if (!(fromMs < toMs)) return 0;
    const range = IDBKeyRange.bound(begins[0], begins[1], false, true);
    return this.changeMarks("labelled", range, (cursor) => void cursor.update({ ...cursor.value, label }));
  }

  /**
   * Delete every window that reaches into a stretch.
   * @param {number} fromMs @param {number} toMs @returns {Promise<number>} windows
   */
  async deleteWindows(fromMs, toMs) {
    if (!(fromMs < toMs)) return 0;
    return this.changeMarks("deleted", IDBKeyRange.bound(fromMs - WINDOW_MS, toMs, true, true), (cursor, samples) => {
      samples.delete(cursor.primaryKey);
      cursor.delete();
    });
  }

  /** Delete everything: windows and state. */
  async clear() {
    await this.run(["state", "marks", "samples"], "readwrite", ({ state, marks, samples }) => {
      for (const store of [state, marks, samples]) store.clear();
    });
    this.changed("deleted");
  }

  /**
   * @param {Change} kind @param {IDBKeyRange} begins of the windows
   * @param {(cursor: IDBCursorWithValue, samples: IDBObjectStore) => void} change
   */
  async changeMarks(kind, begins, change) {
    let count = 0;
    await this.run(["marks", "samples"], "readwrite", ({ marks, samples }) => {
      const walk = marks.index("startMs").openCursor(begins);
      walk.onsuccess = () => {
        const cursor = walk.result;
        if (!cursor) return;
        change(cursor, samples);
        count++;
        cursor.continue();
      };
    });
    this.changed(kind);
    return count;
  }

  /** Let the oldest windows go where there are too many. @returns {Promise<boolean>} whether there were */
  async makeRoom() {
    const count = await this.run(["marks"], "readonly", ({ marks }) => marks.count());
    if (count <= this.maxWindows) return false;
    const marks = await this.marks();
    const oldest = [...marks.filter((each) => each.label === null), ...marks.filter((each) => each.label !== null)];
    await this.run(["marks", "samples"], "readwrite", (stores) => {
      for (const { id } of oldest.slice(0, count - this.maxWindows)) {
        stores.marks.delete(id);
        stores.samples.delete(id);
      }
    });
    return true;
  }

  /** @param {Change} change */
  changed(change) {
    this.notifyWatchers(change);
    this.tabs.postMessage(change);
  }

  /** @param {Change} change */
  notifyWatchers(change) {
    if (change !== "added") this.stale = true;
    for (const watcher of this.watchers) watcher(change);
  }

  /**
   * Run one transaction; resolve with the result of the request, or of all of a list, once it is on the disk.
   * @param {string[]} names @param {IDBTransactionMode} mode
   * @param {(stores: Record<string, IDBObjectStore>) => any} work @returns {Promise<any>}
   */
  run(names, mode, work) {
    return new Promise((resolve, reject) => {
      /** @type {IDBTransaction | undefined} */
      let transaction;
      try {
        transaction = this.database.transaction(names, mode, { durability: "strict" });
        const stores = names.map((name) => [name, /** @type {IDBTransaction} */ (transaction).objectStore(name)]);
        const found = work(Object.fromEntries(stores));
        transaction.oncomplete = () => resolve(Array.isArray(found) ? found.map((each) => each.result) : found?.result);
        transaction.onabort = () => reject(storeErrorOf(transaction?.error ?? null));
      } catch (error) {
        transaction?.abort(); // what was asked before would be written
        reject(storeErrorOf(/** @type {DOMException} */ (error)));
      }
    });
  }
}

/** Ask the browser not to delete what is kept when space is short. @returns {Promise<boolean>} whether it will not */
export async function askToPersist() {
  const storage = globalThis.navigator?.storage;
  if (!storage?.persist) return false;
  return (await storage.persisted()) || (await storage.persist());
}

/** @param {Mark[]} marks @returns {Mark[]} */
function byTime(marks) {
  return marks.sort((one, other) => one.startMs - other.startMs || one.id - other.id);
}

/** @param {DOMException | null} error */
function storeErrorOf(error) {
  if (error?.name === "QuotaExceededError") {
    return new StoreError(
      "The phone's storage for this site is full: delete a stretch of data, or make room on the phone.",
    );
  }
  if (error?.name === "VersionError") {
    return new StoreError("A newer version of this app has used this phone's data: close all its tabs, and reload.");
  }
  if (error?.name === "InvalidStateError") {
    return new StoreError("The app was updated in another tab: reload this page.");
  }
  return new StoreError(
    `What the phone keeps could not be read or written: ${error?.message ?? "no reason was given"}.`,
  );
}
