/** What a host's rounds come to, without a stop and cut off, and what its networks answer: under node, and in a page. */
export async function outcomesOf(host, cases) {
  const bytesOf = (text) => Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const base64 = (array) => {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  };
  const normalizationOf = ({ mean, std }) => ({ mean: Float32Array.from(mean), std: Float32Array.from(std) });
  const told = [];
  for (const { program: text, broadcast, x: inputs, y, client, round, rounds, scale, unusable } of cases) {
    const program = { sha256: text.slice(-64), file: bytesOf(text), rounds };
    const examples = { x: new Float32Array(bytesOf(inputs).buffer), y: Int32Array.from(y), scale: scale && normalizationOf(scale) };
    const job = {
      ...{ program, broadcast: bytesOf(broadcast), client: null, train: examples, holdout: examples },
      ...{ identity: { client, round }, saved: null, budgetMs: Infinity },
    };
    const saved = [];
    const going = new AbortController().signal;
    const keep = ({ saved: values, usedMs }) => void (values && saved.push({ saved: values, usedMs }));
    const whole = await host.train(job, keep, going);
    const resumed = await host.train({ ...job, saved: saved[0] }, () => {}, going);
    const stopped = await host.train({ ...job, budgetMs: 0 }, () => {}, going);
    const blamed = [];
    for (const model of unusable) {
      const error = await host.train({ ...job, broadcast: bytesOf(model) }, () => {}, going).catch((error) => error);
      blamed.push([error.constructor.name, error.message]);
    }
    const channels = { mean: new Float32Array(6), std: new Float32Array(6).fill(1) };
    const input = Object.entries(channels).map(([name, data]) => [`input/${name}`, { shape: [6], data }]);
    const answers = (network) => host.logits(program, { ...network, ...Object.fromEntries(input) }, examples.x);
    const [logits, shared] = [await answers(whole.personal), whole.shared && (await answers(whole.shared))];
    told.push({
      upload: base64(whole.upload),
      blamed,
      same: base64(resumed.upload) === base64(whole.upload),
      stopped: [stopped.steps, stopped.stepsAsked],
      ...{ loss: whole.loss, steps: whole.steps, before: whole.before, after: whole.after },
      logits: base64(logits),
      shared: shared && base64(shared),
    });
  }
  return told;
}
