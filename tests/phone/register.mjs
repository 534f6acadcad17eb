// node --import: modules of the app import "../recognizer/windows.js" as a browser does, where export/web is served so.
import { register } from "node:module";

register("./recognizer_paths.mjs", import.meta.url);
