// Sends a checkpoint as its bytes, and opens the form that continues from it.
"use strict";

const file = /** @type {HTMLInputElement} */ (document.getElementById("checkpoint-file"));
const words = /** @type {HTMLElement} */ (document.getElementById("upload-words"));

/** @param {string} text @param {boolean} isProblem */
function tell(text, isProblem) {
  words.textContent = text;
  words.classList.toggle("problem", isProblem);
}

/** @param {File} checkpoint */
async function upload(checkpoint) {
  tell(`${checkpoint.name} is sent and checked …`, false);
  const token = /** @type {HTMLMetaElement} */ (document.querySelector("meta[name=csrf]")).content;
  const headers = { "content-type": "application/octet-stream", "x-csrf-token": token };
  const answer = await fetch(file.dataset.upload ?? "", { method: "POST", body: checkpoint, headers });
  const said = await answer.json();
  if (answer.ok) location.assign(`${file.dataset.next}${said.sha256}`);
  else tell(said.detail, true);
}

file.addEventListener("change", () => {
  const chosen = file.files?.[0];
  if (chosen) upload(chosen).catch((error) => tell(`It could not be sent: ${error.message}`, true));
});
