// Where node finds phone/app/recognizer/…, which lies in export/web.
const SERVED = new URL("../../phone/app/recognizer/", import.meta.url).href;
const SOURCE = new URL("../../export/web/", import.meta.url).href;

export async function resolve(specifier, context, next) {
  const base = context.parentURL ?? import.meta.url;
  const url = /^\.{1,2}\/|^file:/.test(specifier) ? new URL(specifier, base).href : specifier;
  const found = url.startsWith(SERVED) ? SOURCE + url.slice(SERVED.length) : url;
  if (!found.startsWith(SOURCE)) return next(specifier, context);
  return { ...(await next(found, context)), format: "module" }; // no package.json there says so
}
