/** A small chart on canvas: lines of samples. No library: it draws once a second. */

/** @param {string} name @returns {string} a colour of the style sheet */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** @param {HTMLCanvasElement} canvas @returns {{ctx: CanvasRenderingContext2D, w: number, h: number}} */
function cleared(canvas) {
  const scale = window.devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
  canvas.width = w * scale;
  canvas.height = h * scale;
  const ctx = canvas.getContext("2d");
  if (!ctx) throw new Error("this browser draws on no canvas");
  ctx.scale(scale, scale);
  ctx.font = "11px system-ui, sans-serif";
  return { ctx, w, h };
}

const LEFT = 42;

/** Write an axis: a line and its number for each value.
 * @param {CanvasRenderingContext2D} ctx @param {number} w @param {[number, string][]} values
 * @param {(value: number) => number} y */
function rules(ctx, w, values, y) {
  ctx.fillStyle = colour("--quiet");
  ctx.strokeStyle = colour("--line");
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  for (const [value, text] of values) {
    ctx.beginPath();
    ctx.moveTo(LEFT, y(value));
    ctx.lineTo(w, y(value));
    ctx.stroke();
    ctx.fillText(text, LEFT - 4, y(value));
  }
}

/** Draw columns of samples (n rows) as lines on one scale.
 * @param {HTMLCanvasElement} canvas @param {number[][]} rows @param {number[]} columns */
export function drawLines(canvas, rows, columns) {
  const { ctx, w, h } = cleared(canvas);
  if (!rows.length) return;
  const all = rows.flatMap((row) => columns.map((c) => row[c]));
  let low = Math.min(...all), high = Math.max(...all);
  if (high - low < 1) [low, high] = [(low + high) / 2 - 0.5, (low + high) / 2 + 0.5];
  /** @param {number} v */
  const y = (v) => h - 8 - ((v - low) / (high - low)) * (h - 16);
  rules(ctx, w, [[low, low.toFixed(1)], [(low + high) / 2, ((low + high) / 2).toFixed(1)], [high, high.toFixed(1)]], y);
  ctx.lineWidth = 1.5;
  columns.forEach((column, i) => {
    ctx.strokeStyle = colour(`--c${i + 1}`);
    ctx.beginPath();
    rows.forEach((row, n) => ctx.lineTo(LEFT + (n / Math.max(1, rows.length - 1)) * (w - LEFT - 2), y(row[column])));
    ctx.stroke();
  });
}
