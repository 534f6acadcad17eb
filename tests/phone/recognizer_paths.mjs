// Where node finds phone/app/recognizer/…, which lies in export/web, and phone/app/views/…, which lies in gaitway/views.
const at = (path) => new URL(`../../${path}`, import.meta.url).href;
const SOURCES = [
  [at("phone/app/recognizer/"), at("export/web/")],
  [at("phone/app/views/"), at("gaitway/views/")],
];

export async function resolve(specifier, context, next) {
  const base = context.parentURL ?? import.meta.url;
  const url = /^\.{1,2}\/|^file:/.test(specifier) ? new URL(specifier, base).href : specifier;
  const served = SOURCES.find(([folder]) => url.startsWith(folder));
  const found = served ? served[1] + url.slice(served[0].length) : url;
  if (!SOURCES.some(([, folder]) => found.startsWith(folder))) return next(specifier, context);
  return { ...(await next(found, context)), format: "module" }; // no package.json there says so
}
