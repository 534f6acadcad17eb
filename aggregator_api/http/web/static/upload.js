// Sends a checkpoint as its bytes, says how much of it has gone, and opens the form that continues from it.
"use strict";

const file = /** @type {HTMLInputElement} */ (document.getElementById("checkpoint-file"));
const words = /** @type {HTMLElement} */ (document.getElementById("upload-words"));
const bar = /** @type {HTMLProgressElement} */ (document.getElementById("upload-bar"));

/** @param {string} text @param {boolean} isProblem */
function tell(text, isProblem) {
  if (words.textContent !== text) words.textContent = text;
  words.classList.toggle("problem", isProblem);
  file.disabled = bar.hidden = true;
}

/** @param {File} checkpoint */
function upload(checkpoint) {
  const token = /** @type {HTMLMetaElement} */ (document.querySelector("meta[name=csrf]")).content;
  const request = new XMLHttpRequest(); // fetch does not say how much has gone
  request.open("POST", file.dataset.upload ?? "");
  request.setRequestHeader("content-type", "application/octet-stream");
  request.setRequestHeader("x-csrf-token", token);
  request.responseType = "json";
  tell(`${checkpoint.name} is sent …`, false);
  request.upload.onprogress = ({ loaded, total }) => {
    bar.hidden = false;
    bar.value = loaded / total;
  };
  request.upload.onload = () => tell(`${checkpoint.name} has gone, and is checked …`, false);
  request.onload = () => {
    const { status, response } = request;
    if (status >= 200 && status < 300) location.assign(`${file.dataset.next}${response.sha256}`);
    else fail(response?.detail ?? `The server answered ${status}.`);
  };
  request.onerror = () => fail(`${checkpoint.name} could not be sent: the server is not reached, or ended the upload.`);
  request.send(checkpoint);
}

/** Another try may follow, also with the same file. @param {string} text */
function fail(text) {
  tell(text, true);
  file.disabled = false;
  file.value = "";
}

file.addEventListener("change", () => {
  const chosen = file.files?.[0];
  if (chosen) upload(chosen);
});
