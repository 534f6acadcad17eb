// A server of one phone over real HTTP, which does what a test tells it to. The real one is in the pytest beside it.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { fingerprint, fromBase64, fromEd25519, sha256, textOf, toBase64, toSign, unwrap, utf8, wrap } from "../../../phone/app/protocol/signing.js";

export const FEDERATION = "walk";
export const DEVICE = "phone1";
export const INSTANCE = "0123456789abcdef0123456789abcdef";

export const PLAN = {
  labels: ["still", "walking"],
  task: { name: "classification" },
  model: { name: "har_cnn", options: {} },
  method: { name: "analytic" },
  training: { classes: 2, feature_dim: 3 },
  publication: { send_after_windows: 4 },
  rollout: { mode: "off" },
  data: { pipeline: {}, normalization: "none" },
};

/** What a plan without masks and noise promises of privacy. */
export const NOTHING = { mode: "off", min_devices: 0, min_colluding_share: 0, min_noise: 0, min_example_noise: 0, voucher: "" };

export class SmallServer {
  static async start() {
    const server = new SmallServer();
    server.keys = await crypto.subtle.generateKey("Ed25519", true, ["sign", "verify"]);
    server.publicKey = toBase64(new Uint8Array(await crypto.subtle.exportKey("raw", server.keys.publicKey)));
    server.token = `gwe_secret_${await fingerprint(server.publicKey)}`;
    server.http = createServer((request, response) => void server.answer(request, response));
    await new Promise((resolve) => server.http.listen(0, "127.0.0.1", resolve));
    server.url = `http://127.0.0.1:${server.http.address().port}`;
    return server;
  }

  constructor() {
    this.approved = true;
    this.promises = NOTHING;
    this.tokens = 0;
    this.serial = 1;
    this.said = {};
    this.retained = [];
    this.blobs = new Map();
    this.statuses = [];
    this.begun = [];
    this.chunks = new Map();
    this.accepted = [];
    this.heard = [];
    this.streams = new Set();
    /** What is answered instead, once for each: (path) => {status, body, headers} or null. */
    this.instead = [];
  }

  async stop() {
    this.http.closeAllConnections();
    await new Promise((resolve) => this.http.close(resolve));
  }

  get link() {
    const said = { server: this.url, federation: FEDERATION, device: DEVICE, token: this.token };
    return `gaitway-enrol:?${new URLSearchParams(said)}`;
  }

  async blob(bytes) {
    const name = await sha256(bytes);
    this.blobs.set(name, bytes);
    return { sha256: name, size: bytes.length, url: `/v1/blobs/${name}`, score: null };
  }

  async signed(kind, said, { key = this.keys.privateKey, device = kind === "announcement" ? "" : DEVICE } = {}) {
    return wrap(key, kind, FEDERATION, device, JSON.stringify(said));
  }

  announcement(changes = {}) {
    return {
      schema_version: 1,
      federation: FEDERATION,
      instance: INSTANCE,
      epoch: 1,
      serial: this.serial++,
      state: "waiting",
      round: 0,
      plan: PLAN,
      model: null,
      continuous: true,
      chunk_bytes: 1024,
      created: Date.now() / 1000,
      expires: Math.floor(Date.now() / 1000) + 3600,
      ...changes,
    };
  }

  /** Say it to all that listen, and first of all to who comes. */
  async retain(...messages) {
    this.retained = messages;
    for (const [kind, payload] of messages) this.send(kind, payload);
  }

  send(kind, payload) {
    for (const stream of this.streams) stream.write(event(kind, payload));
  }

  async announce(changes) {
    await this.retain(["announcement", await this.signed("announcement", this.announcement(changes))]);
  }

  /** What the phone has signed in a status. */
  async openRefusal(kind, text) {
    const { body, signature } = unwrap(utf8(text));
    const key = await fromEd25519(fromBase64(this.owner, 32));
    assert.ok(await crypto.subtle.verify("Ed25519", key, signature, toSign(kind, FEDERATION, DEVICE, body)));
    return JSON.parse(textOf(body));
  }

