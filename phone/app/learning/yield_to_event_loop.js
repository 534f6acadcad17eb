/**
 * Let the page draw and take input before long work goes on. Not by a timer, which a browser slows down to one call a
 * second while the page is hidden.
 * @returns {Promise<void>}
 */
export function yieldToEventLoop() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