  async answer(request, response) {
    const parts = [];
    for await (const part of request) parts.push(part);
    const body = new Uint8Array(Buffer.concat(parts));
    const path = request.url.split("?")[0];
    this.heard.push({ path: request.url, method: request.method, body, authorization: request.headers.authorization });
    const other = (this.instead.length && this.instead[0](path)) || null;
    if (other) this.instead.shift();
    const { status = 204, body: said = "", headers = {} } = other ?? (await this.handle(path, body, response)) ?? {};
    if (status === "stream") return;
    if (status === "cut") return void request.socket.destroy();
    response.writeHead(status, headers);
    response.end(typeof said === "string" || said instanceof Uint8Array ? said : JSON.stringify(said));
  }

  async handle(path, body, response) {
    const credentials = { api_key: "gw_x", broker: { username: "u", password: "p" }, server_key: this.publicKey };
    const approval = { state: this.approved ? "approved" : "pending", device: DEVICE, promises: this.promises };
    if (path === "/v1/enrol") {
      const said = JSON.parse(new TextDecoder().decode(body));
      const again = this.owner === said.public_key;
      if (this.owner && !again) return { status: 409, body: { detail: "the name belongs to another key" } };
      this.owner = said.public_key;
      return { status: 201, body: { ...approval, credentials: this.approved && !again ? credentials : null } };
    }
    if (path === "/v1/enrol/claim") {
      return {
        status: this.approved ? 200 : 202,
        body: { ...approval, credentials: this.approved ? credentials : null },
      };
    }
    if (path === "/v1/enrol/token") return { status: 201, body: { token: `t${++this.tokens}`, expires_in_s: 900 } };
    if (path.startsWith("/v1/blobs/")) return { status: 200, body: this.blobs.get(path.slice(10)) ?? "" };
    const mine = `/v1/federations/${FEDERATION}/devices/${DEVICE}/`;
    if (!path.startsWith(mine)) return { status: 404 };
    const [what, updateId, step] = path.slice(mine.length).split("/");
    if (what === "messages") return this.follow(response);
    if (what === "status") return void this.statuses.push(JSON.parse(new TextDecoder().decode(body)));
    return this.update(updateId, step, path, body);
  }

  follow(response) {
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    response.write(": here\n\n");
    for (const [kind, payload] of this.retained) response.write(event(kind, payload));
    this.streams.add(response);
    response.on("close", () => this.streams.delete(response));
    return { status: "stream" };
  }

  async update(updateId, step, path, body) {
    if (step === "begin") {
      const manifest = JSON.parse(new TextDecoder().decode(unwrap(body).body));
      this.begun.push({ body, manifest });
      if (this.accepted.some((one) => one.updateId === updateId)) return this.acknowledge(updateId, "accepted");
      if (manifest.withdraw) {
        this.accepted.push({ updateId, manifest, bytes: null });
        return this.acknowledge(updateId, "accepted");
      }
      return this.acknowledge(updateId, "send", { next_chunk: 0 });
    }
    if (step === "chunk") return void this.chunks.set(Number(path.split("/").at(-1)), body);
    const { manifest } = this.begun.at(-1);
    const parts = [...this.chunks].sort(([one], [other]) => one - other).map(([, part]) => part);
    const bytes = new Uint8Array(Buffer.concat(parts));
    this.chunks.clear();
    if ((await sha256(bytes)) !== manifest.sha256) return this.acknowledge(updateId, "send", { next_chunk: 0 });
    if (!this.accepted.some((one) => one.updateId === updateId)) this.accepted.push({ updateId, manifest, bytes });
    return this.acknowledge(updateId, "accepted");
  }

  async acknowledge(updateId, status, more = {}) {
    const said = { schema_version: 1, update_id: updateId, nonce: this.begun.at(-1).manifest.nonce, status, ...more };
    return { status: 200, body: await this.signed("acknowledgement", said) };
  }
}

/** An event of a stream, as the server writes it. */
export function event(kind, payload, id = "") {
  const lines = new TextDecoder().decode(payload).split("\n");
  return `${id && `id: ${id}\n`}event: ${kind}\n${lines.map((line) => `data: ${line}\n`).join("")}\n`;
}

export { utf8 };
